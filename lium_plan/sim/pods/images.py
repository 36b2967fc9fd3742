"""What the simulated images contain: environment, working directory, user and tools.

There are no real images here. A few names behave as the real ones do where a consumer can tell; every other name
is an ordinary root image with the host's own read-only programs. Names that start with `limsim/` exist only here.
"""

from __future__ import annotations

import enum
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
IDLE_COMMAND = ("sleep", "infinity")

_TAG = re.compile(r"(?P<version>\d[0-9.]*)(-cuda(?P<cuda>[0-9.]+))?")


class Tools(enum.Enum):
    """Which programs an image has."""

    ORDINARY = "ordinary"
    """Whatever the host has below /usr, with bash where the host has it."""
    MINIMAL = "minimal"
    """A POSIX shell and the small tools of a BusyBox image: no bash, no Python."""


@dataclass(frozen=True, slots=True)
class User:
    """Who runs PID 1. SSH sessions are root's whatever this says."""

    uid: int
    gid: int
    name: str
    home: str


ROOT = User(uid=0, gid=0, name="root", home="/root")


@dataclass(frozen=True, slots=True)
class Image:
    """What an image gives to its containers."""

    environment: Mapping[str, str] = field(default_factory=dict)
    working_directory: str = "/"
    user: User = ROOT
    tools: Tools = Tools.ORDINARY


def describe(reference: str) -> Image:
    """The contents behind a whole reference such as `docker.io/repo/name:tag` or `repo/name@sha256:…`."""
    name, tag = _split(reference)
    if name.startswith("pytorch/pytorch"):
        return _pytorch(tag)
    if name.startswith("limsim/uid1000"):
        user = User(uid=1000, gid=1000, name="user", home="/home/user")
        return Image(environment=_base(user.home), working_directory=user.home, user=user)
    if name.startswith("limsim/busybox"):
        return Image(environment=_base(ROOT.home), tools=Tools.MINIMAL)
    return Image(environment=_base(ROOT.home))


def arguments(entrypoint: str, command: str) -> tuple[str, ...]:
    """PID 1's arguments, split as a shell splits words; `sleep infinity` when both are empty.

    Unbalanced quotes make one word of the whole text: the start then fails with a readable message.
    """
    words: list[str] = []
    for text in (entrypoint, command):
        try:
            words += shlex.split(text)
        except ValueError:
            words.append(text)
    return tuple(words) or IDLE_COMMAND


def _split(reference: str) -> tuple[str, str]:
    reference = reference.strip().split("@", 1)[0]
    for registry in ("docker.io/", "index.docker.io/", "registry-1.docker.io/"):
        reference = reference.removeprefix(registry)
    head, slash, last = reference.rpartition("/")
    last, _, tag = last.partition(":")
    return head + slash + last, tag


def _base(home: str) -> dict[str, str]:
    return {
        "PATH": SYSTEM_PATH,
        "HOME": home,
        "NVIDIA_VISIBLE_DEVICES": "all",
        "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
    }


def _pytorch(tag: str) -> Image:
    match = _TAG.match(tag)
    version = match["version"] if match else "2.4.1"
    cuda = match["cuda"] if match and match["cuda"] else "12.4"
    environment = _base(ROOT.home) | {
        "PATH": f"/opt/conda/bin:/usr/local/nvidia/bin:/usr/local/cuda/bin:{SYSTEM_PATH}",
        "LD_LIBRARY_PATH": "/usr/local/nvidia/lib:/usr/local/nvidia/lib64",
        "PYTORCH_VERSION": version,
        "CUDA_VERSION": cuda,
        "CUDA_HOME": "/usr/local/cuda",
    }
    return Image(environment=environment, working_directory="/workspace")
