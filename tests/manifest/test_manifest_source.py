"""YAML without traps: what scalars mean, and what is refused, where."""

from __future__ import annotations

import gc
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.diagnostics import Diagnostics, Failure
from lium_plan.kinds.values import PlainFloat
from lium_plan.manifest.load import load
from lium_plan.manifest.source import MAX_BYTES, Document, Map, Seq, parse, read, resolve
from lium_plan.views.diagnostics_text import diagnostic_text


def reading(data: str | bytes) -> tuple[Document | None, tuple[str, ...]]:
    found = Diagnostics()
    raw = data.encode() if isinstance(data, str) else data
    document = parse(raw, Path("x.yaml"), "x.yaml", found)
    return document, tuple(f"{item.position} {item.code}" for item in found)


def value_of(text: str) -> object:
    document, found = reading(f"key: {text}\n")
    assert document is not None
    assert not found
    assert isinstance(document.root, Map)
    return document.root["key"]


@pytest.mark.parametrize(
    "text",
    # J1, J3, J4: what YAML 1.1, or a careless reader, makes something else of.
    "NO no On on yes Yes y n off True TRUE Null 0755 089 0o17 0x1F 1_000 22:22 8080:80 12:30:00 2024-01-16 "
    "1e3 .5 5. +1 -0 .inf .nan 0.0.0 1,000 2001-12-14T21:59:43.10-05:00 = 99999999999999999999".split(),
)
def test_looks_like_a_string_and_is_one(text: str) -> None:
    assert value_of(text) == text
    assert type(value_of(text)) is str


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("12", 12),
        ("-3", -3),
        ("0", 0),
        ("true", True),
        ("false", False),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_plainly_something_else(text: str, value: object) -> None:
    assert value_of(text) == value
    assert type(value_of(text)) is type(value)


@pytest.mark.parametrize("text", ["3.10", "2.50", "-0.5", "50.0"])
def test_a_decimal_number_keeps_its_text(text: str) -> None:
    value = value_of(text)
    assert isinstance(value, PlainFloat)
    assert value.text == text
    assert value == float(text)


@pytest.mark.parametrize("text", ["12", "true", "3.10", "~", "", "null"])
def test_quoted_is_always_a_string(text: str) -> None:
    assert value_of(f'"{text}"') == text
    assert value_of(f"'{text}'") == text


def test_keys_are_strings() -> None:
    document, found = reading("NO: 1\non: 2\n22:22: 3\n12: 4\ntrue: 5\n3.10: 6\n")
    assert document is not None
    assert not found
    assert list(document.root) == ["NO", "on", "22:22", "12", "true", "3.10"]


@pytest.mark.parametrize(
    ("data", "finding"),
    [
        ("a: 1\nb: 2\na: 3\n", "x.yaml:3:1 duplicate-key"),
        ("a:\n  b:\n    - {c: 1, c: 2}\n", "x.yaml:3:14 duplicate-key"),
        ("'a': 1\na: 2\n", "x.yaml:2:1 duplicate-key"),
        ("b: &b {x: 1}\nc:\n  <<: *b\n  x: 2\n", "x.yaml:3:3 duplicate-key"),
        ("b: &b {x: 1}\nd: &d {x: 2}\nc:\n  <<: [*b, *d]\n", "x.yaml:4:3 duplicate-key"),
        ("b: &b [1]\nc:\n  <<: *b\n", "x.yaml:3:3 bad-merge"),
        ("a:\n\tb: 1\n", "x.yaml:2:1 yaml-tab"),
        ("a:\tb\n", "x.yaml:1:3 yaml-tab"),
        ("a: [b,\tc]\n", "x.yaml:1:7 yaml-tab"),
        ("a: 1\n---\nb: 2\n", "x.yaml:2:1 yaml-documents"),
        ("%YAML 1.1\n---\na: 1\n", "x.yaml:1:1 yaml-version"),
        ("a: &a [*a]\n", "x.yaml:1:8 yaml-alias"),
        ("a: &a {b: *a}\n", "x.yaml:1:11 yaml-alias"),
        ("a: *nope\n", "x.yaml:1:4 yaml-alias"),
        ("a: !!python/object:os.system x\n", "x.yaml:1:4 yaml-tag"),
        ("a: !thing {b: c}\n", "x.yaml:1:4 yaml-tag"),
        ("? [a]\n: b\n", "x.yaml:1:3 bad-key"),
        ("~: 1\n", "x.yaml:1:1 bad-key"),
        ("caf\u200be: 1\n", "x.yaml:1:1 bad-character"),
        ('"caf\\u200be": 1\n', "x.yaml:1:1 bad-character"),
        ('"a\\u202eb": 1\n', "x.yaml:1:1 bad-character"),
        ("a: \u202ereversed\n", "x.yaml:1:4 bad-character"),
        ("a: 1\nb: \x00\n", "x.yaml:2:4 bad-character"),
        ("a: \x1b[31m\n", "x.yaml:1:4 bad-character"),
        ("\ufeffa: 1\n", "x.yaml:1:1 bad-encoding"),
        (b"a: 1\nb: \xff\n", "x.yaml:2:4 bad-encoding"),
        ("a: 1\n".encode("utf-16"), "x.yaml:1:1 bad-encoding"),
        ("[" * 200, "x.yaml:1:65 too-deep"),
        ("a: {b: ${{ x }}}\n", "x.yaml:1:9 yaml-syntax"),
        ("a: b: c\n", "x.yaml:1:5 yaml-syntax"),
        ("a: 'b\n", "x.yaml:1:4 yaml-syntax"),
        ('a: 1\nb: "c\nd: 2\n---\ne: 3\n', "x.yaml:2:4 yaml-syntax"),
    ],
)
def test_refused_with_its_place(data: str | bytes, finding: str) -> None:
    assert finding in reading(data)[1]


@pytest.mark.parametrize("data", ["a: |\n  x\ty\n", "a: 'x\ty'\n", "a: 1 # x\ty\n", "# \t\na: 1\n", "a: x\ty\n"])
def test_tabs_in_scalars_and_comments_are_fine(data: str) -> None:
    document, found = reading(data)
    assert document is not None
    assert not found


def test_one_mistake_does_not_hide_another() -> None:
    assert reading("a: 1\na: 2\nb: 1\nb: 2\n")[1] == ("x.yaml:2:1 duplicate-key", "x.yaml:4:1 duplicate-key")


def test_merges_bring_their_keys_with_their_places() -> None:
    document, found = reading("base: &base {x: 1}\nc:\n  <<: *base\n  y: 2\n")
    assert document is not None
    assert not found
    merged = document.root["c"]
    assert merged == {"x": 1, "y": 2}
    assert document.position(merged.places["x"][1]).line == 1


def test_j7_an_alias_bomb_ends_quickly() -> None:
    levels = ["a0: &a0 [l, l, l, l, l, l, l, l, l, l]"]
    levels += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 10)]
    started = time.process_time()
    assert reading("\n".join(levels))[1] == ("x.yaml:6:25 too-big",)
    assert time.process_time() - started < 1


def test_j7_a_merge_bomb_ends_quickly() -> None:
    base = "base: &b {" + ", ".join(f"k{n}: 1" for n in range(2000)) + "}\n"
    started = time.process_time()
    _, found = reading(base + "".join(f"m{n}: {{<<: *b}}\n" for n in range(2000)))
    assert [item.split()[1] for item in found] == ["too-big"]
    assert time.process_time() - started < 3


def test_j7_aliases_can_not_go_deeper_than_nesting() -> None:
    levels = ["a0: &a0 [x]"] + [f"a{n}: &a{n} [*a{n - 1}]" for n in range(1, 100)]
    assert [item.split()[1] for item in reading("\n".join(levels))[1]] == ["too-deep"]


def test_j7_a_huge_file_is_refused_unread(tmp_path: Path) -> None:
    path = tmp_path / "huge.yaml"
    with path.open("wb") as stream:
        stream.truncate(50 * 2**20)
    found = Diagnostics()
    started = time.process_time()
    assert read(path, "huge.yaml", found) is None
    assert time.process_time() - started < 0.2
    assert [item.code for item in found] == ["too-big"]
    assert MAX_BYTES < 50 * 2**20


def test_a_device_or_directory_is_no_manifest(tmp_path: Path) -> None:
    for path in (Path("/dev/zero"), tmp_path, tmp_path / "missing"):
        found = Diagnostics()
        assert read(path, "x", found) is None
        assert [item.code for item in found] == ["unreadable-file"]


def test_an_honest_big_file_loads() -> None:
    entries = "".join(f"  name-{n}: {{a: 1, b: [x, y], c: {'text ' * 20}}}\n" for n in range(10_000))
    document, found = reading("names:\n" + entries)
    assert document is not None
    assert not found
    assert len(document.root["names"]) == 10_000
    assert gc.isenabled()


def test_places_are_those_of_keys_values_and_items() -> None:
    document, _ = reading("a:\n  b: [x, {c: d}]\n")
    assert document is not None
    inner = document.root["a"]
    assert inner.places["b"][1:] == ((1, 2), (1, 5))
    items = inner["b"]
    assert isinstance(items, Seq)
    assert [place for _, place in items.places] == [(1, 6), (1, 9)]


@given(st.text(max_size=40))
def test_any_text_reads_or_is_refused_but_never_crashes(text: str) -> None:
    reading(text.encode("utf-8", "surrogatepass"))


@given(st.binary(max_size=60))
def test_any_bytes_read_or_are_refused(data: bytes) -> None:
    reading(data)


@given(st.text(alphabet="0123456789.-+_eExob:~nulltrefas", max_size=12))
def test_what_is_resolved_says_what_was_written(text: str) -> None:
    value = resolve(text)
    if isinstance(value, PlainFloat):
        assert value.text == text
    elif isinstance(value, int) and not isinstance(value, bool):
        assert str(value) == text
    elif isinstance(value, bool):
        assert text == str(value).lower()
    elif value is not None:
        assert value == text


def test_the_excerpt_of_a_long_line_reaches_its_fault(tmp_path: Path) -> None:
    words = "word " * 60
    (tmp_path / "lium.yaml").write_text(f"project: demo\noutputs:\n  x: {words}${{{{ var.nope }}}}\n", encoding="utf-8")
    with pytest.raises(Failure) as caught:
        load((tmp_path,), stack="default")
    (found,) = caught.value.diagnostics
    assert found.position is not None
    assert found.source_line is not None
    assert found.source_line[found.position.column - 1 :].startswith("var.nope")
    shown, caret = diagnostic_text(found).splitlines()[1:3]
    assert shown[caret.index("^") :].startswith("var.nope")
