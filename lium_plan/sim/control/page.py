"""The page for people at `/_sim/`: what exists, what it costs, what was asked last. No scripts, reloads itself."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from lium_plan.sim import money
from lium_plan.sim.market import listed
from lium_plan.sim.world import World

_STYLE = """
:root { color-scheme: light dark; --line: #8884; --dim: #888; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 78rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.4rem; margin: 0; } h2 { font-size: 1.05rem; margin: 2rem 0 .4rem; }
p { color: var(--dim); margin: .2rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); white-space: nowrap; }
th { color: var(--dim); font-weight: 500; } code { font-size: .9em; }
"""


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
    empty = "No account yet: the first request with a key sk_sim_NAME opens one."
    return _table("Accounts", ("account", "balance", "per hour"), rows, empty)


def _pods(world: World) -> str:
    rows = [
        (
            pod.name,
            pod.status.value,
            f"{pod.gpu_count} × {world.nodes[pod.node_id].gpu_model}",
            f"${pod.price_per_hour:.2f}",
            f"${sum(money.amount(world, charge) for charge in world.charges.where('object', pod.id)):.4f}",
            f"{pod.removal_scheduled_at:%H:%M:%S}" if pod.removal_scheduled_at else "",
            f"{pod.host}:{pod.ports.get(22, '')}" if pod.host else "",
            pod.id,
        )
        for pod in world.pods.where("alive", True)
    ]
    heads = ("name", "status", "GPUs", "per hour", "so far", "removal", "SSH", "id")
    return _table("Pods", heads, rows, "No pods.")


def _objects(world: World) -> str:
    rows = [
        (charge.kind, charge.name, world.accounts[charge.account_id].name, charge.object_id)
        for charge in world.charges
        if charge.until is None and charge.kind != "pod"
    ]
    title, heads = "Templates, volumes, credentials", ("kind", "name", "account", "id")
    return _table(title, heads, rows, "None but the platform's own templates.")


def _requests(world: World) -> str:
    rows = [
        (
            f"{row.at:%H:%M:%S}",
            row.account or "",
            f"{row.method} {row.path}",
            "no answer" if row.status is None else str(row.status),
        )
        for row in reversed(list(world.requests)[-25:])
    ]
    return _table("Latest requests", ("at", "account", "request", "status"), rows, "None yet.")


def _faults(world: World) -> str:
    rows = [(row.id, str(row.fired), row.spec) for row in world.faults]
    return _table("Armed faults", ("id", "fired", "what"), rows, "None.")


def _table(title: str, heads: Sequence[str], rows: Iterable[Sequence[str]], empty: str) -> str:
    body = "".join("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows)
    if not body:
        return f"<h2>{escape(title)}</h2><p>{escape(empty)}</p>"
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    return (
        f'<h2>{escape(title)}</h2><div class="wide"><table><thead><tr>{head}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )
