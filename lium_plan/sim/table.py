"""Tables of frozen rows with secondary indexes. A table reports each change to a listener (the store) and knows
nothing of what its rows mean."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, Generic, Protocol, TypeVar


class Row(Protocol):
    @property
    def id(self) -> str: ...


R = TypeVar("R", bound=Row)

Listener = Callable[[str, str], None]
"""Called with a table's name and a row's id whenever that row was put or dropped."""


def changed(row: R, **changes: Any) -> R:
    """What `dataclasses.replace` does, for rows without init-only fields, in half its time."""
    names, values_of = _fields(type(row))
    return type(row)(**{**dict(zip(names, values_of(row), strict=True)), **changes})


@cache
def _fields(row_type: type[Any]) -> tuple[tuple[str, ...], Callable[[Any], tuple[Any, ...]]]:
    names = tuple(field.name for field in fields(row_type))
    return names, attrgetter(*names)


class Table(Generic[R]):
    """Rows by id, in the order of their first appearance.

    `indexes` maps a name to a function from a row to the value it is found under; None keeps it out of that index.
    """

    def __init__(
        self,
        name: str,
        row_type: type[R],
        indexes: Mapping[str, Callable[[R], Hashable | None]] | None = None,
    ) -> None:
        self.name = name
        self.row_type = row_type
        self._rows: dict[str, R] = {}
        self.by_id: Mapping[str, R] = self._rows
        """The rows, for looking only."""
        self._keys = dict(indexes or {})
        self._found: dict[str, dict[Hashable, dict[str, R]]] = {index: {} for index in self._keys}
        self.listener: Listener | None = None

    def put(self, row: R) -> R:
        old = self._rows.get(row.id)
        self._rows[row.id] = row
        for index, key in self._keys.items():
            before = None if old is None else key(old)
            after = key(row)
            if before is not None and before != after:
                self._unindex(index, before, row.id)
            if after is not None:
                self._found[index].setdefault(after, {})[row.id] = row
        if self.listener is not None:
            self.listener(self.name, row.id)
        return row

    def change(self, row_id: str, **fields: Any) -> R:
        """Put a copy of the row with other values in `fields`."""
        return self.put(changed(self._rows[row_id], **fields))

    def drop(self, row_id: str) -> None:
        row = self._rows.pop(row_id, None)
        if row is None:
            return
        for index, key in self._keys.items():
            value = key(row)
            if value is not None:
                self._unindex(index, value, row_id)
        if self.listener is not None:
            self.listener(self.name, row_id)

    def _unindex(self, index: str, value: Hashable, row_id: str) -> None:
        rows = self._found[index][value]
        rows.pop(row_id, None)
        if not rows:
            del self._found[index][value]

    def get(self, row_id: str) -> R | None:
        return self._rows.get(row_id)

    def __getitem__(self, row_id: str) -> R:
        return self._rows[row_id]

    def __contains__(self, row_id: str) -> bool:
        return row_id in self._rows

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[R]:
        return iter(tuple(self._rows.values()))

    def oldest(self) -> str:
        """The id of the first row. Raises StopIteration when there is none."""
        return next(iter(self._rows))

    def where(self, index: str, value: Hashable) -> tuple[R, ...]:
        """The rows found under `value` in `index`, in the order they came to be there."""
        rows = self._found[index].get(value)
        return () if rows is None else tuple(rows.values())

    def clear(self) -> None:
        for row_id in tuple(self._rows):
            self.drop(row_id)
