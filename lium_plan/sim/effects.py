"""What the world wants done to machines, as values. `machines.Machines` carries them out."""

from __future__ import annotations

from dataclasses import dataclass

from lium_plan.sim.runtime import Container, SshFault


@dataclass(frozen=True, slots=True)
class StartContainer:
    container: Container
    ssh: SshFault | None = None
    """How its SSH misbehaves from the start."""

    @property
    def subject(self) -> str:
        return self.container.pod_id


@dataclass(frozen=True, slots=True)
class StopContainer:
    subject: str


@dataclass(frozen=True, slots=True)
class SetSshFault:
    subject: str
    fault: SshFault


@dataclass(frozen=True, slots=True)
class ChangeHostKey:
    subject: str


@dataclass(frozen=True, slots=True)
class ForgetVolume:
    subject: str


Effect = StartContainer | StopContainer | SetSshFault | ChangeHostKey | ForgetVolume
