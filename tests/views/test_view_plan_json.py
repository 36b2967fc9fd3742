"""The plan's document: its shape, its schema, and back to the same plan."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from view_samples import empty_plan, offer, rich_plan, sample_plan

from lium_plan.addresses import Address
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, Position, Severity, error
from lium_plan.kinds.pod.offers import Offer, Tier
from lium_plan.kinds.protocol import FieldChange, Verb
from lium_plan.planning.plan import Action, Cost, Drift, Market, Open, OutputValue, Plan, Summary
from lium_plan.views.document_schemas import document_schema_text
from lium_plan.views.plan_json import PRIVATE, failed_plan, plan_from_json, plan_to_json

SCHEMA_FILE = Path(__file__).parents[2] / "schemas" / "plan.schema.json"

texts = st.text(max_size=12)
money = st.decimals(min_value=0, max_value=9999, places=5)
moments = st.datetimes(min_value=datetime(2026, 1, 1), max_value=datetime(2030, 1, 1), timezones=st.just(UTC))
addresses = st.one_of(
    st.builds(Address.of, st.sampled_from(("volume", "credential", "template")), st.sampled_from(("a", "b-1"))),
    st.builds(Address.of, st.just("task"), st.just("t"), st.sampled_from(("0", "head"))),
    st.builds(
        Address.of, st.just("fleet"), st.just("f"), st.sampled_from(("0", "12")), st.sampled_from((None, "bootstrap"))
    ),
)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-1000, 1000) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
changes = st.builds(
    FieldChange, texts, values, values, st.booleans(), st.booleans(), st.sampled_from((None, "replace", "reboot"))
)
offers = st.builds(
    Offer,
    node_id=texts,
    gpu=texts,
    gpu_count=st.integers(1, 8),
    gpu_memory_gib=st.integers(1, 200),
    cpu=st.integers(1, 400),
    memory_gib=st.integers(1, 4000),
    disk_gb=st.integers(1, 9000),
    local_disk_gb=st.integers(1, 9000),
    price_per_hour_usd=money,
    price_per_gpu_hour_usd=money,
    location=texts,
    tier=st.sampled_from(Tier),
    download_mbps=st.none() | money,
    reliability=st.none() | money,
    cuda=st.none() | money,
    nvlink=st.none() | st.booleans(),
    reliable=st.none() | st.booleans(),
    pending_price_per_hour_usd=st.none() | money,
    pending_price_at=st.none() | moments,
)
actions = st.builds(
    Action,
    address=addresses,
    verb=st.sampled_from(Verb),
    title=texts,
    reason=texts,
    changes=st.lists(changes, max_size=3).map(tuple),
    offer=st.none() | offers,
    alternatives=st.lists(offers, max_size=2).map(tuple),
    ceiling_per_hour_usd=st.none() | money,
    price_per_hour_usd=st.none() | money,
    depends_on=st.lists(addresses, max_size=2).map(tuple),
    deposed_id=st.none() | texts,
    counted=st.booleans(),
)
diagnostics = st.builds(
    Diagnostic,
    st.sampled_from(Severity),
    texts,
    texts,
    st.none() | texts,
    st.none() | st.builds(Position, texts, st.integers(1, 99), st.integers(1, 99)),
    st.none() | texts,
    st.none() | texts,
)
outputs = st.builds(OutputValue, values, st.just(False), st.booleans()) | st.just(OutputValue(None, sensitive=True))
plans = st.builds(
    Plan,
    project=texts,
    stack=texts,
    lineage=st.none() | texts,
    serial=st.integers(0, 10**6),
    created_at=moments,
    destroying=st.booleans(),
    actions=st.lists(actions, max_size=3).map(tuple),
    drift=st.lists(st.builds(Drift, addresses, texts, st.lists(changes, max_size=2).map(tuple)), max_size=2).map(tuple),
    open=st.lists(st.builds(Open, addresses, moments, texts), max_size=2).map(tuple),
    summary=st.builds(Summary, *[st.integers(0, 99)] * 6),
    cost=st.builds(Cost, money, money, st.none() | money, st.none() | money),
    rate_limit_wait_s=st.floats(0, 1e6, allow_nan=False),
    market=st.none() | st.builds(Market, st.integers(0, 999), moments),
    outputs=st.dictionaries(texts, outputs, max_size=2),
    diagnostics=st.lists(diagnostics, max_size=2).map(tuple),
    refusal=st.sampled_from((None, ExitCode.UNSAFE, ExitCode.UNKNOWN_OUTCOME)),
    complete=st.booleans(),
    errored=st.booleans(),
    desired_digest=texts,
    account_id=st.none() | texts,
    server=texts,
    options=st.none() | st.dictionaries(texts, values, max_size=2),
)


def written(plan: Plan, *, saved: bool = False) -> Any:
    return json.loads(json.dumps(plan_to_json(plan, saved=saved)))


def schema() -> Any:
    return json.loads(SCHEMA_FILE.read_text(encoding="utf-8"))


@settings(max_examples=150, deadline=None)
@given(plans)
def test_a_saved_plan_reads_back_as_the_same_plan(plan: Plan) -> None:
    assert plan_from_json(written(plan, saved=True)) == plan


@settings(max_examples=60, deadline=None)
@given(plans)
def test_every_plan_satisfies_the_schema(plan: Plan) -> None:
    jsonschema.Draft202012Validator(schema()).validate(written(plan))


def test_the_schema_file_is_that_of_the_models() -> None:
    assert SCHEMA_FILE.read_text(encoding="utf-8") == document_schema_text("plan")


def test_the_schema_refuses_what_is_no_plan() -> None:
    document = written(sample_plan())
    document["actions"][0]["action"] = "explode"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(document, schema())


def test_the_document_has_exactly_the_documented_fields() -> None:
    document = written(sample_plan())
    assert list(document) == [
        "format_version", "project", "stack", "lineage", "serial", "created_at", "applyable", "complete", "errored",
        "actions", "drift", "open", "summary", "cost", "rate_limit_wait_s", "outputs", "diagnostics",
    ]  # fmt: skip
    rent = document["actions"][2]
    assert list(rent) == [
        "address", "kind", "action", "reason", "changes", "offer", "alternatives", "ceiling_per_hour_usd", "depends_on",
    ]  # fmt: skip
    assert list(rent["offer"]) == [
        "node_id", "gpu", "gpu_count", "gpu_memory_gib", "cpu", "memory_gib", "disk_gb", "local_disk_gb",
        "price_per_hour_usd", "price_per_gpu_hour_usd", "location", "spot", "tier", "download_mbps", "reliability",
        "cuda",
    ]  # fmt: skip
    assert (rent["kind"], rent["action"], rent["offer"]["price_per_hour_usd"]) == ("pod", "create", 1.99)
    assert document["created_at"] == "2026-09-10T10:41:07Z"
    assert document["cost"]["until_ttl_usd"] == 26.76


def test_applyable_and_complete() -> None:
    assert written(sample_plan())["applyable"] is True
    assert written(empty_plan())["applyable"] is False
    assert written(replace(sample_plan(), refusal=ExitCode.UNSAFE))["applyable"] is False
    assert written(replace(sample_plan(), complete=False))["complete"] is False


def test_a_sensitive_output_is_not_in_the_document() -> None:
    plan = replace(empty_plan(), outputs={"token": OutputValue("hunter2", sensitive=True)})
    assert "hunter2" not in json.dumps(written(plan, saved=True))


def test_a_plan_that_failed_has_every_field() -> None:
    document = failed_plan("default", (error("x", "y"),), "2026-09-10T10:41:07Z")
    jsonschema.validate(document, schema())
    assert (document["errored"], document["applyable"], document["actions"]) == (True, False, [])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda document: document.pop(PRIVATE), "no saved plan"),
        (lambda document: document.update(format_version="2.0"), "format is 2.0"),
        (lambda document: document["actions"].pop(), "damaged"),
        (lambda document: document["actions"][0].update(address="nonsense"), "damaged"),
        (lambda document: document["actions"][2]["offer"].pop("gpu"), "damaged"),
        (lambda document: document.update(created_at="yesterday"), "damaged"),
        (lambda document: document[PRIVATE].pop("market"), "damaged"),
        (lambda document: document.update(summary=3), "damaged"),
    ],
)
def test_damaged_plan_files_are_refused(damage: Any, word: str) -> None:
    document = written(sample_plan(), saved=True)
    damage(document)
    with pytest.raises(Failure) as caught:
        plan_from_json(document)
    assert caught.value.exit_code is ExitCode.ERROR
    assert word in str(caught.value)


def money_fields(document: Any) -> list[tuple[Any, str]]:
    """Where a saved plan says how much: the object and the field's name."""
    rent = next(number for number, row in enumerate(document["actions"]) if row["offer"] is not None)
    row, hidden, cost = document["actions"][rent], document[PRIVATE]["actions"][rent], document["cost"]
    return [
        *((cost, name) for name in cost if name.endswith("_usd") and name != "balance_usd"),
        *((place, name) for place in (row, row["offer"], hidden, hidden["offer"]) for name in place if "usd" in name),
    ]


@pytest.mark.parametrize("value", [-1, -0.5, float("inf"), float("nan"), "NaN", "much", True, [1]])
def test_what_is_no_amount_is_named_wherever_it_stands(value: Any) -> None:
    count = len(money_fields(written(sample_plan(), saved=True)))
    assert count >= 9
    for number in range(count):
        document = written(sample_plan(), saved=True)
        place, name = money_fields(document)[number]
        place[name] = value
        with pytest.raises(Failure, match=f"damaged: `{name}` is") as caught:
            plan_from_json(document)
        assert caught.value.exit_code is ExitCode.ERROR


def test_only_a_balance_may_be_below_zero() -> None:
    plan = replace(empty_plan(), cost=Cost(Decimal(0), Decimal(0), balance_usd=Decimal("-3.50")))
    assert plan_from_json(written(plan, saved=True)) == plan


@pytest.mark.parametrize("document", [None, [], "plan", 3, {}])
def test_other_json_is_refused(document: Any) -> None:
    with pytest.raises(Failure):
        plan_from_json(document)


def test_prices_stay_exact() -> None:
    plan = replace(
        empty_plan(),
        actions=(Action(Address.of("fleet", "a", "0"), Verb.CREATE, "", offer=offer("0.23517")),),
        cost=Cost(Decimal("0.1"), Decimal("0.33517")),
    )
    back = plan_from_json(written(plan, saved=True))
    assert back.actions[0].offer == plan.actions[0].offer
    assert back.cost == plan.cost


def test_a_big_plan_is_written_and_read_as_the_same() -> None:
    assert plan_from_json(written(rich_plan(), saved=True)) == rich_plan()
