"""Field changes: paths, marks, and what a JSON file makes equal."""

from __future__ import annotations

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.kinds.differ import field_changes, sensitive, unknown
from lium_plan.kinds.protocol import FieldChange


def rows(before: dict, after: dict) -> list[tuple]:
    return [(change.path, change.before, change.after) for change in field_changes(before, after)]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ({"ports": (22, 8000)}, {"ports": [22, 8000]}),
        ({"disk": 50}, {"disk": 50.0}),
        ({"env": {"A": "1", "B": "2"}}, {"env": {"B": "2", "A": "1"}}),
        ({"token": sensitive("aa")}, {"token": sensitive("aa")}),
        ({"files": ({"target": "/a"},)}, {"files": [{"target": "/a"}]}),
    ],
)
def test_equal_trees_give_nothing(before: dict, after: dict) -> None:
    assert field_changes(before, after) == ()


def test_scalars_nested_and_sorted() -> None:
    before = {"z": 1, "a": {"x": "old", "y": 2}}
    after = {"z": 2, "a": {"x": "new", "y": 2}}
    assert rows(before, after) == [("a.x", "old", "new"), ("z", 1, 2)]


def test_a_list_of_plain_values_is_one_field() -> None:
    assert rows({"ports": [22]}, {"ports": [22, 8000]}) == [("ports", [22], [22, 8000])]
    assert rows({"ports": [22, 9]}, {"ports": []}) == [("ports", [22, 9], [])]
    assert rows({}, {"ports": [22]}) == [("ports", None, [22])]


def test_a_list_of_mappings_is_compared_by_position() -> None:
    before = {"files": [{"target": "/a", "sha256": "1"}, {"target": "/b", "sha256": "2"}]}
    after = {"files": [{"target": "/a", "sha256": "1"}, {"target": "/b", "sha256": "3"}, {"target": "/c"}]}
    assert rows(before, after) == [("files.1.sha256", "2", "3"), ("files.2.target", None, "/c")]


def test_positions_sort_as_numbers() -> None:
    before = {"files": [{"n": index} for index in range(12)]}
    after = {"files": [{"n": index + (index in (2, 10))} for index in range(12)]}
    assert [row[0] for row in rows(before, after)] == ["files.2.n", "files.10.n"]


def test_an_added_mapping_shows_its_leaves() -> None:
    assert rows({"env": {}}, {"env": {"A": "1", "B": {"C": "2"}}}) == [("env.A", None, "1"), ("env.B.C", None, "2")]
    assert rows({"b": {"x": 1}}, {"b": None}) == [("b.x", 1, None)]


def test_a_secret_never_shows() -> None:
    before = {"env": {"T": sensitive("aaa")}}
    after = {"env": {"T": sensitive("bbb")}}
    assert field_changes(before, after) == (FieldChange("env.T", "(sensitive)", "(sensitive)", sensitive=True),)
    assert field_changes({}, after) == (FieldChange("env.T", None, "(sensitive)", sensitive=True),)
    assert field_changes(before, {"env": {"T": "open"}})[0].sensitive


def test_a_secret_inside_a_list_never_shows() -> None:
    (change,) = field_changes({"commands": ["a", sensitive("1")]}, {"commands": ["a", sensitive("2")]})
    assert change == FieldChange("commands", ["a", "(sensitive)"], ["a", "(sensitive)"], sensitive=True)


def test_unknown_after() -> None:
    (change,) = field_changes({"env": {"H": "1.2.3.4"}}, {"env": {"H": unknown("fleet.a[0].host")}})
    assert change == FieldChange("env.H", "1.2.3.4", None, unknown=True)


def test_values_of_other_types() -> None:
    assert rows({"a": 1, "b": None, "c": {"d": 1}}, {"a": "1", "b": 2, "c": 3}) == [
        ("a", 1, "1"),
        ("b", None, 2),
        ("c", {"d": 1}, 3),
    ]


def test_keys_that_deepdiff_would_ignore_by_itself() -> None:
    assert rows({"__private": 1}, {"__private": 2}) == [("__private", 1, 2)]


json_trees = st.dictionaries(
    st.text("abc_.", min_size=1, max_size=3),
    st.recursive(
        st.none() | st.integers(-3, 3) | st.text("xy", max_size=2),
        lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab", min_size=1, max_size=2), inner),
        max_leaves=8,
    ),
    max_size=4,
)


def strip(value: object) -> object:
    """Without what is null or empty: those make no difference worth a line."""
    if isinstance(value, dict):
        return {key: kept for key, child in value.items() if (kept := strip(child)) not in (None, {}, [])}
    if isinstance(value, list):
        return [strip(child) for child in value]
    return value


@given(json_trees, json_trees)
def test_different_trees_give_changes_that_differ(before: dict, after: dict) -> None:
    changes = field_changes(before, after)
    assert all(change.before != change.after for change in changes)
    if strip(before) != strip(after):
        assert changes
    assert field_changes(after, before) == tuple(
        FieldChange(change.path, change.after, change.before) for change in changes
    )


def test_deepdiff_is_loaded_only_for_a_difference() -> None:
    program = (
        "import sys; from lium_plan.kinds.differ import field_changes as f; "
        "f({'a': [1]}, {'a': (1,)}); assert 'deepdiff' not in sys.modules; "
        "f({'a': 1}, {'a': 2}); assert 'deepdiff' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
