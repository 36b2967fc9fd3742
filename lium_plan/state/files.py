"""Durable files: what a crash or a full disk may leave behind is either the old content or the new.

Owns permissions (0600, directories 0700), fsync, and the refusal of anything but an ordinary file in place of a state
file: a link, a directory, a pipe whose other end would be waited for. Knows nothing of what the files hold. Raises
`OSError`, and `Failure` for what is no ordinary file.
"""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import sys
from dataclasses import dataclass
from pathlib import Path

from lium_plan.diagnostics import ExitCode, Failure, error

FILE_MODE = 0o600
DIRECTORY_MODE = 0o700


@dataclass(frozen=True, slots=True)
class Identity:
    """Tells one version of a file from the next: a rename brings another inode."""

    device: int
    inode: int
    size: int
    modified_ns: int

    @classmethod
    def of(cls, status: os.stat_result) -> Identity:
        return cls(status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns)


def open_file(path: Path, flags: int) -> int:
    """A descriptor that children don't inherit; a file that it creates is 0600. Never waits."""
    try:
        handle = os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, FILE_MODE)
    except OSError as fault:
        if fault.errno == errno.ELOOP:
            message = f"{path} is a symbolic link: what is written would replace the link and leave its target behind"
            hint = "name the directory that really holds the state with --state file:DIR"
            raise Failure(ExitCode.ERROR, (error("state-symlink", message, hint=hint),)) from None
        if fault.errno in (errno.EISDIR, errno.ENXIO):  # a directory to be written; a pipe without a reader, a socket
            raise _no_file(path) from None
        raise
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise _no_file(path)
    return handle


def _no_file(path: Path) -> Failure:
    what = "a directory" if path.is_dir() else "a pipe, a socket or a device"
    hint = "look what it is and move it away; what belongs there is made anew"
    return Failure(ExitCode.ERROR, (error("state-not-a-file", f"{path} is {what}, not a file", hint=hint),))


def make_directory(path: Path) -> None:
    """Create the directory and its parents, for the owner alone; one that exists is left as it is."""
    if not path.is_dir():
        if path.parent != path:
            make_directory(path.parent)
        path.mkdir(mode=DIRECTORY_MODE, exist_ok=True)
        sync_directory(path.parent)


def takes_files(path: Path) -> bool:
    """Whether the directory, or the one in which it would be made, lets us make files: by its mode and its mount."""
    there = next(place for place in (path, *path.absolute().parents) if os.path.exists(place))
    return os.access(there, os.W_OK | os.X_OK, effective_ids=os.access in os.supports_effective_ids)


def sync(handle: int) -> None:
    """Wait until a file's content is on the disk itself."""
    if sys.platform == "darwin":
        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)  # fsync leaves it in the drive's cache there
    else:
        os.fdatasync(handle)


def sync_directory(path: Path) -> None:
    """Make renames and new names in a directory durable."""
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_file(path: Path) -> tuple[bytes, Identity] | None:
    """The content, and which version of the file it was read from; None when there is no file."""
    try:
        handle = open_file(path, os.O_RDONLY)
    except FileNotFoundError:
        return None
    with os.fdopen(handle, "rb") as stream:
        status = os.fstat(stream.fileno())
        return stream.read(), Identity.of(status)


def identity_of(path: Path) -> Identity | None:
    try:
        return Identity.of(os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return None


def is_at(handle: int, path: Path) -> bool:
    """Whether an open file is still the one that is found at `path`: not deleted, nor replaced by another."""
    try:
        there = os.stat(path, follow_symlinks=False)
    except OSError:
        return False
    ours = os.fstat(handle)
    return (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino)


def write_all(handle: int, data: bytes, offset: int) -> None:
    """pwrite until everything is written."""
    view = memoryview(data)
    while view:
        written = os.pwrite(handle, view, offset)
        view, offset = view[written:], offset + written


def write_temporary(path: Path, data: bytes) -> Path:
    """Write `data` durably beside `path`, ready to be renamed over it; leaves nothing when it fails."""
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.unlink(missing_ok=True)
    handle = open_file(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    try:
        try:
            write_all(handle, data, 0)
            sync(handle)
        finally:
            os.close(handle)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def write_file(path: Path, data: bytes) -> None:
    """Replace the content of `path` durably and at once."""
    os.replace(write_temporary(path, data), path)
    sync_directory(path.parent)


def keep(path: Path, name: Path) -> None:
    """Give the content of `path` a second name, replacing what had it; `path` itself is there at every instant."""
    temporary = name.with_name(f".{name.name}.tmp")
    temporary.unlink(missing_ok=True)
    try:
        os.link(path, temporary, follow_symlinks=False)
    except (OSError, NotImplementedError):  # a file system without hard links
        content = read_file(path)
        if content is None:
            return
        os.replace(write_temporary(name, content[0]), name)
        return
    os.replace(temporary, name)
