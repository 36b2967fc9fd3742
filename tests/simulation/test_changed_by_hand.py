"""What somebody changes with another tool is seen by the next plan, put right by its apply, and then done with."""

from __future__ import annotations

import os
import time
from datetime import timedelta

import httpx
import pytest

from lium_plan.operations.reaching import place_now
from lium_plan.requests import PlanRequest
from lium_plan.sim.settings import Settings as ServerSettings
from tests.simulation.manifests import BOOTSTRAP, fleet, tails
from tests.simulation.telling import emptied, mended, record, told
from tests.support.world import Ran, World
from tests.support.world_opening import ACCOUNT
from tests.support.world_process import Process

KEY = {"X-API-Key": f"sk_sim_{ACCOUNT}"}


def actions(ran: Ran) -> list[str]:
    return [f"{action.verb} {action.address}" for action in ran.plans[0].actions]


async def by_hand(world: World, method: str, path: str, body: object = None) -> None:
    """What somebody does on the account with another tool, until the server is done with it."""
    async with httpx.AsyncClient(transport=world.lium.transport, base_url=world.lium.base_url, headers=KEY) as client:
        answer = await client.request(method, path, json=body)
        assert answer.is_success, answer.text
    await world.pass_time(60)


def template_of(world: World) -> str:
    (key,) = (key for key in world.state().records if key.startswith("template."))  # type: ignore[union-attr]
    return key


async def edit_template(world: World, **changes: object) -> None:
    """A PUT takes the full object (contract §2.9.5)."""
    row = world.lium.world.templates[str(record(world, template_of(world)).id)]
    body = {
        "name": row.name,
        "docker_image": row.docker_image,
        "docker_image_tag": row.docker_image_tag,
        "docker_image_digest": row.docker_image_digest or "",
        "internal_ports": list(row.internal_ports),
        "startup_commands": row.startup_commands,
        "entrypoint": row.entrypoint or "",
        "environment": dict(row.environment or {}),
        "volumes": list(row.volumes or ()),
        "is_private": True,
    }
    await by_hand(world, "PUT", f"/templates/{row.id}", {**body, **changes})


EDITS: dict[str, dict[str, object]] = {
    "image": {"docker_image": "debian", "docker_image_tag": "12"},
    "command": {"startup_commands": "-c 'exec sleep 999'"},
    "ports": {"internal_ports": [22, 9999]},
    "env": {"environment": {"WHO": "somebody"}},
    "local_volume": {"volumes": ["/data"]},
}


@pytest.mark.parametrize("normalising", [False, True])
@pytest.mark.parametrize("field", EDITS)
def test_a_template_that_was_edited_by_hand_is_made_anew(field: str, normalising: bool) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        old = record(world, template_of(world)).id
        await edit_template(world, **EDITS[field])
        ran = await world.apply()
        assert ran.code == 0, ran.words
        found = [(row.status, [change.path.partition(".")[0] for change in row.changes]) for row in ran.plans[0].drift]
        assert ("changed", [field]) in found, found
        assert f"replace {template_of(world)}" in actions(ran)
        assert "reboot fleet.a[0]" in actions(ran)
        new = world.lium.world.templates[str(record(world, template_of(world)).id)]
        assert new.id != old
        assert world.lium.world.templates[str(old)].deleted_at is not None
        await mended(world)
        await emptied(world)

    told(story, server=ServerSettings(normalise_templates=normalising))


def test_an_edit_to_what_is_declared_by_now_is_written_down() -> None:
    """An environment that somebody else wrote is known by its hashes alone."""
    template = "templates: {{t: {{image: 'ubuntu:22.04', env: {{A: '{}', KEPT: same}}}}}}\n"
    pods = fleet().replace("image: ubuntu:22.04", "template: t")

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await edit_template(world, environment={"A": "two", "KEPT": "same"})
        world.write("lium.yaml", pods + template.format("two"))
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert actions(ran) == ["adopt template.t", "adopt fleet.a[0]"], "the edit has rebooted the pod already"
        await mended(world)
        await emptied(world)

    told(story, manifest=pods + template.format("one"))


def test_an_edit_of_a_template_that_changes_nothing_is_none() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await edit_template(world)
        ran = await world.apply()
        assert not any(action.startswith("replace") for action in actions(ran))
        await mended(world)
        await emptied(world)

    told(story, server=ServerSettings(normalise_templates=True))


def test_a_template_that_was_renamed_by_hand_reboots_nobody() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await edit_template(world, name="mine")
        ran = await world.apply()
        assert not {"replace", "reboot"} & {action.split()[0] for action in actions(ran)}
        assert record(world, template_of(world)).attributes["remote_name"] == "mine"
        await mended(world)
        await emptied(world)

    told(story)


REBOOTED = fleet(2, more=BOOTSTRAP)


def looks(world: World, since: int) -> int:
    """Requests for histories: what is asked only where something was changed."""
    return sum("events" in row.path for row in list(world.lium.world.requests)[since:])


def test_a_pod_that_was_rebooted_by_hand_is_set_up_again_and_nobody_else() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        before = record(world)
        await by_hand(world, "POST", f"/pods/{before.id}/reboot", {})
        ran = await world.apply()
        assert ran.code == 0, ran.words
        assert actions(ran) == ["adopt fleet.a[0]", "run fleet.a[0].bootstrap"]
        assert [(str(row.address), row.status) for row in ran.plans[0].drift] == [("fleet.a[0]", "rebooted")]
        after = record(world)
        assert after.id == before.id
        row = next(pod for pod in world.lium.world.pods if pod.id == after.id)
        assert after.attributes["connect_command"] == f"ssh {row.ssh_user}@{row.host} -p {row.ports[22]}"
        await mended(world)
        await emptied(world)

    told(story, manifest=REBOOTED, expected=tails(2))


@pytest.mark.parametrize("moved", [True, False])
def test_a_reboot_that_a_refresh_has_taken_in_is_no_news(moved: bool) -> None:
    """By its row it was at another second than by its history, which is asked once its ports are known."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod = record(world)
        before = next(row for row in world.lium.world.pods if row.id == pod.id)
        await by_hand(world, "POST", f"/pods/{pod.id}/reboot", {})
        await world.pass_time(60)
        if not moved:
            world.lium.world.pods.change(str(pod.id), host=before.host, ports=before.ports)
        assert (await world.apply(request=PlanRequest(refresh_only=True))).code == 0
        world.accept_host_keys()  # pins have the time of this machine
        ran = await world.apply()
        assert ran.plans[0].drift == ()
        reasons = {str(action.address): action.reason for action in ran.plans[0].actions}
        assert reasons == {
            "fleet.a[0]": "it was rebooted: its new host key is taken in",
            "fleet.a[0].bootstrap": "its pod was rebooted",
        }
        await mended(world)
        await emptied(world)

    told(story, manifest=REBOOTED, expected=tails(2))


def test_what_nobody_touched_costs_no_look_at_its_history() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await world.pass_time(3600)
        since = len(list(world.lium.world.requests))
        ran = await world.apply()
        assert actions(ran) == []
        assert looks(world, since) == 0

    told(story, manifest=REBOOTED, expected=tails(2))


def test_a_killed_apply_leaves_the_bootstrap_of_a_rebooted_pod_to_the_next() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        await by_hand(world, "POST", f"/pods/{record(world).id}/reboot", {})
        await world.apply(crash_on=("ssh run", "before", 1))
        ran = await world.apply()
        assert "run fleet.a[0].bootstrap" in actions(ran), actions(ran)
        await mended(world)
        await emptied(world)

    told(story, manifest=fleet(1, more=BOOTSTRAP))


def test_where_its_ports_stay_the_same_its_history_tells() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod = record(world)
        before = next(row for row in world.lium.world.pods if row.id == pod.id)
        await by_hand(world, "POST", f"/pods/{pod.id}/reboot", {})
        world.lium.world.pods.change(str(pod.id), host=before.host, ports=before.ports)
        since = len(list(world.lium.world.requests))
        ran = await world.apply(approve=lambda plan: False)
        assert actions(ran) == ["adopt fleet.a[0]", "run fleet.a[0].bootstrap"]
        assert looks(world, since) == 1

    told(story, manifest=REBOOTED, expected=tails(2))


def test_where_its_history_cannot_be_read_nothing_is_made_up() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        world.configure(events_forbidden=True)
        world.lium.world.pods.change(str(record(world).id), updated_at=world.now() + timedelta(hours=1))
        assert actions(await world.apply()) == []

    told(story, manifest=REBOOTED, expected=tails(2))


@pytest.mark.parametrize(
    ("rebooted", "pinned_ago_s", "kept"), [(True, 600, False), (False, 600, True), (True, 0, True)]
)
def test_a_login_forgets_the_pinned_key_of_a_pod_that_was_rebooted_since(
    rebooted: bool, pinned_ago_s: float, kept: bool
) -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pod = record(world)
        if rebooted:
            await by_hand(world, "POST", f"/pods/{pod.id}/reboot", {})
        await world.pass_time(120)
        pin = world.settings.state_dir / "known_hosts" / str(pod.id)
        pinned_at = time.time() - pinned_ago_s  # files have the time of this machine
        os.utime(pin, (pinned_at, pinned_at))
        place, _ = await place_now(world.settings, "fleet.a[0]", outside=world._outside(Process()))
        row = next(row for row in world.lium.world.pods if row.id == pod.id)
        assert (place.host, place.port) == (row.host, row.ports[22])
        assert (pin.exists(), place.pinned) == (kept, kept)

    told(story)
