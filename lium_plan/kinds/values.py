"""What the values in a manifest mean: ranges, sizes, durations, speeds, money. Pure, and free of pydantic.

Owns the value types that blocks and specs share, and how each is read from what was written. Every `read_*` takes a
scalar as the YAML reader gives it (`str`, `int`, `PlainFloat`, `bool`, None) and raises `Fault` with
a sentence for the user. Refuses to guess: a number without its unit is one only where this module says so.

A field that wants a string gets exactly the text that was written, quoted or not (`0755`, `3.10`, `NO`, `true`);
a field that wants a number or a boolean gets one only when it is plainly one (`12`, `-3`, `2.50`, `true`, `false`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from functools import lru_cache
from typing import TypeVar

from lium_plan.expressions import PlainFloat as PlainFloat
from lium_plan.expressions import Text

MAX_NODES = 100_000
MAX_INT = 10**15
MAX_USD = 10**9
MAX_DIGITS = 18
"""Of a plain number, before and after the point; what has more is a text."""


class Fault(ValueError):
    """A value that can't stand where it stands; the message says what would."""


class SpotPolicy(StrEnum):
    ON_DEMAND = "on-demand"
    SPOT = "spot"
    AUTO = "auto"


class Placement(StrEnum):
    ANY = "any"
    SPREAD = "spread"
    PACK = "pack"


class ScaleDown(StrEnum):
    UNHEALTHY_FIRST = "unhealthy-first"
    NEWEST = "newest"
    OLDEST = "oldest"
    MOST_EXPENSIVE = "most-expensive"


class RunWhen(StrEnum):
    ONCE = "once"
    CHANGED = "changed"
    ALWAYS = "always"


class OnFailure(StrEnum):
    KEEP = "keep"
    DELETE = "delete"


class Canary(StrEnum):
    NONE = "none"
    FIRST = "first"


class OnCompletion(StrEnum):
    KEEP = "keep"
    DESTROY_FLEET = "destroy-fleet"


class RetryEvent(StrEnum):
    NO_CAPACITY = "no-capacity"
    INTERRUPTION = "interruption"


class WaitFor(StrEnum):
    STARTED = "started"
    COMPLETED = "completed"


class VariableType(StrEnum):
    STRING = "string"
    INTEGER = "integer"
    NUMBER = "number"
    BOOLEAN = "boolean"
    LIST = "list"
    MAP = "map"


@dataclass(frozen=True, slots=True)
class Range:
    """Both ends included; None is no bound. Units are those of the field: whole units, or GiB."""

    minimum: Decimal | None
    maximum: Decimal | None

    def contains(self, value: Decimal) -> bool:
        return (self.minimum is None or value >= self.minimum) and (self.maximum is None or value <= self.maximum)

    def __str__(self) -> str:
        low = "" if self.minimum is None else format(self.minimum.normalize(), "f")
        high = "" if self.maximum is None else format(self.maximum.normalize(), "f")
        return low if low == high else f"{low}..{high}"


@dataclass(frozen=True, slots=True)
class Nodes:
    """How many members: `names` when they are listed, else a count (`minimum` = `maximum` for a plain number)."""

    minimum: int
    maximum: int
    names: tuple[str, ...] | None = None

    def members(self) -> tuple[str, ...]:
        """The members as far as the manifest alone says: the names, or "0" up to `maximum` - 1."""
        return self.names if self.names is not None else _numbered(self.maximum)

    def has(self, member: str) -> bool:
        if self.names is not None:
            return member in _as_set(self.names)
        return bool(_NUMBER.fullmatch(member)) and int(member) < self.maximum


_NUMBER = re.compile(r"0|[1-9][0-9]{0,8}")


@lru_cache(maxsize=64)
def _numbered(count: int) -> tuple[str, ...]:
    return tuple(str(number) for number in range(count))


@lru_cache(maxsize=64)
def _as_set(names: tuple[str, ...]) -> frozenset[str]:
    return frozenset(names)


def shown(value: object) -> str:
    """A value for a message: quoted, short, and with nothing invisible in it."""
    if isinstance(value, Text):
        return f"'{printable(value.source)}'"
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, list | tuple):
        return "a list"
    text = scalar_text(value) or ""
    text = text if len(text) <= 60 else text[:57] + "..."
    return f"'{printable(text)}'"


def printable(text: str) -> str:
    """The text with everything that can't be seen, or steers a terminal, as an escape."""
    return text if text.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def scalar_text(value: object) -> str | None:
    """The text of a scalar exactly as written; None for what is no scalar (null, lists, maps)."""
    if isinstance(value, str):
        if "\0" in value:
            raise Fault(f"'{printable(value)}': a NUL byte can't be part of a name, a path, a command or a variable")
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, PlainFloat):
        return value.text
    if isinstance(value, int | float):
        return str(value)
    return None


def refuse_text(value: object) -> None:
    """A typed field takes nothing deferred and nothing sensitive."""
    if not isinstance(value, Text):
        return
    if value.sensitive:
        raise Fault(f"{value.source}: a sensitive value can't stand here; pass it through `env:`")
    raise Fault(f"{value.source}: must be known beforehand, but is known only after apply")


def read_string(value: object) -> str:
    refuse_text(value)
    text = scalar_text(value)
    if text is None:
        raise Fault(f"expected a string, found {shown(value)}")
    return text


def read_text(value: object) -> Text:
    """A string that may be deferred or sensitive."""
    if isinstance(value, Text):
        if value.list_valued:
            raise Fault(f"{value.source}: a list where a string is meant: use join(', ', …)")
        return value
    text = scalar_text(value)
    if text is None:
        hint = _empty_hint(value)
        if isinstance(value, dict) and len(value) == 1:
            hint = ": quote the whole string, it has ': ' in it"
        raise Fault(f"expected a string, found {shown(value)}{hint}")
    return Text.of(text)


def _empty_hint(value: object) -> str:
    return ": write '' for an empty string, or quote it ('null', '~')" if value is None else ""


def read_boolean(value: object) -> bool:
    refuse_text(value)
    if not isinstance(value, bool):
        raise Fault(f"expected true or false, found {shown(value)}")
    return value


def read_integer(value: object, *, minimum: int = 0, maximum: int = MAX_INT) -> int:
    refuse_text(value)
    if isinstance(value, bool) or not isinstance(value, int):
        raise Fault(f"expected a whole number, found {shown(value)}{_number_hint(value)}")
    if not minimum <= value <= maximum:
        raise Fault(f"expected a whole number from {minimum} to {maximum}, found {value}")
    return value


def read_decimal(value: object) -> Decimal:
    refuse_text(value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise Fault(f"expected a number, found {shown(value)}{_number_hint(value)}")
    return Decimal(scalar_text(value) or "0")


def _number_hint(value: object) -> str:
    if not isinstance(value, str):
        return ""
    written = re.fullmatch(r"(-?)(0|[1-9][0-9]*)(?:\.([0-9]+))?", value)
    if written is not None:
        sign, whole, fraction = written.groups()
        # Unquoted, too, these are texts and no numbers (`manifest.source`).
        if len(whole) > MAX_DIGITS or len(fraction or "") > MAX_DIGITS:
            return f": a number has at most {MAX_DIGITS} digits before and {MAX_DIGITS} after the point"
        return ": zero is written 0" if sign and whole == "0" and fraction is None else ": write it without quotes"
    if re.fullmatch(r"[-+]?[0-9][0-9_]*", value):
        plain = value.replace("_", "").lstrip("+0") or "0"
        return f": a number is written without leading zeros, signs or underscores: {plain}"
    return ""


def read_money(value: object) -> Decimal:
    """USD, above zero."""
    if isinstance(value, str) and value.startswith("$"):
        raise Fault(f"expected USD as a plain number, found {shown(value)}: write it without '$'")
    amount = read_decimal(value)
    if not 0 < amount <= MAX_USD:
        raise Fault(f"expected USD above 0 and at most {MAX_USD}, found {shown(value)}")
    return amount


_DURATION = re.compile(r"(?:([0-9]{1,6})d)?(?:([0-9]{1,6})h)?(?:([0-9]{1,6})m)?(?:([0-9]{1,9})s)?")


def read_duration(value: object, *, units: str = "sm") -> int:
    """Seconds of `90m`, `6h`, `2d`, `10m30s`; above zero. `units`: those to name when a number has none."""
    text = read_string(value)
    match = _DURATION.fullmatch(text)
    if not text or match is None:
        bare = re.fullmatch("[1-9][0-9]*", text)
        hint = f": write {' or '.join(text + unit for unit in units)}" if bare and units else ""
        raise Fault(f"expected a duration such as 90m, 6h, 2d or 10m30s, found {shown(value)}{hint}")
    days, hours, minutes, seconds = (int(part or 0) for part in match.groups())
    total = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    if total == 0:
        raise Fault(f"expected a duration above zero, found {shown(value)}")
    return total


_TTL_HOURS = re.compile("720|7[01][0-9]|[1-6][0-9]{2}|[1-9][0-9]?")


def read_ttl(value: object) -> int:
    """Seconds; whole hours from 1h to 720h, which is what the server takes (contract §2.4.1)."""
    seconds = read_duration(value, units="h" if _TTL_HOURS.fullmatch(read_string(value)) else "")
    if seconds % 3600 or not 3600 <= seconds <= 720 * 3600:
        raise Fault(f"expected whole hours from 1h to 720h (30d), found {shown(value)}: the server takes no other")
    return seconds


_SIZE = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)")
_SIZE_UNITS = {"": Decimal(1), "m": Decimal(1) / 1024, "g": Decimal(1), "t": Decimal(1024)}
_SIZE_UNIT = re.compile(r"(?:([mgt])i?b)?", re.IGNORECASE)


def _size(text: str) -> Decimal:
    match = _SIZE.fullmatch(text.strip())
    unit = _SIZE_UNIT.fullmatch(match[2]) if match else None
    if match is None or unit is None or len(match[1]) > 15:
        raise Fault(f"expected a size such as 80GB, found {shown(text)}")
    return Decimal(match[1]) * _SIZE_UNITS[(unit[1] or "").lower()]


def _quantity(text: str) -> Decimal:
    if not re.fullmatch(r"[0-9]{1,9}", text.strip()):
        raise Fault(f"expected a whole number, found {shown(text)}")
    return Decimal(text.strip())


def read_range(value: object) -> Range:
    """`8`, `8..`, `..32`, `8..32`."""
    return _range(value, sized=False)


def read_size_range(value: object) -> Range:
    """GiB of `20GB`, `20GB..`, `..2TB`, `20GB..40GB`; GB and GiB are both 2³⁰, a bare number is GB."""
    return _range(value, sized=True)


def _range(value: object, *, sized: bool) -> Range:
    text = read_string(value)
    example = "20GB, 20GB.., ..64GB or 20GB..64GB" if sized else "8, 8.., ..32 or 8..32"
    read = _size if sized else _quantity
    ends = text.split("..")
    if len(ends) > 2 or not any(end.strip() for end in ends):
        raise Fault(f"expected {example}, found {shown(value)}")
    try:
        low, high = (read(end) if end.strip() else None for end in (ends[0], ends[-1]))
    except Fault:
        raise Fault(f"expected {example}, found {shown(value)}") from None
    if low is not None and high is not None and low > high:
        raise Fault(f"the range {shown(value)} is empty: its ends are the wrong way round")
    return Range(low, high)


_SPEED = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)\s*([mg])bps", re.IGNORECASE)


def read_speed(value: object) -> Decimal:
    """Mbit/s of `500Mbps`, `1Gbps`."""
    match = _SPEED.fullmatch(read_string(value))
    if match is None:
        raise Fault(f"expected a speed such as 500Mbps or 1Gbps, found {shown(value)}")
    return Decimal(match[1]) * (1000 if match[2].lower() == "g" else 1)


def read_port(value: object) -> int:
    """A container TCP port; quoted ones count too."""
    text = read_string(value)
    if ":" in text or "/" in text:
        raise Fault(f"{shown(value)}: name the container's TCP port alone; the platform picks the public one")
    if not re.fullmatch(r"[1-9][0-9]{0,4}", text) or int(text) > 65535:
        raise Fault(f"expected a port from 1 to 65535, found {shown(value)}")
    return int(text)


def read_nodes(value: object) -> Nodes:
    """A count, `MIN..MAX`, or a list of member names."""
    refuse_text(value)
    if isinstance(value, list | tuple):
        names = tuple(read_member(item) for item in value)
        twice = next((name for name in names if names.count(name) > 1), None) if len(names) < 500 else None
        if len(set(names)) != len(names):
            raise Fault(f"a member is listed twice{': ' + twice if twice else ''}")
        if len(names) > MAX_NODES:
            raise Fault(f"more than {MAX_NODES} members")
        return Nodes(len(names), len(names), names)
    match = re.fullmatch(r"([0-9]{1,9})\.\.([0-9]{1,9})", value) if isinstance(value, str) else None
    if match is not None:
        low, high = int(match[1]), int(match[2])
        if low > high:
            raise Fault(f"the range {shown(value)} is empty: its ends are the wrong way round")
    elif isinstance(value, bool) or not isinstance(value, int):
        raise Fault(f"expected a number, MIN..MAX or a list of member names, found {shown(value)}{_number_hint(value)}")
    else:
        low = high = value
    if not 0 <= high <= MAX_NODES:
        raise Fault(f"expected 0 to {MAX_NODES} members, found {high}")
    return Nodes(low, high)


_MEMBER = re.compile(r"[a-z][a-z0-9-]{0,31}|0|[1-9][0-9]{0,8}")
MAX_MEMBER = 10**9 - 1


def read_member(value: object) -> str:
    """A name, or a number without leading zeros: 01 and 1 would be two members that sort and count as one."""
    text = read_string(value)
    if not _MEMBER.fullmatch(text):
        if re.fullmatch("[0-9]+", text):
            plain = text.lstrip("0") or "0"
            if len(plain) > 9:
                raise Fault(
                    f"{shown(value)} is no member: a number has at most 9 digits; write a name such as worker-a"
                )
            raise Fault(
                f"{shown(value)} is no member: a number has no leading zeros; write {plain}, or a name: n-{plain}"
            )
        raise Fault(f"{shown(value)} is no member: a name like worker-a (a-z, 0-9, -, at most 32) or a number")
    if text == "first":
        raise Fault("no member can be called 'first': it stands for the first of them in references")
    return text


Word = TypeVar("Word", bound=StrEnum)


def read_word(words: type[Word], value: object) -> Word:
    text = read_string(value)
    try:
        return words(text)
    except ValueError:
        known = ", ".join(words)
        raise Fault(f"expected one of {known}; found {shown(value)}") from None
