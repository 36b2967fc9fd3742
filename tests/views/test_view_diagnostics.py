"""Diagnostics as text and as JSON."""

from __future__ import annotations

from lium_plan.diagnostics import Position, error, warning
from lium_plan.views.diagnostics_json import diagnostic_from_json, diagnostic_json, document
from lium_plan.views.diagnostics_text import diagnostic_text, diagnostics_text
from lium_plan.views.paint import Paint

PLACED = error(
    "unknown-key",
    "unknown key 'regoins'",
    address="fleet.a",
    position=Position("lium.yaml", 12, 5),
    source_line="    regoins: [us]",
    hint="did you mean 'regions'?\nsee `schema manifest`",
)


def test_place_line_caret_and_hint() -> None:
    assert diagnostic_text(PLACED) == (
        "lium.yaml:12:5: error: fleet.a: unknown key 'regoins'\n"
        "   12 |     regoins: [us]\n"
        "      |     ^\n"
        "  hint: did you mean 'regions'?\n"
        "        see `schema manifest`\n"
    )


def test_without_a_place() -> None:
    assert diagnostic_text(warning("w", "it is late")) == "warning: it is late\n"


def test_an_address_in_the_message_is_not_repeated() -> None:
    assert diagnostic_text(error("x", "fleet.a[0]: no", address="fleet.a[0]")) == "error: fleet.a[0]: no\n"


def test_a_longer_address_in_the_message_is_another_one() -> None:
    waiting = warning("pulled-in", "included with --target: fleet.a[0].bootstrap waits for it", address="fleet.a[0]")
    assert diagnostic_text(waiting) == (
        "warning: fleet.a[0]: included with --target: fleet.a[0].bootstrap waits for it\n"
    )
    for other in ("fleet.a[0]", "fleet.a-b", "my-fleet.a", "fleet.ab"):
        assert ": fleet.a: included" in diagnostic_text(error("x", f"included: {other}", address="fleet.a")), other
    for same in ("no `fleet.a` here", "look at fleet.a.", "fleet.a[0] is not there", "(fleet.a)"):
        assert "fleet.a: " not in diagnostic_text(error("x", same, address="fleet.a")), same


def test_errors_come_last() -> None:
    text = diagnostics_text((error("a", "first"), warning("b", "second")))
    assert text.index("second") < text.index("first")


def test_the_caret_stands_under_the_column_after_tabs_and_in_long_lines() -> None:
    tabbed = error("x", "m", position=Position("f", 1, 3), source_line="\t\tkey: v")
    lines = diagnostic_text(tabbed).splitlines()
    assert lines[1].index("k") == lines[2].index("^")
    far = error("x", "m", position=Position("f", 1, 301), source_line="a" * 300 + "B" + "c" * 300)
    lines = diagnostic_text(far).splitlines()
    assert lines[1].index("B") == lines[2].index("^")
    assert len(lines[1]) < 130


def test_control_characters_are_spelled_out() -> None:
    text = diagnostic_text(error("x", "a\x1b[31mb", position=Position("f", 1, 1), source_line="\x1b]0;title\x07"))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_colours() -> None:
    assert "\x1b[1;31merror:\x1b[0m" in diagnostic_text(PLACED, Paint(True))


def test_json() -> None:
    assert diagnostic_json(PLACED) == {
        "severity": "error",
        "code": "unknown-key",
        "message": "unknown key 'regoins'",
        "address": "fleet.a",
        "file": "lium.yaml",
        "line": 12,
        "column": 5,
        "hint": "did you mean 'regions'?\nsee `schema manifest`",
    }
    assert diagnostic_from_json(diagnostic_json(PLACED), PLACED.source_line) == PLACED


def test_every_document_begins_with_its_format_and_ends_with_its_findings() -> None:
    made = document({"a": 1}, (warning("w", "m"),))
    assert list(made) == ["format_version", "a", "diagnostics"]
