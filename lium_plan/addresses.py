"""Addresses name resources for people: `fleet.trainers[0].bootstrap`. They never change with position.

Owns the grammar of addresses and of the patterns that `--target` and friends take (`*` only). Knows nothing of
what lies behind an address.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import lru_cache

NAME = r"[a-z][a-z0-9-]{0,31}"
MEMBER = r"(?:[a-z][a-z0-9-]{0,31}|[0-9]{1,9})"

_ADDRESS = re.compile(
    rf"(?P<head>volume|credential|template|fleet|task)\.(?P<name>{NAME})"
    rf"(?:\[(?P<member>{MEMBER})\](?:\.(?P<part>bootstrap))?)?"
)
_KINDS = {
    "volume": "volume",
    "credential": "credential",
    "template": "template",
    "fleet": "pod",
    "task": "task",
}
_MEMBERED = ("fleet", "task")


class AddressError(ValueError):
    """Text that is no address; the message says what is expected."""


@dataclass(frozen=True, slots=True, order=True)
class Address:
    """`head.name`, `head.name[member]` or `head.name[member].part`.

    Ordering is alphabetical by text but for numeric members, which sort as numbers.
    """

    sort_key: tuple[str, str, int, int, str, str]
    head: str = field(compare=False)
    name: str = field(compare=False)
    member: str | None = field(default=None, compare=False)
    part: str | None = field(default=None, compare=False)
    text: str = field(default="", compare=False, repr=False)

    @staticmethod
    def of(head: str, name: str, member: str | None = None, part: str | None = None) -> Address:
        return _address(head, name, member, part)

    @property
    def kind(self) -> str:
        """The kind of the resource here: volume credential template pod bootstrap task."""
        return self.part or _KINDS[self.head]

    @property
    def host(self) -> Address | None:
        """The pod that a bootstrap runs on; None for other kinds (a task's pod is in its spec)."""
        return Address.of(self.head, self.name, self.member) if self.part else None

    def __hash__(self) -> int:
        return hash(self.text)

    def __str__(self) -> str:
        return self.text


@lru_cache(maxsize=65536)
def _address(head: str, name: str, member: str | None, part: str | None) -> Address:
    """One object for one address, as long as it is used: tables of addresses find it without comparing."""
    number = int(member) if member is not None and member.isdigit() else -1
    rank = -1 if member is None else (0 if number >= 0 else 1)
    key = (head, name, rank, number, member or "", part or "")
    text = f"{head}.{name}" + ("" if member is None else f"[{member}]") + (f".{part}" if part else "")
    return Address(key, head, name, member, part, text)


@lru_cache(maxsize=65536)
def parse(text: str) -> Address:
    """The address written as `text`. Raises `AddressError`."""
    match = _ADDRESS.fullmatch(text)
    if match is None or (match["head"] in _MEMBERED) != (match["member"] is not None):
        raise AddressError(
            f"'{text}' is no address: expected volume.NAME, credential.NAME, template.NAME, fleet.NAME[MEMBER], "
            "fleet.NAME[MEMBER].bootstrap or task.NAME[MEMBER]"
        )
    return Address.of(match["head"], match["name"], match["member"], match["part"])


@dataclass(frozen=True, slots=True)
class Pattern:
    """What `--target` takes: an address, or a prefix of one, in which `*` stands for any characters.

    `fleet.x` matches all members with their bootstraps; `fleet.x[0]` includes its bootstrap.
    """

    text: str
    regex: re.Pattern[str]

    def matches(self, address: Address) -> bool:
        return self.regex.fullmatch(str(address)) is not None


def parse_pattern(text: str) -> Pattern:
    """Raises `AddressError` for an empty pattern or one with characters that no address has."""
    if not re.fullmatch(r"[a-z0-9.*\[\]-]+", text):
        raise AddressError(f"'{text}' is no address pattern: write an address such as fleet.trainers[0] or fleet.*")
    body = "".join(".*" if char == "*" else re.escape(char) for char in text)
    return Pattern(text, re.compile(body + r"(?:(?:\[[^\]]*\])?(?:\.bootstrap)?)?"))


def matches_any(patterns: Iterable[Pattern], address: Address) -> bool:
    return any(pattern.matches(address) for pattern in patterns)


_LISTED = 8


def suggestion(text: str, known: Iterable[Address]) -> str:
    """A hint for a pattern that matches nothing: what is near, else what there is of its head; empty for nothing.

    A pattern without a member is answered with names such as `fleet.trainers`, one with a member with addresses.
    """
    head, _, rest = text.partition(".")
    everything = sorted(known)
    alike = [address for address in everything if address.head == head] or everything
    whole = "[" in text or not rest
    names = list(dict.fromkeys(str(address) if whole else f"{address.head}.{address.name}" for address in alike))
    # Among those of one head, sharing the head makes nothing near.
    common = f"{head}." if all(name.startswith(f"{head}.") for name in names) else ""
    near = get_close_matches(text.removeprefix(common), [name.removeprefix(common) for name in names], 1)
    if near:
        return f"did you mean {common}{near[0]}?"
    more = f", and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
    return f"there are: {', '.join(names[:_LISTED])}{more}" if names else ""
