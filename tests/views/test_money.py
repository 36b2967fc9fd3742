"""Money as it is shown: figures that add up, that can be told apart, and that don't contradict one another."""

from __future__ import annotations

import random
from decimal import Decimal

import pytest

from lium_plan.money import amount, balance_and_minimum, most, price, rate, summed


def shown(text: str) -> Decimal:
    return Decimal(text.replace("$", ""))


@pytest.mark.parametrize(
    ("usd", "beside", "expected"),
    [
        ("1.99", (), "$1.99"),
        ("0.23517", (), "$0.24"),
        ("0.052", (), "$0.052"),
        ("0.05", (), "$0.05"),
        ("0.00004", (), "$0.00004"),
        ("0", (), "$0.00"),
        ("2.0001", ("2",), "$2.0001"),
        ("2.0001", ("2.10",), "$2.00"),
        ("2", ("2",), "$2.00"),
        ("1e30", (), "$1000000000000000000000000000000.00"),
    ],
)
def test_a_price_has_cents_and_more_only_where_cents_would_hide_something(
    usd: str, beside: tuple[str, ...], expected: str
) -> None:
    assert price(Decimal(usd), *map(Decimal, beside)) == expected
    assert rate(Decimal(usd), *map(Decimal, beside)) == f"{expected}/h"


@pytest.mark.parametrize(("usd", "expected"), [("0.473", "$0.48"), ("2.5", "$2.50"), ("2.002", "$2.01")])
def test_a_ceiling_is_never_shown_lower_than_it_is(usd: str, expected: str) -> None:
    assert most(Decimal(usd)) == expected


@pytest.mark.parametrize(
    ("balance", "minimum", "expected"),
    [
        ("0.1", "0.105", ("$0.10", "$0.11")),
        ("0.107", "0.105", ("$0.107", "$0.105")),
        ("5", "0.0775", ("$5.00", "$0.078")),
        ("0.105", "0.105", ("$0.10", "$0.11")),
    ],
)
def test_a_balance_and_what_it_must_exceed(balance: str, minimum: str, expected: tuple[str, str]) -> None:
    assert balance_and_minimum(Decimal(balance), Decimal(minimum)) == expected


def test_whether_a_balance_suffices_can_be_read_from_the_figures_and_a_minimum_is_enough() -> None:
    dice = random.Random("balance")
    for _ in range(2000):
        balance, minimum = (Decimal(dice.randint(0, 40000)) / 100000 for _ in range(2))
        held, least = map(shown, balance_and_minimum(balance, minimum))
        assert (held > least) == (balance > minimum)
        assert least >= minimum


def test_a_column_adds_up_to_its_sum_in_one_style() -> None:
    dice = random.Random("sums")
    for _ in range(2000):
        amounts = [Decimal(dice.randint(1, 10 ** dice.randint(2, 7))) / 100000 for _ in range(dice.randint(1, 6))]
        texts, total = summed(amounts)
        assert sum(map(shown, texts)) == shown(total)
        assert len({len(text.partition(".")[2]) for text in (*texts, total)}) == 1
        assert abs(shown(total) - sum(amounts)) <= Decimal("0.005")
    assert summed([Decimal("0.0012345"), Decimal("0.00104")]) == (("$0.00123", "$0.00104"), "$0.00227")
    assert summed([Decimal("1.20"), Decimal("3.40")]) == (("$1.20", "$3.40"), "$4.60")
    assert summed([]) == ((), "$0.00")


def test_a_sum_is_seen_to_grow() -> None:
    assert [amount(Decimal(usd)) for usd in ("26.761", "0.0042", "-0.03")] == ["$26.76", "$0.0042", "-$0.0300"]
