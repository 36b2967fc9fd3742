"""Asking a pod what our scripts left there: a script over stdin, an answer in marked lines.

A login shell's profile may print what it likes before and after, so only lines with our mark count.
"""

from __future__ import annotations

from lium_plan.ssh.errors import SshError
from lium_plan.ssh.image_env import LAUNCH
from lium_plan.ssh.protocol import Session

MARK = "lium-plan:"
_MAX_ANSWER_BYTES = 1 << 20


async def ask(session: Session, script: str, *, timeout_s: float) -> tuple[str, ...]:
    """The marked lines that `script` printed, without the mark.

    Raises `SshError` with the script's other output when it fails, and what `Session.run` raises.
    """
    answer = bytearray()

    def keep(chunk: bytes) -> None:
        answer.extend(chunk[: _MAX_ANSWER_BYTES - len(answer)])

    done = await session.run(
        LAUNCH, stdin=script.encode("utf-8", "surrogateescape"), on_output=keep, timeout_s=timeout_s
    )
    lines = bytes(answer).decode("utf-8", "replace").splitlines()
    if done.exit_status != 0:
        words = "; ".join(line.removeprefix(MARK).strip() for line in lines[-5:]) or "it said nothing"
        raise SshError(f"the pod's shell failed with status {done.exit_status}: {words}")
    return tuple(line.removeprefix(MARK) for line in lines if line.startswith(MARK))
