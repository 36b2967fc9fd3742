"""Turning what a bootstrap or a task was given into what is sent to a pod: files, environment, commands."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.expressions import Text
from lium_plan.kinds.files import FileSpec
from lium_plan.kinds.protocol import ActionFailed, Run
from lium_plan.ssh.protocol import FileToSend


def files_to_send(files: Iterable[FileSpec], address: Address, run: Run) -> list[FileToSend]:
    """The files with their templates filled in. Raises `ActionFailed` for one that changed since the plan."""
    return [_file(file, address, run) for file in files]


def _file(file: FileSpec, address: Address, run: Run) -> FileToSend:
    if file.content is not None:
        return FileToSend(run.resolve(file.content).encode(), file.target, file.mode)
    try:
        content = file.source.read_bytes()
    except OSError as failure:
        raise ActionFailed(error("file-unreadable", f"{file.source}: {failure}", address=str(address))) from failure
    if hashlib.sha256(content).hexdigest() != file.sha256:
        raise ActionFailed(
            error(
                "file-changed",
                f"{file.source} changed after it was planned",
                address=str(address),
                hint="plan again: what was reviewed is what runs",
            )
        )
    return FileToSend(content, file.target, file.mode, sha256=file.sha256)


def filled(texts: Mapping[str, Text], run: Run) -> dict[str, str]:
    return {name: run.resolve(text) for name, text in texts.items()}


def secrets_of(texts: Mapping[str, Text], files: Iterable[FileSpec], run: Run) -> tuple[str, ...]:
    """The values that must not show up in a log."""
    sensitive = [text for text in texts.values() if text.sensitive]
    sensitive += [file.content for file in files if file.content is not None and file.content.sensitive]
    return tuple(run.resolve(text) for text in sensitive)
