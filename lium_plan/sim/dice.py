"""The one source of chance: ids, names and noise from a seed and a count, so that a world reloaded from disk goes
on with the throw after its last one."""

from __future__ import annotations

import random
from uuid import UUID


class Dice:
    """Each `throw()` is a fresh generator seeded with (seed, number of the throw)."""

    def __init__(self, seed: int, drawn: int = 0) -> None:
        self.seed = seed
        self.drawn = drawn

    def throw(self) -> random.Random:
        self.drawn += 1
        return random.Random(f"{self.seed}/{self.drawn}")

    def uuid(self) -> str:
        return str(UUID(int=self.throw().getrandbits(128), version=4))

    def hex(self, digits: int) -> str:
        return f"{self.throw().getrandbits(digits * 4):0{digits}x}"

    def uniform(self, low: float, high: float) -> float:
        return self.throw().uniform(low, high)

    def spread(self, middle: float, *, sigma: float, low: float, high: float) -> float:
        """Around `middle` (the median), log-normal, cut to low..high."""
        return min(high, max(low, middle * self.throw().lognormvariate(0.0, sigma)))

    def chance(self, share: float) -> bool:
        return share > 0 and self.throw().random() < share
