"""What differs between two trees of inputs, field by field. The one place that uses deepdiff.

Owns the paths (`env.HF_TOKEN`, `files.0.sha256`) and what may be shown of a value: a secret shows as `(sensitive)`,
a value known after apply as nothing. Refuses to judge: what a difference means is the kind's business.

A list of plain values (ports, commands) is one field, because a reader wants to see it whole; a list of mappings is
compared position by position. deepdiff is loaded only when something differs, for it takes longer to import than
to compare a thousand resources.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from lium_plan.kinds.protocol import FieldChange, Json

SENSITIVE = "$sensitive"
UNKNOWN = "$unknown"
HIDDEN = "(sensitive)"
"""What stands for a secret where its absence or presence may be told."""

Path = tuple[str | int, ...]


def sensitive(keyed_hash: str) -> Json:
    """The mark that stands for a secret in a tree."""
    return {SENSITIVE: keyed_hash}


def unknown(expression: str) -> Json:
    """The mark that stands for a value known after apply."""
    return {UNKNOWN: expression}


def is_sensitive(value: Json) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and SENSITIVE in value


def is_unknown(value: Json) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and UNKNOWN in value


def field_changes(before: Mapping[str, Json], after: Mapping[str, Json]) -> tuple[FieldChange, ...]:
    """The fields that differ, sorted by path; a field that one side lacks is null there, and as good as null.

    Tuples equal lists and 50 equals 50.0, since a JSON file makes no such difference.
    """
    if before == after:
        return ()
    old, new = _plain(before), _plain(after)
    if old == new:
        return ()
    return tuple(_change(path, _at(old, path), _at(new, path)) for path in _differing_paths(old, new))


def _differing_paths(old: Json, new: Json) -> list[Path]:
    from deepdiff import DeepDiff

    found = DeepDiff(
        old,
        new,
        view="tree",
        zip_ordered_iterables=True,
        ignore_numeric_type_changes=True,
        ignore_private_variables=False,
        threshold_to_diff_deeper=0,
    )
    paths: dict[Path, None] = {}
    for levels in found.values():
        for level in levels:
            for path in _fields(old, new, tuple(level.path(output_format="list"))):
                paths.setdefault(path)
    return sorted((path for path in paths if _at(old, path) != _at(new, path)), key=_sort_key)


def _fields(old: Json, new: Json, path: Path) -> Iterator[Path]:
    """The fields that a difference at `path` is about: the smallest whole above it, or all the leaves below it."""
    for depth in range(len(path)):
        if _is_field(_at(old, path[:depth])) or _is_field(_at(new, path[:depth])):
            yield path[:depth]
            return
    left, right = _at(old, path), _at(new, path)
    if left is None or right is None:
        whole = right if left is None else left
        yield from (path + leaf for leaf in _leaves(whole))
    else:
        yield path


def _leaves(value: Json) -> Iterator[Path]:
    if not value or _is_field(value):
        yield ()
    elif isinstance(value, Mapping):
        yield from ((key, *leaf) for key, child in value.items() for leaf in _leaves(child))
    elif isinstance(value, list):
        yield from ((index, *leaf) for index, child in enumerate(value) for leaf in _leaves(child))


def _is_field(value: Json) -> bool:
    """Shown as one value: a mark, a scalar other than null, a list of such."""
    if isinstance(value, list):
        return all(_is_field(child) or child is None for child in value)
    if isinstance(value, Mapping):
        return is_sensitive(value) or is_unknown(value)
    return value is not None


def _at(value: Json, path: Path) -> Json:
    for step in path:
        if isinstance(value, Mapping) and isinstance(step, str):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int):
            value = value[step] if step < len(value) else None
        else:
            return None
    return value


def _change(path: Path, before: Json, after: Json) -> FieldChange:
    return FieldChange(
        path=".".join(str(step) for step in path),
        before=_shown(before),
        after=_shown(after),
        unknown=_holds(after, UNKNOWN),
        sensitive=_holds(before, SENSITIVE) or _holds(after, SENSITIVE),
    )


def _shown(value: Json) -> Json:
    if is_sensitive(value):
        return HIDDEN
    if is_unknown(value):
        return None
    if isinstance(value, Mapping):
        return {key: _shown(child) for key, child in value.items()}
    if isinstance(value, list):
        return [_shown(child) for child in value]
    return value


def _holds(value: Json, mark: str) -> bool:
    if isinstance(value, Mapping):
        return mark in value or any(_holds(child, mark) for child in value.values())
    return isinstance(value, list) and any(_holds(child, mark) for child in value)


def _plain(value: Json) -> Json:
    """The same tree in dictionaries and lists alone."""
    if isinstance(value, Mapping):
        return {key: _plain(child) for key, child in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(child) for child in value]
    return value


def _sort_key(path: Path) -> tuple[tuple[int, str], ...]:
    return tuple((step, "") if isinstance(step, int) else (-1, step) for step in path)
