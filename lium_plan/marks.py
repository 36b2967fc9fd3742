"""Names that we give to remote things, and how to read them back.

A name says which project and stack (`scope_mark`), which state (`lineage_mark`), which attempt (`nonce`) and, for
people, which member it is. Pure. Refuses to be proof of ownership by itself: that is the lineage together with the
state, and a mark only says where to look.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass

MAX_POD_NAME = 63
MAX_VOLUME_NAME = 100

_HEX6 = r"[0-9a-f]{6}"
_POD = re.compile(rf"lp-(?P<scope>{_HEX6})-(?P<lineage>{_HEX6})-(?P<nonce>[a-z2-7]{{8}})-(?P<tail>[a-z0-9-]+)")
_VOLUME = re.compile(rf"(?:(?P<base>.*)-)?lp-(?P<scope>{_HEX6})-(?P<lineage>{_HEX6})", re.DOTALL)
_TEMPLATE = re.compile(rf"lp-(?P<lineage>{_HEX6})-(?P<digest>[0-9a-f]{{12}})")


@dataclass(frozen=True, slots=True)
class Marks:
    """Who made a thing, as its name says."""

    scope: str
    lineage: str


@dataclass(frozen=True, slots=True)
class PodName:
    scope: str
    lineage: str
    nonce: str
    tail: str
    """`<fleet>-<member>`, the fleet cut where the whole would be too long; compare with `pod_tail`."""


@dataclass(frozen=True, slots=True)
class TemplateName:
    lineage: str
    digest: str


def scope_mark(project: str, stack: str) -> str:
    """6 hex digits that stand for one stack of one project."""
    return hashlib.sha256(f"{project}/{stack}".encode()).hexdigest()[:6]


def lineage_mark(lineage: str) -> str:
    """The first 6 hex digits of a lineage."""
    return lineage.replace("-", "").lower()[:6]


def nonce_of(random: bytes) -> str:
    """8 characters of lower-case base32 from 5 random bytes. Raises `ValueError` for another count."""
    if len(random) != 5:
        raise ValueError("a nonce is made of 5 random bytes")
    return base64.b32encode(random).decode("ascii").lower()


def pod_tail(fleet: str, member: str) -> str:
    """The readable end of a pod's name. The fleet is cut, never the member, so that members stay apart."""
    room = MAX_POD_NAME - len("lp-123456-123456-12345678-") - len(member) - 1
    return f"{fleet[:room]}-{member}"


def pod_name(project: str, stack: str, lineage: str, nonce: str, fleet: str, member: str) -> str:
    """At most 63 characters of `[a-z0-9-]`. Raises `ValueError` for parts that would leave that alphabet."""
    name = f"lp-{scope_mark(project, stack)}-{lineage_mark(lineage)}-{nonce}-{pod_tail(fleet, member)}"
    if len(name) > MAX_POD_NAME or _POD.fullmatch(name) is None:
        raise ValueError(f"{name!r} is no pod name: check lineage, nonce, fleet and member")
    return name


def parse_pod_name(name: str) -> PodName | None:
    """None for a name that is not of our making."""
    match = _POD.fullmatch(name)
    return None if match is None else PodName(match["scope"], match["lineage"], match["nonce"], match["tail"])


def volume_name(base: str, marks: Marks) -> str:
    """`base` with the mark at its end, at most 100 characters; `base` is cut to fit."""
    mark = f"lp-{marks.scope}-{marks.lineage}"
    return f"{base[: MAX_VOLUME_NAME - len(mark) - 1]}-{mark}" if base else mark


def parse_volume_name(name: str) -> Marks | None:
    """The marks at the end of a volume's name; None where there are none."""
    match = _VOLUME.fullmatch(name)
    return None if match is None else Marks(match["scope"], match["lineage"])


def volume_base(name: str) -> str:
    """A volume's name without our mark."""
    match = _VOLUME.fullmatch(name)
    return name if match is None else match["base"] or ""


def template_name(lineage: str, salt: bytes, content: Mapping[str, object]) -> str:
    """`lp-<lineage>-<12 hex>`: equal content gets an equal name within one state, and never in two."""
    text = canonical(content)
    return f"lp-{lineage_mark(lineage)}-{_hmac(salt, text)[:12]}"


def parse_template_name(name: str) -> TemplateName | None:
    match = _TEMPLATE.fullmatch(name)
    return None if match is None else TemplateName(match["lineage"], match["digest"])


def canonical(value: object) -> str:
    """A JSON value as one text; equal values give equal texts, whatever kind of mapping or sequence holds them."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=_plain)


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, tuple | list):
        return list(value)
    raise TypeError(f"{type(value).__name__} is no JSON value")


def keyed_hash(salt: bytes, text: str) -> str:
    """64 hex digits that stand for a secret in a state: equal texts match, and other states' hashes don't.

    It hides a value from readers; a weak one can still be guessed by whoever holds the state.
    """
    return _hmac(salt, text)


def _hmac(salt: bytes, text: str) -> str:
    return hmac.new(salt, text.encode("utf-8", "surrogatepass"), hashlib.sha256).hexdigest()
