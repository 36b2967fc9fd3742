"""Rows of the market as offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime

from lium_plan.kinds.pod.feed import NodeMemory, gathered, read_catalogue
from lium_plan.kinds.pod.offers import Feed


def expand_feed(generated_at: datetime, rows: Iterable[object], catalogue: Iterable[Mapping[str, object]] = ()) -> Feed:
    """One reading of a feed (rows of contract §2.2), with what only the catalogue tells (§3.1)."""
    nodes = NodeMemory()
    told = read_catalogue(catalogue)
    return gathered(generated_at, [nodes.offers_of(row, told) for row in rows])
