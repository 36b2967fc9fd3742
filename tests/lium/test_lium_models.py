"""Rows are read whatever is missing, null, extra or oddly typed (contract §3, §9.1)."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lium_plan.lium.fields import MOST_USD, as_decimal, as_int, as_ports, as_text, as_time, as_usd
from lium_plan.lium.models import (
    Account,
    AccountEvent,
    Credential,
    Pod,
    RowError,
    SshKey,
    Statement,
    Template,
    Version,
    Volume,
)

POD = {
    "id": "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192",
    "executor_id": "aa11bb22-cc33-4d44-8e55-ff6677889900",
    "ports_mapping": {"22": 31022},
    "pod_name": "trainer",
    "ssh_connect_cmd": "ssh root@pod.example -p 31022",
    "gpu_name": "H100",
    "gpu_count": "1",
    "status": "RUNNING",
    "created_at": "2026-09-06T18:00:00",
    "removal_scheduled_at": "2026-09-07T18:00:00.250000",
    "price": 2.4,
    "template": {"id": "7c1d", "environment": {"TOKEN": "CANARY"}},
    "executor": {"id": "aa11", "price_per_gpu": None},
    "volume": {"id": "vol-1"},
    "something_new": [1, 2],
}
MODELS = (Account, AccountEvent, Credential, Pod, SshKey, Statement, Template, Version, Volume)


def test_a_pod_row() -> None:
    pod = Pod.from_row(POD)
    assert (pod.name, pod.status, pod.gpu_count, pod.ports) == ("trainer", "RUNNING", 1, {22: 31022})
    assert pod.price_per_hour_usd == Decimal("2.4")
    assert pod.created_at == datetime(2026, 9, 6, 18, tzinfo=UTC)
    assert pod.removal_at == datetime(2026, 9, 7, 18, 0, 0, 250_000, tzinfo=UTC)
    assert (pod.template_id, pod.volume_id) == ("7c1d", "vol-1")
    assert "CANARY" not in repr(pod)


def test_a_pod_row_with_nothing_but_an_id() -> None:
    pod = Pod.from_row({"id": POD["id"]})
    assert (pod.gpu_count, pod.price_per_hour_usd, pod.status, pod.ports) == (None, None, "", {})


def test_an_unknown_status_is_kept() -> None:
    assert Pod.from_row({"id": POD["id"], "status": "HIBERNATING"}).status == "HIBERNATING"


@pytest.mark.parametrize("model", [model for model in MODELS if model not in (AccountEvent, Version)])
@pytest.mark.parametrize("row", [None, [], "x", 5, {}, {"id": None}, {"id": ""}, {"id": []}, {"pod": None}])
def test_e8_what_is_no_row_is_refused(model: type[Pod], row: object) -> None:
    with pytest.raises(RowError):
        model.from_row(row)


def test_a_password_is_not_shown() -> None:
    credential = Credential.from_row({"id": "c", "username": "u", "password": "CANARY"})
    assert credential.password == "CANARY"
    assert "CANARY" not in repr(credential)


def test_a_template_with_the_nulls_of_old_rows() -> None:
    row = {"id": "t", "volumes": None, "environment": None, "entrypoint": None, "internal_ports": None}
    template = Template.from_row(row)
    assert (template.volumes, template.environment, template.entrypoint) == ((), {}, "")
    listed = Template.from_row({"id": "t", "entrypoint": ["/bin/sh", "-c"], "internal_ports": ["22", 8000, "x"]})
    assert (listed.entrypoint, listed.internal_ports) == ("/bin/sh -c", (22, 8000))


@pytest.mark.parametrize(("value", "removed"), [(True, True), ("true", False), (1, False), (None, False)])
def test_only_a_literal_true_says_that_a_pod_is_removed(value: object, removed: bool) -> None:
    assert Statement.from_row({"pod_id": "p", "removed": value}).removed is removed


def test_version_without_features_has_none() -> None:
    assert Version.from_row({}).features == frozenset()
    assert Version.from_row({"features": ["rent_idempotency", None, "new"]}).features == {
        "rent_idempotency",
        "new",
    }


def test_an_account_knows_its_workspace() -> None:
    account = Account.from_row({"id": "a", "balance": 12.5, "workspace": {"id": "w", "name": "lab"}})
    assert (account.workspace_id, account.balance_usd, account.workspace_name) == (
        "w",
        Decimal("12.5"),
        "lab",
    )


TIMES = {
    "2026-09-06T18:00:00": datetime(2026, 9, 6, 18, tzinfo=UTC),
    "2026-09-06T18:00:00.5": datetime(2026, 9, 6, 18, 0, 0, 500_000, tzinfo=UTC),
    "2026-09-06T18:00:00Z": datetime(2026, 9, 6, 18, tzinfo=UTC),
    "2026-09-06T20:00:00+02:00": datetime(2026, 9, 6, 18, tzinfo=UTC),
    "0001-01-01T00:00:00+14:00": None,
    "0001-01-01T00:00:00Z": None,
    "1999-12-31T23:59:59Z": None,
    "2000-01-01T00:00:00Z": datetime(2000, 1, 1, tzinfo=UTC),
    "2199-12-31T23:59:59Z": datetime(2199, 12, 31, 23, 59, 59, tzinfo=UTC),
    "9999-12-31T23:59:59Z": None,
    "yesterday": None,
    "": None,
    None: None,
    5: None,
}


@pytest.mark.parametrize("value", TIMES)
def test_times(value: object) -> None:
    assert as_time(value) == TIMES[value]  # type: ignore[index]


@pytest.mark.parametrize(
    ("value", "number"),
    [
        ("1", 1),
        (1, 1),
        (1.0, 1),
        ("2.0", 2),
        (1.5, None),
        (True, None),
        ("x", None),
        (None, None),
        ("9" * 50, None),
    ],
)
def test_whole_numbers(value: object, number: int | None) -> None:
    assert as_int(value) == number


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "NaN", "Infinity", 10**200, "1e999999", True, [], ""])
def test_what_is_no_amount(value: object) -> None:
    assert as_decimal(value) is None


@pytest.mark.parametrize(
    ("value", "usd"),
    [
        (0.1, Decimal("0.1")),
        ("2.40", Decimal("2.40")),
        ("1e39", MOST_USD),
        (1e300, MOST_USD),
        ("-1e999", -MOST_USD),
        ("NaN", None),
        (None, None),
    ],
)
def test_an_absurd_amount_of_money_can_be_reckoned_with(value: object, usd: Decimal | None) -> None:
    assert as_usd(value) == usd


@pytest.mark.parametrize(("value", "text"), [("\ud800 pulling", "? pulling"), ("é😀", "é😀"), ("", None), (5, "5")])
def test_a_text_can_be_encoded(value: object, text: str | None) -> None:
    assert as_text(value) == text


@pytest.mark.parametrize("id", ["\ud800", "2026-11-30T12:00:00Z", "p", "../users/me", 5])
def test_a_pods_id_is_one_that_the_server_gives(id: object) -> None:
    """It becomes a record's."""
    with pytest.raises(RowError):
        Pod.from_row({**POD, "id": id})


def test_an_amount_has_the_digits_that_were_sent() -> None:
    assert str(as_decimal(0.1)) == "0.1"


@pytest.mark.parametrize(
    "value", ['{"22": 31022}', {"22": "31022"}, {"22": 31022, "x": 1, "80": None, "0": 5, "81": 99999}]
)
def test_ports_in_all_their_forms(value: object) -> None:
    assert as_ports(value) == {22: 31022}


@pytest.mark.parametrize("value", [None, {}, "", "[1]", "{", "[" * 100_000, 7])
def test_no_ports(value: object) -> None:
    assert as_ports(value) == {}


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.sampled_from(["", "1", "x", "true", "2026-01-01"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["id", "a", "22"]), inner, max_size=3),
    max_leaves=5,
)
keys = st.sampled_from(sorted({*POD, "environment", "entrypoint", "internal_ports", "workspace", "features", "pod_id"}))


@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
@given(row=st.dictionaries(keys, anything), model=st.sampled_from(MODELS))
def test_a_row_with_ids_is_always_read(row: dict[str, object], model: type[Pod]) -> None:
    model.from_row({**row, "id": POD["id"], "pod_id": "x"})
