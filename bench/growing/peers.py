"""What others take for as much: Terraform with `terraform_data`, which needs no provider, and octoDNS on files."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.venvs import client_bin

Commands = Mapping[str, tuple[Sequence[str | Path], Path]]
"""Operation -> command and the directory to run it in."""
BLOCK = """\
resource "terraform_data" "r{number}" {{
  input = {{ gpu = "H100:80GB:1", cpu = "8..", memory = "64GB..", max_price = 2.5, ttl = "48h", name = "r{number}" }}
}}
"""


def terraform(folder: Path, size: int) -> Commands | None:
    """One block a resource. The state is that of an applied one, multiplied: an apply of so many takes hours."""
    program = shutil.which("terraform")
    if program is None:
        return None
    fresh, applied = folder / "fresh", folder / "applied"
    for place in (fresh, applied):
        place.mkdir(parents=True)
        (place / "main.tf").write_text(BLOCK.format(number=0))
        _quiet([program, "init", "-input=false"], place)
    _quiet([program, "apply", "-auto-approve", "-input=false"], applied)
    state = json.loads((applied / "terraform.tfstate").read_text())
    (model,) = state["resources"]
    known, text = model["instances"][0]["attributes"]["id"], json.dumps(model)
    with (applied / "terraform.tfstate").open("w") as file:
        head, _, tail = json.dumps({**state, "resources": ["HERE"]}).partition('"HERE"')
        file.write(head)
        for number in range(size):
            row = text.replace('"r0"', f'"r{number}"').replace(known, str(uuid.uuid4()))
            file.write(f"{', ' if number else ''}{row}")
        file.write(tail)
    for place in (fresh, applied):
        (place / "main.tf").write_text("".join(BLOCK.format(number=number) for number in range(size)))
    plan = [program, "plan", "-input=false", "-lock=false", "-no-color"]
    return {"validate": ([program, "validate"], fresh), "create": (plan, fresh), "no change": (plan, applied)}


def _quiet(command: Sequence[str], folder: Path) -> None:
    environ = {**os.environ, "TF_CLI_CONFIG_FILE": "/dev/null"}
    subprocess.run(command, cwd=folder, env=environ, check=True, stdout=subprocess.DEVNULL)


CONFIG = """\
providers:
  source: {class: octodns.provider.yaml.YamlProvider, directory: ./source, default_ttl: 3600, enforce_order: false}
  target: {class: octodns.provider.yaml.YamlProvider, directory: ./TARGET, default_ttl: 3600, enforce_order: false}
zones:
  example.com.: {sources: [source], targets: [target]}
"""


def octodns(folder: Path, size: int) -> Commands:
    programs = client_bin("octodns-1.22", "octodns==1.22.*")
    for name in ("source", "same", "empty"):
        (folder / name).mkdir(parents=True)
    records = "---\n" + "".join(f"r{number}: {{type: A, value: 192.0.2.{number % 250}}}\n" for number in range(size))
    for name in ("source", "same"):
        (folder / name / "example.com.yaml").write_text(records)
    (folder / "empty" / "example.com.yaml").write_text("---\n{}\n")
    for name in ("same", "empty"):
        (folder / f"{name}.yaml").write_text(CONFIG.replace("TARGET", name))
    sync = programs / "octodns-sync"
    return {
        "validate": ([programs / "octodns-validate", "--config-file", "same.yaml"], folder),
        "create": ([sync, "--config-file", "empty.yaml"], folder),
        "no change": ([sync, "--config-file", "same.yaml"], folder),
    }
