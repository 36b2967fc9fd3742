"""How the server writes time: naive and meaning UTC, with or without microseconds (contract §0.2, §9.2.11)."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import overload

from lium_plan.sim.refusal import invalid


@overload
def naive(moment: datetime, serial: int) -> str: ...
@overload
def naive(moment: None, serial: int) -> None: ...
def naive(moment: datetime | None, serial: int) -> str | None:
    """Every other row shows whole seconds, so that clients meet both spellings."""
    if moment is None:
        return None
    plain = moment.astimezone(UTC).replace(tzinfo=None)
    return plain.isoformat(timespec="microseconds" if serial % 2 else "seconds")


@overload
def exact(moment: datetime) -> str: ...
@overload
def exact(moment: None) -> None: ...
def exact(moment: datetime | None) -> str | None:
    """Naive, nothing cut off: for moments that a client gave."""
    return None if moment is None else moment.astimezone(UTC).replace(tzinfo=None).isoformat()


@overload
def zulu(moment: datetime) -> str: ...
@overload
def zulu(moment: None) -> None: ...
def zulu(moment: datetime | None) -> str | None:
    """With `Z`: the public feed and the control routes."""
    return None if moment is None else moment.astimezone(UTC).isoformat().replace("+00:00", "Z")


def parse(text: str, field: str) -> datetime:
    """A moment a client sent; without a zone it means UTC. Raises Refusal 422."""
    try:
        moment = datetime.fromisoformat(text)
        return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
    except (ValueError, OverflowError):
        raise invalid(field, "Input should be a valid datetime") from None
