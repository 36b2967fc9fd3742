"""What holds a run up and is not the pod's fault: a volume in other hands, files of this machine that can't be written."""

from __future__ import annotations

import asyncio
from pathlib import Path

from lium_plan.diagnostics import ExitCode
from lium_plan.requests import ApplyRequest
from tests.simulation.leftovers import phases, somebody_deletes, somebody_makes
from tests.simulation.manifests import BOOTSTRAP, HEAD, VOLUME, VOLUMES, fleet
from tests.simulation.telling import RENT, emptied, mended, record, rents, told
from tests.support.world import World
from tests.support.world_machines import Behaviour


async def somebody_uses(world: World, volume_id: object) -> str:
    node = next(node for node in world.lium.world.nodes if node.min_rentable == 1 and node.gpu_count > node.others)
    template = next(item.id for item in world.lium.world.templates if item.id in world.foreign)
    body = {
        "pod_name": "notebook",
        "template_id": template,
        "volume_id": volume_id,
        "gpu_count": 1,
        "user_public_key": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA someone"],
    }
    made = await somebody_makes(world, f"/executors/{node.id}/rent", body)
    world.foreign |= {made}
    return made


def test_a_volume_in_somebodys_hands_is_waited_for_until_the_deadline_and_its_holder_is_named() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        holder = await somebody_uses(world, record(world, "volume.data").id)
        world.write("lium.yaml", fleet(more=VOLUME, tail=VOLUMES))
        ran = await world.apply(options=ApplyRequest(wait_timeout_s=60))
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert f"its volume is still in use by pod notebook ({holder})" in ran.words
        assert any(holder in phase for phase in phases(ran))
        assert 50 <= ran.took_s < 80
        assert len(rents(world)) == 6
        world.foreign -= {holder}
        await somebody_deletes(world, f"/pods/{holder}")
        await world.pass_time(30)
        await mended(world)
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=("a-0",))


def in_the_way() -> None:
    Path("state/known_hosts").write_text("no directory")


def test_a_host_key_that_cannot_be_kept_is_this_machines_trouble_and_the_pod_stays() -> None:
    async def story(world: World) -> None:
        world.settings.state_dir.mkdir()
        in_the_way()
        for _ in range(2):
            ran = await world.apply()
            assert ran.code == ExitCode.PARTIAL, ran.words
            assert "local-file: on this machine: " in ran.words
            assert "Errno" not in ran.words
            assert len(rents(world)) == 1, "no other pod would fare better"
            assert record(world).status == "pending"
        world.remove_file("known_hosts")
        await mended(world)
        await emptied(world)

    told(story)


def test_a_pin_that_cannot_be_forgotten_keeps_no_pod_from_going() -> None:
    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        pin = Path("state/known_hosts") / str(record(world).id)
        pin.unlink()
        pin.mkdir()
        gone = await emptied(world)
        assert gone.report is not None
        assert all(proof.gone for proof in gone.report.proofs)
        assert gone.report.running_pods == 0

    told(story)


def test_a_pod_that_was_taken_away_is_not_counted_as_running() -> None:
    async def story(world: World) -> None:
        world.fault({"do": "reclaim", "pod": "*-a-0"}, at=60)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert ran.report is not None
        assert (ran.report.running_pods, ran.report.running_per_hour_usd) == (0, 0)
        await mended(world)
        await emptied(world)

    told(story, manifest=fleet(more=BOOTSTRAP), behaviours=(Behaviour("make ready", 120.0, times=1),))


def test_a_key_that_goes_away_after_the_rent_costs_no_second_pod() -> None:
    async def story(world: World) -> None:
        key = world.folder / "id_ed25519"
        asyncio.get_running_loop().call_later(3, lambda: key.rename(key.with_suffix(".away")))
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "local-file: on this machine: the SSH key" in ran.words
        assert len(rents(world)) == 1
        assert record(world).status == "pending"
        key.with_suffix(".away").rename(key)
        await mended(world)
        await emptied(world)

    told(story)


def test_a_volume_is_waited_for_from_when_it_was_first_in_the_way() -> None:
    """Not from the beginning: a node may have been waited for before."""

    async def story(world: World) -> None:
        assert (await world.apply()).code == 0
        holder = await somebody_uses(world, record(world, "volume.data").id)
        retry = "    retry: {on_events: [no-capacity], duration: 10m}\n"
        world.write("lium.yaml", fleet(more=VOLUME + retry, tail=VOLUMES))
        world.fault(
            {"do": "answer", "status": 409, "body": {"detail": "Executor is already rented"}}, **RENT, times=None
        )
        asyncio.get_running_loop().call_later(100, world.clear_faults)

        async def goes_later() -> None:
            await asyncio.sleep(120)
            world.foreign -= {holder}
            await somebody_deletes(world, f"/pods/{holder}")

        going = asyncio.ensure_future(goes_later())
        ran = await world.apply(options=ApplyRequest(wait_timeout_s=60))
        assert ran.code == 0, ran.words
        assert any("waiting for the volume to come free" in phase for phase in phases(ran))
        await going
        await mended(world)
        await emptied(world)

    told(story, manifest=HEAD + VOLUMES, expected=("a-0",))


def test_a_node_that_refuses_is_told_with_its_words() -> None:
    async def story(world: World) -> None:
        effect = {"do": "answer", "status": 409, "body": {"detail": "Executor is already rented"}}
        world.fault(effect, **RENT)
        ran = await world.apply()
        assert ran.code == 0, ran.words
        (refused,) = (phase for phase in phases(ran) if phase.startswith("refused by node "))
        assert "Executor is already rented" in refused
        assert "LiumError" not in refused
        assert "Refusal" not in refused
        await emptied(world)

    told(story)
