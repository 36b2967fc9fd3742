"""A key that can't be used, and files of this machine that are in the way: told before anything is made, in words."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from lium_plan import operations
from lium_plan.addresses import Address
from lium_plan.diagnostics import ExitCode
from lium_plan.engine.apply import _unexpected
from lium_plan.kinds.protocol import Verb
from lium_plan.planning.plan import Action
from lium_plan.requests import ApplyRequest
from lium_plan.ssh.errors import KeyUnusable
from tests.simulation.manifests import BOOTSTRAP, fleet
from tests.simulation.telling import emptied, mended, told
from tests.support.world import Ran, World

CLASS_OR_NUMBER = re.compile(r"\b[A-Z]\w+Error\b|KeyUnusable|Errno")


def missing(key: Path) -> None:
    key.unlink()


def directory(key: Path) -> None:
    key.unlink()
    key.mkdir()


def no_key(key: Path) -> None:
    key.write_text("hello\n")


BREAKAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "missing": (missing, "no such file or directory"),
    "a directory": (directory, "is a directory"),
    "no key": (no_key, "it is no private key"),
}


def refused(ran: Ran, why: str) -> None:
    assert ran.code == ExitCode.ERROR, ran.words
    assert why in ran.words
    assert not CLASS_OR_NUMBER.search(ran.words), ran.words
    assert ran.plans[0].errored
    assert not ran.plans[0].applyable


@pytest.mark.parametrize("breakage", BREAKAGES)
def test_a_key_that_cannot_be_used_is_known_before_anything_is_made(breakage: str) -> None:
    damage, why = BREAKAGES[breakage]

    async def story(world: World) -> None:
        key = world.folder / "id_ed25519"
        whole = key.read_bytes()
        damage(key)
        before = world.changes()
        refused(await world.apply(), f"the SSH key id_ed25519 can't be used: {why}")
        assert world.changes() == before
        assert world.state() is None
        if key.is_dir():
            key.rmdir()
        key.write_bytes(whole)
        await mended(world)
        damage(key)
        assert (await world.apply()).code == 0, "nothing is to be rented"
        await emptied(world)

    told(story)


def test_no_key_at_all_and_a_fleets_own() -> None:
    async def story(world: World) -> None:
        mine = world.settings
        world.settings = replace(mine, ssh_key_path=None)
        refused(await world.apply(), "an SSH key is needed")
        world.settings = mine
        world.write("lium.yaml", fleet(2, more="    ssh_key: ~nobody-is-called-so/key\n"))
        ran = await world.apply()
        refused(ran, "the SSH key ~nobody-is-called-so/key can't be used: it is no path")
        assert ran.words.count("can't be used") == 1, "two pods have it, and it is told once"
        assert world.open_charges() == ()

    told(story)


def test_a_saved_plan_goes_by_the_key_of_now(tmp_path: Path) -> None:
    async def story(world: World) -> None:
        key, path = world.folder / "id_ed25519", tmp_path / "plan.json"
        whole = key.read_bytes()
        no_key(key)
        refused(await world.apply(approve=lambda plan: (operations.save_plan(plan, path), False)[1]), "no private key")
        refused(await world.apply(options=ApplyRequest(plan_file=path)), "no private key")
        key.write_bytes(whole)
        ran = await world.apply(options=ApplyRequest(plan_file=path))
        assert ran.code == 0, ran.words
        await emptied(world)

    told(story)


def test_a_key_that_vanishes_after_the_yes_fails_the_rent_in_words() -> None:
    async def story(world: World) -> None:
        key = world.folder / "id_ed25519"
        whole = key.read_bytes()
        ran = await world.apply(approve=lambda plan: (missing(key), True)[1])
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "the SSH key id_ed25519 can't be used: no such file or directory" in ran.words
        assert not CLASS_OR_NUMBER.search(ran.words), ran.words
        assert world.open_charges("pod") == ()
        key.write_bytes(whole)
        await mended(world)
        await emptied(world)

    told(story)


@pytest.mark.parametrize(
    ("failure", "words"),
    [
        (NotADirectoryError(20, "Not a directory", "state/logs"), "on this machine: Not a directory: state/logs"),
        (OSError(28, "No space left on device"), "on this machine: No space left on device"),
        (KeyUnusable("k", "it is no private key", hint="x"), "the SSH key k can't be used: it is no private key; x"),
        (KeyError("gpu"), "a bug of lium-plan: 'gpu'"),
    ],
)
def test_whatever_an_action_fails_with_is_told_without_class_and_number(failure: Exception, words: str) -> None:
    action = Action(Address.of("fleet", "a", "0"), Verb.CREATE, "")
    assert _unexpected(action, failure).message == f"create: {words}"


@pytest.mark.parametrize("name", ["known_hosts", "logs"])
def test_what_is_in_the_way_on_this_machine_is_told_in_words(name: str) -> None:
    task = "tasks:\n  t: {fleet: a, commands: [true], wait: completed}\n"

    async def story(world: World) -> None:
        world.settings.state_dir.mkdir()
        in_the_way(world.settings.state_dir / name)
        ran = await world.apply()
        assert ran.code == ExitCode.PARTIAL, ran.words
        assert "on this machine: " in ran.words
        assert not CLASS_OR_NUMBER.search(ran.words), ran.words
        world.remove_file(name)
        await mended(world)
        world.write("lium.yaml", fleet(more=BOOTSTRAP))
        await emptied(world)

    told(story, manifest=fleet(more=BOOTSTRAP, tail=task))


def in_the_way(path: Path) -> None:
    path.write_text("no directory")
