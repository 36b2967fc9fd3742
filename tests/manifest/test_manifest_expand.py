"""From manifest to desired: addresses, membership, files, digest."""

from __future__ import annotations

from pathlib import Path

import pytest

from lium_plan.diagnostics import Failure
from lium_plan.kinds.desired import Desired
from lium_plan.manifest.expand import expand
from lium_plan.manifest.load import load
from lium_plan.manifest.model import Manifest

BASE = """
project: demo
variables: {token: {sensitive: true, default: canary-token}}
volumes: {data: }
templates: {torch: {image: "pytorch/pytorch:2.4.0", ports: [8000]}}
fleets:
  trainers:
    nodes: 2
    resources: {gpu: H100}
    template: torch
    ttl: 6h
    bootstrap:
      files:
        - {source: ./setup.sh, target: /root/setup.sh, mode: 0755}
        - {source: ./hosts.tpl, target: /root/hosts, template: true}
      env: {TOKEN: "${{ var.token }}", RANK: "${{ member.index }}"}
      commands: [sh /root/setup.sh]
  named:
    nodes: [head, worker-a]
    resources: {gpu: H100}
    image: ubuntu
    ttl: 6h
    scale_down: oldest
tasks:
  train: {fleet: trainers, commands: ["echo ${{ member.name }}"], members: [1]}
policy: {max_hourly_cost: 12.00, max_destroy: 30%}
outputs: {hosts: "${{ fleet.trainers[*].host }}"}
"""


def manifest_in(directory: Path, text: str = BASE) -> Manifest:
    (directory / "lium.yaml").write_text(text, encoding="utf-8")
    (directory / "setup.sh").write_text("echo hi\n", encoding="utf-8")
    (directory / "hosts.tpl").write_text("${{ join(' ', fleet.trainers[*].host) }} ${{ stack }}\n", encoding="utf-8")
    return load([directory], stack="default")


def desired_in(directory: Path, text: str = BASE) -> Desired:
    return expand(manifest_in(directory, text))


def addresses(desired: Desired) -> list[str]:
    return [str(address) for address in desired.resources]


def test_one_resource_per_address(tmp_path: Path) -> None:
    found = addresses(desired_in(tmp_path))
    assert "volume.data" in found
    assert "template.torch" in found
    assert [one for one in found if one.startswith("fleet.trainers")] == [
        "fleet.trainers[0]",
        "fleet.trainers[1]",
        "fleet.trainers[0].bootstrap",
        "fleet.trainers[1].bootstrap",
    ]
    assert [one for one in found if one.startswith("fleet.named")] == [
        "fleet.named[head]",
        "fleet.named[worker-a]",
    ]
    assert [one for one in found if one.startswith("task.")] == ["task.train[1]"]


def test_fleets_and_policy(tmp_path: Path) -> None:
    desired = desired_in(tmp_path)
    trainers, named = desired.fleets["trainers"], desired.fleets["named"]
    assert (trainers.minimum, trainers.maximum, trainers.names) == (2, 2, None)
    assert (named.minimum, named.maximum, named.names) == (2, 2, ("head", "worker-a"))
    assert (trainers.scale_down, named.scale_down) == ("newest", "oldest")
    assert str(desired.policy.max_hourly_cost_usd) == "12.00"
    assert desired.policy.max_destroy == "30%"
    assert (desired.project, desired.stack) == ("demo", "default")


def test_d9_the_planner_chooses_the_members_of_a_count(tmp_path: Path) -> None:
    desired = expand(manifest_in(tmp_path), members={"trainers": ("0", "2", "4"), "named": ("head", "x")})
    found = addresses(desired)
    assert "fleet.trainers[4].bootstrap" in found
    assert "fleet.trainers[1]" not in found
    assert "fleet.named[head]" in found
    assert "fleet.named[worker-a]" not in found
    assert "fleet.named[x]" not in found


def test_templates_of_files_are_filled_per_member(tmp_path: Path) -> None:
    desired = desired_in(tmp_path)
    spec = next(one.spec for one in desired.resources.values() if str(one.address) == "fleet.trainers[1].bootstrap")
    content = next(file.content for file in spec.files if file.content is not None)
    assert content.source == '${{ join(" ", fleet.trainers[*].host) }} default\n'
    assert spec.env["RANK"].reveal() == "1"
    assert spec.env["TOKEN"].reveal() == "canary-token"
    assert spec.env["TOKEN"].sensitive
    assert "canary-token" not in repr(desired)


SECRET_FILES = """
project: demo
variables: {token: {sensitive: true, default: canary-token}}
fleets:
  trainers:
    resources: {gpu: H100}
    image: ubuntu
    ttl: 6h
    bootstrap:
      files:
        - {source: secret.tpl, target: a, template: true}
        - {source: secret.tpl, target: b, template: true, mode: "0640"}
        - {source: secret.tpl, target: c, template: true, mode: "0700"}
        - {source: secret.tpl, target: d}
        - {source: hosts.tpl, target: e, template: true}
        - {source: tree, target: f, template: true}
        - {source: tree, target: g, template: true, mode: "0755"}
tasks:
  t:
    fleet: trainers
    user: image
    commands: [x]
    files: [{source: secret.tpl, target: a, template: true}]
  u:
    fleet: trainers
    user: image
    commands: [x]
    files: [{source: secret.tpl, target: a, mode: "0644", template: true}, {source: setup.sh, target: s, mode: "0600"}]
"""


def test_a_file_with_a_secret_is_for_root_alone(tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    for name in ("secret.tpl", "tree/run", "tree/text"):
        (tmp_path / name).write_text("${{ var.token }}\n", encoding="utf-8")
    (tmp_path / "tree" / "run").chmod(0o755)
    (tmp_path / "tree" / "plain").write_text("nothing\n", encoding="utf-8")
    desired = desired_in(tmp_path, SECRET_FILES)
    spec = next(one.spec for one in desired.resources.values() if str(one.address) == "fleet.trainers[0].bootstrap")
    assert {file.target: f"{file.mode:04o}" for file in spec.files} == {
        "a": "0600",
        "b": "0640",
        "c": "0700",
        "d": "0644",
        "e": "0644",
        "f/plain": "0644",
        "f/run": "0700",
        "f/text": "0600",
        "g/plain": "0755",
        "g/run": "0755",
        "g/text": "0755",
    }
    found = [(item.position.line, item.severity, item.message) for item in desired.diagnostics if item.position]
    assert sorted(found) == [
        (12, "warning", "mode 0640: secret.tpl has a secret in it, and others on the pod may reach it"),
        (17, "warning", "mode 0755: run has a secret in it, and others on the pod may reach it"),
        (21, "warning", "user: image: secret.tpl has a secret in it, so root alone may read it"),
        (28, "warning", "mode 0644: secret.tpl has a secret in it, and others on the pod may reach it"),
    ]


def test_numbers_inside_of_a_text_stand_as_they_were_written(tmp_path: Path) -> None:
    text = """
project: demo
variables: {py: {type: map, default: {v: 3.10}}, all: {type: list, default: [3.10, 1.50]}, n: {type: number}}
fleets: {x: {resources: {gpu: H100}, image: "python:${{ var.py.v }}-${{ join('-', var.all) }}-${{ var.n }}", ttl: 6h}}
"""
    (tmp_path / "lium.yaml").write_text(text, encoding="utf-8")
    manifest = load([tmp_path], stack="default", variables={"n": "2.0"})
    assert manifest.block("fleets", "x").image == "python:3.10-3.10-1.50-2.0"


def test_files_are_relative_to_the_manifest_that_names_them(tmp_path: Path) -> None:
    part = BASE.replace("project: demo\n", "").replace("./", "./files/")
    (tmp_path / "sub" / "files").mkdir(parents=True)
    for name in ("setup.sh", "hosts.tpl"):
        (tmp_path / "sub" / "files" / name).write_text("x\n", encoding="utf-8")
    (tmp_path / "sub" / "part.yaml").write_text(part, encoding="utf-8")
    (tmp_path / "lium.yaml").write_text("project: demo\ninclude: [sub/part.yaml]\n", encoding="utf-8")
    assert expand(load([tmp_path], stack="default")).resources


@pytest.mark.parametrize(
    ("source", "message"),
    [("./missing.sh", "does not exist"), ("/dev/null", "is no ordinary file")],
)
def test_files_that_can_not_be_read(tmp_path: Path, source: str, message: str) -> None:
    with pytest.raises(Failure) as caught:
        desired_in(tmp_path, BASE.replace("./setup.sh", source))
    (item,) = caught.value.diagnostics
    assert message in item.message
    assert str(item.position).endswith("lium.yaml:14:20")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"\xff", "not UTF-8"),
        (b"a\n${{ flet }}\n", "line 2: unknown name 'flet'"),
        (b"${{ fleet.nope[0].host }}", "no fleet 'nope' is declared"),
        (b"${{ var.nope }}", "unknown variable"),
    ],
)
def test_templates_that_can_not_be_filled(tmp_path: Path, content: bytes, message: str) -> None:
    manifest = manifest_in(tmp_path)
    (tmp_path / "hosts.tpl").write_bytes(content)
    with pytest.raises(Failure) as caught:
        expand(manifest)
    assert message in caught.value.diagnostics[0].message


def test_the_digest_is_of_the_meaning(tmp_path: Path) -> None:
    first = desired_in(tmp_path).digest
    assert desired_in(tmp_path, "# a comment\n" + BASE).digest == first
    for change in (
        ("canary-token", "another-token"),
        ("nodes: 2", "nodes: 3"),
        ("[sh /root", "[sh -x /root"),
    ):
        assert desired_in(tmp_path, BASE.replace(*change)).digest != first
    manifest = manifest_in(tmp_path)
    (tmp_path / "setup.sh").write_text("echo changed\n", encoding="utf-8")
    assert expand(manifest).digest != first


def test_two_fleets_with_one_image_share_its_template(tmp_path: Path) -> None:
    text = "project: demo\nfleets:\n" + "".join(
        f"  {name}: {{resources: {{gpu: H100}}, image: {image}, ttl: 6h}}\n"
        for name, image in (("a", "ubuntu"), ("b", "docker.io/library/ubuntu:latest"))
    )
    found = addresses(desired_in(tmp_path, text))
    assert len([one for one in found if one.startswith("template.")]) == 1


def test_e2_spellings_mean_the_same(tmp_path: Path) -> None:
    template = "project: demo\nfleets:\n  x: {{resources: {{gpu: {}}}, image: {}, ttl: {}}}\n"
    specs = []
    for gpu, image, ttl in (
        ("rtx4090", "ubuntu", "48h"),
        ("RTX 4090", "docker.io/library/ubuntu:latest", "2d"),
        ("NVIDIA GeForce RTX 4090", "ubuntu:latest", "1d24h"),
    ):
        desired = desired_in(tmp_path, template.format(gpu, image, ttl))
        specs.append([resource.spec for resource in desired.resources.values()])
    assert specs[0] == specs[1] == specs[2]
