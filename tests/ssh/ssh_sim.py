"""A pod of the local simulator as a server for these tests."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from ssh_servers import Server

from lium_plan.sim.pods import open_runtime
from lium_plan.sim.runtime import Container
from lium_plan.ssh.keys import public_key_line
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Coordinates

ENVIRONMENT = {"FROM_TEMPLATE": "two\nlines'\"$HOME", "EMPTY": ""}


@contextlib.asynccontextmanager
async def sim_pod(
    directory: Path, key_path: Path, *, confined: bool, image: str = "ubuntu:22.04"
) -> AsyncIterator[Server]:
    runtime = open_runtime(directory / "sim", confined=confined, say=lambda _: None)
    try:
        if not confined and runtime.mode != "namespaces":
            pytest.skip("namespaces are not allowed on this machine")
        endpoint = await runtime.start(
            Container(
                pod_id="pod-1",
                generation=1,
                image=image,
                entrypoint="/bin/sh",
                command="-c 'exec sleep infinity'",
                environment=ENVIRONMENT,
                public_keys=(public_key_line(key_path),),
                internal_ports=(22,),
                extra_ports=0,
                local_volume="/root",
                volume_id=None,
                volume_mount_fails=False,
                gpu_name="NVIDIA H200",
                gpu_count=1,
                gpu_memory_mib=1000,
                ssh_delay_s=0.0,
            )
        )
        where = Coordinates(endpoint.user, endpoint.host, endpoint.ports[22])
        yield Server(where, key_path, Path("/root"), PinStore(directory / "pins"))
    finally:
        await runtime.close()
