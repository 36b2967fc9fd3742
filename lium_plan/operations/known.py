"""Known: what the states of all stacks of a directory hold, so that nothing is taken for nobody's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from lium_plan.kinds.holdings import Held
from lium_plan.marks import lineage_mark
from lium_plan.operations.outside import REAL, Outside
from lium_plan.planning.observed import Holder
from lium_plan.settings import Settings
from lium_plan.state.local import stacks_in
from lium_plan.state.model import State


@dataclass(frozen=True, slots=True)
class Known:
    """What the states of a directory hold, together."""

    states: Mapping[str, State]
    """By stack."""
    ids: frozenset[str]
    names: frozenset[str]
    """Of what may exist though no record has its id yet."""

    def by_mark(self, mark: str | None) -> State | None:
        return next((state for state in self.states.values() if lineage_mark(state.lineage) == mark), None)

    def holder(self, held: Held) -> Holder | None:
        """The stack that has it, or that may come to have it."""
        for stack, state in self.states.items():
            record = next((item for item in state.records.values() if item.id == held.id), None)
            if record is not None:
                return Holder(stack, record.address)
            if held.lineage_mark is not None and held.name in _awaited(state):
                return Holder(stack, None)
        return None


def load_known(settings: Settings, outside: Outside = REAL) -> Known:
    """Raises `Failure` (1) when one of them can't be read."""
    return _known(settings, stacks_in(settings.state_dir), outside)


def other_states(settings: Settings, outside: Outside) -> Known:
    """Without this stack's. Raises `Failure` (1) when one of them can't be read."""
    return _known(settings, (name for name in stacks_in(settings.state_dir) if name != settings.stack), outside)


def _known(settings: Settings, stacks: Iterable[str], outside: Outside) -> Known:
    states: dict[str, State] = {}
    for stack in stacks:
        state = outside.open_store(replace(settings, stack=stack)).load().state
        if state is not None:
            states[stack] = state
    ids: set[str] = set()
    names: set[str] = set()
    for state in states.values():
        ids |= {record.id for record in state.records.values() if record.id is not None}
        ids |= {item.id for item in state.released}
        names |= _awaited(state)
        for effect in state.open.values():
            ids |= {str(effect.data[key]) for key in ("id", "pod_id") if effect.data.get(key)}
    return Known(states, frozenset(ids), frozenset(names))


def _awaited(state: State) -> set[str]:
    """The names of what may exist though no record has its id yet."""
    opened = (effect.data.get(key) for effect in state.open.values() for key in ("pod_name", "name"))
    return {item.name for item in state.watched} | {str(name) for name in opened if name}
