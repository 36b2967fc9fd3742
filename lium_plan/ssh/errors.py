"""What can go wrong between us and a machine, in words a user can act on.

    SshError
    ├── BadConnectCommand    the connect command isn't of the one shape that is accepted
    ├── KeyUnusable          our own private key can't be read or used
    ├── Unreachable          no port, no banner or no key exchange until the deadline
    ├── LoginRefused         the server answers and refuses this key
    ├── HostKeyChanged       the machine shows another host key than the one pinned for its pod
    ├── ConnectionLost       the connection ended before the answer was complete; the outcome is unknown
    ├── TimedOut             a command or a transfer took longer than it was given
    ├── FileNotSent          the server refused a file
    └── BadScript            a script or a variable that no shell can carry

The library underneath never leaks: none of its exceptions leaves this package.
"""

from __future__ import annotations

from enum import StrEnum


class Stage(StrEnum):
    """How far a connection has come. The words are shown to users as they are."""

    PORT = "port"
    BANNER = "banner"
    HOST_KEY = "host-key"
    LOGIN = "login"
    FILES = "files"
    COMMAND = "command"


class SshError(Exception):
    """Any failure of this package. `str()` is one sentence for a user: what was tried, where and for how long."""


class BadConnectCommand(SshError):
    """`ssh_connect_cmd` is not `ssh user@host [-p port]` (contract §7.1)."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(f"the connect command {text!r} is refused: {reason}; expected `ssh USER@HOST [-p PORT]`")
        self.text = text
        self.reason = reason


class KeyUnusable(SshError):
    """The private key can't be used."""

    def __init__(self, path: str, reason: str, *, hint: str) -> None:
        super().__init__(f"the SSH key {path} can't be used: {reason}; {hint}")
        self.path = path
        self.reason = reason
        self.hint = hint


class Unreachable(SshError):
    """Nobody could be talked to until the deadline. `stage` is the furthest stage of the last attempt."""

    def __init__(self, where: str, *, stage: Stage, reason: str, attempts: int, waited_s: float) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(f"{where} can't be reached ({stage}): {reason}; {tries} in {waited_s:.0f} s")
        self.where = where
        self.stage = stage
        self.reason = reason
        self.attempts = attempts
        self.waited_s = waited_s


class LoginRefused(SshError):
    """The server answers but takes another key than ours."""

    def __init__(self, where: str, *, key: str, attempts: int, waited_s: float) -> None:
        tries = "1 attempt" if attempts == 1 else f"{attempts} attempts"
        super().__init__(
            f"{where} refuses the key {key} ({tries} in {waited_s:.0f} s since it first answered): "
            "the pod was probably rented with another public key"
        )
        self.where = where
        self.key = key
        self.attempts = attempts
        self.waited_s = waited_s


class HostKeyChanged(SshError):
    """Another host key than the pinned one; a reboot or a platform restart explains it (contract §7.4)."""

    def __init__(self, where: str, *, pin: str, expected: tuple[str, ...], shown: str) -> None:
        super().__init__(
            f"{where} shows the host key {shown}, pinned was {', '.join(expected)} ({pin}): after a reboot, a template "
            "switch or a restart by the platform that is expected, otherwise somebody may be listening in"
        )
        self.where = where
        self.pin = pin
        self.expected = expected
        """Fingerprints (`SHA256:…`)."""
        self.shown = shown


class ConnectionLost(SshError):
    """The connection ended in the middle. What was running may have finished, failed, or still run."""

    def __init__(self, where: str, *, stage: Stage, reason: str, after_s: float) -> None:
        super().__init__(f"the connection to {where} was lost ({stage}) after {after_s:.0f} s: {reason}")
        self.where = where
        self.stage = stage
        self.reason = reason
        self.after_s = after_s


class TimedOut(SshError):
    """A command or a transfer was given up after its time."""

    def __init__(self, where: str, *, stage: Stage, doing: str, timeout_s: float) -> None:
        super().__init__(f"{where}: {doing} did not end within {timeout_s:g} s ({stage})")
        self.where = where
        self.stage = stage
        self.doing = doing
        self.timeout_s = timeout_s


class FileNotSent(SshError):
    """The other side refused to store a file, or ours can't be read."""

    def __init__(self, where: str, *, target: str, reason: str) -> None:
        super().__init__(f"{where}: can't write {target}: {reason}")
        self.where = where
        self.target = target
        self.reason = reason


class BadScript(SshError):
    """Something in a script, a variable or a path that can't be carried to a POSIX shell."""
