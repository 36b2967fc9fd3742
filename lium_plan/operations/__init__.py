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
    from lium_plan.operations.market import list_offers
    from lium_plan.operations.planning import make_plan
    from lium_plan.operations.saved import load_plan, save_plan
    from lium_plan.operations.states import events, load_state, outputs
    from lium_plan.operations.status import status
    from lium_plan.operations.validating import Validated, validate

_HOMES = {
    "Approval": "applying",
    "apply": "applying",
    "doctor": "checking",
    "events": "states",
    "list_offers": "market",
    "load_plan": "saved",
    "load_state": "states",
    "make_plan": "planning",
    "outputs": "states",
    "save_plan": "saved",
    "status": "status",
    "Validated": "validating",
    "validate": "validating",
}

__all__ = [
    "Approval",
    "Validated",
    "apply",
    "doctor",
    "events",
    "list_offers",
    "load_plan",
    "load_state",
    "make_plan",
    "outputs",
    "save_plan",
    "status",
    "validate",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(name)
    return getattr(import_module(f"lium_plan.operations.{_HOMES[name]}"), name)
