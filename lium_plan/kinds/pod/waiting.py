"""From rented to ready: RUNNING in a listing, then SSH that really works (contract §4, §6, §7).

The listings decide whether it is what was ordered: another GPU count, or a price above the ceiling, and it goes back.
It is judged from the first one that shows it to the one that tells both, and once more when it is up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from decimal import Decimal

from lium_plan.diagnostics import error, in_words
from lium_plan.kinds.pod.lifetimes import TTL_TOLERANCE, deadline, moment
from lium_plan.kinds.pod.offers import in_quanta
from lium_plan.kinds.pod.removal import LEAVING, NEVER_LISTED_GRACE, Removals
from lium_plan.kinds.pod.rows import misnamed, row_of
from lium_plan.kinds.pod.spec import READY_AT, REBOOTED_AT, TOUCHED_AT, PodSpec
from lium_plan.kinds.protocol import ActionFailed, Json, Record, Run
from lium_plan.kinds.services import Services
from lium_plan.kinds.sessions import PodGone, key_of, open_session, why_gone
from lium_plan.lium.errors import LiumError
from lium_plan.lium.fields import as_text
from lium_plan.lium.models import Pod
from lium_plan.lium.poller import Listing
from lium_plan.money import rate
from lium_plan.ssh.coordinates import parse_connect_command
from lium_plan.ssh.errors import BadConnectCommand, KeyUnusable, LoginRefused, SshError
from lium_plan.ssh.protocol import Session

RUNNING_TIMEOUT_S = 1200.0
"""From the rent to RUNNING; an image of several GB on a slow node takes minutes (contract §4.3)."""
SSH_TIMEOUT_S = 240.0
"""From RUNNING to a login; 1-2 % of pods never get there."""
LISTED_WITHIN_S = 20.0
"""From the rent to the first listing that shows the pod; lists lag a few seconds (contract §4.3)."""
CHECK_TIMEOUT_S = 60.0
FAILED = "CREATION_FAILED"
NOTHING: Mapping[str, Json] = {}

# The GPU count by the best means the image has, and whether /mnt is a mount of its own. POSIX sh alone.
CHECK_SCRIPT = """
gpus=
if command -v nvidia-smi >/dev/null 2>&1; then gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU '); fi
if [ -z "$gpus" ] && [ -d /proc/driver/nvidia/gpus ]; then gpus=$(ls /proc/driver/nvidia/gpus | wc -l); fi
if [ -z "$gpus" ]; then gpus=$(ls /dev 2>/dev/null | grep -c '^nvidia[0-9][0-9]*$'); fi
mnt=no
mountpoint -q /mnt 2>/dev/null
case $? in
    0) mnt=yes ;;
    1 | 32) ;;
    *)  # there is none, or one that can't be run
        while read -r _ _ _ _ place _; do
            if [ "$place" = /mnt ]; then mnt=yes; fi
        done </proc/self/mountinfo ;;
esac 2>/dev/null
echo "lium-plan-check gpus=$((gpus)) mnt=$mnt"
"""


class GivenUp(Exception):
    """This pod will not become what was ordered; another one might."""

    def __init__(self, why: str, *, not_created: bool = False) -> None:
        """`not_created`: the server could not make its container; more often the image's fault than the node's."""
        self.not_created = not_created
        super().__init__(why)


class Waits:
    def __init__(self, services: Services, removals: Removals) -> None:
        self._services = services
        self._client = services.client
        self._poller = services.poller
        self._removals = removals

    async def until_ready(self, record: Record, spec: PodSpec, run: Run, *, judge: bool = True) -> Record:
        """Wait until the pod can be worked on. Raises `GivenUp` when it never will; the record says what it is.

        `judge`: whether it is what was ordered, and no dearer, is still to be seen.
        """
        running = await self.until_running(record, spec, run, judge=judge)
        running = await self._correct_ttl(running, spec, run)
        await self.check_machine(running, spec, run)
        # Whoever logs in later, without the manifest, needs the key that was found to work.
        key_path = key_of(self._services.keys, running, spec.ssh_key).absolute()
        facts = {name: value for name, value in running.attributes.items() if name != REBOOTED_AT}
        facts |= {"ssh_key": str(key_path), READY_AT: self._services.now().isoformat()}
        ready = replace(running, status="ready", attributes=facts)
        run.ledger.put(ready)
        return ready

    async def until_running(self, record: Record, spec: PodSpec, run: Run, *, judge: bool = True) -> Record:
        loop = asyncio.get_running_loop()
        started = loop.time()
        deadline = started + RUNNING_TIMEOUT_S
        judged = not judge
        shown = ""

        def news(listing: Listing) -> bool:
            pod = row_of(record, listing.pods)
            return pod is None or not judged or pod.status in LEAVING or _is_up(pod) or _phase(pod) != shown

        if judge:
            _check_price(record)  # a lost rent is found by a listing, and that is the first one
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    listing = await self._poller.next_listing(since=started, news=news)
            except TimeoutError:
                raise GivenUp(f"not RUNNING after {RUNNING_TIMEOUT_S:.0f} s") from None
            pod = row_of(record, listing.pods)
            why_not = misnamed(record, listing.pods)
            if why_not is not None:
                if loop.time() - started >= NEVER_LISTED_GRACE.total_seconds():
                    raise GivenUp(why_not)
                continue
            record = _known_as(record, pod, run)
            if pod is None:
                try:
                    gone, why = (await self._removals.proofs([record]))[record.key]
                except LiumError:
                    continue  # nobody can say now
                if gone:
                    raise await self._ended(record, why)
                continue
            if judge and (not judged or _is_up(pod)):
                record = self._judge(record, pod, run)
                judged = pod.gpu_count is not None and _price(pod) is not None
            if pod.status in LEAVING:
                raise await self._ended(record, f"the server says {pod.status}")
            if _is_up(pod):
                record = _as_listed(record, pod)
                run.ledger.put(record)
                return record
            phase = _phase(pod)
            if phase != shown:
                shown = phase
                run.phase(record.address, phase)

    async def look_at(self, record: Record, run: Run) -> None:
        """Judge it by the first listing that shows it, where there is one soon."""
        pod: Pod | None = None
        try:
            async with asyncio.timeout(LISTED_WITHIN_S):
                while pod is None:
                    pod = row_of(record, (await self._poller.next_listing()).pods)
        except (LiumError, TimeoutError):
            return
        self._judge(_known_as(record, pod, run), pod, run)

    def _judge(self, record: Record, pod: Pod, run: Run) -> Record:
        """Is it what was ordered, at a price that was allowed, as far as its row tells?"""
        ordered, price = record.attributes.get("gpu_count"), _price(pod)
        # What it costs is known and counts from here on, also while it is on its way back.
        judged = _as_listed(record, pod)
        if judged != record:
            run.ledger.put(judged)
        if price is not None:
            run.market.rented(record.address, price)
        if pod.gpu_count is not None and pod.gpu_count != int(str(ordered or 0)):
            raise GivenUp(f"it has {pod.gpu_count} GPUs, {ordered or 0} ordered")
        _check_price(judged)
        return judged

    async def _ended(self, record: Record, otherwise: str) -> GivenUp:
        """The cause by the pod's events, which outlive its row (contract §2.8.2)."""
        try:
            events = await self._client.pod_events(str(record.id))
        except LiumError:
            events = ()
        not_created = FAILED in otherwise or any(event.to_status == FAILED for event in events)
        with_error = next((event.error for event in reversed(events) if event.error), None)
        if with_error:
            return GivenUp(with_error, not_created=not_created)
        reason = next((event for event in reversed(events) if event.reason), None)
        more = "" if reason is None else f" ({reason.reason}{f': {reason.detail}' if reason.detail else ''})"
        return GivenUp(f"{otherwise}{more}", not_created=not_created)

    async def _correct_ttl(self, record: Record, spec: PodSpec, run: Run) -> Record:
        """The server may count from RUNNING; the deadline we promised counts from creation (contract §10-U11)."""
        due = deadline(record, spec, self._services.now())
        if spec.ttl_s is None or due is None:
            return record
        shown = moment(record.attributes.get("removal_at"))
        if shown is None or abs(shown - due) > TTL_TOLERANCE:
            return await set_removal(self._services, record, due, spec.ttl_s, run)
        return record

    # --- the machine ---------------------------------------------------------------------------------------------

    async def check_machine(self, record: Record, spec: PodSpec, run: Run) -> None:
        """Log in and look: the GPUs that were ordered, and `/mnt` where a volume was."""
        session = await self._open(record, spec, run)
        output = bytearray()
        run.phase(record.address, "checking GPUs and /mnt" if spec.volume or spec.volume_id else "checking GPUs")
        try:
            done = await session.run(CHECK_SCRIPT, on_output=output.extend, timeout_s=CHECK_TIMEOUT_S)
        except SshError as failure:
            gone = await why_gone(self._services, record)
            raise GivenUp(str(failure) if gone is None else gone.why) from failure
        finally:
            await session.close()
        seen = _read_check(bytes(output))
        if seen is None:
            raise GivenUp(f"the check of GPUs and mounts did not answer (exit status {done.exit_status})")
        gpus, mounted = seen
        ordered = int(str(record.attributes.get("gpu_count") or 0))
        if gpus != ordered:
            raise GivenUp(f"{gpus} GPUs are visible in it, {ordered} were ordered")
        if (spec.volume or spec.volume_id) and not mounted:
            raise GivenUp("its volume is not mounted at /mnt")

    async def _open(self, record: Record, spec: PodSpec, run: Run) -> Session:
        try:
            return await open_session(
                self._services,
                record,
                ssh_key=spec.ssh_key,
                deadline_s=SSH_TIMEOUT_S,
                say=lambda stage: run.phase(record.address, f"ssh: {stage}"),
            )
        except LoginRefused as failure:
            raise ActionFailed(
                error("ssh-login", str(failure), address=str(record.address), hint="check the fleet's ssh_key")
            ) from failure
        except (OSError, KeyUnusable) as failure:
            # Of this machine, not of the pod: another one would fare no better, and this one is kept.
            hint = "once that is mended, apply goes on with the pod that it has"
            raise ActionFailed(
                error("local-file", f"on this machine: {in_words(failure)}", address=str(record.address), hint=hint)
            ) from failure
        except (SshError, PodGone) as failure:
            raise GivenUp(str(failure)) from failure


async def set_removal(services: Services, record: Record, due: datetime, ttl_s: int, run: Run) -> Record:
    """Tell the server when to remove the pod, and record it. Idempotent, so it needs no settling."""
    try:
        await services.client.schedule_removal(str(record.id), due)
    except LiumError as failure:
        raise ActionFailed(
            error("ttl", f"time to live: {failure}", address=str(record.address), hint=failure.hint)
        ) from failure
    inputs = {**record.inputs, "ttl_s": ttl_s}
    # The server keeps whole seconds, and so do we: its row would look like drift otherwise.
    shown = due.replace(microsecond=0).isoformat()
    facts = {**record.attributes, "removal_at": shown, TOUCHED_AT: services.now().isoformat()}
    changed = replace(record, inputs=inputs, attributes=facts)
    run.ledger.put(changed)
    return changed


def pod_facts(pod: Pod, known: Mapping[str, Json] = NOTHING) -> dict[str, Json]:
    """What a pod's row tells about how to reach it and what it costs; only what it does tell.

    `known`: what was told before; a connect command that is the same needs no second reading.
    """
    facts: dict[str, Json] = {
        "host": known.get("host") if known.get("connect_command") == pod.ssh_connect_cmd else _host(pod),
        "ip": as_text(pod.executor.get("executor_ip_address")),
        "ssh_port": pod.ports.get(22),
        "ports": {str(inside): outside for inside, outside in sorted(pod.ports.items())} or None,
        "connect_command": pod.ssh_connect_cmd,
        "gpu_count": pod.gpu_count,
        "template_id": pod.template_id,
        "volume_id": pod.volume_id,
        "created_at": pod.created_at.isoformat() if pod.created_at else None,
        "price_per_hour_usd": None if (price := _price(pod)) is None else str(price),
    }
    told: dict[str, Json] = {name: value for name, value in facts.items() if value is not None}
    # A removal that was cancelled is a fact too, unlike the fields that are null before the pod runs.
    told["removal_at"] = pod.removal_at.isoformat() if pod.removal_at else None
    for name, value in told.items():
        before = known.get(name)
        if before == value:
            told[name] = before  # one object for one fact: a state of ten thousand pods holds it twice otherwise
    return told


def _known_as(record: Record, pod: Pod | None, run: Run) -> Record:
    """With the id under which its name is listed."""
    if pod is None or pod.id == record.id:
        return record
    known = replace(record, id=pod.id)
    run.ledger.put(known)
    return known


def _as_listed(record: Record, pod: Pod) -> Record:
    """With what the row tells; the GPU count stays the one that was ordered."""
    ordered = record.attributes.get("gpu_count")
    return replace(record, attributes={**record.attributes, **pod_facts(pod), "gpu_count": ordered})


def _price(pod: Pod) -> Decimal | None:
    """Of the whole pod, USD per hour; a row may have none, or 0, before the pod runs: that tells nothing."""
    price = pod.price_per_hour_usd
    return price if price is not None and price > 0 else None


def _check_price(record: Record) -> None:
    """Raises `GivenUp` when it costs more than was allowed, to 5 decimals."""
    price = Decimal(str(record.attributes.get("price_per_hour_usd") or 0))
    ceiling = Decimal(str(record.attributes.get("ceiling_per_hour_usd") or 0))
    if ceiling and in_quanta(price) > in_quanta(ceiling):
        raise GivenUp(f"it costs {rate(price, ceiling)}, the ceiling is {rate(ceiling, price)}")


def _host(pod: Pod) -> str | None:
    if not pod.ssh_connect_cmd:
        return None
    try:
        return parse_connect_command(pod.ssh_connect_cmd).host
    except BadConnectCommand:
        return None


def _is_up(pod: Pod) -> bool:
    return pod.status == "RUNNING" and bool(pod.ssh_connect_cmd)


def _phase(pod: Pod) -> str:
    """`pulling image ~40 s`, from the row's own words (contract §3.2)."""
    words = pod.phase or (pod.status.lower().replace("_", " ") or "waiting")
    return f"{words} ~{pod.estimated_ready_s} s" if pod.estimated_ready_s else words


def _read_check(output: bytes) -> tuple[int, bool] | None:
    for line in output.decode("utf-8", "replace").splitlines():
        if line.startswith("lium-plan-check "):
            fields = dict(part.partition("=")[::2] for part in line.split()[1:])
            return int(fields.get("gpus") or 0), fields.get("mnt") == "yes"
    return None
