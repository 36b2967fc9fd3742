"""The oracles: what must hold at every moment, judged by the server's own ledger and by what lies on the disk.

Numbers are those of the promises: O1 nothing billed is unknown, O2 never two for one address, O3 the state parses and
its serial only grows, O4 apply converges and the next one does nothing, O5 destroy empties and touches nothing foreign,
O6 no secret anywhere, O7 exit code and summary agree with the ledger. O8 (bounded time) is in `World.run`.
"""

from __future__ import annotations

import base64
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.kinds.protocol import Record
from lium_plan.marks import parse_pod_name
from lium_plan.sim.rows import Charge
from lium_plan.state.model import State
from tests.support.world import Broken, Ran, World


def nothing_unknown(world: World, where: str) -> None:
    """O1, and O3's first half: what the server holds for us is in state, journal or on the watch list."""
    try:
        state = world.state()
    except Failure as problem:
        raise Broken(f"O3: {where}: the state can't be read: {problem.diagnostics[0].message}") from problem
    for charge in world.open_charges():
        if not _known(charge, state):
            raise Broken(f"O1: {where}: {charge.kind} {charge.name} ({charge.object_id}) is billed and unknown")


def _known(charge: Charge, state: State | None) -> bool:
    if state is None:
        return False
    if any(charge.object_id == record.id or charge.name == _pod_name(record) for record in state.records.values()):
        return True
    if any(item.name == charge.name for item in state.watched):
        return charge.kind == "pod"
    for effect in state.open.values():
        data = effect.data
        if charge.object_id == data.get("id") or charge.name in (data.get("pod_name"), data.get("name")):
            return True
        before = data.get("before")
        # A credential has no name of ours: it is one that was not there before.
        new = isinstance(before, list | tuple) and charge.object_id not in before
        if charge.kind == "credential" and effect.address.kind == "credential" and new:
            return True
    return any(item.id == charge.object_id for item in state.released)


def _pod_name(record: Record) -> object:
    """A pod is looked for by its name too: the answer to its rent may have named another id."""
    return record.attributes.get("pod_name")


def no_duplicates(world: World, where: str) -> None:
    """O2: one living pod for an address; beside it only one that is being replaced, or one on the watch list."""
    by_tail: dict[str, list[Charge]] = defaultdict(list)
    for charge in world.open_charges("pod"):
        name = parse_pod_name(charge.name)
        by_tail[name.tail if name is not None else charge.name].append(charge)
    crowded = {tail: charges for tail, charges in by_tail.items() if len(charges) > 1}
    if not crowded:
        return
    state = world.state()
    excused = set()
    if state is not None:
        excused |= {record.id for record in state.records.values() if record.deposed}
        excused |= {item.name for item in state.watched}
    for tail, charges in crowded.items():
        plain = [charge for charge in charges if charge.object_id not in excused and charge.name not in excused]
        if len(plain) > 1:
            names = ", ".join(charge.name for charge in plain)
            raise Broken(f"O2: {where}: {len(plain)} living pods for {tail}: {names}")


def serial_grows(world: World, where: str) -> None:
    """O3."""
    state = world.state()
    serial = -1 if state is None else state.serial
    if world.serials and serial < world.serials[-1]:
        raise Broken(f"O3: {where}: the serial fell from {world.serials[-1]} to {serial}")
    world.serials.append(serial)
    del world.serials[:-2]


AFTER_EVERY_STEP = (nothing_unknown, no_duplicates, serial_grows)


def no_secrets(world: World) -> None:
    """O6: in no file, no event, no plan and no report, in no usual disguise."""
    _no_secrets(world, world.runs)


def no_new_secrets(world: World, ran: Ran) -> None:
    """O6 for what one run said, and for every file."""
    _no_secrets(world, (ran,))


def _no_secrets(world: World, runs: Iterable[Ran]) -> None:
    places: dict[str, bytes] = dict(world.files())
    for number, ran in enumerate(runs):
        places[f"run {number}: {ran.command}"] = repr(ran).encode()
    disguises = [(secret, disguise) for secret in world.secrets for disguise in _disguises(secret)]
    for name, content in places.items():
        for secret, disguise in disguises:
            if disguise in content:
                raise Broken(f"O6: a secret ({secret[:8]}…) is in {name}")


def honest(world: World, ran: Ran) -> None:
    """O7 as far as it holds whatever the server does meanwhile: a code says what it means."""
    if ran.code in _NOTHING_CHANGED and ran.changes:
        raise Broken(f"O7: {ran.changes} changes were sent, and the code says none: {ran.words}")
    if ran.code in (ExitCode.PARTIAL, ExitCode.UNKNOWN_OUTCOME) and "\n" not in ran.words:
        raise Broken(f"O7: {ran.words}, without a reason")
    state = world.state()
    if ran.code != ExitCode.OK or state is None or not ran.alone:
        return
    if state.open:
        raise Broken(f"O7: {ran.command} ended with 0 and left {[f'{e.op} {e.address}' for e in state.open.values()]}")
    odd = _unfinished(world, state)
    if ran.command == "destroy":
        odd = {key: record.status for key, record in state.records.items()}
    if odd:
        raise Broken(f"O7: {ran.command} ended with 0 and left {odd}")


_NOTHING_CHANGED = (ExitCode.ERROR, ExitCode.STALE, ExitCode.LOCKED, ExitCode.UNSAFE)

AFTER_EVERY_RUN = (honest, no_new_secrets)


def _disguises(secret: str) -> Iterable[bytes]:
    plain = secret.encode()
    yield plain
    yield base64.b64encode(plain)
    yield json.dumps(secret)[1:-1].encode()


def agrees(world: World, ran: Ran) -> None:
    """O7: what a run said of its end is what the ledger says."""
    pods = world.open_charges("pod")
    if ran.code == 0 and ran.command == "apply":
        tails = sorted(name.tail for charge in pods if (name := parse_pod_name(charge.name)) is not None)
        if tails != sorted(world.expected):
            raise Broken(f"O7: apply ended with 0, and the ledger has {tails}")
        if ran.report is not None and ran.report.running_pods != len(pods):
            raise Broken(f"O7: apply says {ran.report.running_pods} pods, the ledger {len(pods)}")
        costs = sum(charge.price_per_hour for charge in pods)
        said = ran.report.running_per_hour_usd if ran.report is not None else None
        if said is not None and abs(said - costs) > 1e-4:
            raise Broken(f"O7: apply says ${said}/h, the ledger ${costs}/h")
    if ran.code == 0 and ran.command == "destroy" and world.open_charges():
        left = ", ".join(f"{charge.kind} {charge.name}" for charge in world.open_charges())
        raise Broken(f"O5: destroy ended with 0, and there is still {left}")


def foreign_untouched(world: World) -> None:
    """O5's second half."""
    alive = {charge.object_id for charge in world.lium.world.charges.where("open", world.account_id)}
    gone = world.foreign - alive
    if gone:
        raise Broken(f"O5: {len(gone)} foreign objects were destroyed: {sorted(gone)}")


def all_done(world: World) -> None:
    """The state after an apply that ended with 0: everything is there, ready, and nothing is open."""
    state = world.state()
    if state is None:
        raise Broken("O4: nothing was applied")
    if state.open:
        raise Broken(f"O4: still open: {[f'{e.op} {e.address}' for e in state.open.values()]}")
    odd = _unfinished(world, state)
    if odd:
        raise Broken(f"O4: not ready: {odd}")
    lost = [key for key, record in state.records.items() if record.kind in _REMOTE and not _lives(world, record.id)]
    if lost:
        raise Broken(f"O4: in the state and not on the server: {lost}")


def _unfinished(world: World, state: State) -> dict[str, str]:
    good = _GOOD if world.awaits_tasks else (*_GOOD, "running")
    return {key: record.status for key, record in state.records.items() if record.status not in good}


_GOOD = ("ready", "completed")
_REMOTE = ("pod", "template", "volume", "credential")


def _lives(world: World, object_id: str | None) -> bool:
    return any(charge.object_id == object_id for charge in world.open_charges())


def shown(world: World) -> Mapping[str, str]:
    """The resources of the state, for messages."""
    state = world.state()
    return {} if state is None else {key: record.status for key, record in state.records.items()}
