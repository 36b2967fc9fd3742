"""The state for people."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

from lium_plan.kinds.protocol import Json, Record
from lium_plan.money import rate
from lium_plan.planning.plan import OutputValue
from lium_plan.state.model import State
from lium_plan.views.columns import columns
from lium_plan.views.events_text import outputs_text
from lium_plan.views.paint import PLAIN, Paint, one_line, printable
from lium_plan.views.plan_json import outputs_json
from lium_plan.views.state_json import in_order, shown_status
from lium_plan.views.times import stamp
from lium_plan.views.values import full_value_words


def state_text(state: State, outputs: Mapping[str, OutputValue], paint: Paint = PLAIN) -> str:
    """What we believe we own, what is not settled, what was released, and the outputs."""
    title = f"{state.project}, stack {state.stack} (serial {state.serial}, lineage {state.lineage[:8]})\n"
    rows = [_row(record, state) for record in in_order(state)]
    table = columns(("ADDRESS", "STATUS", "ID", "WHAT", "$/H", "SSH"), rows, right=(4,), paint=paint, least=(5, 3))
    parts = [title + "\n" + (table if rows else "It holds nothing.\n")]
    if state.open:
        lines = [
            f"  {paint('bold magenta', '!')} {effect.address}: {one_line(effect.op)} begun {stamp(effect.at)},"
            " outcome not recorded; the next apply finds out\n"
            for effect in state.open.values()
        ]
        parts.append("Open effects:\n" + "".join(lines))
    if state.released:
        lines = [
            f"  {item.kind} {printable(item.name)} ({item.id}) since {stamp(item.since)}"
            f"{_price(item.price_per_hour_usd)}\n"
            for item in state.released
        ]
        parts.append("Released, no longer managed:\n" + "".join(lines))
    if outputs:
        parts.append("Outputs:\n" + outputs_text(outputs_json(outputs)))
    return "\n".join(parts)


def resource_text(record: Record, state: State, paint: Paint = PLAIN) -> str:
    """Everything that is known of one resource, a line a field."""
    lines = [
        paint("bold", f"{record.address}"),
        f"  kind: {record.kind}",
        f"  id: {record.id or '(none)'}",
        f"  status: {shown_status(record, state)}",
    ]
    if record.protected:
        lines.append("  protected: prevent_destroy")
    lines += [f"  {key}: {full_value_words(value)}" for key, value in sorted(record.attributes.items())]
    if record.depends_on:
        lines.append("  depends on: " + ", ".join(str(address) for address in record.depends_on))
    return "".join(f"{line}\n" for line in lines)


def addresses_text(state: State) -> str:
    return "".join(f"{address}\n" for address in addresses(state))


def addresses(state: State) -> tuple[str, ...]:
    """Each address once, in order."""
    return tuple(dict.fromkeys(str(record.address) for record in in_order(state)))


def _row(record: Record, state: State) -> tuple[str, ...]:
    attributes = record.attributes
    gpu, count = attributes.get("gpu"), attributes.get("gpu_count")
    what = f"{count}×{gpu}" if gpu else _text(attributes.get("pod_name") or attributes.get("name"))
    host, port = _text(attributes.get("host")), _text(attributes.get("ssh_port"))
    price = attributes.get("price_per_hour_usd")
    cost = rate(Decimal(str(price))) if isinstance(price, int | float | str) and not isinstance(price, bool) else ""
    status = shown_status(record, state)
    return (str(record.address), status, record.id or "", what, cost, f"{host}:{port}" if host and port else host)


def _price(recorded: str | None) -> str:
    """It was so dear when it was given up, and nothing here hears of its end."""
    return "" if recorded is None else f", {rate(Decimal(recorded))} if it still runs"


def _text(value: Json) -> str:
    return "" if value is None else one_line(str(value), 60)
