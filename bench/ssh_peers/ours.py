"""The same with what our bootstraps are made of: pinned keys, the file sent, the command in the image's environment."""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from pathlib import Path

from lium_plan.ssh.connector import SshConnector
from lium_plan.ssh.image_env import run_in_image
from lium_plan.ssh.pins import PinStore
from lium_plan.ssh.protocol import Coordinates, FileToSend


async def main(plan: dict[str, object], script: bytes, pins: Path) -> None:
    store, connector = PinStore(pins), SshConnector()

    async def one(port: int) -> None:
        session = await connector.open(
            Coordinates(str(plan["user"]), "127.0.0.1", port),
            pin=store.pin(f"pod-{port}"),
            key_path=Path(str(plan["key"])),
            deadline_s=60,
        )
        output = bytearray()
        try:
            target = f"work/script-{port}.sh"
            await session.put([FileToSend(script, target, 0o755)], timeout_s=60)
            done = await run_in_image(
                session,
                [f"sh ~/{target} {port}"],
                env={"NAME": "value"},
                markers=f".lium-plan/bootstrap/{port}",
                on_output=output.extend,
                timeout_s=60,
            )
        finally:
            await session.close()
        assert done.exit_status == 0, bytes(output)
        assert bytes(output).endswith(f"done on {port}\n".encode()), bytes(output)

    await asyncio.gather(*(one(port) for port in plan["ports"]))  # type: ignore[attr-defined]


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    with tempfile.TemporaryDirectory() as folder:
        asyncio.run(main(given, Path(given["script"]).read_bytes(), Path(folder)))
