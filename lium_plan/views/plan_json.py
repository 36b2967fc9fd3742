"""A plan as a document, and back.

The public part is what scripts read. A saved plan also has a private part, under `PRIVATE`, with what only
`apply PLANFILE` needs; it repeats nothing of the public part, so the two cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from lium_plan.addresses import AddressError, parse
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error
from lium_plan.kinds.pod.offers import Offer
from lium_plan.kinds.protocol import FieldChange, Verb
from lium_plan.planning.plan import Action, Cost, Drift, Market, Open, OutputValue, Plan, Summary
from lium_plan.views.diagnostics_json import diagnostic_from_json, diagnostics_json
from lium_plan.views.documents import (
    FORMAT_VERSION,
    ActionRow,
    ChangeRow,
    Document,
    OfferRow,
    OutputRow,
    PlanDocument,
)
from lium_plan.views.money import number, optional_number
from lium_plan.views.offer_rows import NotANumber, decimal, offer_from_json, offer_json, optional_decimal
from lium_plan.views.times import optional_stamp, parse_stamp, stamp

PRIVATE = "_private"


def plan_to_json(plan: Plan, *, saved: bool = False) -> Document:
    """The plan's document. `saved` adds the private part, which `plan_from_json` needs."""
    counts, cost = plan.summary, plan.cost
    body: PlanDocument = {
        "format_version": FORMAT_VERSION,
        "project": plan.project,
        "stack": plan.stack,
        "lineage": plan.lineage,
        "serial": plan.serial,
        "created_at": stamp(plan.created_at),
        "applyable": plan.applyable,
        "complete": plan.complete,
        "errored": plan.errored,
        "actions": [_action_json(action) for action in plan.actions],
        "drift": [
            {"address": str(item.address), "status": item.status, "changes": _changes_json(item.changes)}
            for item in plan.drift
        ],
        "open": [{"address": str(item.address), "since": stamp(item.since), "will": item.will} for item in plan.open],
        "summary": {
            "create": counts.create,
            "update": counts.update,
            "reboot": counts.reboot,
            "replace": counts.replace,
            "destroy": counts.destroy,
            "run": counts.run,
        },
        "cost": {
            "before_per_hour_usd": number(cost.before_per_hour_usd),
            "after_per_hour_usd": number(cost.after_per_hour_usd),
            "ceiling_per_hour_usd": optional_number(cost.ceiling_per_hour_usd),
            "until_ttl_usd": optional_number(cost.until_ttl_usd),
            "balance_usd": optional_number(cost.balance_usd),
            "balance_floor_usd": optional_number(cost.balance_floor_usd),
            "runway_s": cost.runway_s,
        },
        "rate_limit_wait_s": plan.rate_limit_wait_s,
        "outputs": outputs_json(plan.outputs),
        "diagnostics": diagnostics_json(plan.diagnostics),
    }
    document = cast(Document, body)
    return {**document, PRIVATE: _private(plan)} if saved else document


def outputs_json(outputs: Mapping[str, OutputValue]) -> dict[str, OutputRow]:
    """A sensitive output's value is shown by `output NAME` only."""
    return {
        name: {
            "value": None if output.sensitive else _plain(output.value),
            "sensitive": output.sensitive,
            "unknown": output.unknown,
        }
        for name, output in outputs.items()
    }


def failed_plan(
    stack: str,
    diagnostics: Sequence[Diagnostic],
    created_at: str,
    *,
    project: str = "",
    lineage: str | None = None,
    serial: int = 0,
) -> Document:
    """The document of a plan that could not be made: every field there, and in it what is known all the same."""
    body: PlanDocument = {
        "format_version": FORMAT_VERSION,
        "project": project,
        "stack": stack,
        "lineage": lineage,
        "serial": serial,
        "created_at": created_at,
        "applyable": False,
        "complete": False,
        "errored": True,
        "actions": [],
        "drift": [],
        "open": [],
        "summary": {"create": 0, "update": 0, "reboot": 0, "replace": 0, "destroy": 0, "run": 0},
        "cost": {
            "before_per_hour_usd": 0,
            "after_per_hour_usd": 0,
            "ceiling_per_hour_usd": None,
            "until_ttl_usd": None,
            "balance_usd": None,
            "balance_floor_usd": None,
            "runway_s": None,
        },
        "rate_limit_wait_s": 0,
        "outputs": {},
        "diagnostics": diagnostics_json(diagnostics),
    }
    return cast(Document, body)


def _plain(value: Any) -> Any:
    """Tuples and read-only mappings as lists and dicts, so that a document equals what is read back."""
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return value


def _action_json(action: Action) -> ActionRow:
    return {
        "address": str(action.address),
        "kind": cast(Any, action.address.kind),
        "action": action.verb.value,
        "reason": action.reason,
        "changes": _changes_json(action.changes),
        "offer": offer_json(action.offer) if action.offer is not None else None,
        "alternatives": [offer_json(offer) for offer in action.alternatives],
        "ceiling_per_hour_usd": optional_number(action.ceiling_per_hour_usd),
        "depends_on": [str(address) for address in action.depends_on],
    }


def _changes_json(changes: Sequence[FieldChange]) -> list[ChangeRow]:
    return [
        {
            "path": change.path,
            "before": _plain(change.before),
            "after": _plain(change.after),
            "unknown": change.unknown,
            "sensitive": change.sensitive,
        }
        for change in changes
    ]


# --- the private part ------------------------------------------------------------------------------------------


def _private(plan: Plan) -> Document:
    return {
        "destroying": plan.destroying,
        "desired_digest": plan.desired_digest,
        "account_id": plan.account_id,
        "server": plan.server,
        "options": _plain(plan.options),
        "refusal": None if plan.refusal is None else int(plan.refusal),
        "market": None if plan.market is None else {"nodes": plan.market.nodes, "read_at": stamp(plan.market.read_at)},
        "actions": [_action_private(action) for action in plan.actions],
        "drift_forces": [[change.forces for change in item.changes] for item in plan.drift],
        "source_lines": [item.source_line for item in plan.diagnostics],
    }


def _action_private(action: Action) -> Document:
    return {
        "title": action.title,
        "price_per_hour_usd": None if action.price_per_hour_usd is None else str(action.price_per_hour_usd),
        "deposed_id": action.deposed_id,
        "counted": action.counted,
        "source": action.source,
        "releases": action.releases,
        "lacks_offer": action.lacks_offer,
        "forces": [change.forces for change in action.changes],
        "offer": None if action.offer is None else _offer_private(action.offer),
        "alternatives": [_offer_private(offer) for offer in action.alternatives],
    }


def _offer_private(offer: Offer) -> Document:
    pending = offer.pending_price_per_hour_usd
    return {
        "nvlink": offer.nvlink,
        "reliable": offer.reliable,
        "pending_price_per_hour_usd": None if pending is None else str(pending),
        "pending_price_at": optional_stamp(offer.pending_price_at),
    }


# --- back ------------------------------------------------------------------------------------------------------


def plan_from_json(document: Document) -> Plan:
    """The plan that `plan_to_json(…, saved=True)` wrote. Raises `Failure` (exit 1) for anything else."""
    if not isinstance(document, dict) or PRIVATE not in document:
        raise _not_a_plan("it is no saved plan")
    version = document.get("format_version")
    if version != FORMAT_VERSION:
        raise _not_a_plan(f"its format is {version}, this version reads {FORMAT_VERSION}")
    try:
        return _read(cast(PlanDocument, document), document[PRIVATE])
    except KeyError as fault:
        raise _not_a_plan(f"it is damaged: `{fault.args[0]}` is missing") from fault
    except (NotANumber, AddressError) as fault:
        raise _not_a_plan(f"it is damaged: {fault}") from fault
    except (TypeError, ValueError, AttributeError, IndexError, ArithmeticError) as fault:
        raise _not_a_plan("it is damaged") from fault


def _not_a_plan(reason: str) -> Failure:
    return Failure(
        ExitCode.ERROR,
        (error("bad-plan-file", f"the plan cannot be read: {reason}", hint="make it anew: lium-plan plan --out FILE"),),
    )


def _read(document: PlanDocument, private: Mapping[str, Any]) -> Plan:
    market = private["market"]
    cost = document["cost"]
    return Plan(
        project=document["project"],
        stack=document["stack"],
        lineage=document["lineage"],
        serial=document["serial"],
        created_at=parse_stamp(document["created_at"]),
        destroying=private["destroying"],
        actions=tuple(
            _read_action(row, hidden) for row, hidden in zip(document["actions"], private["actions"], strict=True)
        ),
        drift=tuple(
            Drift(parse(row["address"]), row["status"], _read_changes(row["changes"], forces))
            for row, forces in zip(document["drift"], private["drift_forces"], strict=True)
        ),
        open=tuple(Open(parse(row["address"]), parse_stamp(row["since"]), row["will"]) for row in document["open"]),
        summary=Summary(**document["summary"]),
        cost=Cost(
            before_per_hour_usd=decimal(cost, "before_per_hour_usd"),
            after_per_hour_usd=decimal(cost, "after_per_hour_usd"),
            ceiling_per_hour_usd=optional_decimal(cost, "ceiling_per_hour_usd"),
            until_ttl_usd=optional_decimal(cost, "until_ttl_usd"),
            balance_usd=optional_decimal(cost, "balance_usd", signed=True),
            balance_floor_usd=optional_decimal(cost, "balance_floor_usd"),
            runway_s=cost["runway_s"],
        ),
        rate_limit_wait_s=document["rate_limit_wait_s"],
        market=None if market is None else Market(market["nodes"], parse_stamp(market["read_at"])),
        outputs={
            name: OutputValue(row["value"], row["sensitive"], row["unknown"])
            for name, row in document["outputs"].items()
        },
        diagnostics=tuple(
            diagnostic_from_json(row, line)
            for row, line in zip(document["diagnostics"], private["source_lines"], strict=True)
        ),
        refusal=None if private["refusal"] is None else ExitCode(private["refusal"]),
        complete=document["complete"],
        errored=document["errored"],
        desired_digest=private["desired_digest"],
        account_id=private["account_id"],
        server=private["server"],
        options=private["options"],
    )


def _read_action(row: ActionRow, hidden: Mapping[str, Any]) -> Action:
    offer = row["offer"]
    return Action(
        address=parse(row["address"]),
        verb=Verb(row["action"]),
        title=hidden["title"],
        reason=row["reason"],
        changes=_read_changes(row["changes"], hidden["forces"]),
        offer=None if offer is None else _read_offer(offer, hidden["offer"]),
        alternatives=tuple(
            _read_offer(each, more) for each, more in zip(row["alternatives"], hidden["alternatives"], strict=True)
        ),
        ceiling_per_hour_usd=optional_decimal(row, "ceiling_per_hour_usd"),
        price_per_hour_usd=optional_decimal(hidden, "price_per_hour_usd"),
        depends_on=tuple(parse(address) for address in row["depends_on"]),
        deposed_id=hidden["deposed_id"],
        counted=hidden["counted"],
        source=hidden["source"],
        releases=hidden["releases"],
        lacks_offer=hidden["lacks_offer"],
    )


def _read_changes(rows: Sequence[ChangeRow], forces: Sequence[str | None]) -> tuple[FieldChange, ...]:
    return tuple(
        FieldChange(row["path"], row["before"], row["after"], row["unknown"], row["sensitive"], force)
        for row, force in zip(rows, forces, strict=True)
    )


def _read_offer(row: OfferRow, hidden: Mapping[str, Any]) -> Offer:
    at = hidden["pending_price_at"]
    return offer_from_json(
        row,
        nvlink=hidden["nvlink"],
        reliable=hidden["reliable"],
        pending_price_per_hour_usd=optional_decimal(hidden, "pending_price_per_hour_usd"),
        pending_price_at=None if at is None else parse_stamp(at),
    )
