"""The shapes of stacks, and making one without loading anything of ours here."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SHAPES = ("one fleet", "flat")


def make_stack(place: Path, shape: str, size: int, *, applied: bool) -> None:
    """A stack in `place/stack` and the answers to it in `place/answers`, for `answering`."""
    kind_of_stack = "applied" if applied else "fresh"
    command = [sys.executable, "-m", "bench.growing.stacks", str(place), shape, str(size), kind_of_stack]
    subprocess.run(command, cwd=ROOT, check=True)
