"""Rate limits as the routes apply them (contract §1.6, §15.2). A refused call is not counted."""

from __future__ import annotations

import math
from collections.abc import Sequence

from lium_plan.sim.limits import Window
from lium_plan.sim.refusal import Refusal
from lium_plan.sim.settings import SharedLimiter
from lium_plan.sim.world import World

_TEMPLATES = "templates"
TEMPLATE_WINDOWS = (Window(1, 5), Window(5, 60), Window(20, 3600))


def check(world: World, who: str, what: str, windows: Sequence[Window]) -> None:
    """Raises Refusal 429 when one more call doesn't fit."""
    wait = world.limits.wait(who, what, windows, now=world.now, speed=world.settings.speed)
    if wait is None:
        return
    headers = {}
    if world.settings.retry_after:
        headers["Retry-After"] = str(max(1, math.ceil(wait.total_seconds())))
    raise Refusal(429, "rate_limited", "Too many requests", headers=headers)


def take(world: World, who: str, what: str, windows: Sequence[Window]) -> None:
    """Check, and count this call."""
    check(world, who, what, windows)
    world.limits.count(who, what, now=world.now)


def take_per_minute(world: World, who: str, what: str, calls: int) -> None:
    """At most so many calls a minute; 0: no limit.

    A second less than a minute, so that a client which asks exactly once a second isn't refused for a late packet.
    """
    if calls:
        take(world, who, what, (Window(calls, 59),))


def take_template(world: World, account_id: str) -> None:
    if world.settings.template_limits:
        check(world, account_id, _TEMPLATES, TEMPLATE_WINDOWS)
    world.limits.count(account_id, _TEMPLATES, now=world.now)


def take_rent(world: World, account_id: str) -> None:
    """Rents have a limit of their own, and may share the templates' counter: how is a setting."""
    settings = world.settings
    if settings.shared_limiter is SharedLimiter.REFUSE:
        check(world, account_id, _TEMPLATES, TEMPLATE_WINDOWS)
    take_per_minute(world, account_id, "rent", settings.rents_per_minute)
    if settings.shared_limiter is not SharedLimiter.OFF:
        world.limits.count(account_id, _TEMPLATES, now=world.now)
