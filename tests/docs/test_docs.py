"""The documentation says what the code does, as far as a machine can tell: verbs, options, fields, examples, links.

A fenced block that begins with ```yaml manifest is a whole manifest and must be valid; one that begins with ```yaml in
the local Lium's page is a scenario; one that begins with ```json is JSON, a document or one a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from lium_plan.cli.main import COMMANDS, cli
from lium_plan.diagnostics import ExitCode
from lium_plan.manifest.expand import expand
from lium_plan.manifest.load import load
from lium_plan.manifest.schema import schema
from lium_plan.sim.control.routes import ChargeView, router
from lium_plan.sim.faults import FAULTS
from lium_plan.sim.settings import Settings
from lium_plan.sim.twist import Twist

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PAGES = (*sorted(DOCS.glob("*.md")), ROOT / "README.md", ROOT / "examples" / "README.md", ROOT / "state" / "README.md")
FENCE = re.compile(r"^```(?P<kind>[^\n]*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
GIVEN = {"REG_USER": "me", "REG_PASS": "s3cret", "LIUM_PLAN_VAR_hf_token": "hf_s3cret"}
HOMES = {
    "volumes": "Volumes",
    "templates": "Templates",
    "fleets": "Fleets",
    "tasks": "Tasks",
    "policy": "Policy",
    "variables": "Variables",
    "imports": "Moving, removing, importing",
    "moved": "Moving, removing, importing",
    "removed": "Moving, removing, importing",
}
"""The heading in docs/manifest.md under which a section's fields are explained."""


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def under(text: str, heading: str) -> str:
    """What stands under a heading, deeper ones included."""
    found = re.search(rf"^(#+) {re.escape(heading)}\n(.*?)(?=^\1 |^#{{1,2}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, f"no heading {heading!r}"
    return found[2]


def code_words(text: str) -> set[str]:
    """Identifiers that stand in `code` outside of fenced blocks."""
    spans = re.findall(r"`([^`\n]+)`", FENCE.sub("", text))
    return {word for span in spans for word in re.findall(r"[A-Za-z_][A-Za-z0-9_]*|(?<![\w-])--?[a-z][a-z-]*", span)}


def fenced(page: Path, kind: str) -> Iterator[tuple[int, str]]:
    """Line number and content of the blocks of a kind."""
    text = page.read_text(encoding="utf-8")
    for match in FENCE.finditer(text):
        if match["kind"].strip() == kind:
            yield text.count("\n", 0, match.start()) + 1, match["body"]


# --- the command line ------------------------------------------------------------------------------------------


def verbs() -> Iterator[tuple[str, click.Command]]:
    context = click.Context(cli)
    for name in COMMANDS:
        command = cli.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from ((f"{name} {inner}", each) for inner, each in command.commands.items())
        else:
            yield name, command


def test_every_verb_is_in_the_table_of_verbs() -> None:
    rows = (line for line in under(text_of("cli.md"), "Verbs").splitlines() if line.startswith("| `"))
    cells = [re.split(r"(?<!\\)\|", row)[1] for row in rows]
    told = " ".join(span for cell in cells for span in re.findall(r"`([^`]+)`", cell))
    for name, _ in verbs():
        first, *rest = name.split()
        assert all(re.search(rf"(?<![\w-]){re.escape(word)}(?![\w-])", told) for word in (first, *rest)), name


def test_every_option_is_explained() -> None:
    pages = {"sim": code_words(text_of("local-lium.md"))}
    for name, command in verbs():
        told = pages.get(name.split()[0], set()) | code_words(text_of("cli.md"))
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert set(parameter.opts) & told, f"{name} {parameter.opts[-1]}"


def test_every_exit_code_is_in_the_table() -> None:
    rows = re.findall(r"^\| (\d+) \|", under(text_of("cli.md"), "Exit codes"), re.MULTILINE)
    assert [int(row) for row in rows] == sorted(int(code) for code in ExitCode)


# --- the manifest ----------------------------------------------------------------------------------------------


def properties(node: Mapping[str, Any], definitions: Mapping[str, Any]) -> Iterator[tuple[str, int]]:
    """Names of the fields below a node of the schema, each with how deep it lies."""

    def visit(item: Any, depth: int, seen: tuple[str, ...]) -> Iterator[tuple[str, int]]:
        if isinstance(item, list):
            for each in item:
                yield from visit(each, depth, seen)
        if not isinstance(item, dict):
            return
        reference = str(item.get("$ref", "")).rpartition("/")[2]
        if reference and reference not in seen:
            for name, inner in definitions[reference].get("properties", {}).items():
                yield name, depth
                yield from visit(inner, depth + 1, (*seen, reference))
        for key in ("allOf", "anyOf", "items", "additionalProperties"):
            yield from visit(item.get(key), depth, seen)

    yield from visit(node, 0, ())


@pytest.mark.parametrize("section", list(schema()["properties"]))
def test_every_field_is_explained_where_it_belongs(section: str) -> None:
    document, text = schema(), text_of("manifest.md")
    assert section in code_words(under(text, "Top level"))
    everywhere = code_words(under(text, "Fields"))
    for name, depth in properties(document["properties"][section], document["$defs"]):
        home = code_words(under(text, HOMES[section])) if depth == 0 else everywhere
        assert name in home, f"{section}.….{name} is not under {HOMES[section]!r}"


@pytest.mark.parametrize("section", ["volumes", "templates", "fleets", "tasks", "policy", "variables"])
def test_every_field_says_what_its_change_does(section: str) -> None:
    document = schema()
    told = code_words(under(text_of("manifest.md"), "What a change does"))
    if section == "policy":
        assert "policy" in told
        return
    for name, depth in properties(document["properties"][section], document["$defs"]):
        # What lies deeper than a block's own fields changes with the field that holds it.
        deep = 1 if section == "variables" else 2
        if depth < deep and name not in ("lifecycle", "files", "source", "target", "mode", "port"):
            assert name in told, f"{section}.….{name}"


def test_there_are_no_fields_but_those_of_the_schema() -> None:
    """The first column of the tables of fields."""
    document = schema()
    known = {name for node in document["properties"].values() for name, _ in properties(node, document["$defs"])}
    known |= set(document["properties"])
    for line in under(text_of("manifest.md"), "Fields").splitlines():
        cell = line.split(" | ")[0].removeprefix("| ")
        if re.fullmatch(r"`[a-z_.]+`", cell):
            assert cell.strip("`").rpartition(".")[2] in known, cell


MANIFESTS = [
    pytest.param(body, id=f"{page.name}:{line}") for page in PAGES for line, body in fenced(page, "yaml manifest")
]


def test_there_are_manifests_to_check() -> None:
    assert len(MANIFESTS) >= 5


@pytest.mark.parametrize("body", MANIFESTS)
def test_manifests_are_valid(body: str, tmp_path: Path) -> None:
    for source in re.findall(r"source: ([\w./-]+)", body):
        (tmp_path / source).write_text("# stands for a file of the example\n", encoding="utf-8")
    (tmp_path / "lium.yaml").write_text(body, encoding="utf-8")
    assert expand(load([tmp_path], stack="default", environ=GIVEN)).resources


# --- the local Lium --------------------------------------------------------------------------------------------


def test_every_route_setting_and_effect_of_the_local_lium_is_explained() -> None:
    text = text_of("local-lium.md")
    told = code_words(text)
    for route in router.routes:
        path = getattr(route, "path", "/")
        assert path == "/" or f" {path}" in text, path
    assert set(Settings.model_fields) <= told, set(Settings.model_fields) - told
    assert set(Twist.model_fields) <= told, set(Twist.model_fields) - told
    row = {field.serialization_alias or name for name, field in ChargeView.model_fields.items()}
    assert row <= told, row - told
    effects = {
        word
        for definition in FAULTS.json_schema()["$defs"].values()
        for word in _words_of(definition.get("properties", {}).get("do", {}))
    }
    assert len(effects) > 10
    assert effects <= told, effects - told


def _words_of(field: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(field["enum"]) if "enum" in field else (field["const"],) if "const" in field else ()


def test_scenarios_are_valid() -> None:
    found = list(fenced(DOCS / "local-lium.md", "yaml"))
    assert found
    for _, body in found:
        assert FAULTS.validate_python(yaml.safe_load(body))


# --- what holds for every page ---------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_json_is_json(page: Path) -> None:
    for line, body in fenced(page, "json"):
        try:
            json.loads(body)
        except ValueError:
            for row in body.splitlines():
                assert isinstance(json.loads(row), dict), f"{page.name}:{line}"


def anchors(page: Path) -> set[str]:
    """What headings are called in links."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (page.parent / path).resolve() if path else page
        assert there.exists(), f"{page.name}: {target}"
        assert not anchor or anchor in anchors(there), f"{page.name}: {target}"
