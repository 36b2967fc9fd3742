"""Faults: what goes wrong, when, and to whom (`POST /_sim/faults`, `--scenario FILE`).

A fault is an effect with a trigger. With `match` it waits for requests that fit; with `at` it waits for a moment (and
is armed then, when it has a `match` too); with neither it happens at once.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from functools import lru_cache
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue, TypeAdapter

from lium_plan.sim import livelihood, misfortune, money
from lium_plan.sim.accounts import account_named
from lium_plan.sim.effects import ChangeHostKey, SetSshFault
from lium_plan.sim.records import FaultRow, Timer, TimerKind
from lium_plan.sim.rows import Node, NodeState, Pod
from lium_plan.sim.runtime import SshFault
from lium_plan.sim.settings import Dollars, Seconds, Settings
from lium_plan.sim.twist import Twist
from lium_plan.sim.world import World

SSH_MODES = Literal["none", "refuse", "reset", "close", "banner_only", "silent", "auth", "drop", "hang"]


class _Model(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Match(_Model):
    """Which requests: all that are given must fit. In `path` (below the base URL) `*` is one part, `**` any rest."""

    method: str = "*"
    path: str = "**"
    account: str | None = Field(default=None, description="The account's name, as in `sk_sim_NAME`.")
    after: int = Field(default=0, ge=0, description="Let so many fitting requests pass first.")
    times: int | None = Field(default=1, ge=1, description="How often it happens; null: every time.")

    def fits(self, method: str, path: str, account: str | None) -> bool:
        return (
            self.method in ("*", method)
            and (self.account is None or self.account == account)
            and path_fits(self.path, path)
        )


def path_fits(pattern: str, path: str) -> bool:
    wanted, given = pattern.strip("/").split("/"), path.strip("/").split("/")
    if wanted[-1] == "**":
        wanted, given = wanted[:-1], given[: len(wanted) - 1]
    return len(wanted) == len(given) and all(map(fnmatch.fnmatchcase, given, wanted))


class LoseReply(_Model):
    """The connection is dropped. `inside`: after an idempotency key was locked and before anything is done;
    `unrecorded`: done, but the key's outcome was not stored."""

    do: Literal["lose_reply"]
    where: Literal["before", "inside", "after", "unrecorded"] = "after"


class Delay(_Model):
    do: Literal["delay"]
    seconds: Seconds = Field(description="Real seconds.")
    where: Literal["before", "inside", "after"] = "before"


class Answer(_Model):
    """Another answer than the server's own, instead of acting or after it. Without `body` it is an error envelope."""

    do: Literal["answer"]
    status: int = Field(ge=200, le=599)
    body: JsonValue = None
    text: str | None = Field(default=None, description="Sent as it is, instead of `body`.")
    code: str | None = Field(default=None, description="The envelope's code when `body` and `text` are absent.")
    headers: dict[str, str] = {}
    where: Literal["before", "after"] = "before"


class Twisted(_Model):
    """The server acts, but what comes of it is different."""

    do: Literal["twist"]
    twist: Twist


class TakeNode(_Model):
    """Others rent `gpus` GPUs of the node (null: all that are free)."""

    do: Literal["take_node"]
    node: str | None = Field(default=None, description="Id; null: the one in the matched request's path.")
    gpus: int | None = None


class FreeNode(_Model):
    """Others leave the node."""

    do: Literal["free_node"]
    node: str | None = None


class SetNode(_Model):
    do: Literal["node_state"]
    node: str | None = None
    state: NodeState


class MovePrice(_Model):
    """At once for new rents, or announced: then it also changes what running pods cost."""

    do: Literal["price"]
    node: str | None = Field(default=None, description='Id, "*" for every node, null: the one in the matched path.')
    per_gpu_hour_usd: float | None = Field(default=None, gt=0, le=1e6)
    factor: float | None = Field(default=None, gt=0, le=1e6)
    announced_seconds: Seconds | None = Field(default=None, description="From now until it takes effect.")


class TouchPod(_Model):
    """`pod` is a glob over ids and names of living pods; null: the one in the matched request's path."""

    do: Literal[
        "reclaim",
        "break",
        "vanish",
        "stick",
        "unstick",
        "host_key",
        "detail_404",
        "detail_ok",
        "reboot_fails",
    ]
    pod: str | None = None
    notice_seconds: Seconds = Field(default=0, description="For `reclaim`.")


class TouchSsh(_Model):
    do: Literal["ssh"]
    pod: str | None = None
    mode: SSH_MODES
    seconds: Seconds | None = Field(default=None, description="Real seconds until it heals; null: never.")


class SetBalance(_Model):
    do: Literal["balance"]
    account: str = "local"
    usd: Dollars = 0.0


class Configure(_Model):
    """Turn knobs of `/_sim/config`."""

    do: Literal["config"]
    settings: dict[str, JsonValue]


WorldEffect = TakeNode | FreeNode | SetNode | MovePrice | TouchPod | TouchSsh | SetBalance | Configure
RequestEffect = LoseReply | Delay | Answer | Twisted
AnyEffect = Annotated[RequestEffect | WorldEffect, Field(discriminator="do")]


class FaultSpec(_Model):
    effect: AnyEffect
    match: Match | None = None
    at: Seconds | None = Field(default=None, description="Seconds of the world's time from now.")
    where: Literal["before", "after"] = Field(
        default="before",
        description="Whether an effect on the world comes before or after the matched request is served.",
    )


FAULT = TypeAdapter(FaultSpec)
FAULTS: TypeAdapter[list[FaultSpec]] = TypeAdapter(list[FaultSpec])


def check(spec: FaultSpec, settings: Settings) -> None:
    """Raises ValueError for a fault that can never happen, pydantic's for bad settings."""
    if isinstance(spec.effect, LoseReply | Delay | Answer | Twisted) and spec.match is None:
        raise ValueError(f"{spec.effect.do} needs a match: it is something that happens to a request")
    if isinstance(spec.effect, Configure):
        merged_settings(settings, spec.effect.settings)


def add(world: World, spec: FaultSpec) -> str:
    """The fault's id. Raises what `check` does."""
    check(spec, world.settings)
    fault_id = f"f{world.next_serial()}"
    if spec.at is not None:
        at = world.now + timedelta(seconds=spec.at)
        later = spec.model_copy(update={"at": None}).model_dump_json()
        world.schedule(at, TimerKind.SCENARIO, fault_id, note=later)
    else:
        _begin(world, fault_id, spec)
    return fault_id


def on_scenario(world: World, timer: Timer) -> None:
    _begin(world, timer.ref, FAULT.validate_json(timer.note))


def _begin(world: World, fault_id: str, spec: FaultSpec) -> None:
    if spec.match is not None:
        world.faults.put(FaultRow(fault_id, world.next_serial(), spec.model_dump_json()))
    elif not isinstance(spec.effect, LoseReply | Delay | Answer | Twisted):
        carry_out(world, spec.effect, path=())


def shortened(spec: str) -> str:
    """What was said of a stored fault, without all that wasn't."""
    return _parsed(spec).model_dump_json(exclude_defaults=True)


@dataclass(slots=True)
class Due:
    """What happens to one request."""

    before: list[FaultSpec]
    after: list[FaultSpec]
    twist: Twist

    @property
    def effects(self) -> Iterator[FaultSpec]:
        yield from self.before
        yield from self.after


@lru_cache(maxsize=256)
def _parsed(spec: str) -> FaultSpec:
    return FAULT.validate_json(spec)


def due(world: World, *, method: str, path: str, account: str | None) -> Due:
    """The faults that this request sets off; counts it for all that it fits."""
    found = Due([], [], Twist())
    for row in world.faults:
        spec = _parsed(row.spec)
        match = spec.match
        if match is None or not match.fits(method, path, account):
            continue
        fires = row.matched >= match.after and (match.times is None or row.fired < match.times)
        world.faults.change(row.id, matched=row.matched + 1, fired=row.fired + fires)
        if not fires:
            continue
        if isinstance(spec.effect, Twisted):
            found.twist = found.twist.merged(spec.effect.twist)
        elif isinstance(spec.effect, LoseReply | Delay | Answer):
            (found.after if spec.effect.where in ("after", "unrecorded") else found.before).append(spec)
        else:
            (found.after if spec.where == "after" else found.before).append(spec)
    return found


# -- effects on the world -----------------------------------------------------------------------------------------


def carry_out(world: World, effect: WorldEffect, *, path: tuple[str, ...]) -> None:
    """Do it now. `path` are the parts of the matched request's path; what it names stands in for a missing id."""
    if isinstance(effect, TakeNode | FreeNode | SetNode | MovePrice):
        for node in _nodes(world, effect.node, path):
            _touch_node(world, effect, node)
    elif isinstance(effect, TouchPod | TouchSsh):
        for pod in _pods(world, effect.pod, path):
            _touch_pod(world, effect, pod)
    elif isinstance(effect, SetBalance):
        money.set_balance(world, account_named(world, effect.account).id, Decimal(str(effect.usd)))
    else:
        apply_settings(world, merged_settings(world.settings, effect.settings))


def merged_settings(settings: Settings, changes: dict[str, JsonValue]) -> Settings:
    """Raises pydantic's ValidationError for unknown knobs and bad values."""
    return Settings.model_validate(settings.model_dump(mode="json") | changes)


def apply_settings(world: World, settings: Settings) -> None:
    world.settings = settings
    livelihood.begin(world)
    for account in world.accounts:
        money.watch(world, account.id)


def _nodes(world: World, wanted: str | None, path: tuple[str, ...]) -> list[Node]:
    if wanted == "*":
        return list(world.nodes)
    ids = (wanted,) if wanted is not None else path
    return [node for node in map(world.nodes.get, ids) if node is not None]


def _pods(world: World, wanted: str | None, path: tuple[str, ...]) -> list[Pod]:
    if wanted is None:
        return [pod for pod in map(world.pods.get, path) if pod is not None and pod.deleted_at is None]
    return [
        pod for pod in world.pods.where("alive", True) if (pod.id == wanted or fnmatch.fnmatchcase(pod.name, wanted))
    ]


def _touch_node(world: World, effect: TakeNode | FreeNode | SetNode | MovePrice, node: Node) -> None:
    if isinstance(effect, TakeNode):
        others = node.gpu_count if effect.gpus is None else min(node.gpu_count, node.others + effect.gpus)
        world.nodes.put(replace(node, others=others))
    elif isinstance(effect, FreeNode):
        world.nodes.put(replace(node, others=0))
    elif isinstance(effect, SetNode):
        world.nodes.put(replace(node, state=effect.state))
    else:
        price = node.price_per_gpu * Decimal(str(effect.factor or 1))
        if effect.per_gpu_hour_usd is not None:
            price = Decimal(str(effect.per_gpu_hour_usd))
        price = price.quantize(Decimal("0.00001"))
        if effect.announced_seconds is None:
            livelihood.set_price(world, node, price)
        else:
            at = world.now + timedelta(seconds=effect.announced_seconds)
            livelihood.announce_price(world, node, price, at)


def _touch_pod(world: World, effect: TouchPod | TouchSsh, pod: Pod) -> None:
    if isinstance(effect, TouchSsh):
        world.pods.change(pod.id, ssh_mode=effect.mode if effect.seconds is None else pod.ssh_mode)
        world.effects.append(SetSshFault(pod.id, SshFault(effect.mode, effect.seconds)))
        return
    match effect.do:
        case "reclaim":
            misfortune.reclaim(world, pod, notice_s=effect.notice_seconds)
        case "break":
            misfortune.break_pod(world, pod)
        case "vanish":
            misfortune.vanish(world, pod)
        case "stick":
            world.pods.change(pod.id, stuck_delete=True)
        case "unstick":
            misfortune.unstick(world, pod)
        case "host_key":
            world.effects.append(ChangeHostKey(pod.id))
        case "reboot_fails":
            misfortune.fail_next_reboot(world, pod)
        case "detail_404" | "detail_ok":
            world.pods.change(pod.id, detail_404=effect.do == "detail_404")
