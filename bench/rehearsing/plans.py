"""Random manifests: templates with and without logins, volumes, fleets with bootstraps that refer to each other, tasks.

One seed is one manifest. Commands are `work SECONDS NAME`, which the stage's machines understand.
"""

from __future__ import annotations

import json
import random

MODELS = ("RTX 4090", "RTX 3090", "RTX 5090")
MARKET = dict.fromkeys(MODELS, 400)
MOST_TEMPLATES = 8
MOST_FLEETS = 7


def random_manifest(seed: int) -> str:
    """JSON, which is YAML. Between one pod and some seventy."""
    return json.dumps(_manifest(random.Random(f"plan/{seed}")), indent=1)


def _manifest(chance: random.Random) -> dict[str, object]:
    templates = {f"image-{number}": _template(chance, number) for number in range(_few(chance, MOST_TEMPLATES))}
    volumes: dict[str, object] = {}
    fleets: dict[str, dict[str, object]] = {}
    # At least one fleet a template: one that nothing uses would be waited for by nobody.
    names = [*templates, *(chance.choice(list(templates)) for _ in range(chance.randint(0, MOST_FLEETS)))]
    for number, template in enumerate(names):
        fleet = _fleet(chance, f"fleet-{number}", template, tuple(fleets))
        if fleet["nodes"] == 1 and chance.random() < 0.4:
            volumes[f"data-{number}"] = {"description": "what outlives the machines"}
            fleet["volume"] = f"data-{number}"
        fleets[f"fleet-{number}"] = fleet
    tasks = {
        f"task-{number}": _task(chance, f"task-{number}", chance.choice(list(fleets)))
        for number in range(chance.randint(0, 4))
    }
    parts: dict[str, object] = {"templates": templates, "volumes": volumes, "fleets": fleets, "tasks": tasks}
    return {"version": 1, "project": "makespan", **{name: part for name, part in parts.items() if part}}


def _few(chance: random.Random, most: int) -> int:
    """From one to `most`, the less the likelier."""
    number = 1
    while number < most and chance.random() < 0.55:
        number += 1
    return number


def _template(chance: random.Random, number: int) -> dict[str, object]:
    template: dict[str, object] = {"image": f"limsim/image-{number}:1"}
    if chance.random() < 0.25:
        template["registry_auth"] = {"username": f"robot-{number}", "password": f"word-{number}"}
    return template


def _fleet(chance: random.Random, name: str, template: str, earlier: tuple[str, ...]) -> dict[str, object]:
    fleet: dict[str, object] = {
        "nodes": chance.choice((1, 1, 1, 2, 2, 3, 4, 6, 10)),
        "resources": {"gpu": f"{chance.choice(MODELS).replace(' ', '')}:1"},
        "max_price": 1.0,
        "template": template,
        "ttl": "12h",
    }
    if chance.random() < 0.7:
        env = {}
        if earlier and chance.random() < 0.3:
            # This one can't begin before the other fleet's first machine runs.
            env["PEER"] = f"${{{{ fleet.{chance.choice(earlier)}[0].host }}}}"
        commands, seconds = _commands(chance, name, 20.0)
        fleet["bootstrap"] = {"env": env, "commands": commands, "timeout": _limit(chance, seconds)}
    return fleet


def _task(chance: random.Random, name: str, fleet: str) -> dict[str, object]:
    commands, seconds = _commands(chance, name, 30.0)
    task: dict[str, object] = {"fleet": fleet, "commands": commands}
    task["wait"] = "completed" if chance.random() < 0.7 else "started"
    if chance.random() < 0.6:
        task["max_duration"] = _limit(chance, seconds)
    return task


def _commands(chance: random.Random, name: str, middle_s: float) -> tuple[list[str], float]:
    """And how long they take in all, about: each machine has its own pace."""
    spans = [min(900.0, max(2.0, middle_s * chance.lognormvariate(0.0, 0.8))) for _ in range(chance.randint(1, 3))]
    commands = [f"work {span:.1f} {name} {number} ${{{{ member.name }}}}" for number, span in enumerate(spans)]
    return commands, sum(spans)


def _limit(chance: random.Random, seconds: float) -> str:
    """What people write who know about how long it takes, and do not want to be stopped: in whole minutes."""
    return f"{max(5, round(seconds * chance.uniform(3.0, 10.0) / 60))}m"
