"""Extend: more time to live for running pods, within the policy; recorded, so that the next plan doesn't take it back.

The server's own end is what is extended, so that asking twice adds twice. The intent is in the journal first; a lost
answer is settled by what the server shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal

from lium_plan.addresses import AddressError, parse_pattern
from lium_plan.answers import Extended
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, warning
from lium_plan.kinds.pod.extensions import extended, settle_extension
from lium_plan.kinds.pod.holdings import HOUR_S, LONGEST_TTL_H
from lium_plan.kinds.pod.lifetimes import EXTEND
from lium_plan.kinds.pod.rows import own_row
from lium_plan.kinds.protocol import OpenEffect, Record
from lium_plan.kinds.registry import kind
from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import LiumError, NotFoundError
from lium_plan.lium.models import Pod
from lium_plan.manifest.model import Manifest
from lium_plan.money import amount
from lium_plan.operations.connecting import api_diagnostic, api_failures, connect
from lium_plan.operations.editing import Editing, editing
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.guards import check_identity
from lium_plan.requests import Sources
from lium_plan.settings import Settings
from lium_plan.state.model import State
from lium_plan.together import together

UNKNOWN = "unknown-outcome"


@dataclass(frozen=True, slots=True)
class _Extension:
    record: Record
    pod: Pod
    before: datetime
    until: datetime

    @property
    def more_usd(self) -> Decimal:
        """What the extra time can cost."""
        hours = Decimal(str((self.until - self.before).total_seconds())) / HOUR_S
        return kind(self.record.kind).price_per_hour_usd(self.record) * hours


async def extend(
    settings: Settings,
    sources: Sources,
    address: str,
    seconds: float,
    *,
    lock_timeout_s: float = 0,
    outside: Outside = REAL,
) -> tuple[Extended, ...]:
    """Give the pods at an address, or of a whole fleet, so many seconds more.

    Raises `Failure`: 64 for what is no address; 1 for a pod that is gone, has no time to live, or would live longer
    than the server allows; 6 when `policy.max_total_cost` is in the way; 3 when some were extended and others not; 8
    when one may have been, and nobody can say now.
    """
    # Longer than any pod gets is refused below, however long; what has no end can't even be added up.
    more = timedelta(seconds=min(seconds, 2 * LONGEST_TTL_H * 3600))
    manifest = _manifest(settings, sources)
    async with connect(settings, outside=outside) as connection:
        client = connection.client
        async with editing(
            settings, EXTEND, lock_timeout_s=lock_timeout_s, now=client.server_time, outside=outside
        ) as opened:
            records = _chosen(opened.state, address)
            with api_failures("look at the account"):
                me = await client.me()
                check_identity(opened.state, me.id, me.workspace_id)
                pods = {pod.id: pod for pod in await client.pods()}
            _settle(opened, pods)
            extensions = _worked_out(records, pods, more, client.server_time())
            diagnostics = await _within_policy(manifest, opened, extensions, client)
            return await _carry_out(opened, extensions, client, diagnostics)


def _manifest(settings: Settings, sources: Sources) -> Manifest | None:
    """None where there is none and none was named: then nobody has said what the limits are."""
    try:
        return load_manifest(settings, sources)
    except Failure as failure:
        if all(item.code == "no-manifest" for item in failure.diagnostics) and sources.files == (".",):
            return None
        raise


def _chosen(state: State, text: str) -> tuple[Record, ...]:
    try:
        pattern = parse_pattern(text)
    except AddressError as fault:
        raise Failure(ExitCode.USAGE, (error("bad-address", str(fault)),)) from None
    found = tuple(
        record
        for record in state.records.values()
        if record.kind == "pod" and not record.deposed and pattern.matches(record.address)
    )
    if not found:
        hint = "`lium-plan state list` shows what there is"
        raise Failure(ExitCode.ERROR, (error("not-in-state", f"{text} is no pod of the state", hint=hint),))
    return found


def _settle(opened: Editing, pods: dict[str, Pod]) -> None:
    """An extension of an earlier run without a recorded outcome: the server's row says whether it took."""
    for effect in opened.state.open.values():
        if effect.op == EXTEND:
            settle_extension(opened.ledger, effect, pods)


def _worked_out(
    records: Sequence[Record], pods: dict[str, Pod], more: timedelta, now: datetime
) -> tuple[_Extension, ...]:
    problems: list[Diagnostic] = []
    found: list[_Extension] = []
    for record in records:
        pod = own_row(record, pods)
        why = _why_not(pod, more, now)
        if why is not None or pod is None or pod.removal_at is None:
            message, hint = why or ("it is gone", None)
            problems.append(error("not-extended", message, address=str(record.address), hint=hint))
            continue
        until = (pod.removal_at + more).replace(microsecond=0)
        found.append(_Extension(record, pod, pod.removal_at, until))
    if problems:
        raise Failure(ExitCode.ERROR, problems)
    return tuple(found)


def _why_not(pod: Pod | None, more: timedelta, now: datetime) -> tuple[str, str | None] | None:
    if pod is None or pod.status == "DELETING":
        return "it is gone, or on its way out", "`lium-plan plan` says what an apply would do"
    if pod.removal_at is None:
        return "it has no time to live: it runs until somebody destroys it", None
    if pod.removal_at <= now:
        return "its time to live has ended", "`lium-plan apply` rents another one"
    left = timedelta(hours=LONGEST_TTL_H) - (pod.removal_at - (pod.created_at or now))
    if more > left:
        left_h = left.total_seconds() / HOUR_S
        return f"a pod lives at most {LONGEST_TTL_H} h in all; this one can have {max(left_h, 0):.0f} h more", None
    return None


# --- the policy ----------------------------------------------------------------------------------------------


async def _within_policy(
    manifest: Manifest | None, opened: Editing, extensions: Sequence[_Extension], client: LiumClient
) -> tuple[Diagnostic, ...]:
    """Raises `Failure` (6) when what was spent and can still be spent would be more than the policy allows."""
    if manifest is None:
        return (warning("no-policy", "there is no manifest here, so no policy limits this", hint="-f names one"),)
    limit = manifest.policy.max_total_cost
    if limit is None:
        return ()
    with api_failures("ask what was spent"):
        spent = await _spent_usd(opened, client)
    coming = Decimal(0)
    until = {extension.record.key: extension.until for extension in extensions}
    for record in opened.state.records.values():
        price = kind(record.kind).price_per_hour_usd(record)
        if not price:
            continue
        end = until.get(record.key) or _moment(record.attributes.get("removal_at"))
        if end is None:
            message = f"`max_total_cost` can't be kept: {record.key} runs without a time to live"
            raise Failure(ExitCode.UNSAFE, (error("total-cost", message, hint="give its fleet a `ttl`"),))
        hours = Decimal(str(max((end - client.server_time()).total_seconds(), 0))) / HOUR_S
        coming += price * hours
    if spent + coming > limit:
        message = (
            f"{amount(spent)} spent and up to {amount(coming)} until the last TTL would be more than "
            f"`max_total_cost`, {amount(limit)}"
        )
        raise Failure(ExitCode.UNSAFE, (error("total-cost", message, hint="extend by less, or raise the limit"),))
    return ()


async def _spent_usd(opened: Editing, client: LiumClient) -> Decimal:
    """What every pod that this state ever had has cost, by the server's statements."""
    ids = {record.id for record in opened.state.records.values() if record.kind == "pod" and record.id is not None}
    ids |= {event.id for event in opened.store.events() if event.action == "rent" and event.id is not None}
    totals = await together(*(_total_usd(id, client) for id in sorted(ids)))
    return sum(totals, Decimal(0))


async def _total_usd(id: str, client: LiumClient) -> Decimal:
    try:
        return (await client.statement(id)).total_usd or Decimal(0)
    except NotFoundError:
        return Decimal(0)  # a rent that never became a pod has no statement


def _moment(value: object) -> datetime | None:
    return datetime.fromisoformat(value) if isinstance(value, str) else None


# --- doing ---------------------------------------------------------------------------------------------------


async def _carry_out(
    opened: Editing, extensions: Sequence[_Extension], client: LiumClient, diagnostics: tuple[Diagnostic, ...]
) -> tuple[Extended, ...]:
    done: list[Extended] = []
    failures: list[Diagnostic] = []
    for extension in extensions:
        record, pod_id = extension.record, str(extension.record.id)
        effect = opened.ledger.begin(record.address, EXTEND, {"id": pod_id, "until": extension.until.isoformat()})
        try:
            await client.schedule_removal(pod_id, extension.until)
        except LiumError as failure:
            await _after_failure(opened, effect, client)
            if opened.ledger.record(record.address) == extended(record, extension.until):
                done.append(_told(extension, diagnostics))
                continue
            failures.append(_why_failed(failure, record, unsure=effect.number in opened.ledger.open))
            continue
        opened.ledger.done(effect, extended(record, extension.until))
        done.append(_told(extension, diagnostics))
    if failures:
        unsure = any(item.code == UNKNOWN for item in failures)
        code = ExitCode.UNKNOWN_OUTCOME if unsure else ExitCode.PARTIAL if done else ExitCode.ERROR
        raise Failure(code, failures)
    return tuple(done)


async def _after_failure(opened: Editing, effect: OpenEffect, client: LiumClient) -> None:
    """Did it take all the same? When that can't be seen now, it stays open and is settled later."""
    try:
        pods = {pod.id: pod for pod in await client.pods()}
    except LiumError:
        return
    settle_extension(opened.ledger, effect, pods)


def _why_failed(failure: LiumError, record: Record, *, unsure: bool) -> Diagnostic:
    found = replace(api_diagnostic(failure, "extend"), address=str(record.address))
    if not unsure:
        return found
    message = f"{found.message}; whether it was extended can't be seen now"
    return replace(found, code=UNKNOWN, message=message, hint="it stays open in the journal; the next apply settles it")


def _told(extension: _Extension, diagnostics: tuple[Diagnostic, ...]) -> Extended:
    address = str(extension.record.address)
    return Extended(address, extension.before, extension.until, extension.more_usd, diagnostics)
