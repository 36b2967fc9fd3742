"""Plans, reports and states that the views are shown with."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal

from lium_plan.addresses import parse
from lium_plan.diagnostics import Position, error, warning
from lium_plan.engine.events import ActionResult, Proof, ResultKind, RunReport
from lium_plan.kinds.pod.offers import Offer, Tier
from lium_plan.kinds.protocol import FieldChange, OpenEffect, Record, Verb
from lium_plan.planning.plan import Action, Cost, Drift, Market, Open, OutputValue, Plan, Summary
from lium_plan.state.entries import Released
from lium_plan.state.model import State, new_state

AT = datetime(2026, 9, 10, 10, 41, 7, tzinfo=UTC)
LINEAGE = "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"


def offer(price: str = "1.99", *, gpu: str = "H100", node: str = "a", count: int = 1) -> Offer:
    return Offer(
        node_id=f"ebdfdbe2-875a-4caa-8eea-1ab5c2a763e{node}",
        gpu=gpu,
        gpu_count=count,
        gpu_memory_gib=80,
        cpu=24,
        memory_gib=249,
        disk_gb=266,
        local_disk_gb=533,
        price_per_hour_usd=Decimal(price) * count,
        price_per_gpu_hour_usd=Decimal(price),
        location="us-ms",
        tier=Tier.SECURE,
        download_mbps=Decimal("900"),
    )


def empty_plan() -> Plan:
    return Plan(
        project="llm-lab",
        stack="default",
        lineage=None,
        serial=0,
        created_at=AT,
        destroying=False,
        actions=(),
        drift=(),
        open=(),
        summary=Summary(),
        cost=Cost(Decimal(0), Decimal(0)),
        rate_limit_wait_s=0,
        market=None,
        outputs={},
    )


def sample_plan() -> Plan:
    """The plan of the documentation's sample."""
    actions = (
        Action(parse("volume.datasets"), Verb.CREATE, "S3 volume, no fixed size\tusage-billed"),
        Action(parse("template.torch"), Verb.CREATE, "pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime"),
        Action(
            parse("fleet.trainers[0]"),
            Verb.CREATE,
            "1×H100",
            offer=offer(),
            alternatives=(offer("2.05", node="b"),),
            ceiling_per_hour_usd=Decimal("2.50"),
            price_per_hour_usd=Decimal("1.99"),
            depends_on=(parse("template.torch"), parse("volume.datasets")),
        ),
        Action(
            parse("fleet.trainers[0].bootstrap"),
            Verb.RUN,
            "2 commands, 1 file",
            depends_on=(parse("fleet.trainers[0]"),),
        ),
        Action(parse("fleet.api[0]"), Verb.UPDATE, "1×H100", changes=(FieldChange("ttl", "4h", "6h"),)),
        Action(
            parse("fleet.api[1]"),
            Verb.REPLACE,
            "1×H100",
            changes=(FieldChange("resources.gpu", "RTX4090", "H100", forces="replace"),),
        ),
    )
    return replace(
        empty_plan(),
        actions=actions,
        summary=Summary(create=3, update=1, replace=1, run=1),
        cost=Cost(Decimal("0.72"), Decimal("4.46"), Decimal("12"), Decimal("26.76")),
        rate_limit_wait_s=5,
        market=Market(84, AT),
    )


def rich_plan() -> Plan:
    """Everything that a plan can show, and enough of one kind to fold."""
    actions = [Action(parse("template.torch"), Verb.CREATE, "pytorch/pytorch:2.4.0")]
    for number in range(64):
        actions += [
            Action(
                parse(f"fleet.workers[{number}]"),
                Verb.CREATE,
                "1×H100",
                offer=offer("1.99" if number % 2 else "2.0547"),
                alternatives=(offer("2.10"),),
                ceiling_per_hour_usd=Decimal("2.5"),
            ),
            Action(parse(f"fleet.workers[{number}].bootstrap"), Verb.RUN, "2 commands, 1 file"),
        ]
    actions += [
        Action(
            parse(f"fleet.old[{number}]"),
            Verb.DESTROY,
            "1×RTX4090 24GB",
            reason="scale down: the newest first",
            price_per_hour_usd=Decimal("0.24"),
        )
        for number in range(10)
    ]
    actions += [
        Action(parse("fleet.old[0].bootstrap"), Verb.FORGET, "2 commands"),
        Action(parse("fleet.legacy[0]"), Verb.DESTROY, "1×A100", price_per_hour_usd=Decimal("1.10")),
        Action(
            parse("fleet.api[0]"),
            Verb.REBOOT,
            "1×H100",
            reason="template.torch is replaced",
            changes=(
                FieldChange("template", "lp-ab12cd-0011", None, unknown=True),
                FieldChange("env.TOKEN", None, None, sensitive=True),
                FieldChange("ports", [22, 8000, 1, 2, 3, 4, 5, 6], [22], forces="reboot"),
            ),
        ),
        Action(
            parse("fleet.api[1]"),
            Verb.REPLACE,
            "1×H100",
            changes=(
                FieldChange("resources.gpu", "RTX4090", "H100", forces="replace"),
                FieldChange("regions", ["us"], ["jp"], forces="replace"),
            ),
            offer=offer(),
            ceiling_per_hour_usd=Decimal("2.5"),
            alternatives=(offer("2.1"),),
        ),
        Action(parse("fleet.api[2]"), Verb.CREATE, "1×H100", reason="TTL ended 2 h ago", offer=offer("0.23517")),
        Action(parse("fleet.x[0]"), Verb.MOVE, "moved from fleet.y[0]"),
        Action(parse("fleet.z[0]"), Verb.ADOPT, "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"),
        Action(
            parse("fleet.d[0]"),
            Verb.DESTROY,
            "1×H100",
            reason="replaced",
            deposed_id="0b6f2a7e-4c1d",
            price_per_hour_usd=Decimal("1.99"),
        ),
    ]
    return replace(
        empty_plan(),
        lineage=LINEAGE,
        serial=3,
        actions=tuple(actions),
        open=(Open(parse("fleet.workers[9]"), AT - timedelta(hours=1), "look for the pod by its name"),),
        drift=(
            Drift(parse("fleet.gone[0]"), "gone"),
            Drift(parse("fleet.api[0]"), "ttl-lost", (FieldChange("ttl", "4h", None),)),
        ),
        cost=Cost(Decimal("0.72"), Decimal("130.46")),
        summary=Summary(create=66, reboot=1, replace=1, destroy=12, run=64),
        outputs={"endpoint": OutputValue(None, unknown=True)},
        rate_limit_wait_s=245.0,
        market=Market(84, AT),
        diagnostics=(
            warning(
                "no-ttl",
                "fleet.workers has no ttl",
                address="fleet.workers",
                position=Position("lium.yaml", 12, 3),
                source_line="  workers:",
                hint="add ttl: 6h",
            ),
        ),
    )


def report() -> RunReport:
    cause = error("no-balance", "the account's balance is used up", hint="top it up at https://lium.io")
    results = (
        ActionResult(parse("volume.datasets"), Verb.CREATE, ResultKind.DONE, 0.4),
        ActionResult(parse("fleet.trainers[0]"), Verb.CREATE, ResultKind.FAILED, 2.2, cause=cause),
        ActionResult(parse("fleet.trainers[1]"), Verb.CREATE, ResultKind.FAILED, 2.4, cause=cause),
        ActionResult(
            parse("fleet.trainers[0].bootstrap"),
            Verb.RUN,
            ResultKind.SKIPPED,
            0,
            because=parse("fleet.trainers[0]"),
        ),
        ActionResult(
            parse("fleet.api[0]"),
            Verb.DESTROY,
            ResultKind.UNKNOWN,
            61,
            cause=error("unknown-outcome", "no answer", address="fleet.api[0]"),
        ),
        ActionResult(parse("fleet.api[1]"), Verb.UPDATE, ResultKind.INTERRUPTED, 1.5),
    )
    return RunReport(
        run="r1",
        results=results,
        running_per_hour_usd=Decimal("3.98"),
        running_pods=2,
        proofs=(
            Proof("fleet.old[0]", "5a5c", True, AT, Decimal("1.2345")),
            Proof("fleet.old[1]", "6b6d", False, price_per_hour_usd=Decimal("1.99")),
        ),
        exit_code=8,
        next_command="lium-plan apply",
    )


BEGUN = {
    "node": "n-1",
    "ceiling_per_hour_usd": "0.17600",
    "offer": {"price_per_hour_usd": "0.16", "cuda": "12.8"},
}
"""Of a rent, as the journal has it."""


def state() -> State:
    records = (
        Record(parse("volume.datasets"), "v-1", "ready", {}, {"name": "datasets-lp"}),
        Record(
            parse("fleet.trainers[0]"),
            "p-1",
            "ready",
            {"bootstrapped": True},
            {
                "pod_name": "lp-x",
                "gpu": "H100",
                "gpu_count": 1,
                "price_per_hour_usd": "1.99",
                "cuda": "12.8",
                "download_mbps": "4395.4",
                "host": "203.0.113.4",
                "ssh_port": 2222,
                "ports": {"8000": 40000},
            },
            (parse("volume.datasets"),),
        ),
        Record(parse("fleet.trainers[0].bootstrap"), None, "failed"),
        Record(parse("fleet.trainers[2]"), "p-2", "ready", {"bootstrapped": False}, {"gpu": "H100", "gpu_count": 1}),
        Record(parse("fleet.trainers[10]"), "p-3", "ready", {"bootstrapped": True}, {"gpu": "H100", "gpu_count": 1}),
        Record(parse("fleet.trainers[2]"), "p-0", "ready", {}, {}, deposed=True),
    )
    return replace(
        new_state("llm-lab", "default", lineage=LINEAGE, salt=b"x" * 32),
        serial=7,
        records={record.key: record for record in records},
        open={3: OpenEffect(3, parse("fleet.trainers[3]"), "rent", AT, "r1", BEGUN)},
        released=(Released("volume", "v-9", "old", AT),),
    )
