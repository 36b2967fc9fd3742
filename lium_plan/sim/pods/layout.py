"""Where a runtime keeps what on disk, and nothing of what it means.

<root>/lock                      held by the simulator that uses the directory
<root>/volumes/<volume>/         content of S3 volumes
<root>/shared/                   programs of the minimal image
<root>/pods/<pod>/record.json    generation, ports, PID 1: for the next simulator
<root>/pods/<pod>/local/         the local volume, kept over generations
<root>/pods/<pod>/<generation>/  the file system and the host key of one container
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

_PLAIN_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class RootInUseError(OSError):
    """Another simulator holds the directory."""


@dataclass(frozen=True, slots=True)
class Record:
    """What the next simulator must know of a pod's container."""

    generation: int
    ports: Mapping[int, int] = field(default_factory=dict)
    pid: int = 0
    started_ticks: int = 0


class Layout:
    """The directory of one runtime. Raises RootInUseError when it is taken, OSError when it can't be made."""

    def __init__(self, root: Path) -> None:
        self.root = root.resolve()
        for name in ("pods", "volumes", "shared"):
            (self.root / name).mkdir(parents=True, exist_ok=True)
        self._lock_fd = os.open(self.root / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(self._lock_fd)
            message = f"another simulator keeps its pods in {self.root}; stop it or choose another directory"
            raise RootInUseError(message) from error

    def close(self) -> None:
        os.close(self._lock_fd)

    def pod(self, pod_id: str) -> Path:
        """Raises ValueError for an id that is not a plain file name."""
        return self.root / "pods" / _plain(pod_id)

    def volume(self, volume_id: str) -> Path:
        """Raises ValueError for an id that is not a plain file name."""
        return self.root / "volumes" / _plain(volume_id)

    def generation(self, pod_id: str, generation: int) -> Path:
        return self.pod(pod_id) / str(int(generation))

    def local(self, pod_id: str) -> Path:
        return self.pod(pod_id) / "local"

    def known_pods(self) -> tuple[str, ...]:
        return tuple(sorted(path.name for path in (self.root / "pods").iterdir() if path.is_dir()))

    def load_record(self, pod_id: str) -> Record | None:
        """None when there is none or it can't be read: it only helps to find what was before."""
        try:
            data = json.loads((self.pod(pod_id) / "record.json").read_text("utf-8"))
            return Record(
                generation=int(data["generation"]),
                ports={int(inner): int(outer) for inner, outer in data["ports"].items()},
                pid=int(data["pid"]),
                started_ticks=int(data["started_ticks"]),
            )
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    def save_record(self, pod_id: str, record: Record) -> None:
        path = self.pod(pod_id) / "record.json"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(asdict(record)), "utf-8")
        fresh.replace(path)

    def drop_other_generations(self, pod_id: str, kept: int) -> None:
        """Delete the file systems of a pod's other containers."""
        for path in self.pod(pod_id).iterdir():
            if path.name.isdigit() and path.name != str(kept):
                delete_tree(path)


def _plain(name: str) -> str:
    if not _PLAIN_NAME.fullmatch(name):
        raise ValueError(f"not a plain name: {name!r}")
    return name


def delete_tree(path: Path) -> None:
    """Delete a directory whatever its modes; nothing when it is gone. Raises OSError for what can't be deleted."""
    try:
        shutil.rmtree(path)
    except FileNotFoundError:
        return
    except PermissionError:
        path.chmod(0o700)
        for directory, names, _ in os.walk(path):
            for name in names:
                # walk() enters after this turn, and by default follows no link.
                if not os.path.islink(os.path.join(directory, name)):
                    os.chmod(os.path.join(directory, name), 0o700)
        shutil.rmtree(path)
