"""Times and durations for people and for machines."""

from __future__ import annotations

from datetime import UTC, datetime


def stamp(at: datetime) -> str:
    """RFC 3339 in UTC with `Z`; fractions only where there are some."""
    moment = at.astimezone(UTC).replace(tzinfo=None)
    return moment.isoformat(timespec="auto") + "Z"


def parse_stamp(text: str) -> datetime:
    """The moment that `stamp` wrote. Raises `ValueError`."""
    if not text.endswith("Z"):
        raise ValueError(f"'{text}' is no UTC time ending in Z")
    return datetime.fromisoformat(text[:-1]).replace(tzinfo=UTC)


def optional_stamp(at: datetime | None) -> str | None:
    return None if at is None else stamp(at)


def clock(at: datetime) -> str:
    """`10:41:07Z`."""
    return at.astimezone(UTC).strftime("%H:%M:%SZ")


def duration(seconds: float) -> str:
    """`3.2s`, `48s`, `2m 05s`, `3h 07m`, `2d 4h`: two units at most."""
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 9.95:
        return f"{seconds:.1f}s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m {rest:02d}s"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours}h {minutes:02d}m"
    days, hours = divmod(hours, 24)
    return f"{days}d {hours}h"
