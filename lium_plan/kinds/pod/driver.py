"""Pods: survey, rent until ready, change in place, give back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.failures import begun_depends_on, begun_inputs, diagnose, foreign_pod, pause
from lium_plan.kinds.pod.deposing import deposed
from lium_plan.kinds.pod.extensions import settle_extension
from lium_plan.kinds.pod.lifetimes import EXTENDED, deadline
from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.pod.reboots import rebooted
from lium_plan.kinds.pod.removal import RECLAIM, Removals
from lium_plan.kinds.pod.rent import Refused, Rents, why_refused
from lium_plan.kinds.pod.rows import MISNAMED, misnamed, own_row
from lium_plan.kinds.pod.spec import DEAD_STATUSES, READY_AT, REBOOTED_AT, TOUCHED_AT, PodSpec
from lium_plan.kinds.pod.waiting import GivenUp, Waits, pod_facts, set_removal
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
    Claim,
    Json,
    Marked,
    Observation,
    OpenEffect,
    Outcome,
    Presence,
    Record,
    Run,
    Settlement,
    Step,
    Survey,
    Verb,
)
from lium_plan.kinds.services import Services
from lium_plan.lium.errors import LiumError, Refusal, classify_refusal
from lium_plan.lium.models import Pod
from lium_plan.marks import parse_pod_name
from lium_plan.turns import Turns

FAILED_PODS_MAX = 3
"""So many pods of one address may fail to start in one run before it is given up."""
NO_CAPACITY = "no-capacity"
RETRY_REFUSED_S = 15.0
"""Pause before nodes that refused are asked again, while the fleet's `retry` lasts."""
VOLUME_BUSY_S = 10.0


def open_driver(services: Services) -> PodDriver:
    return PodDriver(services)


class PodDriver:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._client = services.client
        self._rents = Rents(services)
        self._removals = Removals(services)
        self._waits = Waits(services, self._removals)
        self._failed: dict[Address, dict[str, GivenUp]] = {}
        """Why pods were given back in this run, by their nodes: a second try there would only cost again."""
        self._turns = Turns()
        self._rebooting: dict[str, asyncio.Semaphore] = {}
        self._reboot_failed: set[str] = set()

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        listed = {pod.id: pod for pod in await self._client.pods(hosts=False)}
        observations: dict[str, Observation] = {}
        missing: list[Record] = []
        shown: list[tuple[Record, Pod]] = []
        for record in records:
            pod = own_row(record, listed)
            if pod is not None:
                observations[record.key] = _present(pod, record)
                shown.append((record, pod))
            elif record.id is None or record.id in listed:
                why = misnamed(record, listed) or f"the pod of its name has another id than {record.id}"
                observations[record.key] = Observation(Presence.ABSENT, MISNAMED, reason=why)
            else:
                missing.append(record)
        for key, at in (await rebooted(self._client, shown, self._services.now())).items():
            seen = observations[key]
            observations[key] = replace(seen, attributes={**seen.attributes, REBOOTED_AT: at.isoformat()})
        proofs = await self._removals.proofs(missing)
        for key, (gone, why) in proofs.items():
            presence = Presence.ABSENT if gone else Presence.UNREACHABLE
            observations[key] = Observation(presence, "RECLAIMED" if RECLAIM in why else None, reason=why)
        known = {record.id for record in records if observations[record.key].status != MISNAMED}
        return Survey(observations, tuple(_marked(pod) for pod in listed.values() if pod.id not in known))

    async def perform(self, step: Step, run: Run) -> None:
        await self._turns.take()  # of hundreds that are free to go at once
        match step.verb:
            case Verb.DESTROY:
                if step.record is not None:
                    await self._removals.delete(step.record, run)
            case Verb.UPDATE | Verb.RUN:
                await self._update(step, run)
            case Verb.REBOOT:
                await self._reboot_in_turn(step, run)
            case Verb.ADOPT:
                await self._adopt(step, run)
            case Verb.REPLACE:
                await self._replace(step, run)
            case _:
                await self._rent_until_ready(step, run)

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        match effect.op:
            case "rent":
                return await self._settle_rent(effect, run)
            case "delete":
                return await self._removals.settle(effect, run)
            case "switch":
                return await self._settle_switch(effect, run)
            case "extend":
                pods = {pod.id: pod for pod in await self._client.pods()}
                return settle_extension(run.ledger, effect, pods)
            case _:
                run.ledger.failed(effect, "what the server shows is compared again")
                return Settlement(Outcome.NOT_DONE, "the change is compared again")

    async def _settle_rent(self, effect: OpenEffect, run: Run) -> Settlement:
        """What was found is judged at once: it may be dearer than was allowed, and others take minutes to settle."""
        settlement = await self._rents.settle(effect, run)
        record = run.ledger.record(effect.address)
        is_its = record is not None and record.attributes.get("pod_name") == effect.data.get("pod_name")
        if settlement.outcome is not Outcome.DONE or record is None or not is_its:
            return settlement  # beside another pod it goes anyway
        try:
            gone = await self._given_back(self._waits.look_at(record, run), record, run)
            why = None if gone is None else str(gone)
        except ActionFailed as failure:  # it does not go, and stays in state as being deleted
            why = failure.diagnostic.message
        return settlement if why is None else Settlement(Outcome.DONE, f"{settlement.message}; given back: {why}")

    # --- renting -------------------------------------------------------------------------------------------------

    async def _rent_until_ready(self, step: Step, run: Run) -> None:
        spec: PodSpec = step.wanted().spec
        failed = self._failed.setdefault(step.address, {})
        before = frozenset(failed)
        while True:
            now = {node: why for node, why in failed.items() if node not in before}
            try:
                record = await self._rent(step, set(failed), run)
            except ActionFailed as failure:
                if now and failure.diagnostic.code == NO_CAPACITY:
                    raise self._given_up(step, now, run, failure.diagnostic) from failure
                raise
            why = await self._wait_or_give_back(step, record, spec, run)
            if why is None:
                return
            if len(failed) >= FAILED_PODS_MAX:
                raise self._given_up(step, failed, run)

    def _given_up(
        self, step: Step, failed: Mapping[str, GivenUp], run: Run, last: Diagnostic | None = None
    ) -> ActionFailed:
        """What became of the pods that were rented, by node, before why there is no `last` one."""
        told = _told({node: (_ended_how(why), str(why)) for node, why in failed.items()})
        message = told if last is None else f"{told}; {last.message}"
        if all(why.not_created for why in failed.values()):
            hint = f"check the image {self._image(step, run)} (and its registry login)"
            return ActionFailed(error("pod-failed", message, address=str(step.address), hint=hint))
        if last is not None:
            return ActionFailed(replace(last, message=message))
        return ActionFailed(error("pod-failed", message, address=str(step.address)))

    def _image(self, step: Step, run: Run) -> str:
        spec: PodSpec = step.wanted().spec
        template = run.ledger.record(spec.template) if spec.template is not None else None
        return str(template.inputs.get("image")) if template is not None else f"of template {spec.template_id}"

    async def _wait_or_give_back(self, step: Step, record: Record, spec: PodSpec, run: Run) -> GivenUp | None:
        """None once the pod is ready; else why it isn't, with the pod given back."""
        return await self._given_back(self._waits.until_ready(record, spec, run), record, run)

    async def _given_back(self, look: Awaitable[object], record: Record, run: Run) -> GivenUp | None:
        """None when the look at the pod raises no `GivenUp`; else why, with the pod given back."""
        try:
            await look
        except GivenUp as failure:
            current = run.ledger.record(record.address) or record
            wanted = run.desired(record.address)
            if wanted is not None:  # at an address that may have moved since
                self._failed.setdefault(wanted.address, {})[str(record.attributes.get("node_id"))] = failure
            run.phase(record.address, f"giving it back: {failure}")
            await self._removals.delete(current, run, why=str(failure))
            return failure
        return None

    async def _rent(self, step: Step, refused: set[str], run: Run) -> Record:
        """One offer after another until the server says yes, no offer is left, or the time for it is up."""
        spec: PodSpec = step.wanted().spec
        loop = asyncio.get_running_loop()
        deadline = loop.time() + max(spec.retry_s, 0)
        free_by: float | None = None
        said_no: dict[str, str] = {}
        planned: Offer | None = None if refused else step.offer
        while True:
            claim = await self._claim(step, refused, said_no, planned, deadline, run)
            if step.offer is not None and claim.offer.node_id != step.offer.node_id:
                run.substituted(step.address, step.offer, claim.offer)
            run.phase(step.address, "renting", node_id=claim.offer.node_id)
            try:
                return await self._rents.place(step, claim, run)
            except Refused as refusal:
                run.market.release(step.address)
                if refusal.kind is Refusal.VOLUME_BUSY:
                    free_by = free_by or loop.time() + run.wait_timeout_s
                    await self._await_volume(step, run, free_by)
                    planned = claim.offer
                else:
                    await self._after_refusal(refusal, step, claim, said_no, run)
                    planned = None
            except ActionFailed as failure:
                if not failure.unknown:  # what may have been rented stays reserved
                    run.market.release(step.address)
                raise

    async def _after_refusal(
        self, refusal: Refused, step: Step, claim: Claim, said_no: dict[str, str], run: Run
    ) -> None:
        """Notes that this node is none to try again. Raises where no other one would do."""
        match refusal.kind:
            case Refusal.CAPACITY:
                run.phase(step.address, f"refused by node {claim.offer.node_id}: {refusal}")
            case Refusal.BROKEN_POD:
                await self._clear_broken_pod(refusal, run)
            case _:
                raise why_refused(refusal, step.address) from refusal
        said_no[claim.offer.node_id] = refusal.failure.message

    async def _await_volume(self, step: Step, run: Run, free_by: float) -> None:
        """It comes free when the pod that has it is gone; one that is not ours to end is named.

        `free_by`: how long it is waited for, by the loop's clock.
        """
        spec: PodSpec = step.wanted().spec
        record = run.ledger.record(spec.volume) if spec.volume is not None else None
        volume_id = record.id if record is not None else spec.volume_id
        holder = await foreign_pod(self._client, run, lambda pod: pod.volume_id == volume_id)
        by = f" by {holder}, which this state does not hold" if holder is not None else ""
        if asyncio.get_running_loop().time() + VOLUME_BUSY_S > free_by:
            message = f"its volume is still in use{by or ' by another pod'}, after {run.wait_timeout_s:.0f} s"
            hint = "end that pod, or take it into the state: lium-plan import ADDRESS ID"
            raise ActionFailed(error("volume-busy", message, address=str(step.address), hint=hint))
        run.phase(step.address, f"waiting for the volume to come free; it is held{by or ' by another pod'}")
        await pause(run, VOLUME_BUSY_S)

    async def _clear_broken_pod(self, refusal: Refused, run: Run) -> None:
        """A broken pod of ours blocks its node (contract §2.4.4). One that is not ours, that is protected, or that a
        list shows in good health, is left alone; that one does not go is no fault of who wants another node.
        """
        broken = refusal.failure.broken_pod_id
        record = next((item for item in run.ledger.records().values() if item.id == broken), None)
        if record is None or record.protected:
            return
        try:
            pod = own_row(record, {pod.id: pod for pod in await self._client.pods(hosts=False)})
            if pod is not None and pod.status in DEAD_STATUSES:
                await self._removals.delete(record, run)
        except (ActionFailed, LiumError) as failure:
            run.phase(record.address, f"it blocks its node, and does not go: {failure}")

    async def _replace(self, step: Step, run: Run) -> None:
        """A new pod for an old one. Nothing is destroyed while the market has nothing at or under the ceiling."""
        old, old_id = step.owned()
        if step.wanted().lifecycle.create_before_destroy:

            async def depose(begin: Begin) -> None:
                # One that may be replaced is not protected, whatever was declared when it was rented.
                setup = run.ledger.record(Address.of("fleet", old.address.name, old.address.member, "bootstrap"))
                run.ledger.done(begin(), deposed(old, setup))

            await run.effect(step.address, "depose", {"id": old_id}, depose)
            try:
                await self._rent_until_ready(step, run)
            except BaseException:
                _reinstate(old, run)
                raise
            return
        offer = step.offer
        if not run.force_replace:
            deadline = asyncio.get_running_loop().time() + max(step.wanted().spec.retry_s, 0)
            claim = await self._claim(step, (), {}, step.offer, deadline, run)
            offer = claim.offer
        await self._removals.delete(old, run)
        await self._rent_until_ready(replace(step, record=None, offer=offer), run)

    async def _claim(
        self,
        step: Step,
        refused: Iterable[str],
        said_no: dict[str, str],
        planned: Offer | None,
        deadline: float,
        run: Run,
    ) -> Claim:
        """The best offer as soon as there is one, until the deadline on the loop's clock.

        `said_no`: what nodes said that refused, and may serve later; emptied when they may be asked again.
        """
        loop = asyncio.get_running_loop()
        while True:
            try:
                return await run.market.claim(
                    step.address,
                    step.wanted().spec.requirement,
                    planned=planned,
                    ceiling_per_hour_usd=step.ceiling_per_hour_usd,
                    refused=frozenset((*refused, *said_no)),
                )
            except ActionFailed as lacking:
                failure = _with_refusals(lacking, said_no)
                if loop.time() + RETRY_REFUSED_S > deadline:
                    raise failure from lacking
                said_no.clear()
                until = self._services.now() + timedelta(seconds=deadline - loop.time())
                again = f"tries again in {RETRY_REFUSED_S:.0f} s, until {until:%H:%M:%S}Z"
                run.phase(step.address, f"{again}: {failure.diagnostic.message}")
                await pause(run, RETRY_REFUSED_S)

    async def _adopt(self, step: Step, run: Run) -> None:
        """A pod of an earlier run that was rented and not seen ready; or one that somebody has rebooted."""
        record, _ = step.owned()
        if record.status == "ready":
            await self._take_in_rebooted(step, record, run)
            return
        if await self._wait_or_give_back(step, record, step.wanted().spec, run) is None:
            await self._follow_ttl(step, run)
        else:
            await self._rent_successor(step, record, run)

    async def _rent_successor(self, step: Step, record: Record, run: Run) -> None:
        """For one that was given back, within what was allowed for it."""
        written = record.attributes.get("ceiling_per_hour_usd")
        ceiling = step.ceiling_per_hour_usd if written is None else Decimal(str(written))
        await self._rent_until_ready(replace(step, verb=Verb.CREATE, offer=None, ceiling_per_hour_usd=ceiling), run)

    async def _take_in_rebooted(self, step: Step, record: Record, run: Run) -> None:
        """Its place and host key are new. It stays whatever comes of it: somebody wants it, and did that himself."""
        try:
            await self._waits.until_ready(record, step.wanted().spec, run, judge=False)
        except GivenUp as failure:
            message = f"after it was rebooted by somebody: {failure}"
            hint = f"look at it; for another pod: lium-plan apply --replace '{step.address}'"
            raise ActionFailed(error("reboot-failed", message, address=str(step.address), hint=hint)) from failure
        await self._follow_ttl(step, run)

    async def _follow_ttl(self, step: Step, run: Run) -> None:
        """A time to live that has changed since it was rented."""
        current = run.ledger.record(step.address)
        if current is not None and current.inputs.get("ttl_s") != step.inputs.get("ttl_s"):
            await self._update(replace(step, record=current), run)

    # --- changing ------------------------------------------------------------------------------------------------

    async def _update(self, step: Step, run: Run) -> None:
        record, pod_id = step.owned()
        spec: PodSpec = step.wanted().spec
        if spec.ttl_s is None:
            try:
                await self._client.cancel_removal(pod_id)
            except LiumError as failure:
                raise ActionFailed(diagnose(failure, step.address, "time to live")) from failure
            inputs = {**record.inputs, "ttl_s": None}
            facts = {**record.attributes, "removal_at": None, TOUCHED_AT: self._services.now().isoformat()}
            run.ledger.put(replace(record, inputs=inputs, attributes=facts))
            run.ledger.tell(record.key, "update", "done: no end any more")
            return
        if record.inputs.get("ttl_s") != spec.ttl_s:
            # What `extend` gave holds until the manifest says something else.
            record = replace(record, attributes={**record.attributes, EXTENDED: None})
        due = deadline(record, spec, self._services.now())
        if due is None:
            message = "time to live: no list of pods has told so far when it was created"
            raise ActionFailed(error("ttl", message, address=str(step.address), hint="run the same command again"))
        if due <= self._services.now():
            raise ActionFailed(
                error(
                    "ttl-past", f"a time to live of {spec.ttl_s // 3600} h has already ended", address=str(step.address)
                )
            )
        await set_removal(self._services, record, due, spec.ttl_s, run)
        run.ledger.tell(record.key, "update", f"done: ends {due:%Y-%m-%d %H:%M}Z")

    async def _reboot_in_turn(self, step: Step, run: Run) -> None:
        """So many members of a fleet at a time as `update.parallel` says; the first failure stops the others."""
        spec: PodSpec = step.wanted().spec
        turn = self._rebooting.setdefault(spec.fleet, asyncio.Semaphore(spec.update_parallel))
        async with turn:
            if spec.fleet in self._reboot_failed:
                raise ActionFailed(
                    error(
                        "reboot-stopped",
                        f"not rebooted: another member of fleet.{spec.fleet} failed",
                        address=str(step.address),
                    )
                )
            try:
                await self._reboot(step, run)
            except ActionFailed:
                self._reboot_failed.add(spec.fleet)
                raise

    async def _reboot(self, step: Step, run: Run) -> None:
        """Another template: node and price stay, the container and its host key are new (contract §2.7.5).

        One that was never seen ready is judged like a new one.
        """
        record, pod_id = step.owned()
        spec: PodSpec = step.wanted().spec
        is_new = record.status == "pending" and READY_AT not in record.attributes
        if is_new:
            if await self._given_back(self._waits.until_running(record, spec, run), record, run) is not None:
                await self._rent_successor(step, record, run)
                return
            record = run.ledger.record(step.address) or record
        template = run.ledger.record(spec.template) if spec.template is not None else None
        template_id = template.id if template is not None else spec.template_id
        if template_id is None:
            raise ActionFailed(
                error("missing-dependency", f"{spec.template} does not exist", address=str(step.address))
            )
        if not is_new and await self._runs_on(record, template_id):
            news = replace(record, inputs=dict(step.inputs), depends_on=step.wanted().depends_on)
            run.ledger.put(news)
            run.ledger.tell(record.key, "update", "done: it runs on that template already")
            await self._follow_ttl(step, run)
            return
        data: dict[str, Json] = {
            "id": pod_id,
            "template_id": template_id,
            "inputs": dict(step.inputs),
            "depends_on": [str(address) for address in step.wanted().depends_on],
        }

        async def send(begin: Begin) -> None:
            effect = begin()
            try:
                await self._client.switch_template(pod_id, template_id)
            except LiumError as failure:
                unsure = classify_refusal(failure) is Refusal.UNKNOWN
                if not unsure or not await self._has_template(pod_id, template_id):
                    run.ledger.failed(effect, failure.reason)
                    raise ActionFailed(diagnose(failure, step.address, "switch template")) from failure
            run.ledger.done(effect, _switched(record, effect))

        await run.effect(step.address, "switch", data, send)
        self._services.pins.forget_pin(pod_id)
        current = run.ledger.record(step.address) or record
        if is_new:
            if await self._wait_or_give_back(step, current, spec, run) is not None:
                await self._rent_successor(step, current, run)
            return
        try:
            await self._waits.until_ready(current, spec, run)
        except GivenUp as failure:
            raise ActionFailed(
                error("reboot-failed", f"switch template: {failure}", address=str(step.address))
            ) from failure

    async def _settle_switch(self, effect: OpenEffect, run: Run) -> Settlement:
        """Did the switch of an earlier run take effect? The pod's row names its template."""
        record, pod_id = run.ledger.record(effect.address), str(effect.data.get("id"))
        template_id = str(effect.data.get("template_id"))
        if record is None or record.id != pod_id or not await self._has_template(pod_id, template_id):
            run.ledger.failed(effect, "the pod still has its old template")
            return Settlement(Outcome.NOT_DONE, "the pod still has its old template")
        self._services.pins.forget_pin(pod_id)
        run.ledger.done(effect, _switched(record, effect))
        return Settlement(Outcome.DONE, "the template was switched")

    async def _runs_on(self, record: Record, template_id: str) -> bool:
        """What was written back to what it was before may be the very same template."""
        known = record.attributes.get("template_id") == template_id
        return known and await self._has_template(str(record.id), template_id)

    async def _has_template(self, pod_id: str, template_id: str) -> bool:
        pods = {pod.id: pod for pod in await self._client.pods()}
        return pod_id in pods and pods[pod_id].template_id == template_id


def _ended_how(why: GivenUp) -> str:
    return "creation failed on" if why.not_created else "given back on"


def _with_refusals(failure: ActionFailed, said_no: Mapping[str, str]) -> ActionFailed:
    """With what the nodes said that refused, where nothing is left because of them."""
    if failure.diagnostic.code != NO_CAPACITY or not said_no:
        return failure
    told = _told({node: ("refused by", why) for node, why in said_no.items()})
    return ActionFailed(replace(failure.diagnostic, message=f"{told}; {failure.diagnostic.message}"))


def _told(ends: Mapping[str, tuple[str, str]]) -> str:
    """`creation failed on 2 nodes: …; given back on node …: …`, from how and why by node."""
    alike: dict[tuple[str, str], list[str]] = {}
    for node, end in ends.items():
        alike.setdefault(end, []).append(node)
    return "; ".join(
        f"{how} {f'{len(nodes)} nodes' if len(nodes) > 1 else f'node {nodes[0]}'}: {why}"
        for (how, why), nodes in alike.items()
    )


def _reinstate(old: Record, run: Run) -> None:
    """No successor was made, and none may still turn out to have been: the old pod stands at its address again."""
    left = run.ledger.records().get(replace(old, deposed=True).key)
    if left is None or run.ledger.record(old.address) is not None:
        return
    if any(effect.address == old.address for effect in run.ledger.open.values()):
        return
    run.ledger.reinstate(left.key)


def _switched(record: Record, effect: OpenEffect) -> Record:
    """A pod whose template was switched: from here on it uses the new one, and the old one is free to go."""
    attributes = {**record.attributes, "template_id": effect.data["template_id"]}
    return replace(
        record,
        status="pending",
        inputs=begun_inputs(effect),
        attributes=attributes,
        depends_on=begun_depends_on(effect),
    )


def _present(pod: Pod, record: Record) -> Observation:
    return Observation(Presence.PRESENT, pod.status, pod_facts(pod, record.attributes))


def _marked(pod: Pod) -> Marked:
    marks = parse_pod_name(pod.name)
    return Marked(
        "pod",
        pod.id,
        pod.name,
        marks.scope if marks else None,
        marks.lineage if marks else None,
        pod.price_per_hour_usd,
        pod.created_at or datetime.fromtimestamp(0, UTC),
        {
            "tail": marks.tail if marks else None,
            "node_id": pod.executor_id,
            "status": pod.status,
            "volume_id": pod.volume_id,
        },
    )
