"""A manifest with every field once, and what happens when parts of it are replaced by anything."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from lium_plan.diagnostics import Diagnostic, Failure
from lium_plan.kinds import registry
from lium_plan.manifest.expand import expand
from lium_plan.manifest.load import load

DIRECTORY = Path(__file__).parents[1] / "cases" / "manifest_full"
GIVEN = {"variables": {"hf_token": "hf_s3cret"}, "environ": {"REG_USER": "me", "REG_PASS": "s3cret"}}
ODD: tuple[Any, ...] = (
    *(None, True, 0, -1, 3.5, 10**30),
    *("", "x", "NO", "8..", "90m", "\x1b[2J", "é" * 300, "../../etc/passwd", "a\nb"),
    *([], [None], [[]], {}, {"a": None}, {"": {}}, {"x": {"y": [1, {"z": 2}]}}),
    *(
        "${{ var.nodes }}",
        "${{ var.hf_token }}",
        "${{ fleet.trainers[0].host }}",
        "${{ fleet.trainers[*].host }}",
        "${{",
    ),
)


def test_it_is_understood() -> None:
    manifest = load([DIRECTORY], stack="default", **GIVEN)  # type: ignore[arg-type]
    assert manifest.diagnostics == ()
    assert expand(manifest).resources
    for section in registry.sections():
        fields = section.load_block().model_fields
        written = {name for block in manifest.sections[section.key].values() for name in block.model_fields_set}
        assert set(fields) - written == set(), f"{section.key} has fields that the example doesn't show"


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    inner = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, value in inner:
        found += places(value, (*path, key))
    return found


@pytest.mark.parametrize("seed", range(60))
def test_anything_anywhere_is_refused_in_words(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    tree = yaml.safe_load((DIRECTORY / "lium.yaml").read_text(encoding="utf-8"))
    for _ in range(chance.randint(1, 3)):
        *parents, last = chance.choice(places(tree))
        node = tree
        for step in parents:
            node = node[step]
        if chance.random() < 0.2 and isinstance(node, dict):
            node[chance.choice(["extra", "NO", "ttl", "é", "a b", "${{ x }}"])] = node.pop(last)
        else:
            node[last] = chance.choice(ODD)
    (tmp_path / "lium.yaml").write_text(yaml.safe_dump(tree, allow_unicode=True), encoding="utf-8")
    for name in ("setup.sh", "hosts.tpl", "train.py"):
        (tmp_path / name).write_bytes((DIRECTORY / name).read_bytes())
    said: tuple[Diagnostic, ...] = ()
    try:
        desired = expand(load([tmp_path], stack="default", **GIVEN))  # type: ignore[arg-type]
        said = desired.diagnostics
        assert "hf_s3cret" not in repr(desired)
    except Failure as failure:
        said = failure.diagnostics
        assert said
    for item in said:
        assert "s3cret" not in repr(item)
        assert item.message.isprintable(), item.message
