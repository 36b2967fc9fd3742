"""Running a command as a user would, and what the kernel says it took."""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Sample:
    wall_s: float
    cpu_s: float
    """User and system."""
    peak_mib: float
    status: int


def run_once(command: Sequence[str | Path], *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> Sample:
    """One run, its output thrown away."""
    started = time.perf_counter()
    process = subprocess.Popen(
        [str(part) for part in command], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=env, cwd=cwd
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    wall_s = time.perf_counter() - started
    return Sample(wall_s, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, process.returncode)


def in_turn(
    commands: Mapping[str, Sequence[str | Path]], *, runs: int, env: Mapping[str, str] | None = None
) -> dict[str, list[Sample]]:
    """The commands in turn, A B A B …, after one uncounted round, so that a drift of the machine hits all alike."""
    samples: dict[str, list[Sample]] = {name: [] for name in commands}
    for number in range(runs + 1):
        for name, command in commands.items():
            sample = run_once(command, env=env)
            if number:
                samples[name].append(sample)
    return samples


def median(samples: Sequence[Sample], what: str) -> float:
    return statistics.median(getattr(sample, what) for sample in samples)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns aligned; the first to the left, the others to the right."""
    widths = [max(len(str(row[index])) for row in (head, *rows)) for index in range(len(head))]
    lines = []
    for row in (head, *rows):
        cells = [str(row[0]).ljust(widths[0]), *(str(cell).rjust(widths[i]) for i, cell in enumerate(row) if i)]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines) + "\n"
