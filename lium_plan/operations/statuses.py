"""`status`: each pod of the stack as it is now, what it costs and has cost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from lium_plan.answers import PodStatus, StatusAnswer, TaskStatus
from lium_plan.diagnostics import Diagnostic, Failure, warning
from lium_plan.kinds.logs import last_bytes, log_path
from lium_plan.kinds.pod.lifetimes import TTL_TOLERANCE, moment, shown_moment
from lium_plan.kinds.pod.orders import rented
from lium_plan.kinds.pod.spec import if_dead
from lium_plan.kinds.protocol import Json, Marked, Observation, OpenEffect, Presence, Record, Survey
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError
from lium_plan.marks import lineage_mark, scope_mark
from lium_plan.money import rate
from lium_plan.operations.connecting import api_failures, connect, open_drivers
from lium_plan.operations.hiding import hiding
from lium_plan.operations.states import load_state
from lium_plan.operations.visiting import Visits, task_status, visit
from lium_plan.planning.rents import Health, bills, health, status_seen
from lium_plan.settings import Settings
from lium_plan.state.model import State
from lium_plan.together import together
from lium_plan.views.state_json import shown_status

LINES_SHOWN = 10


async def status(settings: Settings, *, gpu: bool) -> StatusAnswer:
    """Raises `Failure` without a state, without a key, or when the pods can't be listed."""
    state = load_state(settings)
    async with connect(settings) as connection:
        drivers = open_drivers(settings, connection, state)
        records = [record for record in state.records.values() if record.kind == "pod"]
        with api_failures("list the pods"):
            survey = await drivers["pod"].survey(
                records, scope_mark=scope_mark(state.project, state.stack), lineage_mark=lineage_mark(state.lineage)
            )
        now = connection.client.server_time()
        unsettled = tuple(_unsettled(state, survey.others))
        spent, visits = await together(
            _bills(connection.client, [*records, *(found.record for found in unsettled)]),
            visit(
                settings,
                connection.outside.open_connector(),
                state,
                survey.observations,
                gpu=gpu,
                tails=True,
            ),
        )
    pods = (
        *(
            _row(state, record, survey.observations[record.key], spent.get(record.key), visits, now)
            for record in records
        ),
        *(_unsettled_row(state, found, spent.get(found.record.key), now) for found in unsettled),
    )
    tasks = _tasks(state)
    lines = _last_lines(settings, state, tasks, visits)
    unbilled = [record for record in (*records, *(found.record for found in unsettled)) if record.key not in spent]
    return StatusAnswer(
        pods,
        sum((pod.price_per_hour_usd for pod in pods), Decimal(0)),
        sum((pod.spent_usd for pod in pods), Decimal(0)),
        (*_diagnostics(unbilled), *_not_listed(state, survey)),
        tuple(_task(settings, record, visits, lines) for record in tasks),
    )


async def _bills(client: LiumClient, records: list[Record]) -> dict[str, Decimal]:
    """USD so far by the server's own statements, where it has them."""
    answers = await asyncio.gather(*(client.statement(str(record.id)) for record in records), return_exceptions=True)
    found = {}
    for record, answer in zip(records, answers, strict=True):
        if isinstance(answer, LiumError):
            continue
        if isinstance(answer, BaseException):
            raise answer
        if answer.total_usd is not None:
            found[record.key] = answer.total_usd
    return found


def _diagnostics(unbilled: list[Record]) -> tuple[Diagnostic, ...]:
    return tuple(
        warning(
            "no-statement",
            "the server gives no statement; spent is reckoned from price and age",
            address=str(record.address),
        )
        for record in unbilled
    )


def _row(
    state: State, record: Record, seen: Observation, bill: Decimal | None, visits: Visits, now: datetime
) -> PodStatus:
    facts = {**record.attributes, **seen.attributes}
    price = Decimal(str(facts.get("price_per_hour_usd") or 0))
    since = facts.get("created_at") or facts.get("rented_at")
    age_s = max((now - datetime.fromisoformat(str(since))).total_seconds(), 0.0) if since else 0.0
    removal = facts.get("removal_at")
    left = (datetime.fromisoformat(str(removal)) - now).total_seconds() if removal else None
    reckoned = (price * Decimal(str(age_s)) / 3600).quantize(Decimal("0.00001"))
    return PodStatus(
        address=record.key,
        id=str(record.id),
        name=str(facts.get("pod_name") or ""),
        phase=seen.status or str(seen.presence),
        status=_status(state, record, seen, now),
        age_s=age_s,
        price_per_hour_usd=price if bills(record, seen, now) else Decimal(0),
        spent_usd=bill if bill is not None else reckoned,
        ttl_left_s=None if left is None else max(left, 0.0),
        drift=_drift(record, seen),
        node_id=str(facts.get("node_id") or ""),
        gpu=str(facts.get("gpu") or ""),
        gpu_count=int(str(facts.get("gpu_count") or 0)),
        use=visits.uses.get(record.key),
    )


# --- what the state has no record of yet ---------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """A pod that is listed under a name of ours, though no record has it."""

    record: Record
    """As a recovery would make it; deposed, for its key to be nobody else's."""
    seen: Observation
    why: str


def _unsettled(state: State, others: Iterable[Marked]) -> Iterator[_Unsettled]:
    """Pods of rents without a recorded outcome, and under names that are being watched."""
    rents = {effect.data.get("pod_name"): effect for effect in _open_rents(state)}
    watched = {item.name: item.address for item in state.watched}
    for pod in others:
        since = pod.since or datetime.fromtimestamp(0, UTC)
        facts: dict[str, Json] = {"node_id": pod.attributes.get("node_id"), "pod_name": pod.name}
        if pod.name in rents:
            record = rented(rents[pod.name], pod.id, since)
            why = "its rent has no recorded outcome"
        elif pod.name in watched:
            record = Record(watched[pod.name], pod.id, "pending", {}, {"rented_at": since.isoformat()})
            why = "its rent was settled as not done"
        else:
            continue
        if pod.price_per_hour_usd is not None:
            facts["price_per_hour_usd"] = str(pod.price_per_hour_usd)
        status = pod.attributes.get("status")
        seen = Observation(Presence.PRESENT, status if isinstance(status, str) else None)
        attributes = {**record.attributes, **facts}
        yield _Unsettled(replace(record, attributes=attributes, deposed=True), seen, f"{why}: apply settles it")


def _unsettled_row(state: State, found: _Unsettled, bill: Decimal | None, now: datetime) -> PodStatus:
    record = replace(found.record, deposed=False)
    return replace(_row(state, record, found.seen, bill, Visits(), now), drift=(found.why,))


def _not_listed(state: State, survey: Survey) -> Iterator[Diagnostic]:
    """A rent that was sent may still come to be a pod."""
    listed = {pod.name for pod in survey.others}
    recorded = {record.attributes.get("pod_name") for record in state.records.values()}
    for effect in _open_rents(state):
        if effect.data.get("pod_name") in (listed | recorded):
            continue
        ceiling = Decimal(str(effect.data.get("ceiling_per_hour_usd") or 0))
        yield warning(
            "open-rent",
            f"a rent has no recorded outcome, and no pod of its name is listed yet: it may cost up to {rate(ceiling)}",
            address=str(effect.address),
            hint="lium-plan apply settles it",
        )


def _open_rents(state: State) -> Iterator[OpenEffect]:
    return (effect for effect in state.open.values() if effect.op == "rent")


# --- one row -------------------------------------------------------------------------------------------------


def _status(state: State, record: Record, seen: Observation, now: datetime) -> str:
    """The state's word, unless what is seen says another: a pod that is dead there is dead here."""
    found = health(record, seen, now)
    if found in (Health.GONE, Health.EXPIRED, Health.UNREACHABLE):
        return str(found)
    return shown_status(replace(record, status=status_seen(record, seen)), state)


def _drift(record: Record, seen: Observation) -> tuple[str, ...]:
    """What the API shows otherwise than the state has it, in the plan's words."""
    if seen.presence is not Presence.PRESENT:
        return (seen.reason or str(seen.presence),)
    dead = if_dead(record, seen)
    changed = (
        f"{word}: {before} -> {after}"
        for word, name, shown in _WATCHED
        if (before := shown(record.attributes.get(name))) and (after := shown(seen.attributes.get(name)))
        if before != after and not _about_equal(record.attributes[name], seen.attributes[name])
    )
    return (*((dead.reason,) if dead is not None else ()), *changed)


def _price(value: Json) -> str:
    return "" if value is None else rate(Decimal(str(value)))


def _moment(value: Json) -> str:
    at = moment(value)
    return "" if at is None else shown_moment(at)


def _as_it_is(value: Json) -> str:
    return "" if value is None else str(value)


_WATCHED: tuple[tuple[str, str, Callable[[Json], str]], ...] = (
    ("price", "price_per_hour_usd", _price),
    ("template", "template_id", _as_it_is),
    ("host", "host", _as_it_is),
    ("SSH port", "ssh_port", _as_it_is),
    ("end", "removal_at", _moment),
)
"""What people call it, the attribute, and how its values are shown."""


def _about_equal(before: Json, after: Json) -> bool:
    """Of two times: the server may count from another moment than we do."""
    try:
        first, second = moment(before), moment(after)
    except ValueError:
        return False  # no times
    return first is not None and second is not None and abs(first - second) <= TTL_TOLERANCE


# --- tasks -----------------------------------------------------------------------------------------------------------


def _tasks(state: State) -> list[Record]:
    tasks = [record for record in state.records.values() if record.kind == "task"]
    return sorted(tasks, key=lambda record: record.address)


def _task(settings: Settings, record: Record, visits: Visits, lines: Mapping[str, tuple[str, ...]]) -> TaskStatus:
    facts = record.attributes
    found = visits.probes.get(record.key)
    code = facts.get("exit_code") if found is None else found.exit_status
    there = _log(settings, record).is_file()  # what nobody follows has none here
    return TaskStatus(
        address=str(record.address),
        status=record.status if found is None else task_status(found),
        exit_code=code if isinstance(code, int) else None,
        started_at=_time(facts.get("started_at")),
        ended_at=_time(facts.get("ended_at")),
        log=str(facts["log"]) if there and facts.get("log") else None,
        probed=found is not None,
        last_lines=lines.get(record.key, ()),
    )


def _last_lines(settings: Settings, state: State, tasks: list[Record], visits: Visits) -> Mapping[str, tuple[str, ...]]:
    """By key, of the tasks that did not end well: of an end that an apply saw from the log here, else from the pod.

    What a pod says is left out where the manifest can't be read, or lacks a secret: it names those to hide.
    """
    tails: dict[str, bytes] = {}
    for task in tasks:
        if task.status in ("failed", "timed-out", "unknown"):
            with suppress(OSError):
                tails[task.key] = last_bytes(_log(settings, task))
    if visits.tails:
        with suppress(Failure):
            hide = hiding(settings, state)
            for task in tasks:
                hidden = hide(task)
                if task.key in visits.tails and hidden.complete:
                    tails[task.key] = hidden.mask.feed(visits.tails[task.key]) + hidden.mask.flush()
    return {key: _lines(tail)[-LINES_SHOWN:] for key, tail in tails.items()}


def _log(settings: Settings, task: Record) -> Path:
    return log_path(settings.state_dir / "logs" / settings.stack, task.address)


def _lines(tail: bytes) -> tuple[str, ...]:
    """Without ours."""
    return tuple(line for line in tail.decode("utf-8", "replace").splitlines() if not line.startswith("--- "))


def _time(value: object) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None
