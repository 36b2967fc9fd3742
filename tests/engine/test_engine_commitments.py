"""The sum of what a stack may come to cost, kept as it changes, is what one gets by adding everything up."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import Decimal

from hypothesis import given
from hypothesis import strategies as st

from lium_plan.addresses import Address, parse
from lium_plan.engine.commitments import Commitments, Holding

PLACES = [parse(f"fleet.a[{number}]") for number in range(4)]
prices = st.decimals("0.01", "9.99", places=2)
at = st.sampled_from(PLACES)
steps = st.one_of(
    st.tuples(st.just("reserve"), at, prices),
    st.tuples(st.just("release"), at, st.none()),
    st.tuples(st.just("runs"), at, prices),
    st.tuples(st.just("deposed"), at, prices),
    st.tuples(st.just("gone"), at, st.none()),
    st.tuples(st.just("deposed gone"), at, st.none()),
    st.tuples(st.just("lost"), at, prices),
)


class Books:
    """What a ledger would tell, and everything added up anew for each question."""

    def __init__(self) -> None:
        self.held: dict[str, Holding] = {}
        self.reserved: dict[Address, Decimal] = {}
        self.lost: dict[Address, Decimal] = {}
        self.touched: set[str] = set()
        self.sums = Commitments(self.changes, lambda: self.lost)

    def changes(self) -> Iterator[tuple[str, Holding | None]]:
        touched, self.touched = self.touched, set()
        return ((key, self.held.get(key)) for key in sorted(touched))

    def do(self, what: str, address: Address, usd: Decimal | None) -> None:
        deposed = what.startswith("deposed")
        key = f"{address}#old" if deposed else str(address)
        if what == "release":
            self.reserved.pop(address, None)
            self.sums.release(address)
        elif usd is None:
            self.held.pop(key, None)
            self.touched.add(key)
        elif what == "reserve":
            self.reserved[address] = usd
            self.sums.reserve(address, usd)
        elif what == "lost":
            self.lost[address] = usd
        else:
            self.held[key] = Holding(address, usd, "n", deposed)
            self.touched.add(key)

    def total(self, but: Address) -> Decimal:
        found = sum((item.price_per_hour_usd for item in self.held.values() if item.deposed), Decimal(0))
        for address in PLACES:
            if address == but:
                continue
            standing = self.held.get(str(address))
            runs = Decimal(0) if standing is None else standing.price_per_hour_usd
            found += max(runs, self.reserved.get(address, Decimal(0)))
            if address not in self.reserved:
                found += self.lost.get(address, Decimal(0))
        return found


@given(st.lists(st.tuples(steps, st.booleans()), max_size=30))
def test_it_is_what_adding_everything_up_gives(history: list[tuple[tuple[str, Address, Decimal | None], bool]]) -> None:
    books = Books()
    for step, asked in history:
        books.do(*step)
        if asked:
            assert {but: books.sums.total(but=but) for but in PLACES} == {but: books.total(but) for but in PLACES}
    assert [books.sums.total(but=but) for but in PLACES] == [books.total(but) for but in PLACES]
    assert sorted(map(str, books.sums.held())) == sorted(map(str, books.held.values()))
