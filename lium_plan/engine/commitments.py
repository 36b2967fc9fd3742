"""What the stack may come to cost by the hour: what runs, what is being rented, what may have been rented.

The sum is kept as it changes, since every rent of thousands asks for it. Knows what runs only through the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.addresses import Address

NOTHING = Decimal(0)


@dataclass(frozen=True, slots=True)
class Holding:
    """Something of the stack that is billed by the hour."""

    address: Address
    price_per_hour_usd: Decimal
    node_id: str | None = None
    deposed: bool = False
    """It runs beside its successor until that is ready."""


Changes = Callable[[], Iterable[tuple[str, Holding | None]]]
"""By record key what is billed now (None: nothing any more), of all that may have changed since the last call; the
first call tells all."""


class Commitments:
    """USD per hour by address: what stands there or what is reserved for it, whichever is more; deposed pods beside."""

    def __init__(self, changes: Changes, open_rents: Callable[[], Mapping[Address, Decimal]]) -> None:
        """`open_rents`: the ceilings of rents whose outcome nobody knows."""
        self._changes = changes
        self._open_rents = open_rents
        self._held: dict[str, Holding] = {}
        self._standing: dict[Address, Decimal] = {}
        self._deposed = NOTHING
        self._reserved: dict[Address, Decimal] = {}
        self._sum = NOTHING
        """Of all addresses; without deposed pods and open rents."""

    def reserve(self, address: Address, usd_per_hour: Decimal) -> None:
        """Something is being rented for no more than that, or was rented for it."""
        self._sum -= self._at(address)
        self._reserved[address] = usd_per_hour
        self._sum += self._at(address)

    def release(self, address: Address) -> None:
        """Nothing is being rented there; what stands counts alone."""
        self._sum -= self._at(address)
        self._reserved.pop(address, None)
        self._sum += self._at(address)

    def total(self, *, but: Address) -> Decimal:
        """Everything except `but`: what stands there goes before its successor comes, unless it is deposed."""
        self._read()
        lost = sum(
            ceiling
            for address, ceiling in self._open_rents().items()
            if address != but and address not in self._reserved
        )
        return self._sum - self._at(but) + self._deposed + lost

    def held(self) -> Iterator[Holding]:
        """What is billed now."""
        self._read()
        return iter(self._held.values())

    def _at(self, address: Address) -> Decimal:
        # What is to be replaced is billed until it has gone; what rose in price while it runs, at that price.
        return max(self._reserved.get(address, NOTHING), self._standing.get(address, NOTHING))

    def _read(self) -> None:
        for key, now in self._changes():
            before = self._held.pop(key, None)
            if before is not None:
                self._count(before, -before.price_per_hour_usd)
            if now is not None:
                self._held[key] = now
                self._count(now, now.price_per_hour_usd)

    def _count(self, holding: Holding, usd_per_hour: Decimal) -> None:
        if holding.deposed:
            self._deposed += usd_per_hour
            return
        address = holding.address
        self._sum -= self._at(address)
        standing = self._standing.pop(address, NOTHING) + usd_per_hour
        if standing:
            self._standing[address] = standing
        self._sum += self._at(address)
