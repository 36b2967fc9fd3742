"""When Python looks for garbage in cycles: less often where nearly all that is made stays."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

SELDOM = (20_000, 20, 50)
"""Allocations from one look at the young to the next, and so many of those to a look at the older, and at all."""


@contextmanager
def collection_paused() -> Iterator[None]:
    """Never while very many small objects are made that all stay: looking takes two thirds of the time."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@contextmanager
def collected_seldom() -> Iterator[None]:
    """For a long run that holds thousands of objects and drops few in cycles: looking at all of them again and again
    would take the longer the more there are, per object."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    try:
        yield
    finally:
        gc.set_threshold(*before)
