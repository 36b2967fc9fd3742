"""The page for people at `/_sim/`: what exists, what it costs, what was asked last. No scripts, reloads itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from html import escape

from lium_plan.sim import faults, lifecycle, money
from lium_plan.sim.market import listed
from lium_plan.sim.rows import Pod, PodStatus
from lium_plan.sim.world import World

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #666; --good: #06752f; --busy: #8a5300; --bad: #b3261e; }
@media (prefers-color-scheme: dark) { :root { --dim: #9a9a9a; --good: #5fd38a; --busy: #e8b34c; --bad: #ff8a80; } }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 100rem; margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p { color: var(--dim); margin: .2rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem 1.2rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top;
  white-space: nowrap; }
th { color: var(--dim); font-weight: 500; }
.num { text-align: right; } .id { color: var(--dim); font-size: .9em; }
.any { width: 99%; white-space: normal; overflow-wrap: anywhere; }
.good { color: var(--good); } .busy { color: var(--busy); } .bad { color: var(--bad); } .dim { color: var(--dim); }
@media (max-width: 60rem) {
  body { padding: 0 .8rem; margin: 1rem auto; font-size: 13px; } th, td { padding-right: .7rem; }
  .id { display: none; } .name { white-space: normal; min-width: 9rem; } .any { min-width: 10rem; }
}
"""

_LOOKS = {
    PodStatus.RUNNING: "good",
    PodStatus.PENDING: "busy",
    PodStatus.REBOOT_PENDING: "busy",
    PodStatus.DELETING: "dim",
}
"""How a status is shown; any other is bad news."""


@dataclass(frozen=True, slots=True)
class _Cell:
    text: str
    look: str = ""


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    kind: str = ""
    """`num`: to the right; `any`: takes the room that is left; where that is little, `id` is left out and `name` may
    be broken."""


def page(world: World, *, machines: str) -> str:
    head = (
        f"{len(listed(world))} of {len(world.nodes)} nodes on offer · {world.now:%Y-%m-%d %H:%M:%S} UTC · "
        f"speed {world.settings.speed:g} · {world.settings.market.value} market · pods: {machines} · seed {world.seed}"
    )
    sections = (_accounts(world), _pods(world), _objects(world), _requests(world), _faults(world))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Local Lium</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="refresh" content="3"><style>{_STYLE}</style></head><body>'
        f"<h1>Local Lium</h1><p>{escape(head)}</p>"
        '<p>Machine-readable: <a href="ledger">ledger</a> · <a href="world">world</a> · '
        '<a href="requests">requests</a> · <a href="openapi.json">openapi.json</a> · '
        '<a href="/api/openapi.json">the API</a></p>'
        f"{''.join(sections)}</body></html>"
    )


def _accounts(world: World) -> str:
    rows = [
        (
            account.name,
            f"${money.balance(world, account.id):.4f}",
            f"${sum(charge.price_per_hour for charge in money.open_charges(world, account.id)):.2f}",
        )
        for account in world.accounts
    ]
    columns = (_Column("account"), _Column("balance", "num"), _Column("per hour", "num"), _Column("", "any"))
    empty = "No account yet: the first request with a key sk_sim_NAME opens one."
    return _table("Accounts", columns, rows, empty)


def _pods(world: World) -> str:
    rows = [_pod(world, pod) for pod in world.pods.where("alive", True)]
    columns = (
        _Column("name", "name"),
        _Column("account"),
        _Column("status"),
        _Column("GPUs"),
        _Column("per hour", "num"),
        _Column("so far", "num"),
        _Column("removal"),
        _Column("SSH"),
        _Column("id", "id"),
    )
    return _table("Pods", columns, rows, "No pods.")


def _pod(world: World, pod: Pod) -> tuple[_Cell | str, ...]:
    reachable = pod.status is PodStatus.RUNNING and 22 in pod.ports
    spent = sum(money.amount(world, charge) for charge in world.charges.where("object", pod.id))
    return (
        pod.name,
        world.accounts[pod.account_id].name,
        _Cell(pod.status.value, _LOOKS.get(pod.status, "bad")),
        f"{pod.gpu_count} × {world.nodes[pod.node_id].gpu_model}",
        f"${pod.price_per_hour:.2f}",
        f"${spent:.4f}",
        _until(world, pod.removal_scheduled_at) if lifecycle.is_in_use(pod) else "",
        f"{pod.host}:{pod.ports[22]}" if reachable else "",
        pod.id,
    )


def _until(world: World, moment: datetime | None) -> str:
    """`in 1 h 59 min`."""
    if moment is None:
        return ""
    minutes = max(0, int((moment - world.now).total_seconds() // 60))
    return f"in {minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"in {minutes} min"


def _objects(world: World) -> str:
    rows = [
        (charge.kind, charge.name, world.accounts[charge.account_id].name, charge.object_id)
        for charge in world.charges
        if charge.until is None and charge.kind != "pod"
    ]
    columns = (_Column("kind"), _Column("name", "name"), _Column("account"), _Column("id", "id"))
    return _table("Templates, volumes, credentials", columns, rows, "None but the platform's own templates.")


def _requests(world: World) -> str:
    rows = [
        (f"{row.at:%H:%M:%S}", row.account or "", _status(row.status), f"{row.method} {row.path}")
        for row in reversed(list(world.requests)[-25:])
    ]
    columns = (_Column("at"), _Column("account"), _Column("status"), _Column("request", "any"))
    return _table("Latest requests", columns, rows, "None yet.")


def _status(status: int | None) -> _Cell:
    return _Cell("no answer", "bad") if status is None else _Cell(str(status), "bad" if status >= 400 else "good")


def _faults(world: World) -> str:
    rows = [(row.id, str(row.fired), faults.shortened(row.spec)) for row in world.faults]
    columns = (_Column("id"), _Column("fired", "num"), _Column("what", "any"))
    return _table("Armed faults", columns, rows, "None.")


def _table(title: str, columns: Sequence[_Column], rows: Iterable[Sequence[_Cell | str]], empty: str) -> str:
    body = "".join(_row(columns, row) for row in rows)
    if not body:
        return f"<h2>{escape(title)}</h2><p>{escape(empty)}</p>"
    head = "".join(f'<th class="{column.kind}">{escape(column.name)}</th>' for column in columns)
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def _row(columns: Sequence[_Column], row: Sequence[_Cell | str]) -> str:
    """A row may be shorter than the columns are many: the last of them are room."""
    cells = [cell if isinstance(cell, _Cell) else _Cell(cell) for cell in row]
    cells += [_Cell("")] * (len(columns) - len(cells))
    shown = (
        f'<td class="{column.kind} {cell.look}">{escape(cell.text)}</td>'
        for column, cell in zip(columns, cells, strict=True)
    )
    return f"<tr>{''.join(shown)}</tr>"
