"""The client against the local Lium: every method, and the accidents a rent must survive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from lium_plan.lium.client import LiumClient
from lium_plan.lium.errors import (
    AuthError,
    InsufficientBalanceError,
    LiumError,
    NotFoundError,
    RateLimitedError,
    Refusal,
    ScopeError,
    TransportError,
    classify_refusal,
)
from lium_plan.lium.models import Deletion, Pod
from lium_plan.lium.poller import PodPoller
from lium_plan.lium.windows import Family
from lium_plan.sim import faults
from lium_plan.sim.inprocess import InProcess, open_in_process
from lium_plan.sim.simulator import Beginning
from tests.lium.calls import until_taken
from tests.support.virtual import run_virtual

KEY = "sk_sim_local"
SSH_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA me"


def simulated(work: Callable[[InProcess, LiumClient], Awaitable[None]], *, key: str = KEY) -> None:
    async def main() -> None:
        async with (
            open_in_process(Beginning(seed=7)) as sim,
            LiumClient(sim.base_url, key, transport=sim.transport, random=lambda: 0.5, environ={}) as lium,
        ):
            await work(sim, lium)

    run_virtual(main())


def fault(sim: InProcess, effect: dict[str, object], method: str, path: str) -> None:
    spec = {"effect": effect, "match": {"method": method, "path": path}}
    faults.add(sim.world, faults.FAULT.validate_python(spec))


async def order(lium: LiumClient, name: str = "lp-test") -> tuple[str, bytes]:
    """A node that is cheap and the body that rents one GPU of it."""
    feed = await lium.public_nodes()
    usable = [node for node in feed.nodes if node.get("min_rentable_gpu_count") == 1]
    node = min(usable, key=lambda node: float(str(node["price_per_gpu_hour"])))
    template = next(template for template in await lium.templates() if template.user_id is None)
    body = {
        "pod_name": name,
        "template_id": template.id,
        "user_public_key": [SSH_KEY],
        "gpu_count": 1,
        "enable_backups": False,
    }
    return str(node["id"]), json.dumps(body).encode()


async def until(lium: LiumClient, pod_id: str, wanted: Callable[[Pod | None], bool]) -> Pod | None:
    async with PodPoller(lium) as poller, asyncio.timeout(900):
        async for listing in poller.subscribe():
            if wanted(listing.pods.get(pod_id)):
                return listing.pods.get(pod_id)
    raise AssertionError


def test_a_pods_life() -> None:
    async def life(sim: InProcess, lium: LiumClient) -> None:
        assert "rent_idempotency" in (await lium.version()).features
        account = await lium.me()
        assert account.balance_usd is not None
        assert account.workspace_id
        node_id, body = await order(lium)
        assert node_id in {str(row["id"]) for row in await lium.executors(size=500, page=1)}
        answer = await lium.rent(node_id, body, "key-1")
        assert answer.pod_id is not None
        assert not answer.replayed
        again = await lium.rent(node_id, body, "key-1")
        assert (again.pod_id, again.replayed) == (answer.pod_id, True)

        def running(pod: Pod | None) -> bool:
            return pod is not None and pod.status == "RUNNING"

        pod = await until(lium, answer.pod_id, running)
        assert pod is not None
        assert (pod.name, pod.executor_id, pod.gpu_count) == ("lp-test", node_id, 1)
        assert 22 in pod.ports
        assert pod.ssh_connect_cmd
        assert pod.created_at is not None
        assert abs(lium.server_time() - pod.created_at) < timedelta(minutes=5)
        at = (lium.server_time() + timedelta(hours=2)).replace(microsecond=0)
        await lium.schedule_removal(pod.id, at)
        await lium.schedule_removal(pod.id, at)
        assert (await lium.pod(pod.id)).removal_at == at
        assert await lium.cancel_removal(pod.id) is Deletion.ACCEPTED
        assert (await lium.pod(pod.id)).removal_at is None
        other = next(t for t in await lium.templates() if t.user_id is None and t.id != pod.template_id)
        await lium.switch_template(pod.id, other.id)
        await asyncio.sleep(60)
        assert (await lium.pod(pod.id)).template_id == other.id
        await lium.reboot(pod.id)
        assert (await lium.pod(pod.id)).status == "REBOOT_PENDING"
        assert await lium.delete_pod(pod.id) is Deletion.ACCEPTED
        await until(lium, pod.id, lambda found: found is None)
        assert await lium.delete_pod(pod.id) is Deletion.GONE
        with pytest.raises(NotFoundError):
            await lium.pod(pod.id)
        statement = await lium.statement(pod.id)
        assert statement.removed
        assert statement.removed_at is not None
        assert statement.total_usd is not None
        assert statement.total_usd > 0
        assert statement.billed_s is not None
        events = await lium.pod_events(pod.id)
        newest_first = await lium.events(since=pod.created_at, limit=100, pod_id=pod.id)
        assert [event.id for event in newest_first] == [event.id for event in events][::-1]
        assert any(event.sub_event_type == "pod-delete.success" for event in events)

    simulated(life)


def test_objects() -> None:
    async def objects(sim: InProcess, lium: LiumClient) -> None:
        volume = await lium.create_volume("data", "first")
        await lium.update_volume(volume.id, name="renamed")
        (found,) = await lium.volumes()
        assert (found.id, found.name, found.description) == (volume.id, "renamed", "first")
        assert await lium.delete_volume(volume.id) is Deletion.ACCEPTED
        assert await lium.delete_volume(volume.id) is Deletion.GONE
        assert await lium.volumes() == ()

        credential = await lium.create_credential("demo", "PASSWORD_CANARY")
        await lium.update_credential(credential.id, username="demo", password="PASSWORD_CANARY_2")
        (login,) = await lium.credentials()
        assert (login.id, login.username, login.password) == (credential.id, "demo", "PASSWORD_CANARY_2")
        fields = {
            "name": "lp-abc",
            "docker_image": "limsim/private-x:1",
            "docker_image_tag": "",
            "docker_image_digest": "",
            "internal_ports": [22],
            "startup_commands": "sleep infinity",
            "entrypoint": "",
            "environment": {"MODE": "fast"},
            "volumes": ["/root"],
            "category": "UBUNTU",
            "is_private": True,
            "docker_credential_id": credential.id,
        }
        template = await lium.create_template(fields)
        listed = next(row for row in await lium.templates() if row.id == template.id)
        assert (listed.name, listed.user_id) == ("lp-abc", (await lium.me()).id)
        assert (listed.docker_credential_id, listed.internal_ports) == (credential.id, (22,))
        assert listed.environment == {"MODE": "fast"}
        assert await lium.delete_template(template.id) is Deletion.ACCEPTED
        assert await lium.delete_credential(credential.id) is Deletion.ACCEPTED
        assert await lium.delete_credential(credential.id) is Deletion.GONE
        assert await lium.ssh_keys() == ()

    simulated(objects)


def test_f1_the_servers_own_limiter_never_has_to_refuse() -> None:
    async def many(sim: InProcess, lium: LiumClient) -> None:
        loop = asyncio.get_running_loop()
        said_s = lium.limits.estimate_s(Family.TEMPLATE_CREATE, 25, loop.time())
        started_s = loop.time()
        body = {"name": "t", "docker_image": "x", "docker_image_tag": "1"}
        await asyncio.gather(*(lium.create_template(body) for _ in range(25)))
        assert loop.time() - started_s == pytest.approx(said_s, rel=0.01)
        assert not [row for row in sim.world.requests if row.status == 429]

    simulated(many)


@pytest.mark.parametrize("where", ["before", "after"])
def test_a3_a_lost_reply_to_a_rent_is_an_unknown_outcome_that_a_replay_settles(where: str) -> None:
    async def lost(sim: InProcess, lium: LiumClient) -> None:
        node_id, body = await order(lium)
        fault(sim, {"do": "lose_reply", "where": where}, "POST", "executors/*/rent")
        with pytest.raises(TransportError) as raised:
            await lium.rent(node_id, body, "key-1")
        assert raised.value.sent
        assert classify_refusal(raised.value) is Refusal.UNKNOWN
        answer = await lium.rent(node_id, body, "key-1")
        assert answer.replayed is (where == "after")
        assert [pod.id for pod in await lium.pods()] == [answer.pod_id]

    simulated(lost)


def test_refusals_of_a_rent_are_told_apart() -> None:
    async def refused(sim: InProcess, lium: LiumClient) -> None:
        node_id, body = await order(lium)

        async def meaning(node: str, changes: dict[str, object], key: str) -> LiumError:
            changed = json.dumps({**json.loads(body), **changes}).encode()
            with pytest.raises(LiumError) as raised:
                await lium.rent(node, changed, key)
            return raised.value

        unknown = "00000000-0000-4000-8000-000000000000"
        for node, changes, expected in (
            (unknown, {}, Refusal.CAPACITY),
            (node_id, {"gpu_count": 64}, Refusal.CAPACITY),
            (node_id, {"template_id": unknown}, Refusal.TEMPLATE_NOT_FOUND),
            (node_id, {"termination_hours": 721}, Refusal.CONFIG),
            (node_id, {"user_public_key": []}, Refusal.CONFIG),
        ):
            key = f"key-{expected}-{changes}"[:60]
            error = await meaning(node, changes, key)
            assert classify_refusal(error) is expected, (error, changes)
            assert error.decided_after_lookup, (error, changes)
            again = await meaning(node, changes, key)
            assert again.replayed, (again, changes)
            assert classify_refusal(again) is expected
        assert await lium.pods() == ()

        answer = await lium.rent(node_id, body, "key-taken")
        assert answer.pod_id is not None
        reused = await meaning(node_id, {"pod_name": "other"}, "key-taken")
        assert classify_refusal(reused) is Refusal.IDEMPOTENCY_REUSED
        assert not reused.decided_after_lookup

        faults.add(sim.world, faults.FAULT.validate_python({"effect": {"do": "break", "pod": answer.pod_id}}))
        broken = await meaning(node_id, {}, "key-after-break")
        assert classify_refusal(broken) is Refusal.BROKEN_POD
        assert broken.broken_pod_id == answer.pod_id

    simulated(refused)


def test_a_volume_that_is_held_is_busy() -> None:
    async def busy(sim: InProcess, lium: LiumClient) -> None:
        volume = await lium.create_volume("data")
        node_id, body = await order(lium)
        changed = json.dumps({**json.loads(body), "volume_id": volume.id}).encode()
        answer = await lium.rent(node_id, changed, "key-1")
        assert answer.pod_id is not None
        assert (await lium.pod(answer.pod_id)).volume_id == volume.id
        with pytest.raises(LiumError) as raised:
            await lium.rent(node_id, changed, "key-2")
        assert classify_refusal(raised.value) is Refusal.VOLUME_BUSY

    simulated(busy)


def test_f6_an_empty_balance_is_no_missing_permission() -> None:
    async def poor(sim: InProcess, lium: LiumClient) -> None:
        node_id, body = await order(lium)
        faults.add(sim.world, faults.FAULT.validate_python({"effect": {"do": "balance", "usd": 0.01}}))
        with pytest.raises(InsufficientBalanceError) as raised:
            await lium.rent(node_id, body, "key-1")
        assert classify_refusal(raised.value) is Refusal.FATAL_BALANCE
        assert raised.value.required_usd is not None
        assert raised.value.available_usd is not None
        assert not raised.value.decided_after_lookup

    simulated(poor)


def test_e6_a_wrong_key_and_a_narrow_one() -> None:
    async def wrong(sim: InProcess, lium: LiumClient) -> None:
        with pytest.raises(AuthError):
            await lium.pods()

    simulated(wrong, key="sk_live_nobody")

    async def narrow(sim: InProcess, lium: LiumClient) -> None:
        effect = {"do": "config", "settings": {"events_forbidden": True}}
        faults.add(sim.world, faults.FAULT.validate_python({"effect": effect}))
        with pytest.raises(ScopeError) as raised:
            await lium.events(limit=5)
        assert raised.value.scope == "read"

    simulated(narrow)


@pytest.mark.parametrize("mode", ["count", "refuse"])
def test_the_shared_limiter_delays_and_loses_nothing(mode: str) -> None:
    async def both(sim: InProcess, lium: LiumClient) -> None:
        effect = {"do": "config", "settings": {"shared_limiter": mode, "balance_usd": 1000}}
        faults.add(sim.world, faults.FAULT.validate_python({"effect": effect}))
        node_id, body = await order(lium)

        async def rent(number: int) -> str | None:
            await until_taken(
                lium.create_template, {"name": f"t{number}", "docker_image": "x", "docker_image_tag": "1"}
            )
            changed = json.dumps({**json.loads(body), "pod_name": f"lp-{number}"}).encode()
            while True:
                try:
                    return (await lium.rent(node_id, changed, f"key-{number}")).pod_id
                except RateLimitedError:
                    continue
                except LiumError as error:
                    assert classify_refusal(error) is Refusal.CAPACITY  # noqa: PT017
                    return None

        await asyncio.gather(*map(rent, range(3)))
        refused = [row for row in sim.world.requests if row.status == 429]
        assert len(refused) < 12

    simulated(both)


@contextlib.asynccontextmanager
async def served() -> AsyncIterator[tuple[str, str]]:
    """A local Lium in a process of its own: its address and key."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "lium_plan.sim", "--port", "0", "--speed", "50", "--no-machines"),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        assert process.stdout is not None
        async with asyncio.timeout(60):
            lines = [(await process.stdout.readline()).decode().strip() for _ in range(2)]
        base, key = (line.partition("=")[2] for line in lines)
        yield base, key
    finally:
        process.terminate()
        await process.wait()


def test_over_real_sockets() -> None:
    async def main() -> None:
        async with served() as (base, key), LiumClient(base, key, environ={}) as lium:
            node_id, body = await order(lium)
            answer = await lium.rent(node_id, body, "key-1")
            assert answer.pod_id is not None
            assert [pod.id for pod in await lium.pods()] == [answer.pod_id]
            assert lium.server_time_known
            async with asyncio.timeout(60):
                await until(lium, answer.pod_id, lambda pod: pod is not None and pod.status == "RUNNING")
                assert await lium.delete_pod(answer.pod_id) is Deletion.ACCEPTED
                await until(lium, answer.pod_id, lambda pod: pod is None)
            assert (await lium.statement(answer.pod_id)).removed

    asyncio.run(main())
