"""Saved plans: a plan in a file, and whether it still holds."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error
from lium_plan.planning.plan import Action, Plan
from lium_plan.views.plan_json import plan_from_json, plan_to_json

LARGEST_BYTES = 256 << 20


def save_plan(plan: Plan, path: Path) -> None:
    """Write it whole or not at all, readable by its owner alone. Raises `Failure`.

    What a symbolic link leads to is replaced, not the link; and only a file is: no device, pipe or directory.
    """
    path = Path(os.path.realpath(path))
    _require_file(path)
    text = json.dumps(plan_to_json(plan, saved=True), indent=1, ensure_ascii=False) + "\n"
    beside = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
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
    """Raises `Failure` (1) for a file that can't be read or is no saved plan."""
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise Failure(ExitCode.ERROR, (error("plan-unreadable", f"{path}: this is no file"),))
        if path.stat().st_size > LARGEST_BYTES:
            raise Failure(ExitCode.ERROR, (error("plan-unreadable", f"{path}: too big to be a plan"),))
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as failure:
        message = f"{path}: the plan can't be read: {failure.strerror or failure}"
        raise Failure(ExitCode.ERROR, (error("plan-unreadable", message),)) from failure
    except (ValueError, RecursionError) as failure:
        raise Failure(ExitCode.ERROR, (error("plan-unreadable", f"{path}: this is no saved plan"),)) from failure
    return plan_from_json(document)


def staleness(saved: Plan, fresh: Plan) -> Diagnostic | None:
    """Why the saved plan may not be carried out any more; None when nothing that matters changed.

    `fresh` is the plan that would be made now. A node that was taken or a price that moved does not matter: the rent
    takes another offer within the ceiling.
    """
    reason = _elsewhere(saved, fresh) or _done_already(saved, fresh) or _moved(saved, fresh) or _differs(saved, fresh)
    if reason is None:
        return None
    return error("stale-plan", f"the saved plan is stale: {reason}", hint="make a new one: lium-plan plan --out FILE")


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
