"""Which files are read, how they merge, and where variables come from."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.manifest.load import load
from lium_plan.manifest.model import Manifest

FLEET = "{resources: {gpu: H100}, image: ubuntu, ttl: 6h}"


def written(directory: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return directory


def loaded(directory: Path, files: Mapping[str, str], **given: object) -> Manifest:
    return load([written(directory, files)], stack="default", **given)  # type: ignore[arg-type]


def refused(directory: Path, files: Mapping[str, str], **given: object) -> tuple[str, ...]:
    with pytest.raises(Failure) as caught:
        loaded(directory, files, **given)
    assert caught.value.exit_code is ExitCode.ERROR
    return tuple(f"{item.position}: {item.code}: {item.message}" for item in caught.value.diagnostics)


def fleets(manifest: Manifest) -> tuple[str, ...]:
    return tuple(manifest.sections["fleets"])


def test_only_lium_files_where_there_are_any(tmp_path: Path) -> None:
    files = {
        "lium.yaml": "project: demo\n",
        "more.lium.yaml": f"fleets: {{a: {FLEET}}}\n",
        "other.yaml": "this: is no manifest\n",
        ".hidden.lium.yaml": "neither: is this\n",
    }
    assert fleets(loaded(tmp_path, files)) == ("a",)


def test_otherwise_all_yaml_but_values(tmp_path: Path) -> None:
    files = {
        "b.yml": f"fleets: {{b: {FLEET}}}\n",
        "a.yaml": f"version: 1\nproject: demo\nvariables: {{x: {{}}}}\nfleets: {{a: {FLEET}}}\n",
        "c.yaml": f"version: 1\nproject: demo\nfleets: {{c: {FLEET}}}\n",
        "prod.vars.yaml": "x: never read\ny: 1\n",
        "given.yaml": "x: 5\n",
        ".hidden.yaml": "no: manifest\n",
        "sub/d.yaml": "no: manifest\n",
    }
    manifest = loaded(tmp_path, files, var_files=[tmp_path / "given.yaml"])
    assert fleets(manifest) == ("a", "b", "c")
    assert manifest.inputs.variables["x"].value == "5"


def test_positions_name_the_file_of_each_block(tmp_path: Path) -> None:
    manifest = loaded(tmp_path, {"a.yaml": "project: demo\n", "b.yaml": f"fleets:\n  x: {FLEET}\n"})
    position = manifest.position("fleets", "x", "ttl")
    assert position is not None
    assert (Path(position.file).name, position.line, position.column) == ("b.yaml", 2, 51)


def test_j2_a_name_defined_twice_names_both_places(tmp_path: Path) -> None:
    files = {"a.yaml": f"project: demo\nfleets:\n  x: {FLEET}\n", "b.yaml": f"fleets: {{x: {FLEET}}}\n"}
    (said,) = refused(tmp_path, files)
    assert said.endswith(f"'fleets.x' is defined twice; first at {tmp_path}/a.yaml:3:3")
    assert said.startswith(f"{tmp_path}/b.yaml:1:10: duplicate-name")


def test_two_projects(tmp_path: Path) -> None:
    (said,) = refused(tmp_path, {"a.yaml": "project: one\n", "b.yaml": "project: two\n"})
    assert "b.yaml:1:1: duplicate-name: 'project' is defined twice" in said


def test_lists_are_joined_and_policies_merged(tmp_path: Path) -> None:
    files = {
        "a.yaml": "project: demo\npolicy: {require_ttl: true}\nremoved: [{from: fleet.a}]\n",
        "b.yaml": "policy: {max_destroy: 3}\nremoved: [{from: fleet.b, destroy: false}]\n",
    }
    manifest = loaded(tmp_path, files)
    assert [block.from_ for block in manifest.removed] == ["fleet.a", "fleet.b"]
    assert (manifest.policy.require_ttl, manifest.policy.max_destroy) == (True, "3")


def test_includes(tmp_path: Path) -> None:
    files = {
        "lium.yaml": "project: demo\ninclude: [parts/a.yaml, parts/b.yaml]\n",
        "parts/a.yaml": f"include: [b.yaml]\nfleets: {{a: {FLEET}}}\n",
        "parts/b.yaml": f"fleets: {{b: {FLEET}}}\n",
    }
    assert fleets(loaded(tmp_path, files)) == ("a", "b")


@pytest.mark.parametrize(
    ("include", "message"),
    [
        ("../outside.yaml", "lies outside of the root directory"),
        ("/etc/passwd", "lies outside of the root directory"),
        ("link.yaml", "lies outside of the root directory"),
        ("lium.yaml", "includes itself"),
        ("loop.yaml", "includes itself through this file"),
        ("missing.yaml", "does not exist"),
        (".", "is no ordinary file"),
        ("'${{ stack }}.yaml'", "include takes plain paths"),
    ],
)
def test_includes_that_are_refused(tmp_path: Path, include: str, message: str) -> None:
    root = tmp_path / "root"
    written(tmp_path, {"outside.yaml": "a: b\n"})
    root.mkdir()
    (root / "link.yaml").symlink_to(tmp_path / "outside.yaml")
    files = {"lium.yaml": f"project: demo\ninclude: [{include}]\n", "loop.yaml": "include: [lium.yaml]\n"}
    said = refused(root, files)
    assert len(said) == 1
    assert "bad-include" in said[0]
    assert message in said[0]


def test_nothing_there(tmp_path: Path) -> None:
    assert "no manifest in" in refused(tmp_path, {})[0]
    assert "nothing is written" in refused(tmp_path, {"lium.yaml": "# nothing\n"})[0]
    with pytest.raises(Failure) as caught:
        load([tmp_path / "missing"], stack="default")
    assert "does not exist" in str(caught.value)


def test_an_empty_manifest_is_no_reason_for_an_init_that_would_refuse(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        loaded(tmp_path, {"lium.yaml": "# nothing yet\n"})
    (found,) = caught.value.diagnostics
    assert found.code == "empty-manifest"
    assert found.hint is not None
    assert "`version: 1` and `project: NAME`" in found.hint


def test_what_is_called_like_a_manifest_and_is_no_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "a" / "lium.yaml").mkdir(parents=True)
    assert "can't read" in refused(tmp_path / "a", {})[0]
    assert "Is a directory" in refused(tmp_path / "a", {})[0]
    (tmp_path / "b").mkdir()
    os.mkfifo(tmp_path / "b" / "lium.yaml")
    assert "is a pipe, no ordinary file" in refused(tmp_path / "b", {})[0]


def test_all_files_faults_at_once(tmp_path: Path) -> None:
    files = {"a.yaml": "project: demo\nflets: {}\n", "b.yaml": "a: [\n", "c.yaml": "- x\n"}
    said = refused(tmp_path, files)
    assert [line.split(": ")[1] for line in said] == ["unknown-key", "yaml-syntax", "wrong-type"]


VARIABLES = "project: demo\nvariables: {a: {default: none}, n: {type: integer, default: 0}}\n"


def test_the_order_of_values(tmp_path: Path) -> None:
    files = {"lium.yaml": VARIABLES, "one.vars.yaml": "a: one\nn: 1\n", "two.vars.yaml": "a: two\n"}
    written(tmp_path, files)
    one, two = tmp_path / "one.vars.yaml", tmp_path / "two.vars.yaml"

    def value(**given: object) -> object:
        return load([tmp_path], stack="s", **given).inputs.variables["a"].value  # type: ignore[arg-type]

    environ = {"LIUM_PLAN_VAR_a": "environment"}
    assert value() == "none"
    assert value(environ=environ) == "environment"
    assert value(environ=environ, var_files=[one]) == "one"
    assert value(environ=environ, var_files=[one, two]) == "two"
    assert value(environ=environ, var_files=[one, two], variables={"a": "line"}) == "line"


SETUP = "project: demo\nfleets: {a: {resources: {gpu: H100}, image: ubuntu, ttl: 6h, bootstrap: {commands: [x], env: {A: '%s'}}}}\n"


def faults(folder: Path, manifest: str, **given: object) -> list[str]:
    written(folder, {"lium.yaml": manifest})
    with pytest.raises(Failure) as caught:
        load([folder], stack="s", **given)  # type: ignore[arg-type]
    return [f"{item.position and item.position.line} {item.code}: {item.message}" for item in caught.value.diagnostics]


def test_a_variable_of_the_environment_that_is_no_text_is_named(tmp_path: Path) -> None:
    found = faults(tmp_path, SETUP % "${{ env.BAD }}", environ={"BAD": os.fsdecode(b"ab\xff")})
    assert found == ["2 bad-expression: the environment variable BAD is not UTF-8 text"]


def test_a_value_that_no_program_could_be_given_is_refused(tmp_path: Path) -> None:
    limit = 128 * 1024
    (tmp_path / "big").write_text("x" * (limit - len("A=")))
    (found,) = faults(tmp_path, SETUP % '${{ file("big") }}')
    assert found.startswith("2 too-long: A is longer than 128 KiB")
    (tmp_path / "big").write_text("x" * (limit - len("A=") - 1))
    load([tmp_path], stack="s")


def test_a_var_file_is_checked_and_never_shown(tmp_path: Path) -> None:
    files = {"lium.yaml": VARIABLES, "x.vars.yaml": "a: ok\nn: canary\nm: canary\n"}
    written(tmp_path, files)
    with pytest.raises(Failure) as caught:
        load([tmp_path], stack="s", var_files=[tmp_path / "x.vars.yaml"])
    found = {item.code: item for item in caught.value.diagnostics}
    assert str(found["bad-variable"].position).endswith("x.vars.yaml:2:4")
    assert str(found["unknown-variable"].position).endswith("x.vars.yaml:3:1")
    assert all(item.source_line is None for item in found.values())


@pytest.mark.parametrize("content", ["- a\n", "a: [\n", "a: 1\na: 2\n", "5\n"])
def test_a_broken_var_file(tmp_path: Path, content: str) -> None:
    written(tmp_path, {"lium.yaml": VARIABLES, "x.vars.yaml": content})
    with pytest.raises(Failure):
        load([tmp_path], stack="s", var_files=[tmp_path / "x.vars.yaml"])


def test_a_typed_value_keeps_its_type_where_it_is_used(tmp_path: Path) -> None:
    text = """
project: demo
variables:
  nodes: {type: integer, default: 3}
  where: {type: list, default: [us, jp-13]}
  price: {type: number, default: 2.50}
  renew: {type: boolean, default: true}
  gpu: {default: "H100:80GB:1"}
fleets:
  x:
    nodes: ${{ var.nodes }}
    regions: ${{ var.where }}
    max_price: ${{ var.price }}
    ttl: ${{ var.nodes }}h
    ttl_renew: ${{ var.renew }}
    resources: {gpu: "${{ var.gpu }}"}
    image: ${{ default(env.IMAGE, 'ubuntu') }}
"""
    block = loaded(tmp_path, {"lium.yaml": text}).block("fleets", "x")
    assert block.nodes.maximum == 3
    assert block.regions == ("us", "jp-13")
    assert str(block.max_price) == "2.50"
    assert (block.ttl, block.ttl_renew, block.image) == (3 * 3600, True, "ubuntu")
    assert block.resources.gpu.names == ("H100",)


def test_strings_are_what_was_written(tmp_path: Path) -> None:
    """J1, J3, J4: in a string's place, everything is the text that it looks like."""
    values = "NO on 0755 3.10 1_000 22:22 2024-01-16 true 12 0x1F".split()
    rows = "".join(f"        V{number}: {value}\n" for number, value in enumerate(values))
    text = f"project: demo\ntemplates:\n  t:\n    image: ubuntu\n    env:\n{rows.replace('        ', '      ')}"
    block = loaded(tmp_path, {"lium.yaml": text}).block("templates", "t")
    assert [text.reveal() for text in block.env.values()] == values


def test_a_file_that_is_not_there_is_told_with_the_other_faults_of_its_block(tmp_path: Path) -> None:
    fleet = "{resources: {gpu: H100}, image: ubuntu, ttl: 90, bootstrap: {files: [{source: nope.sh, target: a.sh}]}}"
    task = "{fleet: a, commands: [x], files: [{source: there.sh, target: b}, {source: gone, target: c}]}"
    text = f"version: 1\nproject: p\nfleets: {{a: {fleet}}}\ntasks: {{t: {task}}}\n"
    found = refused(tmp_path, {"lium.yaml": text, "there.sh": ""})
    assert [item.partition(": ")[2] for item in found[1:]] == [
        "unreadable-file: 'nope.sh' does not exist",
        "unreadable-file: 'gone' does not exist",
    ]
    assert "bad-value" in found[0]
