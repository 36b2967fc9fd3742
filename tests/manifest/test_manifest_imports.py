"""What is loaded when: a command that reads no manifest pays for neither pydantic nor jsonschema."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SHOW = """
import sys
heavy = ("pydantic", "jsonschema", "httpx", "asyncssh")
print(*sorted(name for name in heavy if name in sys.modules))
"""


def loaded_after(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", f"{code}\n{SHOW}"], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize(
    "module",
    ["lium_plan.manifest", "lium_plan.manifest.load", "lium_plan.expressions", "lium_plan.kinds.values"],
)
def test_importing_loads_no_validator(module: str) -> None:
    assert loaded_after(f"import {module}") == ""


def test_a_good_manifest_needs_no_jsonschema(tmp_path: Path) -> None:
    file = tmp_path / "lium.yaml"
    file.write_text("project: demo\nfleets: {x: {resources: {gpu: H100}, image: ubuntu, ttl: 6h}}\n", encoding="utf-8")
    code = f"from lium_plan.manifest.load import load\nload([{str(file)!r}], stack='s')"
    assert loaded_after(code) == "pydantic"


def test_a_bad_one_needs_both(tmp_path: Path) -> None:
    file = tmp_path / "lium.yaml"
    file.write_text("project: demo\nfleets: {x: {}}\n", encoding="utf-8")
    code = (
        "from lium_plan.manifest.load import load\nfrom lium_plan.diagnostics import Failure\n"
        f"try:\n    load([{str(file)!r}], stack='s')\nexcept Failure:\n    pass"
    )
    assert loaded_after(code) == "jsonschema pydantic"
