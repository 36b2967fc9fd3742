"""SFTP and scp over a pod's files: asyncssh's server with every path resolved by the pod's own tree.

The protocol is the library's; here is only what differs from serving the host: where a path leads, whose uid is
shown as root, and a reason in place of a bare error when a path is refused.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from typing import Any

import asyncssh

from lium_plan.sim.pods.machine import Tree


class PodFiles(asyncssh.SFTPServer):
    """One SFTP session or scp transfer."""

    def __init__(self, channel: asyncssh.SSHServerChannel[bytes], tree: Tree) -> None:
        super().__init__(channel)
        self._tree = tree

    def exit(self) -> None:
        # OpenSSH's scp takes a transfer without an exit status for a failure.
        with contextlib.suppress(OSError):
            self.channel.exit(0)

    def map_path(self, path: bytes) -> bytes:
        return self._at(path, follow=True)

    def _at(self, path: bytes, *, follow: bool) -> bytes:
        try:
            return self._tree.locate(path, follow=follow)
        except PermissionError as error:
            raise asyncssh.SFTPPermissionDenied(str(error)) from error

    def realpath(self, path: bytes) -> bytes:
        self._at(path, follow=True)
        return self._tree.visible(path)

    def open(self, path: bytes, pflags: int, attrs: asyncssh.SFTPAttrs) -> Any:
        target = self._at(path, follow=True)
        if os.path.exists(target) and not os.path.isfile(target) and not os.path.isdir(target):
            # Opening a pipe waits for its other end, and would stop the whole simulator.
            raise asyncssh.SFTPFailure("not a regular file")
        return super().open(path, pflags, attrs)

    def stat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return self._seen(os.stat(self._at(path, follow=True)))

    def lstat(self, path: bytes) -> asyncssh.SFTPAttrs:
        return self._seen(os.lstat(self._at(path, follow=False)))

    def fstat(self, file_obj: object) -> asyncssh.SFTPAttrs:
        assert hasattr(file_obj, "fileno")
        return self._seen(os.fstat(file_obj.fileno()))

    def _seen(self, result: os.stat_result) -> asyncssh.SFTPAttrs:
        attributes = asyncssh.SFTPAttrs.from_local(result)
        if self._tree.owner_uid is not None and attributes.uid == self._tree.owner_uid:
            attributes.uid = attributes.gid = 0
        return attributes

    def setstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> Any:
        return super().setstat(path, self._wanted(attrs))

    def lsetstat(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        wanted, target = self._wanted(attrs), self._at(path, follow=False)
        if wanted.uid is not None and wanted.gid is not None:
            os.chown(target, wanted.uid, wanted.gid, follow_symlinks=False)
        if wanted.atime is not None and wanted.mtime is not None:
            os.utime(target, (wanted.atime, wanted.mtime), follow_symlinks=False)
        if wanted.permissions is not None and not os.path.islink(target):
            os.chmod(target, wanted.permissions & 0o7777)

    def fsetstat(self, file_obj: object, attrs: asyncssh.SFTPAttrs) -> Any:
        return super().fsetstat(file_obj, self._wanted(attrs))

    def _wanted(self, attrs: asyncssh.SFTPAttrs) -> asyncssh.SFTPAttrs:
        if self._tree.owner_uid is not None and attrs.uid == 0:
            # Inside, root is the simulator's user: the file has that owner already.
            attrs.uid = attrs.gid = None
        return attrs

    async def scandir(self, path: bytes) -> AsyncIterator[asyncssh.SFTPName]:
        target = self._at(path, follow=True)
        for name in (b".", b"..", *sorted(os.listdir(target))):
            try:
                result = os.lstat(os.path.join(target, name))
            except FileNotFoundError:
                continue
            yield asyncssh.SFTPName(name, attrs=self._seen(result))

    def remove(self, path: bytes) -> None:
        os.remove(self._at(path, follow=False))

    def rmdir(self, path: bytes) -> None:
        os.rmdir(self._at(path, follow=False))

    def mkdir(self, path: bytes, attrs: asyncssh.SFTPAttrs) -> None:
        mode = 0o777 if attrs.permissions is None else attrs.permissions
        os.mkdir(self._at(path, follow=False), mode)

    def rename(self, oldpath: bytes, newpath: bytes) -> None:
        source, target = self._at(oldpath, follow=False), self._at(newpath, follow=False)
        if os.path.lexists(target):
            raise asyncssh.SFTPFileAlreadyExists("File already exists")
        os.rename(source, target)

    def posix_rename(self, oldpath: bytes, newpath: bytes) -> None:
        os.replace(self._at(oldpath, follow=False), self._at(newpath, follow=False))

    def readlink(self, path: bytes) -> bytes:
        return os.readlink(self._at(path, follow=False))

    def symlink(self, oldpath: bytes, newpath: bytes) -> None:
        # The target is only text until it is followed, and then it is resolved inside the pod.
        os.symlink(oldpath, self._at(newpath, follow=False))

    def link(self, oldpath: bytes, newpath: bytes) -> None:
        os.link(self._at(oldpath, follow=False), self._at(newpath, follow=False), follow_symlinks=False)
