"""What may go wrong, as `sim.faults.FaultSpec`s drawn by chance."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping

from tests.support.world import ACCOUNT

Spec = dict[str, object]

RENT = ("POST", "executors/*/rent")
PODS = ("GET", "pods")
CREATES = (("POST", "templates"), ("POST", "volumes"), ("POST", "docker-credentials"))
DELETES = (
    ("DELETE", "pods/*"),
    ("DELETE", "templates/*"),
    ("DELETE", "volumes/*"),
    ("DELETE", "docker-credentials/*"),
)
READS = (PODS, ("GET", "pods/*"), ("GET", "events"), ("GET", "templates"), ("GET", "volumes"), ("GET", "executors"))
MEMBERS = ("*-trainers-0", "*-trainers-1", "*-store-0")
HTML = "<html><head><title>502 Bad Gateway</title></head><body>nginx</body></html>"
ODD_BODIES = (HTML, "", "{", "[{", "null", "0", '"error"', "upstream timed out", "\x00\x01", '{"detail": {"a": [1]}}')
RETRY_AFTER = (None, "1", "0", "-5", "0.5", "3", "soon", "nan", "inf", "1e9", "", "١", "Wed, 21 Oct 2015 07:28:00 GMT")
"""What a 429 or a 503 may say of when to come back: seconds, dates that are over, and nonsense."""


def draw_fault(chance: random.Random) -> Mapping[str, object]:
    kinds: tuple[tuple[int, Callable[[random.Random], Spec]], ...] = (
        (5, _rent_lost),
        (3, _rent_late),
        (3, _rent_answered),
        (3, _rent_refused),
        (4, _pod_twisted),
        (3, _create_trouble),
        (3, _delete_trouble),
        (3, _read_trouble),
        (3, _machine_trouble),
        (2, _pod_taken),
        (1, _market_moves),
        (1, _money_ends),
    )
    draw = chance.choices([kind for _, kind in kinds], weights=[weight for weight, _ in kinds])[0]
    return draw(chance)


def _on(
    route: tuple[str, str], effect: Mapping[str, object], chance: random.Random, *, after: int = 3, times: int = 2
) -> Spec:
    return {
        "effect": dict(effect),
        "method": route[0],
        "path": route[1],
        "after": chance.randint(0, after),
        "times": chance.randint(1, times),
    }


def _limited(chance: random.Random, status: int = 429) -> Spec:
    when = chance.choice(RETRY_AFTER)
    return {"do": "answer", "status": status, "headers": {} if when is None else {"Retry-After": when}}


def _rent_lost(chance: random.Random) -> Spec:
    where = chance.choice(("before", "inside", "after", "after", "unrecorded"))
    return _on(RENT, {"do": "lose_reply", "where": where}, chance)


def _rent_late(chance: random.Random) -> Spec:
    """Later than the client waits (30 s), and at times later than it looks for it (6 min)."""
    where = chance.choice(("before", "inside", "after"))
    return _on(RENT, {"do": "delay", "where": where, "seconds": chance.choice((5, 40, 100, 400, 600))}, chance)


def _rent_answered(chance: random.Random) -> Spec:
    where = chance.choice(("before", "after"))
    # A refusal is the server's own word, so it never comes after the work was done.
    statuses = (500, 502, 503, 504, 200, 408) if where == "after" else (500, 502, 503, 504, 200, 408, 409)
    effect: Spec = {"do": "answer", "where": where, "status": chance.choice(statuses)}
    if chance.random() < 0.4:
        effect["text"] = chance.choice(ODD_BODIES)
    return _on(RENT, effect, chance)


def _rent_refused(chance: random.Random) -> Spec:
    what = chance.choice(("429", "taken", "price", "node"))
    if what == "429":
        return _on(RENT, _limited(chance), chance, times=4)
    if what == "taken":
        return _on(RENT, {"do": "take_node"}, chance)
    if what == "price":
        return _on(RENT, {"do": "price", "factor": chance.choice((1.02, 3.0))}, chance)
    state = chance.choice(("offline", "paused", "banned"))
    return _on(RENT, {"do": "node_state", "state": state}, chance)


def _pod_twisted(chance: random.Random) -> Spec:
    twist = chance.choice(
        (
            {"hide_seconds": chance.choice((3, 8, 20, 90))},
            {"linger_seconds": 30},
            {"price_factor": 5},
            {"price_factor": 1.01},
            {"gpu_count": 2},
            {"visible_gpus": 0},
            {"fails": "no space left on device"},
            {"ssh": chance.choice(("silent", "refuse", "reset", "banner_only"))},
            {"ssh_delay_seconds": chance.choice((30, 120))},
            {"create_seconds": chance.choice((1, 200, 1300))},
            {"stuck_delete": True},
            {"detail_404": True},
            {"conflict": True},
            {"volume_mount_fails": True},
        )
    )
    return _on(RENT, {"do": "twist", "twist": twist}, chance)


def _create_trouble(chance: random.Random) -> Spec:
    effect: Spec = chance.choice(
        (
            {"do": "lose_reply", "where": "before"},
            {"do": "lose_reply", "where": "after"},
            {"do": "answer", "status": 500, "where": "before"},
            {"do": "answer", "status": 500, "where": "after"},
            {"do": "answer", "status": 502, "where": "after", "text": chance.choice(ODD_BODIES)},
            {"do": "answer", "status": 200, "where": "after", "text": chance.choice(ODD_BODIES)},
            _limited(chance),
            {"do": "delay", "seconds": 40, "where": "before"},
            {"do": "delay", "seconds": 40, "where": "after"},
            {"do": "twist", "twist": {"hide_seconds": 4}},
        )
    )
    return _on(chance.choice(CREATES), effect, chance, after=1)


def _delete_trouble(chance: random.Random) -> Spec:
    effect: Spec = chance.choice(
        (
            {"do": "lose_reply", "where": "before"},
            {"do": "lose_reply", "where": "after"},
            {"do": "answer", "status": 500, "where": "before"},
            {"do": "answer", "status": 500, "where": "after"},
            {"do": "answer", "status": 409, "where": "before"},
            {"do": "answer", "status": 200, "where": "before", "body": {}},
            {"do": "answer", "status": 502, "where": "after", "text": chance.choice(ODD_BODIES)},
            _limited(chance),
            {"do": "delay", "seconds": 45, "where": "before"},
            {"do": "twist", "twist": {"linger_seconds": 25}},
        )
    )
    return _on(chance.choice(DELETES), effect, chance, after=2, times=3)


def _read_trouble(chance: random.Random) -> Spec:
    effect: Spec = chance.choice(
        (
            {"do": "lose_reply", "where": "after"},
            {"do": "answer", "status": 500},
            {**_limited(chance, 503), "text": chance.choice(ODD_BODIES)},
            {"do": "answer", "status": 200, "text": chance.choice(ODD_BODIES)},
            _limited(chance),
            {"do": "delay", "seconds": 35},
        )
    )
    return _on(chance.choice(READS), effect, chance, after=20, times=6)


def _machine_trouble(chance: random.Random) -> Spec:
    mode = chance.choice(("refuse", "reset", "close", "silent", "auth", "drop", "hang", "banner_only"))
    effect: Spec = {"do": "ssh", "pod": chance.choice((*MEMBERS, "*")), "mode": mode}
    effect["seconds"] = chance.choice((5, 20, 60, 200))
    if chance.random() < 0.2:
        effect = {"do": "host_key", "pod": chance.choice(MEMBERS)}
    return {"effect": effect, "at": round(chance.uniform(1, chance.choice((10, 30, 90))), 1)}


def _pod_taken(chance: random.Random) -> Spec:
    what = chance.choice(("reclaim", "reclaim", "break", "stick"))
    return {
        "effect": {"do": what, "pod": chance.choice(MEMBERS)},
        "at": round(chance.uniform(1, chance.choice((10, 30, 120))), 1),
    }


def _market_moves(chance: random.Random) -> Spec:
    effect: Spec = {"do": "price", "node": "*", "factor": chance.choice((0.9, 1.1, 1.5))}
    return {"effect": effect, "at": round(chance.uniform(0, 60), 1)}


def _money_ends(chance: random.Random) -> Spec:
    return {"effect": {"do": "balance", "account": ACCOUNT, "usd": 0.001}, "at": round(chance.uniform(0, 60), 1)}
