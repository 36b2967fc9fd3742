"""Saved plans: a plan in a file, and whether it still holds."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from pathlib import Path
from typing import NoReturn

from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, Position, error
from lium_plan.kinds.pod.offers import Feed
from lium_plan.money import rate
from lium_plan.planning.plan import Action, Plan
from lium_plan.settings import Settings
from lium_plan.state.codec import is_as_written, with_checksum
from lium_plan.state.positions import line_at
from lium_plan.views.plan_json import plan_from_json, plan_to_json

LARGEST_BYTES = 256 << 20
CURE = "make a new one: lium-plan plan --out FILE"


def save_plan(plan: Plan, path: Path) -> None:
    """Write it whole or not at all, readable by its owner alone. Raises `Failure`.

    What a symbolic link leads to is replaced, not the link; and only a file is: no device, pipe or directory.
    """
    path = Path(os.path.realpath(path))
    _require_file(path)
    text = json.dumps(plan_to_json(plan, saved=True), indent=1, ensure_ascii=False, allow_nan=False) + "\n"
    data = with_checksum(text.removeprefix("{\n").encode("utf-8"))
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError as failure:
        beside.unlink(missing_ok=True)
        message = f"{path}: the plan can't be saved: {failure.strerror or failure}"
        raise Failure(ExitCode.ERROR, (error("plan-unwritable", message),)) from failure


def _require_file(path: Path) -> None:
    # What is no file is known by its last name too: /dev/stdout leads to one that is in no directory.
    there = path.exists()
    if (there and not path.is_file()) or (not there and not path.parent.is_dir()):
        why = "it is no file" if there else "there is no such directory"
        hint = "a plan is kept in a file of its own; `plan --json` prints one"
        raise Failure(ExitCode.ERROR, (error("plan-unwritable", f"{path}: the plan can't be saved: {why}", hint=hint),))


def load_plan(path: Path) -> Plan:
    """Raises `Failure`: 1 for what can't be read or is no saved plan, 4 for one that was changed since it was saved."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Failure(ExitCode.ERROR, (error("plan-unreadable", f"{path}: this is no file"),))
        if path.stat().st_size > LARGEST_BYTES:
            raise Failure(ExitCode.ERROR, (error("plan-unreadable", f"{path}: too big to be a plan"),))
        data = path.read_bytes()
    except OSError as failure:
        message = f"{path}: the plan can't be read: {failure.strerror or failure}"
        raise Failure(ExitCode.ERROR, (error("plan-unreadable", message),)) from failure
    try:
        document = json.loads(data.decode("utf-8"), parse_constant=_no_number, parse_float=_finite)
    except _NoNumber as failure:
        raise Failure(ExitCode.ERROR, (_misplaced(path, data.decode("utf-8"), str(failure)),)) from failure
    except (ValueError, RecursionError) as failure:
        raise Failure(ExitCode.ERROR, (error("plan-unreadable", f"{path}: this is no saved plan"),)) from failure
    plan = plan_from_json(document)
    # Last: what is wrong in particular says more than that something is.
    if not is_as_written(data):
        changed = f"{path} was changed after it was saved" if "checksum" in document else f"{path} has no checksum"
        raise Failure(ExitCode.STALE, (_stale(changed),))
    return plan


class _NoNumber(ValueError):
    """Its text is what stands in the place of a number."""


def _no_number(text: str) -> NoReturn:
    raise _NoNumber(text)


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise _NoNumber(text)
    return value


def _misplaced(path: Path, text: str, word: str) -> Diagnostic:
    found = re.search(rf"^[^\n]*[\s:\[,]{re.escape(word)}[,\s\]}}]", text, re.MULTILINE)
    position = Position(str(path), line_at(text, found.start()), 1) if found is not None else None
    message = f"the plan cannot be read: {word[:40]} is no number that JSON has"
    return error("bad-plan-file", message, position=position, hint=CURE)


def _stale(reason: str, *, hint: str = CURE, address: str | None = None) -> Diagnostic:
    return error("stale-plan", f"the saved plan is stale: {reason}", address=address, hint=hint)


def without_state(saved: Plan, settings: Settings) -> Diagnostic | None:
    """Why a saved plan to destroy may not be carried out where there is no state; None when it was made without one."""
    if saved.stack != settings.stack:
        return _stale(f"it was made for stack {saved.stack}, this is {settings.stack}")
    if saved.lineage is None:
        return None
    return _stale(
        f"stack {settings.stack} has no state in {settings.state_dir} any more, and what the plan destroys may run on",
        hint="put the state back, or build one (lium-plan state recover), and make a new plan",
    )


def staleness(saved: Plan, fresh: Plan) -> Diagnostic | None:
    """Why the saved plan may not be carried out any more; None when nothing that matters changed.

    `fresh` is the plan that would be made now. A node that was taken or a price that moved does not matter: the rent
    takes another offer within the ceiling.
    """
    reason = _elsewhere(saved, fresh) or _done_already(saved, fresh) or _moved(saved, fresh) or _differs(saved, fresh)
    return None if reason is None else _stale(reason)


def not_on_offer(saved: Plan, feed: Feed | None) -> Diagnostic | None:
    """Which of the planned offers can't be had any more within its ceiling; None when all can."""
    offers = feed.offers if feed is not None else ()
    now = {(offer.node_id, offer.gpu_count): offer for offer in offers}
    free: dict[str, int] = {}
    for offer in offers:
        free[offer.node_id] = max(free.get(offer.node_id, 0), offer.gpu_count)
    for action in saved.actions:
        planned = action.offer
        if planned is None:
            continue
        found = now.get((planned.node_id, planned.gpu_count))
        ceiling = action.ceiling_per_hour_usd
        free[planned.node_id] = free.get(planned.node_id, 0) - planned.gpu_count
        if found is None or free[planned.node_id] < 0:
            why = "is taken"
        elif ceiling is not None and found.price_per_hour_usd > ceiling:
            why = f"costs {rate(found.price_per_hour_usd)} by now, over its ceiling of {rate(ceiling)}"
        else:
            continue
        return _stale(
            f"node {planned.node_id} {why}, and --strict-offers takes no other",
            hint=f"{CURE}; or apply this one without --strict-offers",
            address=str(action.address),
        )
    return None


def _elsewhere(saved: Plan, fresh: Plan) -> str | None:
    if saved.stack != fresh.stack:
        return f"it was made for stack {saved.stack}, this is {fresh.stack}"
    if saved.project != fresh.project:
        return f"it was made for project {saved.project}, this is {fresh.project}"
    if saved.server != fresh.server:
        return f"it was made for the server {saved.server}, this is {fresh.server}"
    if saved.account_id != fresh.account_id:
        return "it was made with another account's key"
    if saved.lineage is not None and saved.lineage != fresh.lineage:
        return "the state is another one now"
    return None


def _done_already(saved: Plan, fresh: Plan) -> str | None:
    """A plan that is applied a second time: the state has moved on, and all of it is as the plan wanted it."""
    moved_on = (saved.lineage, saved.serial) != (fresh.lineage, fresh.serial)
    # Without a state the digest has a salt of its own, and can't be compared.
    same = saved.lineage is None or saved.desired_digest == fresh.desired_digest
    if moved_on and same and _counted(saved) and not _counted(fresh):
        return "it, or another plan, was applied already: nothing is left to do"
    return None


def _moved(saved: Plan, fresh: Plan) -> str | None:
    if saved.lineage != fresh.lineage:
        return "the state has changed since: there was none when it was made"
    if saved.serial != fresh.serial:
        return f"the state has changed since (serial {saved.serial}, now {fresh.serial})"
    if saved.desired_digest != fresh.desired_digest:
        return "the manifest, its files or its variables have changed since"
    return None


def _differs(saved: Plan, fresh: Plan) -> str | None:
    before, after = _counted(saved), _counted(fresh)
    for identity in (*before, *after):
        old, new = before.get(identity), after.get(identity)
        if old is None and new is not None:
            return f"{new.verb} {new.address} is needed now" + (f": {new.reason}" if new.reason else "")
        if new is None and old is not None:
            return f"{old.verb} {old.address} is no longer what is needed"
        if old is not None and new is not None and (old.verb, old.changes) != (new.verb, new.changes):
            return f"what is to be done about {old.address} is not the same any more"
    return None


def _counted(plan: Plan) -> dict[str, Action]:
    # What happens every time is no change: a deadline that is renewed may have become due meanwhile.
    return {_identity(action): action for action in plan.actions if action.counted}


def _identity(action: Action) -> str:
    return f"{action.address}#{action.deposed_id or ''}#{action.source or ''}"
