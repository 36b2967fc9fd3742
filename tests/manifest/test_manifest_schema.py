"""Two validators, one source: the schema file is fresh, and both say the same."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from manifest_cases import cases
from pydantic import BaseModel, ValidationError

from lium_plan.diagnostics import Diagnostics, Failure
from lium_plan.kinds import registry
from lium_plan.manifest.checks_templates import command_fault
from lium_plan.manifest.document import Document, Map
from lium_plan.manifest.load import load
from lium_plan.manifest.schema import document_validator, schema, text, validator_for
from lium_plan.manifest.source import parse

FILE = Path(__file__).parents[2] / "schemas" / "manifest.schema.json"

GOOD: dict[str, tuple[str, ...]] = {
    "VolumeBlock": ("{}", "{name: data, description: NO}", "{id: 6b1f2a7e-4c1d-4e0f-9a3b-2d5e6f708192}"),
    "TemplateBlock": (
        "{image: ubuntu}",
        "{image: 'a/b:1@sha256:" + "0" * 64 + "', ports: [22, '8000'], env: {A: 1, B: true, C: 3.10, D: NO}}",
        "{image: u, registry_auth: {username: 1, password: x}, local_volume: /root, command: 5}",
    ),
    "FleetBlock": (
        "{resources: {gpu: H100}}",
        "{resources: {gpu: 2, cpu: 8, memory: 20, disk: 30.5GB..}, nodes: 1..3, ttl: 2d, min_cuda: 12.10}",
        "{resources: {gpu: {name: H100, memory: ..80GB, count: 1}, cpu: 8..16}, nodes: [a, 1], max_price: 2}",
        "{resources: {gpu: {name: [H100, a100]}}, regions: [US, jp-13], lifecycle: {ignore_changes: [ttl]}}",
        "{resources: {gpu: ' 2 : 24GB .. 48 GB', cpu: '8 .. 32', memory: ' 20GB .. ', disk: ' .. 2TB '}}",
        "{resources: {gpu: '${{ var.g }}'}, nodes: '${{ var.n }}', regions: '${{ var.r }}', ttl: '${{ var.t }}h'}",
        "{resources: '${{ var.r }}', bootstrap: '${{ var.b }}', backups: '${{ var.b }}', max_price: '${{ var.b }}'}",
        "{resources: {gpu: H100}, bootstrap: {files: [{source: a, target: b, mode: 0755}], ready: {port: 80}}}",
        "{resources: {gpu: H100}, retry: {on_events: [no-capacity]}, update: {parallel: 2}, min_download: 1Gbps}",
        "{resources: {gpu: H100}, ttl: ~, volume: null, bootstrap: {commands: [true, 5, 'x'], max_failures: 0}}",
    ),
    "TaskBlock": (
        "{fleet: a, commands: [x]}",
        "{fleet: a, commands: [x], members: [0, head], wait: {port: 8000}, max_duration: 10m30s}",
        "{fleet: a, commands: '${{ var.c }}', members: first, wait: started, user: image}",
    ),
}
BAD: dict[str, tuple[str, ...]] = {
    "VolumeBlock": ("{size: 3}", "{name: 'a*b'}", "{id: 5}", "[]", "{lifecycle: {prevent_destroy: yes}}"),
    "TemplateBlock": (
        "{image: 'a b'}",
        "{image: ubuntu, ports: 22}",
        "{ports: [22:22]}",
        "{env: [a]}",
        "{env: {1a: b}}",
    ),
    "FleetBlock": (
        "{}",
        "{resources: {}}",
        "{resources: {gpu: []}}",
        "{resources: {gpu: H100}, nodes: x}",
        "{resources: {gpu: H100}, nodes: 1.0}",
        "{resources: {gpu: H100}, nodes: true}",
        "{resources: {gpu: H100}, nodes: [1234567890]}",
        "{resources: {gpu: H100}, nodes: ['01']}",
        "{resources: {gpu: 'A100:1..4'}}",
        "{resources: {gpu: '80..'}}",
        "{resources: {gpu: H100}, max_price: 1000000001}",
        "{resources: {gpu: H100}, placement: cluster}",
        "{resources: {gpu: H100}, ttl: 6}",
        "{resources: {gpu: H100}, max_price: '2'}",
        "{resources: {gpu: H100}, max_price: 0}",
        "{resources: {gpu: H100}, regions: us}",
        "{resources: {gpu: H100}, regions: [1]}",
        "{resources: {gpu: H100}, spot_policy: Auto}",
        "{resources: {gpu: H100}, bootstrap: {run: often}}",
        "{resources: {gpu: H100}, bootstrap: {commands: [{a: b}]}}",
        "{resources: {gpu: H100}, bootstrap: {env: {A: [b]}}}",
        "{resources: {gpu: H100}, min_download: 500}",
        "{resources: {gpu: H100, cpu: 1_000}}",
        "{resources: {gpu: {name: H100, count: 0}}}",
        "{resources: {gpu: H100}, retry: {}}",
        "{resources: {gpu: H100}, template: 'A b'}",
    ),
    "TaskBlock": (
        "{fleet: a}",
        "{commands: [a]}",
        "{fleet: a, commands: [a], wait: {prot: 3}}",
        "{fleet: a, commands: [a], wait: done}",
        "{fleet: a, commands: [a], members: []}",
        "{fleet: a, commands: [a], members: some}",
    ),
}


def tree(text: str) -> Any:
    found = Diagnostics()
    document = parse(text.encode(), Path("x"), "x", found)
    assert isinstance(document, Document)
    assert not found
    return document.root


def model(name: str) -> type[BaseModel]:
    return next(section.load_block() for section in registry.sections() if section.model == name)


def accepted(block: type[BaseModel], value: Any) -> bool:
    try:
        block.model_validate(value)
    except ValidationError:
        return False
    return True


def test_the_file_is_fresh() -> None:
    assert FILE.read_text(encoding="utf-8") == text(), "run: python -m lium_plan.manifest.schema"


def test_the_schema_is_one() -> None:
    from jsonschema import Draft202012Validator

    Draft202012Validator.check_schema(json.loads(text()))


@pytest.mark.parametrize(("name", "written"), [(name, one) for name, all_ in GOOD.items() for one in all_])
def test_both_accept(name: str, written: str) -> None:
    assert list(validator_for(model(name)).iter_errors(tree(written))) == []
    if "${{" not in written:
        assert accepted(model(name), tree(written))


@pytest.mark.parametrize(("name", "written"), [(name, one) for name, all_ in BAD.items() for one in all_])
def test_both_refuse(name: str, written: str) -> None:
    assert not accepted(model(name), tree(written))
    assert list(validator_for(model(name)).iter_errors(tree(written)))


SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-5, 10**6),
    st.sampled_from(
        "8 8.. ..32 8..32 20GB 20GB.. 1.5TB 6h 2d 10m30s 90 us jp-13 auto spot all first H100 ubuntu a/b:1 0755 755 "
        "1_000 22:22 500Mbps root /root started 30% true - x".split()
    ),
    st.sampled_from(["", " ", "${{ x", "a b", "é", "a\nb"]),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(st.sampled_from("name port A 1a".split()), inner, max_size=2),
    ),
    max_leaves=4,
)


@settings(max_examples=300, derandomize=True)
@given(data=st.data())
def test_what_pydantic_accepts_the_schema_accepts(data: st.DataObject) -> None:
    """The schema must never call a good manifest wrong: editors believe it."""
    name = data.draw(st.sampled_from(sorted(GOOD)))
    block = model(name)
    value = dict(tree(data.draw(st.sampled_from([one for one in GOOD[name] if "${{" not in one]))))
    key = data.draw(st.sampled_from(sorted(field.alias or key for key, field in block.model_fields.items())))
    value[key] = data.draw(VALUES)
    if accepted(block, value):
        assert list(validator_for(block).iter_errors(value)) == []


def test_good_cases_are_good_for_the_schema() -> None:
    validator = document_validator()
    checked = 0
    for case in cases():
        if not any(" error " in said for said in case.expect):
            assert list(validator.iter_errors(tree(case.manifest))) == [], case.name
            checked += 1
    assert checked >= 4


def test_misshapen_cases_are_bad_for_the_schema() -> None:
    validator = document_validator()
    for case in cases():
        codes = {said.split()[2] for said in case.expect}
        if codes & {"unknown-key", "missing-key"} and not case.name.startswith("checks"):
            root = tree(case.manifest)
            assert isinstance(root, Map)
            assert list(validator.iter_errors(root)), case.name


def manifest(*, fleet: str = "", template: str = "image: ubuntu", more: str = "") -> str:
    return (
        "version: 1\nproject: demo\n"
        f"templates: {{t: {{{template}}}}}\n"
        f"fleets: {{a: {{{fleet or 'resources: {gpu: H100}'}, template: t, ttl: 2h}}}}\n{more}"
    )


def fleet(text: str) -> str:
    return manifest(fleet=f"resources: {{gpu: H100}}, {text}")


def gpu(text: str) -> str:
    return manifest(fleet=f"resources: {{gpu: {text}}}")


def ttl(text: str) -> str:
    return manifest().replace("ttl: 2h", f"ttl: {text}")


def ignoring(text: str) -> str:
    return fleet(f"lifecycle: {{ignore_changes: [{text}]}}")


def start(text: str) -> str:
    return manifest(template=f"image: u, command: {text}")


def task(text: str) -> str:
    return manifest(more=f"tasks: {{x: {{fleet: a, {text}}}}}\n")


ID = "6b1f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"
BOTH_REFUSE = {
    **{f"ttl {text}": ttl(text) for text in ("30m", "90m", "721h", "1h30m", "31d", "0h", "30")},
    **{f"nodes {text}": fleet(f"nodes: {text}") for text in ("[a, a]", "[UPPER]", "[first]", "[a_b]", "-1", "x")},
    "ready without anything": fleet("bootstrap: {commands: [x], ready: {}}"),
    "ready with both": fleet("bootstrap: {commands: [x], ready: {port: 80, command: x}}"),
    "template and image": fleet("image: ubuntu"),
    "an empty template": manifest(template=""),
    "a template's id and image": manifest(template=f"id: {ID}, image: ubuntu"),
    "two words to begin with": manifest(template="image: u, entrypoint: two words"),
    "a mount that is dropped": manifest(template="image: u, local_volume: /etc/x"),
    "a mount that is dropped whole": manifest(template="image: u, local_volume: /proc"),
    "a volume's id and name": manifest(more=f"volumes: {{v: {{id: {ID}, name: n}}}}\n"),
    "no commands": task("commands: []"),
    "port 0": task("commands: [x], wait: {port: 0}"),
    "port 65536": task("commands: [x], wait: {port: 65536}"),
    "port '65536'": task("commands: [x], wait: {port: '65536'}"),
    "gone before it is seen": task("commands: [x], wait: started, on_completion: destroy-fleet"),
    "gone while it serves": task("commands: [x], wait: {port: 80}, on_completion: destroy-fleet"),
    "a member twice": task("commands: [x], members: [0, 0]"),
    **{
        f"gpu {text}": gpu(text) for text in ("H100:0", "'H100:80GB:1:9'", "'H100:2:3'", "0", "'80GB:40GB'", "'H100:x'")
    },
    **{f"max_destroy {text}": manifest(more=f"policy: {{max_destroy: {text}}}\n") for text in ("130%", "101%", "-1")},
    "version 1.0": manifest().replace("version: 1", "version: 1.0"),
    "version true": manifest().replace("version: 1", "version: true"),
    "nodes 2.0": fleet("nodes: 2.0"),
    "no event to retry after": fleet("retry: {on_events: []}"),
    **{f"ignoring {text}": ignoring(text) for text in ("tll", "'*'", "nodes", "bootstrap.run", "name", "env.A", "''")},
    "a template ignoring": manifest(template="image: u, lifecycle: {ignore_changes: [ttl]}"),
    "a volume ignoring": manifest(more="volumes: {v: {lifecycle: {ignore_changes: [size]}}}\n"),
    **{
        f"command {text}": start(text)
        for text in ("ls", "'sleep 1; ls'", "exec sh", "'a | b'", '"a\\nb"', '"echo \'open"', "'a\\'", "$HOME")
    },
    "a timeout of nothing": fleet("bootstrap: {commands: [x], timeout: 0s}"),
}
BOTH_ACCEPT = {
    **{f"ttl {text}": ttl(text) for text in ("1h", "720h", "30d", "1d12h", "60m", "120m", "3600s", "59m60s", "2h0m")},
    **{f"nodes {text}": fleet(f"nodes: {text}") for text in ("0", "1..3", "[a, b-1]", "[0, 1]", "[head, true]")},
    "ready": fleet("bootstrap: {commands: [x], ready: {port: 80, command: null}}"),
    "somebody else's": manifest(template=f"id: {ID}"),
    "an entry point": manifest(template="image: u, entrypoint: /bin/sh, local_volume: /etcetera"),
    **{f"ignoring {text}": ignoring(text) for text in ("ttl", "resources.gpu.name", "bootstrap.env.A")},
    "a template ignoring": manifest(template="image: u, lifecycle: {ignore_changes: [env.A, registry_auth]}"),
    "a volume ignoring": manifest(more="volumes: {v: {lifecycle: {ignore_changes: [description]}}}\n"),
    **{f"command {text}": start(text) for text in ("lsof -i", "\"-c 'exec ls; ls'\"", "'\\ls'", "''", "5", "~")},
    "a volume": manifest(more=f"volumes: {{v: {{id: {ID}}}, w: {{id: null, name: n}}, x: }}\n"),
    "gone when it is done": task("commands: [x], wait: completed, on_completion: destroy-fleet, max_duration: 1h"),
    "gone when it is done, unsaid": task("commands: [x], on_completion: destroy-fleet, max_duration: 1h"),
    "a port": task("commands: [x], wait: {port: 65535}"),
    **{
        f"gpu {text}": gpu(text)
        for text in ("2", "H100", "'H100:2'", "'H100:80GB:8'", "'H100:8:80GB'", "'H100, A100:80GB..:1'", "'..80GB:1'")
    },
    **{f"max_destroy {text}": manifest(more=f"policy: {{max_destroy: {text}}}\n") for text in ("100%", "0%", "3")},
}
EXPRESSIONS = {
    "a count": manifest(more="variables: {n: {type: number, default: 1}}\n").replace(
        "a: {", "a: {nodes: '${{ var.n }}', "
    ),
    "a time": ttl("'${{ var.t }}'") + "variables: {t: {default: 2h}}\n",
    "a mount": manifest(template="image: u, local_volume: '/root/${{ var.p }}'") + "variables: {p: {default: x}}\n",
    "an entry point": manifest(template="image: u, entrypoint: '${{ var.p }}'") + "variables: {p: {default: sh}}\n",
    "commands": task("commands: '${{ var.c }}'") + "variables: {c: {type: list, default: [x]}}\n",
    "what is ignored": ignoring("'${{ var.i }}'") + "variables: {i: {default: ttl}}\n",
    "a wait": task("commands: [x], wait: '${{ var.w }}', on_completion: destroy-fleet, max_duration: 1h")
    + "variables: {w: {default: completed}}\n",
    "ready": fleet("bootstrap: {commands: [x], ready: {port: '${{ var.p }}'}}")
    + "variables: {p: {type: number, default: 80}}\n",
}
ONLY_VALIDATE = {
    "a range the wrong way round": fleet("nodes: 4..2"),
    "minutes that make no hours": ttl("40m"),
    "a GPU that nobody makes": gpu("H10O"),
    "sizes the wrong way round": manifest(fleet="resources: {gpu: H100, disk: 9GB..1GB}"),
}
"""What no schema can say: sums and comparisons, and every way to write a GPU's model."""


def refused(text: str, tmp_path: Path) -> bool:
    (tmp_path / "lium.yaml").write_text(text, encoding="utf-8")
    try:
        found = load((tmp_path,), stack="default", environ={})
    except Failure:
        return True
    return any(item.severity == "error" for item in found.diagnostics)


@pytest.mark.parametrize("name", BOTH_REFUSE)
def test_both_refuse_a_whole_manifest(name: str, tmp_path: Path) -> None:
    assert refused(BOTH_REFUSE[name], tmp_path)
    assert list(document_validator().iter_errors(tree(BOTH_REFUSE[name])))


@pytest.mark.parametrize("name", [*BOTH_ACCEPT, *EXPRESSIONS])
def test_both_accept_a_whole_manifest(name: str, tmp_path: Path) -> None:
    for table in (BOTH_ACCEPT, EXPRESSIONS):
        if name in table:
            assert list(document_validator().iter_errors(tree(table[name]))) == []
            assert not refused(table[name], tmp_path)


@pytest.mark.parametrize("name", ONLY_VALIDATE)
def test_what_no_schema_can_say_is_left_to_validate(name: str, tmp_path: Path) -> None:
    assert refused(ONLY_VALIDATE[name], tmp_path)
    assert list(document_validator().iter_errors(tree(ONLY_VALIDATE[name]))) == []


COMMANDS = ("ls", "exec", "a", "-c", " ", "\t", "\n", "'", '"', "\\", ";", "$")


@settings(max_examples=300, derandomize=True)
@given(written=st.lists(st.sampled_from(COMMANDS), max_size=10).map("".join))
def test_the_schema_takes_the_start_commands_that_the_platform_takes(written: str) -> None:
    rule = schema()["properties"]["templates"]["additionalProperties"]["allOf"][1]["properties"]["command"]
    pattern = rule["anyOf"][0]["pattern"]
    assert (re.search(pattern, written) is not None) == (command_fault(written) is None)


def test_editors_are_told_what_every_field_is_for() -> None:
    whole = schema()
    blocks = {"": whole, **whole["$defs"]}
    fields = [(f"{name}.{key}", prop) for name, block in blocks.items() for key, prop in block["properties"].items()]
    assert [name for name, prop in fields if not prop.get("description")] == []
    assert len(fields) > 100


def test_editors_are_told_what_fields_are_for() -> None:
    fleet = schema()["$defs"]["FleetBlock"]["properties"]
    assert fleet["ttl"]["description"]
    assert all("default" not in prop for prop in fleet.values())
