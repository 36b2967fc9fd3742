"""Opening a simulated world: the local Lium in process, a furnished market, a project's files, a disk, and a story.

run_world(7, story)        # async def story(world): ran = await world.apply(); ...
"""

from __future__ import annotations

import asyncio
import contextvars
import os
import random
import shutil
import tempfile
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import chdir, contextmanager
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import httpx
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from lium_plan.settings import Settings
from lium_plan.sim import faults
from lium_plan.sim.inprocess import InProcess, open_in_process
from lium_plan.sim.settings import Settings as ServerSettings
from lium_plan.sim.simulator import Beginning
from tests.support.virtual import run_virtual
from tests.support.world import ACCOUNT, CANARY_PASSWORD, CANARY_TOKEN, World
from tests.support.world_disk import Disk
from tests.support.world_machines import Behaviour, Machines
from tests.support.world_oracles import AFTER_EVERY_RUN, AFTER_EVERY_STEP
from tests.support.world_process import task_factory
from tests.support.world_wire import ProcessTransport

T = TypeVar("T")

QUICKSTART = Path(__file__).parents[1] / "simulation" / "quickstart"

Story = Callable[[World], Awaitable[T]]


@contextmanager
def open_folder() -> Iterator[Path]:
    """A fresh directory, in memory where there is such a place."""
    shm = Path("/dev/shm")
    root = str(shm) if shm.is_dir() and os.access(shm, os.W_OK) else None
    folder = Path(tempfile.mkdtemp(prefix="lium-plan-world-", dir=root))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def run_world(
    seed: int,
    story: Story[T],
    *,
    manifest: Path | str = QUICKSTART,
    expected: Sequence[str] = ("trainers-0", "trainers-1", "store-0"),
    server: ServerSettings | None = None,
    nodes: int = 24,
    behaviours: Sequence[Behaviour] = (),
    checks: Sequence[Callable[[World, str], None]] | None = None,
    foreign: bool = True,
    limit_s: float = 60 * 86400.0,
) -> T:
    """Tell `story` in a new world. `manifest` is a project directory, or the text of its lium.yaml.

    What broke on the way is in `world.broken`; a story that should fail raises.
    """
    # Relative paths, since some are written down: the folder's own name must not be part of a history.
    with open_folder() as folder, chdir(folder):
        main = _told_in(
            seed,
            folder,
            story,
            manifest=manifest,
            expected=frozenset(expected),
            server=server or ServerSettings(latency_seconds=0.05, balance_usd=1000),
            nodes=nodes,
            behaviours=behaviours,
            checks=checks,
            foreign=foreign,
        )
        return run_virtual(main, limit_s=limit_s)


async def _told_in(
    seed: int,
    folder: Path,
    story: Story[T],
    *,
    manifest: Path | str,
    expected: frozenset[str],
    server: ServerSettings,
    nodes: int,
    behaviours: Sequence[Behaviour],
    checks: Sequence[Callable[[World, str], None]] | None,
    foreign: bool,
) -> T:
    asyncio.get_running_loop().set_task_factory(task_factory)
    _write_project(folder, manifest)
    settings = _settings()
    machines = Machines(behaviours)
    beginning = Beginning(seed=seed, nodes=nodes, settings=ServerSettings(balance_usd=server.balance_usd))
    disk = Disk(folder)
    async with open_in_process(beginning, runtime=machines) as lium:
        _furnish(lium)
        world: World | None = None

        def served(method: str) -> None:
            if world is not None and method != "GET":
                world.look(f"a {method} was served")

        transport = ProcessTransport(lium.transport, server_context=contextvars.copy_context(), served=served)
        world = World(
            seed=seed,
            lium=lium,
            machines=machines,
            disk=disk,
            folder=folder,
            settings=settings,
            transport=transport,
            chance=random.Random(f"client/{seed}"),
            expected=expected,
            environ=settings.environ,
            checks=list(AFTER_EVERY_STEP if checks is None else checks),
            run_checks=list(AFTER_EVERY_RUN if checks is None else ()),
            prices={node.id: node.price_per_gpu for node in lium.world.nodes},
        )
        disk.changed = partial(_snapshot_changed, world)
        if foreign:
            world.foreign = await _plant(lium)
            # What the server counted of that is forgotten by now.
            await asyncio.sleep(3700)
        faults.apply_settings(lium.world, server)
        with disk.mounted():
            return await story(world)


def _snapshot_changed(world: World, site: str) -> None:
    if site == "rename to snapshot":
        world.look("a snapshot was put in place")


def _write_project(folder: Path, manifest: Path | str) -> None:
    project = folder / "project"
    if isinstance(manifest, Path):
        shutil.copytree(manifest, project)
    else:
        project.mkdir()
        (project / "lium.yaml").write_text(manifest)
    key = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
    path = folder / "id_ed25519"
    path.write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    path.chmod(0o600)
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    path.with_suffix(".pub").write_bytes(public + b"\n")


def _settings() -> Settings:
    return Settings(
        base_url="http://lium.test/api",
        workspace=None,
        ssh_key_path=Path("id_ed25519"),
        stack="default",
        state_dir=Path("state"),
        parallelism=0,
        sim=False,
        api_key=f"sk_sim_{ACCOUNT}",
        environ={"REG_USER": "robot", "REG_PASS": CANARY_PASSWORD, "TOKEN": CANARY_TOKEN},
    )


def _furnish(lium: InProcess) -> None:
    """Enough of what the manifests ask for, whatever the seed: nothing is judged here that the market alone decides."""
    nodes = lium.world.nodes
    for model in ("RTX 4090", "RTX 3090"):
        like = next(node for node in nodes if node.gpu_model == model)
        for number in range(4):
            one = replace(
                like,
                id=str(UUID(int=random.Random(f"{model}/{number}").getrandbits(128), version=4)),
                gpu_count=8,
                min_rentable=1,
                others=0,
                tier="secure",
                price_per_gpu=Decimal("0.30") + Decimal(number) / 100,
            )
            nodes.put(one)


async def _plant(lium: InProcess) -> frozenset[str]:
    """What other people have on the account, as like ours as may be."""
    headers = {"X-API-KEY": f"sk_sim_{ACCOUNT}"}
    async with httpx.AsyncClient(transport=lium.transport, base_url=lium.base_url, headers=headers) as client:

        async def make(path: str, body: Mapping[str, object]) -> str:
            answer = (await client.post(path, json=body)).raise_for_status().json()
            return str(answer.get("pod_id") or answer["id"])

        template = await make(
            "/templates", {"name": "lp-other", "docker_image": "limsim/torch", "docker_image_tag": "2.4"}
        )
        volume = await make("/volumes", {"name": "datasets", "description": "somebody's"})
        credential = await make(
            "/docker-credentials/", {"docker_username": "robot", "docker_password": CANARY_PASSWORD}
        )
        node = next(node for node in lium.world.nodes if node.min_rentable == 1 and node.gpu_count > node.others)
        pod = await make(
            f"/executors/{node.id}/rent",
            {
                "pod_name": "trainers-0",
                "template_id": template,
                "gpu_count": 1,
                "user_public_key": ["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAA someone"],
            },
        )
    return frozenset((template, volume, credential, pod))
