"""Opening a session on a machine that may still be starting: what is waited for, how long, and what ends
the wait.

A refused, reset or closed connection and a missing banner are what a pod shows before its sshd runs, so they
are waited for until the deadline. A refused login is waited for a while too, since the platform installs the
keys after sshd; after that it is the wrong key. Another host key than the pinned one is never waited for.
"""

from __future__ import annotations

import asyncio
import gc
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from lium_plan.garbage import collection_paused
from lium_plan.ssh import banner
from lium_plan.ssh.errors import LoginRefused, Stage, Unreachable
from lium_plan.ssh.keys import KeyFile, inspect_key
from lium_plan.ssh.protocol import Coordinates, HostKeyPin, OnStage, Session, ignore_stage

if TYPE_CHECKING:
    from lium_plan.ssh.wire import LoadedKey


@dataclass(frozen=True, slots=True)
class Timing:
    """How patient to be; the defaults are contract §7.5 and §7.6."""

    connect_s: float = 30.0
    """For the TCP connection, and again from the banner to the login."""
    banner_s: float = 5.0
    attempt_every_s: float = 3.0
    """From the start of one attempt to the start of the next; an attempt that took longer is followed at once."""
    login_patience_s: float = 45.0
    """How long a refused login is waited for, from the first banner."""
    keepalive_s: float = 15.0
    keepalive_misses: int = 3


class SshConnector:
    """`protocol.Connector` on asyncssh."""

    def __init__(self, timing: Timing | None = None) -> None:
        self._timing = timing or Timing()
        self._loading: asyncio.Task[None] | None = None

    async def open(
        self,
        coordinates: Coordinates,
        *,
        pin: HostKeyPin,
        key_path: Path,
        deadline_s: float,
        on_stage: OnStage = ignore_stage,
    ) -> Session:
        found = inspect_key(key_path)  # before anybody is called: a key that is none is told at once
        if self._loading is None or self._loading.cancelled():
            self._loading = asyncio.create_task(_load())
        opening = _Opening(coordinates, pin, found, self._timing, deadline_s, on_stage, self._loading)
        try:
            return await opening.wait()
        finally:
            opening.close()


async def _load() -> None:
    """asyncssh takes a tenth of a second to load: beside the loop, on which hundreds of pods may be waited for, and
    while their servers begin to speak. All that it makes stays: looking for garbage there would only take time."""
    with collection_paused():
        await asyncio.to_thread(import_module, "lium_plan.ssh.wire")
        gc.freeze()


class _Opening:
    """One call of `open`: its clock and what has been seen so far."""

    def __init__(
        self,
        coordinates: Coordinates,
        pin: HostKeyPin,
        found: KeyFile,
        timing: Timing,
        deadline_s: float,
        on_stage: OnStage,
        loading: asyncio.Future[None],
    ) -> None:
        self._coordinates = coordinates
        self._pin = pin
        self._found = found
        self._key: LoadedKey | None = None
        self._timing = timing
        self._on_stage = on_stage
        self._loading = loading
        self._clock = asyncio.get_running_loop().time
        self._started_at = self._clock()
        self._ends_at = self._started_at + deadline_s
        self._first_banner_at: float | None = None
        self._logins = 0

    async def wait(self) -> Session:
        attempts = 0
        earlier: banner.NotYet | None = None
        while True:
            attempts += 1
            attempt_at = self._clock()
            try:
                return await self._attempt()
            except banner.NotYet as problem:
                # An attempt cut short by the deadline says less than the one before it.
                told = earlier if earlier and self._ends_at - attempt_at < self._timing.banner_s else problem
                earlier = told
                failure: Exception = Unreachable(
                    str(self._coordinates),
                    stage=told.stage,
                    reason=told.reason,
                    attempts=attempts,
                    waited_s=self._clock() - self._started_at,
                )
            except banner.Refused:
                failure = refused = self._refused()
                if refused.waited_s >= self._timing.login_patience_s:
                    raise refused from None
            next_at = max(self._clock(), attempt_at + self._timing.attempt_every_s)
            if next_at >= self._ends_at:
                raise failure from None
            await asyncio.sleep(next_at - self._clock())

    async def _attempt(self) -> Session:
        self._on_stage(Stage.PORT)
        sock = await banner.connect(self._coordinates, timeout_s=self._within(self._timing.connect_s))
        try:
            self._on_stage(Stage.BANNER)
            await banner.await_banner(sock, timeout_s=self._within(self._timing.banner_s))
            if self._first_banner_at is None:
                self._first_banner_at = self._clock()
            await asyncio.shield(self._loading)
            from lium_plan.ssh import wire

            if self._key is None:
                self._key = await wire.load_key(self._found)
        except BaseException:
            sock.close()
            raise
        self._on_stage(Stage.HOST_KEY)
        self._logins += 1
        return await wire.login(
            sock,
            self._coordinates,
            key=self._key,
            pin=self._pin,
            timeout_s=self._within(self._timing.connect_s),
            keepalive_s=self._timing.keepalive_s,
            keepalive_misses=self._timing.keepalive_misses,
            on_stage=self._on_stage,
        )

    def close(self) -> None:
        """Let go of the key; the session needs it no more."""
        if self._key is not None:
            self._key.close()

    def _within(self, limit_s: float) -> float:
        return max(0.0, min(limit_s, self._ends_at - self._clock()))

    def _refused(self) -> LoginRefused:
        return LoginRefused(
            str(self._coordinates),
            key=str(self._found.path),
            attempts=self._logins,
            waited_s=0.0 if self._first_banner_at is None else self._clock() - self._first_banner_at,
        )
