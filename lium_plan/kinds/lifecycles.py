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


def without_ignored(lifecycle: Lifecycle, changes: tuple[FieldChange, ...]) -> tuple[FieldChange, ...]:
    """The changes whose path is not under one of `ignore_changes`."""
    return tuple(
        change
        for change in changes
        if not any(change.path == path or change.path.startswith(path + ".") for path in lifecycle.ignore_changes)
    )
