"""What the state says, offline and without a lock."""

from __future__ import annotations

from collections.abc import Mapping

from lium_plan.diagnostics import ExitCode, Failure, error
from lium_plan.operations.outside import open_local_store
from lium_plan.planning.plan import OutputValue
from lium_plan.settings import Settings
from lium_plan.state.events import AuditEvent
from lium_plan.state.model import State


def load_state(settings: Settings) -> State:
    """Raises `Failure` (1) when nothing was ever applied, or the files can't be read."""
    state = open_local_store(settings).load().state
    if state is None:
        raise Failure(
            ExitCode.ERROR,
            (
                error(
                    "no-state",
                    f"stack {settings.stack} has no state in {settings.state_dir}: nothing was applied there yet",
                    hint="`lium-plan apply` makes it; --stack and --state choose another one",
                ),
            ),
        )
    return state


def outputs(settings: Settings) -> Mapping[str, OutputValue]:
    """The outputs as the last apply left them."""
    return {name: OutputValue(value) for name, value in load_state(settings).outputs.items()}


def events(settings: Settings) -> tuple[AuditEvent, ...]:
    """The audit log, oldest first."""
    return open_local_store(settings).events()
