"""Runs `lium-plan` and watches its event loop. For a process of its own:

    WATCH_INTO=found.json python -m bench.watched apply --auto-approve

It changes nothing of lium-plan: it stands behind asyncio's own loop. A beat every 10 ms says how late the loop is, each
callback is timed on the wall and on the CPU, and at the end the file has what was found as JSON:

    stalls            [s late, when] of the latest beats: so long nothing else of the loop could have gone on
    slow              [wall s, CPU s, when, what] of the slowest callbacks beyond 20 ms; when: seconds since the epoch
    peak_mib, cpu_s   of the process, as the kernel counts them
"""

from __future__ import annotations

import asyncio
import heapq
import json
import os
import resource
import sys
import time
from asyncio import base_events, events
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BEAT_S = 0.01
SLOW_S = 0.02
KEPT = 30


@dataclass(slots=True)
class Watch:
    stalls: list[tuple[float, float]] = field(default_factory=list)
    slow: list[tuple[float, float, float, str]] = field(default_factory=list)

    def beat(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        now = loop.time()
        if now - due > SLOW_S:
            _keep(self.stalls, (round(now - due, 4), time.time()))
        loop.call_at(now + BEAT_S, self.beat, loop, now + BEAT_S)

    def took(self, handle: Any, wall_s: float, cpu_s: float) -> None:
        what = base_events._format_handle(handle)  # type: ignore[attr-defined]
        _keep(self.slow, (round(wall_s, 4), round(cpu_s, 4), time.time(), what[:200]))

    def found(self) -> dict[str, object]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return {
            "stalls": sorted(self.stalls, reverse=True),
            "slow": sorted(self.slow, reverse=True),
            "peak_mib": peak_mib(),
            "cpu_s": usage.ru_utime + usage.ru_stime,
        }


def _keep(heap: list[Any], item: tuple[Any, ...]) -> None:
    heapq.heappush(heap, item)
    if len(heap) > KEPT:
        heapq.heappop(heap)


def peak_mib() -> float:
    """Of this process alone: `ru_maxrss` begins with what the parent had at the fork."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) / 1024


def install(watch: Watch) -> None:
    class Policy(asyncio.DefaultEventLoopPolicy):
        def new_event_loop(self) -> asyncio.AbstractEventLoop:
            loop = super().new_event_loop()
            loop.call_soon(watch.beat, loop, loop.time())
            return loop

    run = events.Handle._run

    def timed(handle: events.Handle) -> None:
        wall, cpu = time.perf_counter(), time.thread_time()
        run(handle)
        wall_s = time.perf_counter() - wall
        if wall_s > SLOW_S:
            watch.took(handle, wall_s, time.thread_time() - cpu)

    events.Handle._run = timed  # type: ignore[method-assign]
    asyncio.set_event_loop_policy(Policy())


def main() -> int:
    into = Path(os.environ.pop("WATCH_INTO"))
    watch = Watch()
    install(watch)
    from lium_plan.cli.main import main as lium_plan

    try:
        return lium_plan(sys.argv[1:])
    finally:
        into.write_text(json.dumps(watch.found()))


if __name__ == "__main__":
    sys.exit(main())
