"""What no tool could do better: a lower bound for one apply, and what ten at a time would make of the same work.

Nothing here knows lium-plan's scheduler. It takes the plan's graph, and how long each thing really took from where it
happened: the server's events, the network's notes, the machines' own clocks. Of reads, which nobody can tell apart,
the least possible time counts.

The bound is the longer of the longest path through the graph, and of what the limits allow: whatever the order, the
last of any k templates leaves no earlier than the windows let a k-th request, and what depends on it comes after.
"""

from __future__ import annotations

import heapq
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.rehearsing.stage import LEAST_LATENCY_S, Ran, Stage, Travelled, member_of
from lium_plan.sim.throttle import TEMPLATE_WINDOWS
from tests.support.world_machines import Started
from tests.support.world_shell import LATENCY_S, RETRY_S

READ_S = 2 * LEAST_LATENCY_S
LIST_TICK_S = 1.0
"""The account's limit is sixty lists a minute."""
SSH_TICK_S = RETRY_S
"""How often a machine that does not answer yet is tried."""


@dataclass(frozen=True, slots=True)
class Work:
    """One action: seconds until its limited request reaches the server, and from there to its end."""

    before_s: float
    after_s: float = 0.0
    limited: bool = False
    """It creates a template."""

    @property
    def whole_s(self) -> float:
        return self.before_s + self.after_s


@dataclass(frozen=True, slots=True)
class Job:
    """A plan as a graph: what each action takes and what it waits for, in the plan's order."""

    work: Mapping[str, Work]
    after: Mapping[str, tuple[str, ...]]
    """Action -> the actions that it waits for."""


# --- from a run to a job -----------------------------------------------------------------------------------------


def job_of(stage: Stage, ran: Ran, *, ticks: bool = True) -> Job:
    """`ticks`: count one tick of polling for each thing that has to be waited for; without, as if one were told."""
    pods = {member_of(pod.name): pod.id for pod in stage.lium.world.pods}
    work: dict[str, Work] = {}
    for action in ran.plan.actions:
        address = action.address
        member = f"{address.name}-{address.member}"
        match address.kind:
            case "volume" | "credential":
                path = "/volumes" if address.kind == "volume" else "/docker-credentials/"
                work[str(address)] = _posted(stage, path)
            case "template":
                work[str(address)] = _template(stage)
            case "pod":
                work[str(address)] = _pod(stage, member, pods[member], ticks)
            case "bootstrap":
                machine = stage.machines.machine(pods[member])
                assert machine is not None
                (started,) = machine.runs.values()
                work[str(address)] = Work(_seconds(started) + 2 * LATENCY_S)
            case _:
                work[str(address)] = _task(stage, address.name, str(address.member), ran, pods)
    after = {
        str(action.address): tuple(str(before) for before in action.depends_on if str(before) in work)
        for action in ran.plan.actions
    }
    return Job(work, after)


def _posted(stage: Stage, path: str) -> Work:
    """The quickest of these requests; which one is whose does not matter to a lower bound."""
    return Work(min(_trip(item) for item in stage.network.writes if item.path == path))


def _trip(item: Travelled) -> float:
    return item.answered_at - item.sent_at


def _template(stage: Stage) -> Work:
    """A look whether it is there already, then the request that the limits count."""
    return Work(READ_S + LEAST_LATENCY_S, LEAST_LATENCY_S, limited=True)


def _pod(stage: Stage, member: str, pod_id: str, ticks: bool) -> Work:
    rent = next(item for item in stage.network.writes if item.path.endswith("/rent") and _rents(item, member))
    pod = stage.lium.world.pods[pod_id]
    runs_at = next(
        event.created_at
        for event in stage.lium.world.events.where("pod", pod_id)
        if event.sub_event_type == "pod-create.success"
    )
    running_s = (rent.arrived_at - rent.sent_at) + (runs_at - pod.created_at).total_seconds()
    seen_s = running_s + READ_S + (LIST_TICK_S if ticks else 0.0)
    # The server counts a time to live from RUNNING on; it is set right before anything else.
    removals = [item for item in stage.network.writes if item.path == f"/pods/{pod_id}/schedule-removal"]
    seen_s += sum(_trip(item) for item in removals)
    banner_s = running_s + pod.ssh_delay_s
    if banner_s > seen_s:
        seen_s = banner_s + (SSH_TICK_S if ticks else 0.0)
    return Work(seen_s + 2 * LATENCY_S)


def _rents(item: Travelled, member: str) -> bool:
    return member_of(str(json.loads(item.body)["pod_name"])) == member


def _task(stage: Stage, name: str, member: str, ran: Ran, pods: Mapping[str, str]) -> Work:
    fleet = next(
        before.name
        for action in ran.plan.actions
        if str(action.address) == f"task.{name}[{member}]"
        for before in action.depends_on
        if before.kind == "pod"
    )
    machine = stage.machines.machine(pods[f"{fleet}-{member}"])
    assert machine is not None
    started = next(item for folder, item in machine.commands.items() if f"/{name}-" in folder)
    waits = json.loads(stage.manifest)["tasks"][name]["wait"] == "completed"
    return Work(2 * LATENCY_S + (_seconds(started) + LATENCY_S if waits else 0.0))


def _seconds(started: Started) -> float:
    return started.ends_at - started.began_at


# --- the bound ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bound:
    path_s: float
    """The longest path."""
    limits_s: float
    """What the limits allow; 0 without anything limited."""

    @property
    def seconds(self) -> float:
        return max(self.path_s, self.limits_s)


def bound(job: Job) -> Bound:
    heads = _heads(job)
    tails = _tails(job)
    path_s = max((heads[name] + work.whole_s for name, work in job.work.items()), default=0.0)
    limited = sorted(
        ((tails[name] + work.after_s, heads[name] + work.before_s) for name, work in job.work.items() if work.limited),
        reverse=True,
    )
    slots = earliest(len(limited))
    least_head, limits_s = float("inf"), 0.0
    for slot, (tail, head) in zip(slots, limited, strict=True):
        least_head = min(least_head, head)
        limits_s = max(limits_s, least_head + slot + tail)
    return Bound(path_s, limits_s)


def earliest(count: int) -> list[float]:
    """Seconds from the first to each of `count` new templates, by the server's own windows."""
    moments: list[float] = []
    for _ in range(count):
        moments.append(_next_window(moments, moments[-1] if moments else 0.0))
    return moments


def _next_window(sent: Sequence[float], moment: float) -> float:
    """The first moment from `moment` on at which one more template may be created."""
    for window in TEMPLATE_WINDOWS:
        if len(sent) >= window.calls:
            moment = max(moment, sent[-window.calls] + window.seconds)
    return moment


def _heads(job: Job) -> dict[str, float]:
    """When each action could start if nothing were limited."""
    heads: dict[str, float] = {}
    for name in _in_order(job):
        heads[name] = max((heads[before] + job.work[before].whole_s for before in job.after[name]), default=0.0)
    return heads


def _tails(job: Job) -> dict[str, float]:
    """Seconds from each action's end to the end of all that depends on it."""
    tails = dict.fromkeys(job.work, 0.0)
    for name in reversed(_in_order(job)):
        for before in job.after[name]:
            tails[before] = max(tails[before], tails[name] + job.work[name].whole_s)
    return tails


def _in_order(job: Job) -> list[str]:
    order: list[str] = []
    waiting = {name: len(job.after[name]) for name in job.work}
    followers: dict[str, list[str]] = {name: [] for name in job.work}
    for name, befores in job.after.items():
        for before in befores:
            followers[before].append(name)
    free = [name for name, count in waiting.items() if not count]
    while free:
        name = free.pop()
        order.append(name)
        for follower in followers[name]:
            waiting[follower] -= 1
            if not waiting[follower]:
                free.append(follower)
    assert len(order) == len(job.work)
    return order


# --- ten at a time -----------------------------------------------------------------------------------------------


def fixed_parallelism(job: Job, slots: int) -> float:
    """Seconds for the same work when at most so many actions go on at once, each from its start to its end, first come
    first served: Terraform's walk. A limited request waits for its window in its slot."""
    rank = {name: number for number, name in enumerate(job.work)}
    waiting = {name: len(job.after[name]) for name in job.work}
    ready = [(0.0, rank[name], name) for name, count in waiting.items() if not count]
    heapq.heapify(ready)
    ends: list[tuple[float, int, str]] = []
    sent: list[float] = []
    now = 0.0
    while ready or ends:
        while ready and len(ends) < slots:
            _, number, name = heapq.heappop(ready)
            heapq.heappush(ends, (_ends_at(job.work[name], now, sent), number, name))
        now, _, done = heapq.heappop(ends)
        for name in job.work:
            if done in job.after[name]:
                waiting[name] -= 1
                if not waiting[name]:
                    heapq.heappush(ready, (now, rank[name], name))
    return now


def _ends_at(work: Work, now: float, sent: list[float]) -> float:
    if not work.limited:
        return now + work.whole_s
    moment = _next_window(sent, now + work.before_s)
    sent.append(moment)
    return moment + work.after_s


def chain(job: Job, ran: Ran) -> Sequence[tuple[str, float, float, float]]:
    """What the end of the run waited for, first to last: action, when it started and ended, the least it takes."""
    found: list[tuple[str, float, float, float]] = []
    name: str | None = max(ran.ended, key=ran.ended.__getitem__)
    while name is not None:
        started, ended = ran.started[name] - ran.confirmed_at, ran.ended[name] - ran.confirmed_at
        found.append((name, started, ended, job.work[name].whole_s))
        name = max(job.after[name], key=ran.ended.__getitem__, default=None)
    return found[::-1]
