"""Container images: how a reference is read, and what becomes of a container made from it (contract §2.9.3, §6).

Images named `limsim/…` exist for trying things out:
`limsim/private-*` needs a credential with user name and password `demo`; `limsim/fails-*` never starts;
`limsim/slow-*` takes five times as long; anything else just works.
"""

from __future__ import annotations

from dataclasses import dataclass

from lium_plan.sim.refusal import invalid

PULL_STEP = "pull_image"
RUNNING_STEP = "running_check"

_EXIT_AT_ONCE = frozenset(
    {"pytorch/pytorch", "nvidia/cuda", "ubuntu", "debian", "alpine", "busybox", "python", "node", "golang"}
)
"""Base images whose own command ends when nobody is at the keyboard: they need a keep-alive command."""

_ENDS_BY_ITSELF = frozenset(
    {
        "true",
        "false",
        "echo",
        "date",
        "id",
        "env",
        "printenv",
        "hostname",
        "uname",
        "pwd",
        "whoami",
        "nvidia-smi",
    }
)

_SHELL_CHARACTERS = frozenset("&;|$(){}<>`\n")
_FORBIDDEN_WORDS = frozenset({"exec", "ls", "eval", "rm", "curl", "wget", "sudo"})

RESERVED_ENVIRONMENT = frozenset(
    {"PATH", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "NODE_PATH", "PYTHONHOME", "HOME", "HOSTNAME"}
)
"""Dropped silently on the node, like empty values."""


@dataclass(frozen=True, slots=True)
class ImageName:
    repository: str
    tag: str
    digest: str


def split_reference(reference: str) -> ImageName:
    """`repo/name[:tag][@sha256:…]` in its parts; the tag is empty when there is a digest alone."""
    name, _, digest = reference.partition("@")
    head, slash, last = name.rpartition("/")
    last, _, tag = last.partition(":")
    return ImageName(f"{head}{slash}{last}", tag, digest)


def whole_reference(repository: str, tag: str, digest: str) -> str:
    if digest:
        return f"{repository}@{digest}"
    return f"{repository}:{tag}" if tag else repository


def short_name(repository: str) -> str:
    """Without Docker Hub's long prefixes."""
    for prefix in ("docker.io/library/", "docker.io/", "index.docker.io/", "library/"):
        repository = repository.removeprefix(prefix)
    return repository


def slowness(repository: str) -> float:
    return 5.0 if short_name(repository).startswith("limsim/slow-") else 1.0


@dataclass(frozen=True, slots=True)
class Fate:
    """Why a creation fails, at which step, and when in its course (0..1)."""

    error: str
    step: str
    at: float


def creation_fate(*, repository: str, entrypoint: str, command: str, login: tuple[str, str] | None) -> Fate | None:
    """None: the container comes up. `login` is the template's registry credential."""
    name = short_name(repository)
    if name.startswith("limsim/private-") and login != ("demo", "demo"):
        cause = "no basic auth credentials" if login is None else "incorrect username or password"
        return Fate(
            f"Container creation failed due to pull access denied for {name}, repository does not exist or may "
            f"require 'docker login': {cause}",
            PULL_STEP,
            0.4,
        )
    if name.startswith("limsim/fails-"):
        return Fate(
            f"Container creation failed due to failed to register layer of {name}: unexpected EOF",
            PULL_STEP,
            0.7,
        )
    if name in _EXIT_AT_ONCE and not entrypoint and not _keeps_alive(command):
        return Fate(
            "Container creation failed due to Container is restarting, wait until the container is running",
            RUNNING_STEP,
            1.0,
        )
    return None


def _keeps_alive(command: str) -> bool:
    words = command.split()
    return bool(words) and words[0].rpartition("/")[2] not in _ENDS_BY_ITSELF


def check_startup_command(command: str) -> None:
    """Raises Refusal 422 for shell syntax outside quotes; quoted arguments pass (contract §15.8)."""
    plain = _outside_quotes(command)
    words = {word.rpartition("/")[2] for word in plain.split()}
    if _SHELL_CHARACTERS & set(plain) or _FORBIDDEN_WORDS & words:
        raise invalid("startup_commands", "Malicious startup command detected")


def _outside_quotes(command: str) -> str:
    kept: list[str] = []
    quote = ""
    for char in command:
        if quote:
            quote = "" if char == quote else quote
        elif char in "'\"":
            quote = char
        else:
            kept.append(char)
    return "".join(kept)


def from_dockerfile(text: str) -> ImageName:
    """The base image of a Dockerfile. Raises Refusal 422 without a FROM."""
    base = ""
    for line in text.splitlines():
        words = line.split()
        if len(words) >= 2 and words[0].upper() == "FROM":
            base = words[1]
    if not base:
        raise invalid("dockerfile_content", "Dockerfile has no FROM instruction")
    return split_reference(base)


def check_dockerfile(text: str) -> None:
    """Raises Refusal 422 for what a build without a network can't do, or for more than 64 KiB (contract §2.4.1)."""
    if len(text.encode()) > 64 * 1024:
        raise invalid("dockerfile_content", "Dockerfile is larger than 64 KiB")
    for line in text.splitlines():
        words = line.split()
        if words and words[0].upper() == "ADD" and any("://" in word or "${" in word for word in words[1:]):
            raise invalid("dockerfile_content", "ADD of a URL or a variable is not allowed")
