"""Giving pods back, and being sure that they are gone.

A DELETE is only a request (contract §2.7.3). Gone means: absent from a good list, 404 on the detail route, *and* one
positive word: the statement says removed, an event says so, we saw it DELETING or dead, our own DELETE was accepted, or
its time to live has passed. Without that word a pod is unreachable, not gone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from lium_plan.diagnostics import Diagnostic, error
from lium_plan.kinds.failures import RETRY_S, diagnose, pause, settle_delete
from lium_plan.kinds.pod.lifetimes import moment
from lium_plan.kinds.pod.rent import WATCH_FOR, statement_of
from lium_plan.kinds.pod.rows import misnamed, row_of
from lium_plan.kinds.pod.spec import DEAD_STATUSES
from lium_plan.kinds.protocol import ActionFailed, Begin, OpenEffect, Outcome, Record, Run, Settlement
from lium_plan.kinds.services import Services
from lium_plan.lium.errors import (
    AuthError,
    ConflictError,
    LiumError,
    NotFoundError,
    PermissionError_,
)
from lium_plan.lium.models import Pod
from lium_plan.lium.poller import Listing
from lium_plan.money import rate
from lium_plan.together import together

NEVER_LISTED_GRACE = timedelta(seconds=60)
"""A pod that no list has shown yet is given this long from its rent (contract §4.3)."""
LOOK_FOR_S = 15.0
"""So long a good list is waited for after a delete that failed: then it is sent again unseen, which does no harm."""
LEAVING = ("DELETING", *DEAD_STATUSES)
RECLAIM = "reclaim"
"""Part of an event's reason when a provider took its spot node back (contract §2.8.1: reasons are words)."""


class Removals:
    def __init__(self, services: Services) -> None:
        self._services = services
        self._client = services.client
        self._poller = services.poller

    async def delete(self, record: Record, run: Run, *, why: str = "") -> None:
        """Ask for the end and wait for it. What does not go within the deadline stays in state as `deleting`.

        `why`: for the audit log, when nobody asked for it.
        """
        deadline = asyncio.get_running_loop().time() + run.wait_timeout_s
        record, why_not = await self._by_its_name(record, run, deadline)
        pod_id = record.id
        if pod_id is None or why_not is not None:
            why = why_not or "it was never rented"
            run.phase(record.address, f"nothing to delete: {why}")
            run.ledger.remove(record.key, why)
            _release(record, run)
            return
        run.phase(record.address, "deleting")
        leaving = await self._ask(record, pod_id, run, deadline)
        await self._await_gone(leaving, pod_id, run, deadline)
        self._services.pins.forget_pin(pod_id)
        _, removed_at, total = await statement_of(self._services, pod_id)
        run.ledger.remove(leaving.key, f"given back: {why}" if why else "gone")
        _release(record, run)
        run.proved(leaving, removed_at=removed_at, total_usd=total)

    async def _by_its_name(self, record: Record, run: Run, deadline: float) -> tuple[Record, str | None]:
        """The record under the id that its name has, or why its id is none that may be deleted.

        Only what no list has confirmed yet is looked up: an answer may have named another pod. Its own name stays
        watched then.
        """
        name = record.attributes.get("pod_name")
        if not name or (record.id is not None and "created_at" in record.attributes):
            return record, None
        pods = await self._listed(record, run, deadline)
        pod, why_not = row_of(record, pods), misnamed(record, pods)
        if pod is not None and pod.id != record.id:
            record = replace(record, id=pod.id)
            run.ledger.put(record)
        if why_not is not None:
            run.ledger.watch(str(name), record.address, self._services.now() + WATCH_FOR)
        return record, why_not

    async def _listed(self, record: Record, run: Run, deadline: float) -> Mapping[str, Pod]:
        """A fresh list, asked for until the deadline."""
        while True:
            try:
                return (await self._poller.list_now()).pods
            except LiumError as failure:
                refused = isinstance(failure, AuthError | PermissionError_)
                if refused or asyncio.get_running_loop().time() + RETRY_S > deadline:
                    raise ActionFailed(diagnose(failure, record.address, "list pods before the delete")) from failure
                run.phase(record.address, f"looking for it again in {RETRY_S:.0f} s: {failure}")
            await pause(run, RETRY_S)

    async def _ask(self, record: Record, pod_id: str, run: Run, deadline: float) -> Record:
        leaving = replace(record, status="deleting")

        async def send(begin: Begin) -> LiumError | None:
            effect = begin()
            try:
                refusal = await self._refusal(pod_id, deadline)
            except (AuthError, PermissionError_) as failure:
                run.ledger.failed(effect, failure.reason)
                raise ActionFailed(diagnose(failure, record.address, "delete")) from failure
            if refusal is None:
                run.ledger.done(effect, leaving)
            else:
                run.ledger.failed(effect, refusal.reason)
            return refusal

        while True:
            refusal = await run.effect(record.address, "delete", {"id": pod_id, "key": record.key}, send)
            if refusal is None:
                return leaving
            if asyncio.get_running_loop().time() + RETRY_S > deadline:
                run.ledger.put(leaving)
                raise ActionFailed(self._stuck(record, f"the server refuses: {refusal}", run))
            why = "the pod is busy" if isinstance(refusal, ConflictError) else str(refusal)
            run.phase(record.address, f"delete again in {RETRY_S:.0f} s: {why}")
            await pause(run, RETRY_S)

    async def _refusal(self, pod_id: str, deadline: float) -> LiumError | None:
        """Send the delete: what it was refused with, None where it was taken. Raises where the key may not."""
        try:
            await self._client.delete_pod(pod_id)
        except (AuthError, PermissionError_):
            raise
        except LiumError as failure:
            return None if await self._leaving(pod_id, deadline) else failure
        return None

    async def _leaving(self, pod_id: str, deadline: float) -> bool:
        """Whether the pod is on its way out, or gone from the list, by a fresh look, one for all who want one. False
        also where no list is to be had: the delete may be sent again."""
        until = min(deadline, asyncio.get_running_loop().time() + LOOK_FOR_S)
        try:
            async with asyncio.timeout_at(until):
                pods = (await self._poller.next_listing()).pods
        except TimeoutError:
            return False
        return pod_id not in pods or pods[pod_id].status == "DELETING"

    async def _await_gone(self, record: Record, pod_id: str, run: Run, deadline: float) -> None:
        loop = asyncio.get_running_loop()
        started = loop.time()
        again_at = started + run.wait_timeout_s / 4
        why: str | None = "it is still listed"

        def news(listing: Listing) -> bool:
            pod = listing.pods.get(pod_id)
            return pod is None or pod.status != "DELETING"

        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    listing = await self._poller.next_listing(since=started, news=news)
            except TimeoutError:
                raise ActionFailed(self._stuck(record, self._no_list(started) or str(why), run)) from None
            except (AuthError, PermissionError_) as failure:
                raise ActionFailed(diagnose(failure, record.address, "list pods after the delete")) from failure
            pod = listing.pods.get(pod_id)
            why = "it is still listed" if pod is not None else await self._why_not_gone(pod_id)
            if why is None:
                return
            if pod is not None and pod.status != "DELETING" and loop.time() >= again_at:
                # Accepted, and yet it goes on running: ask once more rather than wait for nothing.
                again_at = loop.time() + run.wait_timeout_s / 4
                await self._ask(record, pod_id, run, deadline)

    def _no_list(self, since: float) -> str | None:
        """Why nothing is known of any pod since then, on the loop's clock; None when something is."""
        latest = self._poller.latest
        if latest is not None and latest.requested_at >= since:
            return None
        return f"no list of pods could be read: {self._poller.last_error or 'the server does not answer'}"

    async def _why_not_gone(self, pod_id: str) -> str | None:
        """Why a pod that the list lacks is not gone all the same; None when its own page is gone, too."""
        try:
            await self._client.pod(pod_id)
        except NotFoundError:
            return None
        except LiumError as failure:
            return f"the list lacks it, and its detail can't be read: {failure}"
        return "the list lacks it, and yet its detail is shown"

    def _stuck(self, record: Record, why: str, run: Run) -> Diagnostic:
        price = Decimal(str(record.attributes.get("price_per_hour_usd") or 0))
        return error(
            "still-there",
            f"delete: not gone after {run.wait_timeout_s:.0f} s: {why}; it may still cost {rate(price)}",
            address=str(record.address),
            hint="it stays in state as deleting; run the same command again",
        )

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        """An open delete of an earlier run: look, and let the plan that follows go on from what is there."""
        pod_id = str(effect.data.get("id"))
        pods = {pod.id: pod for pod in await self._client.pods()}
        if pod_id in pods:
            return await settle_delete(run, effect, still_there=True)
        record = next((item for item in run.ledger.records().values() if item.id == pod_id), None)
        if record is not None and await self._why_not_gone(pod_id) is None:
            run.ledger.done(effect, replace(record, status="deleting"))
            return Settlement(Outcome.DONE, "it is on its way out")
        run.ledger.failed(effect, "it is not listed, and not proved gone")
        return Settlement(Outcome.NOT_DONE, "it is not listed, and not proved gone")

    # --- is it gone? ---------------------------------------------------------------------------------------------

    async def proofs(self, missing: Sequence[Record]) -> dict[str, tuple[bool, str]]:
        """For records that a good list lacks: (gone, why) by key. One more call for all, two for each."""
        if not missing:
            return {}
        ended = await self._ended_by_events(missing)
        answers = await together(*(self._proof(record, ended) for record in missing))
        return {record.key: answer for record, answer in zip(missing, answers, strict=True)}

    async def _ended_by_events(self, missing: Sequence[Record]) -> dict[str, str]:
        """Pod id -> the event that says it ended."""
        since = min(_rented_at(record) for record in missing)
        try:
            events = await self._client.events(since=since - timedelta(minutes=1), limit=1000)
        except PermissionError_:
            return {}
        return {
            event.pod_id: event.sub_event_type + (f" ({event.reason})" if event.reason else "")
            for event in events
            if event.pod_id
            and (event.sub_event_type in _END_EVENTS or event.to_status in ("DELETED", "CREATION_FAILED"))
        }

    async def _proof(self, record: Record, ended: dict[str, str]) -> tuple[bool, str]:
        pod_id = str(record.id)
        why_not = await self._why_not_gone(pod_id)
        if why_not is not None:
            return False, why_not
        if record.status == "deleting":
            return True, "deleted"
        if pod_id in ended:
            return True, f"the account's events say {ended[pod_id]}"
        removed, removed_at, _ = await statement_of(self._services, pod_id)
        if removed:
            return True, f"removed at {removed_at:%Y-%m-%d %H:%M}Z" if removed_at else "removed"
        removal_at = moment(record.attributes.get("removal_at"))
        if removal_at is not None and removal_at <= self._services.now():
            return True, "its time to live has ended"
        if self._services.now() - _rented_at(record) < NEVER_LISTED_GRACE:
            return False, "rented less than a minute ago and not listed yet"
        return False, "nothing the server says proves that it is gone"


def _release(record: Record, run: Run) -> None:
    if not record.deposed:  # at its address stands, or is being rented, its successor
        run.market.release(record.address)


_END_EVENTS = ("pod-delete.success", "pod-create.failed")


def _rented_at(record: Record) -> datetime:
    at = moment(record.attributes.get("created_at")) or moment(record.attributes.get("rented_at"))
    return at or datetime(2000, 1, 1, tzinfo=UTC)
