"""Moves are written down one by one: killed anywhere among them, the next plan goes on where this one ended."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from planning_cases import NOW, Given, load_cases, read_case

from lium_plan.engine.bookkeeping import is_bookkeeping, keep_books
from lium_plan.kinds.protocol import Verb
from lium_plan.planning.plan import Plan
from lium_plan.state.entries import Entry
from lium_plan.state.journal import JournaledLedger, RunIdentity
from lium_plan.state.local import LocalStore
from lium_plan.state.lock import this_process
from lium_plan.state.model import replay

MOVING = {
    name: case
    for name, case in load_cases()
    if name.startswith("moving: ") and not set(case["expect"]) & {"refusal", "failure", "open"}
}


@pytest.mark.parametrize("name", MOVING)
def test_killed_anywhere_a_move_goes_on(name: str, tmp_path: Path) -> None:
    given = read_case(MOVING[name], tmp_path)
    whole = given.plan()
    moves = [action for action in whole.actions if is_bookkeeping(action)]
    entries = written(given, whole, tmp_path / "state")
    assert given.state is not None
    for count in range(len(entries) + 1):
        state = replay(given.state, entries[:count])
        keys = {record.id: record.key for record in state.records.values()}
        seen = {keys[record.id]: given.observed.observations[key] for key, record in given.state.records.items()
                if key in given.observed.observations}  # fmt: skip
        left = replace(given, state=state, observed=replace(given.observed, observations=seen)).plan()
        rest = [action for action in left.actions if action.verb is not Verb.MOVE]
        assert rest == [action for action in whole.actions if action.verb is not Verb.MOVE], f"after {count} entries"
        assert left.refusal is None
    assert not any(action.verb is Verb.MOVE for action in left.actions) or not moves


def written(given: Given, plan: Plan, folder: Path) -> list[Entry]:
    """The journal entries that carrying out a plan's moves writes."""
    assert given.state is not None
    store = LocalStore(folder, "default", now=lambda: NOW)
    entries: list[Entry] = []
    identity = RunIdentity("run", "somebody@here", "lium-plan apply")

    async def main() -> None:
        owner: Any = this_process(who="somebody", command="apply", run="run", since=NOW)
        with await store.lock(owner, timeout_s=0):
            store.load()
            assert given.state is not None
            ledger = JournaledLedger(
                store, given.state, run=identity, now=lambda: NOW, born=False, heard=entries.append
            )
            keep_books([action for action in plan.actions if is_bookkeeping(action)], {}, ledger)

    asyncio.run(main())
    return entries
