"""The bytes of snapshots and journal lines: texts to values and back, strictly.

Equal states have equal bytes. Everything that was not written by this codec is refused with its place in the file,
because acting on half a state deletes or rents the wrong things. Pure: files are `local`'s business.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
import sys
import zlib
from collections.abc import Callable, Hashable, Mapping
from datetime import datetime
from typing import cast

from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, Position, error
from lium_plan.kinds.protocol import Json
from lium_plan.marks import lineage_mark
from lium_plan.state.entries import FACTS, Entry, Fact
from lium_plan.state.model import State
from lium_plan.state.positions import duplicate_line, line_of
from lium_plan.state.shape import Path, Shape, ShapeError, shape_of

FORMAT = "1.1"
LARGEST_NUMBER = 10**15
DEEPEST = 200
SHORT = 24
"""Characters up to which equal texts are kept once: a big state says the same words over and over."""

Migration = Callable[[Mapping[str, Json]], tuple[str, Mapping[str, Json]]]
MIGRATIONS: Mapping[str, Migration] = {"1.0": lambda members: ("1.1", members)}
"""From an older format: the format that comes out, and the document in it. Pure, one step each. 1.1 has a checksum."""

CURES = (
    "nothing was changed; `lium-plan state repair` shows what can be saved, `lium-plan state recover` builds a state "
    "from what the account shows, `lium-plan state pull` fetches another copy, and earlier snapshots lie beside it as "
    ".json.1, .json.2, …"
)

LINEAGE_PATTERN = r"[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}"
_LINEAGE = re.compile(LINEAGE_PATTERN)
_CONFLICT = re.compile(r"^(?:<{7}|>{7}|={7}|\|{7})(?: |$)", re.MULTILINE)


class Unreadable(Failure):
    """A state file that can't be trusted (exit 1). Whoever catches it must not write over the file."""

    def __init__(self, code: str, message: str, *, file: str, line: int | None = None) -> None:
        position = None if line is None else Position(file, line, 1)
        text = message if position else f"{file}: {message}"
        super().__init__(ExitCode.ERROR, (error(code, text, position=position, hint=CURES),))

    @property
    def diagnostic(self) -> Diagnostic:
        return self.diagnostics[0]


class _Duplicate(ValueError):
    pass


def _pairs(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    # Here, because this sees every object anyway: a second pass over a big state would double the time.
    result = dict(pairs)
    if len(result) != len(pairs):
        raise _Duplicate
    for key, value in pairs:
        if type(value) is str:
            if len(value) <= SHORT:
                result[key] = sys.intern(value)
        elif type(value) is list:
            result[key] = _tuple(value)
    return result


def _tuple(items: list[Json]) -> tuple[Json, ...]:
    return tuple(_tuple(item) if type(item) is list else item for item in items)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"{text[:40]} is too large a number")
    return value


def _constant(text: str) -> Json:
    raise ValueError(f"{text} is no JSON number")


def parse_document(text: str, file: str, first_line: int = 1) -> Json:
    """JSON without duplicate keys and special numbers. Raises `Unreadable` with the line."""
    if text.startswith("\ufeff"):
        raise Unreadable("state-syntax", "starts with a byte order mark: another program wrote it", file=file, line=1)
    if not text.strip():
        raise Unreadable("state-syntax", "the file is empty", file=file, line=first_line)
    conflict = _CONFLICT.search(text)
    if conflict is not None:
        line = text.count("\n", 0, conflict.start()) + first_line
        raise Unreadable("state-conflict", "holds the conflict marks of a version control system", file=file, line=line)
    try:
        value: Json = json.loads(text, object_pairs_hook=_pairs, parse_constant=_constant, parse_float=_finite)
    except json.JSONDecodeError as fault:
        where = f"{fault.msg} (column {fault.colno})"
        raise Unreadable("state-syntax", where, file=file, line=fault.lineno + first_line - 1) from None
    except _Duplicate:
        key, line = duplicate_line(text) or ("?", 1)
        message = f"the key {json.dumps(key)} appears twice"
        raise Unreadable("state-duplicate-key", message, file=file, line=line + first_line - 1) from None
    except RecursionError:
        raise Unreadable("state-syntax", "is nested too deeply", file=file, line=first_line) from None
    except ValueError as fault:  # special numbers, and whole numbers of thousands of digits
        raise Unreadable("state-syntax", str(fault), file=file, line=first_line) from None
    return value


def to_text(data: bytes, file: str) -> str:
    """UTF-8 without NUL. Raises `Unreadable` with the line of the first byte that isn't."""
    nul = data.find(b"\0")
    if nul >= 0:
        message = "holds NUL bytes: the file was damaged, by a crash of the machine perhaps"
        raise Unreadable("state-damaged", message, file=file, line=data.count(b"\n", 0, nul) + 1)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as fault:
        line = data.count(b"\n", 0, fault.start) + 1
        raise Unreadable("state-damaged", "is not UTF-8 text", file=file, line=line) from None


# --- snapshot ------------------------------------------------------------------------------------------------

STATE: Shape = shape_of(State)


def encode_snapshot(state: State) -> bytes:
    """The snapshot's bytes; the same for equal states. A record stands on one line, for people who compare two.

    Raises `TypeError` or `ValueError` for a record that holds what is no JSON.
    """
    members = STATE.encode(state)
    assert isinstance(members, Mapping)
    lines = []
    for name, value in members.items():
        if isinstance(value, Mapping) and value:
            rows = ",\n".join(f"  {_dump(key)}: {_dump(item)}" for key, item in sorted(value.items()))
            lines.append(f"{_dump(name)}: {{\n{rows}\n}}")
        else:
            lines.append(f"{_dump(name)}: {_dump(value)}")
    body = (",\n".join(lines) + "\n}\n").encode("ascii")
    return with_checksum(body, head=b'"format": "%b",\n' % FORMAT.encode())


def with_checksum(body: bytes, *, head: bytes = b"") -> bytes:
    """A JSON object with a checksum over all that follows it. `body`: its members and what closes it.

    It tells what was changed since, by hand or by a bad disk. It is no signature: anybody can write another.
    """
    return b'{\n%b"checksum": "%b",\n%b' % (head, _checksum(body), body)


def _checksum(body: bytes | memoryview) -> bytes:
    return hashlib.sha256(body).hexdigest().encode()


_HEAD = re.compile(rb'\{\n(?:"format": "[0-9.]{1,20}",\n)?"checksum": "([0-9a-f]{64})",\n')


def is_as_written(data: bytes) -> bool:
    """Whether the bytes of a snapshot, or of another file that `with_checksum` made, were not changed since."""
    head = _HEAD.match(data)
    return head is not None and head[1] == _checksum(memoryview(data)[head.end() :])


_dump = json.JSONEncoder(sort_keys=True, allow_nan=False).encode


def decode_snapshot(
    data: bytes,
    *,
    file: str,
    edited: bool = False,
    migrations: Mapping[str, Migration] = MIGRATIONS,
    current: str = FORMAT,
) -> State:
    """The state in a snapshot. `file` is for messages; `edited`: whatever its checksum says. Raises `Unreadable`."""
    text = to_text(data, file)
    document = parse_document(text, file)
    if not isinstance(document, Mapping) or not isinstance(document.get("format"), str):
        raise Unreadable("state-shape", "is no state snapshot: it has no `format`", file=file, line=1)
    if edited and _is_deep(document):
        raise Unreadable("state-syntax", "is nested too deeply", file=file, line=1)
    version, members = str(document["format"]), {**document}
    del members["format"]
    guarded = version == current
    if guarded:
        members.pop("checksum", None)
    while version != current:
        step = migrations.get(version)
        if step is None:
            raise Unreadable(
                "state-format", _foreign_format(version, current), file=file, line=line_of(text, ("format",))
            )
        version, migrated = step(members)
        members = {**migrated}
    try:
        state = decode_members(members)
    except ShapeError as fault:
        raise Unreadable(fault.code, str(fault), file=file, line=line_of(text, fault.path)) from None
    # Last: what is wrong in particular, and where, says more than that something is.
    if guarded and not edited and not is_as_written(data):
        message = "the checksum doesn't match: the file was changed after it was written"
        raise Unreadable("state-checksum", message, file=file, line=line_of(text, ("checksum",)))
    return state


def decode_members(members: Mapping[str, Json]) -> State:
    """The state in a parsed snapshot of the current format, without `format` and `checksum`. Raises `ShapeError`."""
    state: State = STATE.decode(members, ())
    _check_members(state)
    return state


def _is_deep(value: Json) -> bool:
    """Whether somebody has put into it what we would not have written: more than `DEEPEST` levels."""
    level = [value]
    for _ in range(DEEPEST):
        level = [
            item
            for outer in level
            if isinstance(outer, Mapping | tuple)
            for item in (outer.values() if isinstance(outer, Mapping) else outer)
        ]
    return bool(level)


def _foreign_format(version: str, current: str) -> str:
    match = re.fullmatch(r"(\d{1,9})\.(\d{1,9})", version)
    if match is None:
        return f"has the unknown format {json.dumps(version)}; this lium-plan writes {current}"
    major, minor = (int(part) for part in current.split("."))
    if (int(match[1]), int(match[2])) > (major, minor):
        return f"was written by a newer lium-plan (format {version}, this one reads up to {current}): upgrade lium-plan"
    return f"has format {version}, which this lium-plan can't read any more (it writes {current})"


def _check_members(state: State) -> None:
    """What types alone don't say."""
    if _LINEAGE.fullmatch(state.lineage) is None:
        raise ShapeError(("lineage",), "`lineage` must be a version 4 UUID in lower case")
    if len(state.salt) != 32:
        raise ShapeError(("salt",), "`salt` must be 32 bytes")
    if not state.project or not state.stack:
        raise ShapeError(("project",), "`project` and `stack` must not be empty")
    for name, number in (("serial", state.serial), ("sequence", state.sequence)):
        if not 0 <= number <= LARGEST_NUMBER:
            raise ShapeError((name,), f"`{name}` must be a number from 0 to {LARGEST_NUMBER}")
    for key, record in state.records.items():
        if record.key != key:
            raise ShapeError(("records", key), f"the record of {record.key} is stored as {key}", "state-key")
    for number, effect in state.open.items():
        if effect.number != number or not 0 < number <= state.sequence:
            raise ShapeError(("open", str(number)), f"effect {effect.number} is stored as {number}", "state-key")
    for name, keys in (
        ("released", [item.id for item in state.released]),
        ("watched", [item.name for item in state.watched]),
    ):
        if keys != sorted(set(keys)):
            raise ShapeError((name,), f"`{name}` must be in order and without repetition")


# --- journal -------------------------------------------------------------------------------------------------


_WORDS: Mapping[type[Fact], str] = {fact: word for word, fact in FACTS.items()}
_FACT_SHAPES = {word: shape_of(cast(Hashable, fact)) for word, fact in FACTS.items()}
_ENVELOPE = ("n", "lineage", "at", "run", "type", "fact")
_INT, _STR, _MOMENT = shape_of(int), shape_of(str), shape_of(datetime)
_PREFIX = re.compile(rb'\{"sum":"([0-9a-f]{8})",')


def encode_entry(entry: Entry, lineage: str) -> bytes:
    """One journal line with its newline: `{"sum":"<crc32 of the rest>","n":…,…}`."""
    word = _WORDS[type(entry.fact)]
    body = json.dumps(
        {
            "n": entry.number,
            "lineage": lineage_mark(lineage),
            "at": _MOMENT.encode(entry.at),
            "run": entry.run,
            "type": word,
            "fact": _FACT_SHAPES[word].encode(entry.fact),
        },
        separators=(",", ":"),
        allow_nan=False,
    ).encode("ascii")[1:]
    return b'{"sum":"%08x",%b\n' % (zlib.crc32(body), body)


def is_whole(line: bytes) -> bool:
    """Whether a line (without its newline) is one that was written to its end and not changed since."""
    match = _PREFIX.match(line)
    return match is not None and int(match[1], 16) == zlib.crc32(line[match.end() :])


def decode_entry(line: bytes, lineage: str | None, *, file: str, number: int) -> Entry:
    """The entry in a line (without its newline), line `number` of `file`. Raises `Unreadable`.

    `lineage` None accepts any: for looking at a journal whose snapshot is lost.
    """
    if not is_whole(line):
        raise Unreadable(
            "journal-checksum", "the line's checksum doesn't match: it was changed", file=file, line=number
        )
    try:
        members = parse_document(line.decode("ascii"), file, number)
        if not isinstance(members, Mapping) or tuple(members)[1:] != _ENVELOPE:
            raise ShapeError((), "the line is no journal entry of this version")
        return _entry(members, lineage)
    except ShapeError as fault:
        raise Unreadable(fault.code, str(fault), file=file, line=number) from None
    except UnicodeDecodeError:
        raise Unreadable("state-damaged", "is not ASCII text", file=file, line=number) from None


def _entry(members: Mapping[str, Json], lineage: str | None) -> Entry:
    mark = _STR.decode(members["lineage"], ("lineage",))
    if lineage is not None and mark != lineage_mark(lineage):
        raise ShapeError((), f"the entry belongs to another state (lineage {mark}…)", "journal-lineage")
    word = _STR.decode(members["type"], ("type",))
    if word not in _FACT_SHAPES:
        raise ShapeError(
            (), f"'{word}' is no entry that this version knows: a newer lium-plan wrote it", "state-format"
        )
    path: Path = ("fact",)
    return Entry(
        _INT.decode(members["n"], ("n",)),
        _MOMENT.decode(members["at"], ("at",)),
        _STR.decode(members["run"], ("run",)),
        _FACT_SHAPES[word].decode(members["fact"], path),
    )
