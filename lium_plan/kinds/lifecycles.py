"""The `lifecycle` that several kinds share. Pure."""

from __future__ import annotations

from typing import Protocol

from lium_plan.kinds.protocol import FieldChange, Lifecycle


class _Block(Protocol):
    """The written form; its `create_before_destroy` exists for fleets only."""

    @property
    def prevent_destroy(self) -> bool: ...

    @property
    def ignore_changes(self) -> tuple[str, ...]: ...


def lifecycle_of(block: _Block | None) -> Lifecycle:
    if block is None:
        return Lifecycle()
    return Lifecycle(
        block.prevent_destroy, tuple(block.ignore_changes), bool(getattr(block, "create_before_destroy", False))
    )


def ignores(lifecycle: Lifecycle, path: str) -> bool:
    """Whether `ignore_changes` names this path, or something that it is part of."""
    return any(path == ignored or path.startswith(ignored + ".") for ignored in lifecycle.ignore_changes)


def without_ignored(lifecycle: Lifecycle, changes: tuple[FieldChange, ...]) -> tuple[FieldChange, ...]:
    """The changes that are not to be left alone."""
    if not lifecycle.ignore_changes:
        return changes
    return tuple(change for change in changes if not ignores(lifecycle, change.path))


def ignored_below(lifecycle: Lifecycle, part: str, fields: tuple[str, ...]) -> Lifecycle:
    """The lifecycle of a resource that is written as part of another: what is ignored of `part`."""
    inside = tuple(path.removeprefix(f"{part}.") for path in lifecycle.ignore_changes if path.startswith(f"{part}."))
    return Lifecycle(ignore_changes=fields if part in lifecycle.ignore_changes else inside)
