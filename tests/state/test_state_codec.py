"""Bytes of snapshots and journal lines: round trips, canonical form, and twelve kinds of damage (B4)."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from state_samples import LINEAGE, NOW, address, blank, entries, fill, local, record, writing
from test_state_model import histories

from lium_plan.diagnostics import ExitCode
from lium_plan.state.codec import (
    Unreadable,
    decode_entry,
    decode_snapshot,
    encode_entry,
    encode_snapshot,
)
from lium_plan.state.entries import FACTS, Began, Entry, Put
from lium_plan.state.model import State, replay
from lium_plan.state.positions import duplicate_line, line_of
from lium_plan.state.schema import render_state_schema, state_schema
from lium_plan.state.values import freeze


@pytest.fixture
def full(tmp_path: Path) -> State:
    store = local(tmp_path)
    with writing(store) as ledger:
        fill(ledger)
        return ledger.state


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3).map(tuple) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(histories, json_values)
def test_snapshots_and_lines_are_read_back(log: tuple[Entry, ...], value: object) -> None:
    more = Entry(len(log) + 1, NOW, "r", Put(record("volume.z", "z", any=freeze(value))))
    state = replay(blank(), (*log, more))
    data = encode_snapshot(state)
    again = decode_snapshot(data, file="f")
    assert again == state
    assert encode_snapshot(again) == data
    for entry in (*log, more):
        line = encode_entry(entry, LINEAGE)
        assert line.count(b"\n") == 1
        assert decode_entry(line[:-1], LINEAGE, file="f", number=1) == entry


def test_equal_states_have_equal_bytes() -> None:
    one = replay(blank(), entries(Put(replace(record("volume.v"), attributes={"a": 1, "b": [1]}))))
    other = replay(blank(), entries(Put(replace(record("volume.v"), attributes={"b": (1,), "a": 1}))))
    assert encode_snapshot(one) == encode_snapshot(other)
    assert encode_snapshot(replace(one, outputs={"a": 1, "b": 2})) == encode_snapshot(
        replace(one, outputs={"b": 2, "a": 1})
    )


def test_money_and_times_become_text() -> None:
    elsewhere = datetime(2026, 10, 5, 14, 0, tzinfo=timezone(timedelta(hours=2)))
    assert freeze({"p": Decimal("1.50"), "t": elsewhere}) == {"p": "1.50", "t": "2026-10-05T12:00:00Z"}
    line = encode_entry(Entry(1, elsewhere, "r", Began(address("volume.v"), "create")), LINEAGE)
    assert b'"at":"2026-10-05T12:00:00Z"' in line
    assert decode_entry(line[:-1], LINEAGE, file="f", number=1).at.tzinfo is UTC


@pytest.mark.parametrize("value", [float("nan"), float("inf"), {1: 2}, object(), b"bytes", datetime(2026, 1, 1)])
def test_what_is_no_json_is_refused(value: object) -> None:
    with pytest.raises((TypeError, ValueError)):
        freeze(value)


def test_endless_nesting_is_refused() -> None:
    loop: list[object] = []
    loop.append(loop)
    with pytest.raises(ValueError, match="nested"):
        freeze(loop)


# --- damage --------------------------------------------------------------------------------------------------

BASE = encode_snapshot(replay(blank(), entries(Put(record("volume.v", "v1")), Put(record("volume.w", "w1")))))
TEXT = BASE.decode()


def changed(old: str, new: str) -> bytes:
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new).encode()


def line_with(text: str, data: bytes) -> int:
    return next(number for number, line in enumerate(data.decode().splitlines(), 1) if text in line)


DAMAGE = {
    "trailing comma": (changed('"completions": {}\n', '"completions": {},\n'), "state-syntax", None),
    "byte order mark": (b"\xef\xbb\xbf" + BASE, "state-syntax", "{"),
    "truncated": (BASE[: len(BASE) // 2], "state-syntax", None),
    "empty": (b"", "state-syntax", None),
    "wrong type": (changed('"serial": 2', '"serial": "2"'), "state-shape", '"serial"'),
    "number for text": (changed('"id": "v1"', '"id": 7'), "state-shape", "volume.v"),
    "null for list": (changed('"released": []', '"released": null'), "state-shape", '"released"'),
    "unknown member": (changed('"serial": 2', '"serial": 2,\n"colour": 1'), "state-shape", '"colour"'),
    "missing member": (changed('"serial": 2,\n', ""), "state-shape", "{"),
    "duplicate key": (
        changed('"serial": 2', '"serial": 2,\n"serial": 3'),
        "state-duplicate-key",
        '"serial": 3',
    ),
    "NUL tail": (BASE + b"\0" * 512, "state-damaged", None),
    "newer format": (changed('"format": "1.1"', '"format": "1.2"'), "state-format", '"format"'),
    "newer major format": (changed('"format": "1.1"', '"format": "2.0"'), "state-format", '"format"'),
    "strange format": (changed('"format": "1.1"', '"format": "x"'), "state-format", '"format"'),
    "no format": (changed('"format": "1.1",\n', ""), "state-shape", "{"),
    "conflict marks": (
        changed('"serial": 2,\n', '<<<<<<< HEAD\n"serial": 2,\n=======\n"serial": 3,\n>>>>>>> other\n'),
        "state-conflict",
        "<<<<<<<",
    ),
    "not UTF-8": (BASE.replace(b'"v1"', b'"v\xff"'), "state-damaged", None),
    "not an object": (b"[]\n", "state-shape", "[]"),
    "special number": (changed('"serial": 2', '"serial": NaN'), "state-syntax", None),
    "huge number": (changed('"serial": 2', '"serial": 1e999'), "state-syntax", None),
    "deep nesting": (b"[" * 100_000, "state-syntax", None),
    "two documents": (BASE + BASE, "state-syntax", None),
    "key of another": (changed('"volume.v": {', '"volume.q": {'), "state-key", "volume.q"),
    "unknown kind": (BASE.replace(b"volume.v", b"router.v"), "unknown-kind", "router.v"),
    "no address": (BASE.replace(b"volume.v", b"Volume V"), "state-shape", "Volume V"),
    "bad lineage": (changed(LINEAGE, "not-a-uuid"), "state-shape", '"lineage"'),
    "short salt": (changed('"salt": "00', '"salt": "'), "state-shape", '"salt"'),
    "bad time": (
        changed('"released": []', '"released": [{"kind": "v", "id": "i", "name": "n", "since": "yesterday"}]'),
        "state-shape",
        '"released"',
    ),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damage_is_refused_with_its_place(name: str) -> None:
    data, code, near = DAMAGE[name]
    with pytest.raises(Unreadable) as caught:
        decode_snapshot(data, file="state/default.json")
    found = caught.value.diagnostic
    assert caught.value.exit_code is ExitCode.ERROR
    assert found.code == code
    assert found.position is not None
    assert found.position.file == "state/default.json"
    assert found.hint is not None
    assert "state repair" in found.hint
    if near is not None:
        assert found.position.line == line_with(near, data)


def test_a_newer_format_says_so() -> None:
    with pytest.raises(Unreadable, match="newer lium-plan"):
        decode_snapshot(DAMAGE["newer format"][0], file="f")


def test_older_formats_pass_through_the_migrations() -> None:
    old = changed('"format": "1.1"', '"format": "0.9"').replace(b'"serial"', b'"version"')

    def step(members: dict[str, object]) -> tuple[str, dict[str, object]]:
        rest = {key: value for key, value in members.items() if key not in ("version", "checksum")}
        return "1.1", {**rest, "serial": members["version"]}

    migrated = decode_snapshot(old, file="f", migrations={"0.9": step})  # type: ignore[dict-item]
    assert migrated == decode_snapshot(BASE, file="f")
    with pytest.raises(Unreadable, match="can't read any more"):
        decode_snapshot(old, file="f")


@given(st.integers(0, len(BASE) - 1), st.integers(0, 255))
def test_any_changed_byte_is_refused(place: int, value: int) -> None:
    changed_bytes = BASE[:place] + bytes([value]) + BASE[place + 1 :]
    assume(changed_bytes != BASE)
    with pytest.raises(Unreadable):
        decode_snapshot(changed_bytes, file="f")
    with suppress(Unreadable):  # and never with anything else
        state = decode_snapshot(changed_bytes, file="f", edited=True)
        assert decode_snapshot(encode_snapshot(state), file="f") == state


@pytest.mark.parametrize(
    "data",
    [
        changed('"id": "v1"', '"id": "v2"'),
        BASE.replace(b"\n", b"\r\n"),
        BASE + b"\n",
        b"".join(line for line in BASE.splitlines(keepends=True) if b'"checksum"' not in line),
    ],
    ids=["a value", "line ends", "a line end", "no checksum"],
)
def test_what_still_is_a_state_was_changed_all_the_same(data: bytes) -> None:
    with pytest.raises(Unreadable, match="checksum") as caught:
        decode_snapshot(data, file="f")
    assert caught.value.diagnostic.code == "state-checksum"
    assert caught.value.diagnostic.position is not None
    assert decode_snapshot(data, file="f", edited=True).serial == 2


def test_snapshots_from_before_the_checksum_are_read() -> None:
    document = json.loads(BASE)
    del document["checksum"]
    assert decode_snapshot(json.dumps({**document, "format": "1.0"}).encode(), file="f") == decode_snapshot(
        BASE, file="f"
    )
    # A format that had none does not get one by a slip of a digit.
    with pytest.raises(Unreadable, match="`checksum` is no member"):
        decode_snapshot(changed('"format": "1.1"', '"format": "1.0"'), file="f")


def test_every_byte_of_a_line_is_guarded() -> None:
    line = encode_entry(entries(Put(record("volume.v", "v1")))[0], LINEAGE)[:-1]
    for place in range(len(line)):
        with pytest.raises(Unreadable):
            decode_entry(line[:place] + bytes([line[place] ^ 1]) + line[place + 1 :], LINEAGE, file="f", number=3)


def test_a_line_of_another_state_is_refused() -> None:
    line = encode_entry(entries(Put(record("volume.v", "v1")))[0], "ffffffff-0000-4000-8000-000000000001")[:-1]
    with pytest.raises(Unreadable, match="another state") as caught:
        decode_entry(line, LINEAGE, file="j", number=3)
    assert caught.value.diagnostic.position is not None
    assert str(caught.value.diagnostic.position) == "j:3:1"


# --- schema --------------------------------------------------------------------------------------------------


def test_the_schema_file_is_fresh() -> None:
    path = Path(__file__).parents[2] / "schemas" / "state.schema.json"
    assert path.read_text() == render_state_schema(), "write lium_plan.state.schema.render_state_schema() to it"


def test_the_schema_accepts_what_the_codec_writes_and_refuses_damage(full: State) -> None:
    validator = jsonschema.Draft202012Validator(state_schema())
    validator.check_schema(state_schema())
    document = json.loads(encode_snapshot(full))
    assert list(validator.iter_errors(document)) == []
    for name in (
        "wrong type",
        "number for text",
        "null for list",
        "unknown member",
        "missing member",
        "bad time",
    ):
        assert list(validator.iter_errors(json.loads(DAMAGE[name][0]))), name


def test_every_fact_has_its_word() -> None:
    assert len(set(FACTS.values())) == len(FACTS)


# --- places --------------------------------------------------------------------------------------------------


def test_lines_of_paths() -> None:
    text = '{\n "a": [1,\n 2, {"b":\n "x"}],\n "c": {}\n}'
    assert [line_of(text, path) for path in ((), ("a",), ("a", 1), ("a", 2, "b"), ("c",), ("nope",))] == [
        1,
        2,
        3,
        3,
        5,
        1,
    ]
    assert duplicate_line('{"a": {"b": "a"},\n "c": ["a", "a"], "a": 1}') == ("a", 2)
    assert duplicate_line('{"a": [{"x": 1}, {"x": 2}]}') is None
