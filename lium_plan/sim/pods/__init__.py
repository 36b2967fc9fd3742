"""The machines behind the local Lium's pods: real processes, files and SSH servers on loopback.

`open_runtime` is all that the rest of the simulator needs. asyncssh is loaded when it is called, not before: the
launcher process imports from this package too, and must stay small.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from lium_plan.sim.runtime import Runtime

__all__ = ["open_runtime"]


def open_runtime(root: Path, *, confined: bool, say: Callable[[str], None]) -> Runtime:
    """Open the directory `root` (made when missing) for the containers of one simulator.

    Not a coroutine; may be called before the event loop runs. All its methods belong to one loop. Tries once
    whether Linux namespaces are allowed, unless `confined` asks for the other mode; when they are not, `say` gets
    one line that says so and why. PID 1s that a killed simulator left behind are ended; starting the same
    generation of a pod again finds its files, its host key and, where they are free, its ports.

    Raises OSError when `root` can't be used or holds another simulator's pods.
    """
    from lium_plan.sim.pods.local import LocalRuntime

    return LocalRuntime(root, confined=confined, say=say)
