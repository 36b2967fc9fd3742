"""State, offers, status, doctor and audit log: for people and for machines."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from view_samples import AT, LINEAGE, offer, state

from lium_plan.addresses import parse
from lium_plan.answers import Check, GpuUse, OffersAnswer, PodStatus, StatusAnswer
from lium_plan.kinds.pod.offers import Skipped
from lium_plan.planning.plan import OutputValue
from lium_plan.state.events import AuditEvent
from lium_plan.views.audit_view import audit_json, audit_text
from lium_plan.views.columns import columns
from lium_plan.views.doctor_view import doctor_json, doctor_text
from lium_plan.views.document_schemas import document_schema
from lium_plan.views.offers_view import Grouping, groups_text, offers_csv, offers_json, offers_text
from lium_plan.views.paint import Paint
from lium_plan.views.state_json import no_state_json, state_json
from lium_plan.views.state_text import addresses, resource_text, state_text
from lium_plan.views.status_view import status_json, status_text

GOLDEN = Path(__file__).parent / "golden"
OUTPUTS = {"endpoint": OutputValue("http://203.0.113.4:40000"), "later": OutputValue(None, unknown=True)}
MARKET = OffersAnswer(
    AT,
    84,
    (offer("0.24", gpu="RTX4090"), offer(), offer(node="b", count=4)),
    (Skipped("n-1", "no country"),),
    (("max_price", 12), ("regions", 3)),
)
POD = PodStatus(
    "fleet.a[0]", "p-1", "lp-x", "RUNNING", "ready", 4000, Decimal("1.99"), Decimal("2.21"), None, ("gone",), "n-1",
    "H100", 2, GpuUse(97, 70000, 81559),
)  # fmt: skip


def test_state_on_the_screen() -> None:
    assert state_text(state(), OUTPUTS) == (GOLDEN / "state.txt").read_text(encoding="utf-8")


def test_state_document() -> None:
    document = json.loads(json.dumps(state_json(state(), OUTPUTS)))
    assert list(document) == [
        "format_version", "project", "stack", "lineage", "serial", "account_id", "resources", "open", "released",
        "outputs", "diagnostics",
    ]  # fmt: skip
    assert (document["lineage"], document["serial"]) == (LINEAGE, 7)
    pod = next(row for row in document["resources"] if row["address"] == "fleet.trainers[0]")
    assert list(pod) == ["address", "kind", "id", "status", "attributes", "depends_on"]
    assert pod["attributes"]["price_per_hour_usd"] == 1.99
    assert pod["depends_on"] == ["volume.datasets"]
    assert (pod["attributes"]["cuda"], pod["attributes"]["download_mbps"]) == (12.8, 4395.4)
    entry = document["open"][0]["entry"]
    assert entry["op"] == "rent"
    assert entry["data"] == {
        "node": "n-1", "ceiling_per_hour_usd": 0.176, "offer": {"price_per_hour_usd": 0.16, "cuda": 12.8},
    }  # fmt: skip
    assert document["outputs"]["later"] == {"value": None, "sensitive": False, "unknown": True}


def test_state_documents_satisfy_their_schema_and_damage_does_not() -> None:
    validator = jsonschema.Draft202012Validator(closed(document_schema("show")))
    made = json.loads(json.dumps(state_json(state(), OUTPUTS)))
    unreadable = {"format_version": "1.0", **no_state_json("default"), "diagnostics": []}
    for sound in (made, unreadable):
        assert [error.message for error in validator.iter_errors(sound)] == []
    for damaged in ({**made, "serial": "7"}, {**made, "open": [{"address": "x"}]}, {"project": "lab"}):
        assert list(validator.iter_errors(damaged))


def closed(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema that also forbids what it does not describe."""
    parts = {name: {**part, "additionalProperties": False} for name, part in schema["$defs"].items()}
    return {**schema, "$defs": parts, "additionalProperties": False}


def test_a_pods_status_is_that_of_what_it_was_set_up_for() -> None:
    rows = [(row["address"], row["status"]) for row in state_json(state(), {})["resources"]]
    assert rows == [
        ("fleet.trainers[0]", "bootstrap-failed"),
        ("fleet.trainers[0].bootstrap", "failed"),
        ("fleet.trainers[2]", "ready"),
        ("fleet.trainers[2]", "deposed"),
        ("fleet.trainers[10]", "pending"),
        ("volume.datasets", "ready"),
    ]


def test_a_state_that_cannot_be_read_has_every_field() -> None:
    whole = set(state_json(state(), {}))
    assert set(no_state_json("default")) == whole - {"format_version", "diagnostics"}


def test_addresses_are_listed_once_and_numbers_in_order() -> None:
    assert addresses(state()) == (
        "fleet.trainers[0]",
        "fleet.trainers[0].bootstrap",
        "fleet.trainers[2]",
        "fleet.trainers[10]",
        "volume.datasets",
    )


def test_one_resource() -> None:
    held = state()
    record = held.record(parse("fleet.trainers[0]"))
    assert record is not None
    text = resource_text(record, held)
    assert "  status: bootstrap-failed\n" in text
    assert '  ports: {"8000": 40000}\n' in text
    assert "  depends on: volume.datasets\n" in text


def test_offers_on_the_screen() -> None:
    text = offers_text(MARKET, limit=2, skipped=True)
    assert "4×H100" not in text
    assert "3 offers on 84 nodes, prices of 10:41:07Z; 1 more not shown." in text
    assert "Left out by: max_price 12, regions 3." in text
    assert "n-1           no country" in text


def test_offers_in_groups() -> None:
    lines = groups_text(MARKET, Grouping.GPU).splitlines()
    assert lines[1].split() == ["RTX4090", "1", "$0.24", "$0.24", "1", "us-ms"]
    assert lines[2].split() == ["H100", "2", "$1.99", "$1.99", "4", "us-ms"]
    assert groups_text(MARKET, Grouping.REGION).splitlines()[1].split()[0] == "us-ms"
    assert groups_text(MARKET, Grouping.GPU, limit=1).splitlines() == groups_text(MARKET, Grouping.GPU).splitlines()[:2]
    grouped = offers_json(MARKET, limit=1, grouping=Grouping.GPU)
    assert [group["gpu"] for group in grouped["groups"]] == ["RTX4090"]


def test_offers_document_and_csv_have_the_same_columns() -> None:
    document = json.loads(json.dumps(offers_json(MARKET, limit=2)))
    assert list(document) == ["format_version", "generated_at", "offers", "skipped", "diagnostics"]
    assert len(document["offers"]) == 2
    rows = list(csv.DictReader(io.StringIO(offers_csv(MARKET))))
    assert list(rows[0]) == list(document["offers"][0])
    assert (rows[0]["spot"], rows[0]["cuda"], rows[2]["price_per_hour_usd"]) == ("false", "", "7.96")


def test_status() -> None:
    answer = StatusAnswer((POD,), Decimal("1.99"), Decimal("2.21"))
    text = status_text(answer)
    assert "97% 70000/81559MiB" in text
    assert "1h 07m" in text or "1h 06m" in text
    assert text.endswith("1 pod, $1.99/h, $2.21 so far.\n")
    document = json.loads(json.dumps(status_json(answer)))
    assert set(document) == {"format_version", "pods", "tasks", "total_per_hour_usd", "total_spent_usd", "diagnostics"}
    assert list(document["pods"][0])[:13] == [
        "address", "id", "name", "phase", "status", "age_s", "price_per_hour_usd", "spent_usd", "ttl_left_s", "drift",
        "node_id", "gpu", "gpu_count",
    ]  # fmt: skip
    assert status_text(StatusAnswer((), Decimal(0), Decimal(0))) == "No pods.\n"


def test_doctor() -> None:
    checks = (Check("key", True, "valid"), Check("ssh key", False, "none", "ssh-keygen"), Check("clock", None, "?"))
    assert doctor_text(checks, {"stack": "default (--stack)"}) == (
        "ok   key      valid\n"
        "FAIL ssh key  none\n"
        "              cure: ssh-keygen\n"
        "?    clock    ?\n"
        "\nSettings:\n  stack  default (--stack)\n"
    )
    assert doctor_json(checks)["checks"][1] == {"name": "ssh key", "ok": False, "detail": "none", "cure": "ssh-keygen"}


def test_audit_log() -> None:
    event = AuditEvent(1, "0b6f2a", AT, "r1", "me@host", "fleet.a[0]", "rent", "p-1", "1.99", "done")
    assert audit_json((event,))["events"] == [
        {
            "at": "2026-09-10T10:41:07Z",
            "run": "r1",
            "who": "me@host",
            "address": "fleet.a[0]",
            "action": "rent",
            "id": "p-1",
            "price_per_hour_usd": 1.99,
            "result": "done",
        }
    ]
    assert "rent    done    $1.99  p-1  me@host" in audit_text((event,))
    assert audit_text(()) == "Nothing was done yet.\n"


ID = "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"


def test_a_narrow_terminal_gets_short_ids_and_then_fewer_columns() -> None:
    headers, rows = ("WHAT", "ID", "LEAST", "LAST"), (("a" * 20, ID, "x" * 30, "y" * 10),)
    whole = columns(headers, rows, least=(2, 3))
    assert ID in whole
    assert "x" * 30 in whole
    assert columns(headers, rows, least=(2, 3), paint=Paint(width=200)) == whole
    shorter = columns(headers, rows, least=(2, 3), paint=Paint(width=80))
    assert shorter.splitlines()[1].split() == ["a" * 20, "0b6f2a7e", "x" * 30, "y" * 10]
    narrow = columns(headers, rows, least=(2, 3), paint=Paint(width=45))
    assert narrow.splitlines()[0].split() == ["WHAT", "ID", "LAST"]
    assert max(map(len, narrow.splitlines())) <= 45


@pytest.mark.parametrize("width", [80, 100])
def test_what_is_listed_fits_a_terminal(width: int) -> None:
    pod = replace(POD, id=ID, node_id=ID, drift=("price: $1.80/h -> $1.99/h",))
    screen = Paint(width=width)
    status = status_text(StatusAnswer((pod,), Decimal("1.99"), Decimal("2.21")), screen)
    offers = offers_text(replace(MARKET, offers=tuple(replace(offer, node_id=ID) for offer in MARKET.offers)), screen)
    table = state_text(state(), {}, screen).split("\n\n")[1]
    for text in (status, offers, table):
        assert max(map(len, text.splitlines())) <= width


def test_what_is_not_billed_has_no_price() -> None:
    gone = replace(POD, status="gone", price_per_hour_usd=Decimal(0))
    assert "$0" not in status_text(StatusAnswer((gone,), Decimal(0), Decimal("2.21"))).splitlines()[1]
