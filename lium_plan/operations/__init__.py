"""The imperative shell: load -> observe -> plan -> guard, recover -> apply -> save. Usable as a library.

Each function does what the command of its name does, without printing: what there is to say comes back as a value, or
as a `diagnostics.Failure` with the exit code. Nothing is imported before it is asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lium_plan.operations.applying import Approval, apply
    from lium_plan.operations.checking import doctor
    from lium_plan.operations.extending import extend
    from lium_plan.operations.following import show_log
    from lium_plan.operations.graphing import graph
    from lium_plan.operations.importing import import_one
    from lium_plan.operations.market import list_offers
    from lium_plan.operations.orphans import delete_orphans, list_orphans
    from lium_plan.operations.planning import known_beforehand, make_plan
    from lium_plan.operations.reaching import place_now, places
    from lium_plan.operations.recovering import recover as recover_state
    from lium_plan.operations.saved import load_plan, save_plan
    from lium_plan.operations.states import events, load_state, outputs
    from lium_plan.operations.states import lock as lock_state
    from lium_plan.operations.states import move as move_in_state
    from lium_plan.operations.states import pull as pull_state
    from lium_plan.operations.states import push as push_state
    from lium_plan.operations.states import release as release_from_state
    from lium_plan.operations.states import repair as repair_state
    from lium_plan.operations.states import unlock as unlock_state
    from lium_plan.operations.statuses import status
    from lium_plan.operations.validating import Validated, validate

_HOMES = {
    "Approval": "applying",
    "apply": "applying",
    "delete_orphans": "orphans",
    "doctor": "checking",
    "events": "states",
    "extend": "extending",
    "graph": "graphing",
    "import_one": "importing",
    "known_beforehand": "planning",
    "list_offers": "market",
    "load_plan": "saved",
    "load_state": "states",
    "make_plan": "planning",
    "list_orphans": "orphans",
    "place_now": "reaching",
    "places": "reaching",
    "outputs": "states",
    "save_plan": "saved",
    "show_log": "following",
    "status": "statuses",
    "Validated": "validating",
    "validate": "validating",
}

_NAMES = {
    "lock_state": "states.lock",
    "move_in_state": "states.move",
    "pull_state": "states.pull",
    "push_state": "states.push",
    "recover_state": "recovering.recover",
    "release_from_state": "states.release",
    "repair_state": "states.repair",
    "unlock_state": "states.unlock",
}
"""Functions that are called by a longer name here, where nothing says what they work on."""

__all__ = [
    "Approval",
    "Validated",
    "apply",
    "delete_orphans",
    "doctor",
    "events",
    "extend",
    "graph",
    "import_one",
    "known_beforehand",
    "list_offers",
    "list_orphans",
    "load_plan",
    "load_state",
    "lock_state",
    "make_plan",
    "move_in_state",
    "outputs",
    "place_now",
    "places",
    "pull_state",
    "push_state",
    "recover_state",
    "release_from_state",
    "repair_state",
    "save_plan",
    "show_log",
    "status",
    "unlock_state",
    "validate",
]


def __getattr__(name: str) -> Any:
    home, _, function = _NAMES.get(name, f"{_HOMES.get(name, '')}.{name}").rpartition(".")
    if not home:
        raise AttributeError(name)
    found = getattr(import_module(f"lium_plan.operations.{home}"), function)
    globals()[name] = found
    return found
