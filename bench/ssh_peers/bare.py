"""The least that does the job with asyncssh: one command a host, the script over stdin, its output checked."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

import asyncssh


async def main(plan: dict[str, object], script: str) -> None:
    async def one(port: int) -> None:
        async with asyncssh.connect(
            "127.0.0.1", port, username=plan["user"], client_keys=[plan["key"]], known_hosts=None, config=None
        ) as connection:
            done = await connection.run(f"sh -s {port}", input=script, check=True)
            assert done.stdout == f"done on {port}\n", done.stdout

    await asyncio.gather(*(one(port) for port in plan["ports"]))  # type: ignore[attr-defined]


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    asyncio.run(main(given, Path(given["script"]).read_text()))
