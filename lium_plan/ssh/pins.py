"""Pinned host keys: one known_hosts file per pod id, in a directory of ours.

Per pod, not per address: nodes give a port to another renter's pod as soon as ours is gone (contract §7.3).
The files are ordinary known_hosts files, so `ssh -o UserKnownHostsFile=…` works with them too.
"""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_POD_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}", re.ASCII)
_HOST_PATTERN = "*"
"""The file belongs to one pod, so every address is that pod's, also the next one after a reboot."""


@dataclass(frozen=True, slots=True)
class PinFile:
    """The pin of one pod; implements `protocol.HostKeyPin`."""

    path: Path

    def load(self) -> tuple[str, ...]:
        """Raises `OSError` for a file that can't be read or holds none: that is no pod without a pin."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            return ()
        with os.fdopen(descriptor, encoding="ascii", errors="replace") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                raise OSError(errno.EINVAL, "not a file", str(self.path))
            text = file.read()
        lines = (line.split() for line in text.splitlines() if line.strip() and line.lstrip()[0] not in "#@")
        found = tuple(f"{fields[1]} {fields[2]}" for fields in lines if len(fields) >= 3)
        if not found:
            reason = "it holds no host key; delete it to trust the next one that the pod shows"
            raise OSError(errno.EINVAL, reason, str(self.path))
        return found

    def save(self, key: str) -> None:
        temporary = f"{self.path.parent}/.{self.path.name}.{secrets.token_hex(4)}"
        try:
            with open(self._create(temporary), "w", encoding="ascii") as file:
                os.chmod(self.path.parent, 0o700)
                file.write(f"{_HOST_PATTERN} {key}\n")
            os.replace(temporary, self.path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise

    def _create(self, temporary: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
        try:
            return os.open(temporary, flags, 0o600)
        except FileNotFoundError:
            self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            return os.open(temporary, flags, 0o600)

    def __str__(self) -> str:
        return str(self.path)


class PinStore:
    """The directory of pins (created 0700 with the first one; files 0600)."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def pin(self, pod_id: str) -> PinFile:
        """The pin of `pod_id`; nothing is created. Raises `ValueError` for an id that is no file name."""
        if not _POD_ID.fullmatch(pod_id):
            raise ValueError(f"{pod_id!r} is no pod id")
        return PinFile(self._directory / pod_id)

    def forget_pin(self, pod_id: str) -> None:
        """Trust the next host key again: after a reboot, a template switch, a deletion (contract §7.4).

        Never fails: where it can't be removed, the next login that finds another key says so.
        """
        with suppress(OSError):
            self.pin(pod_id).path.unlink()
