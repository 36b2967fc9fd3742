"""`init`: every packaged example is a valid manifest, and nothing is overwritten."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lium_plan.cli.init import example_names
from lium_plan.cli.main import main


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("name", example_names())
def test_every_example_is_valid(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "new", "--example", name]) == 0
    given = capsys.readouterr().err.partition("plan --sim")[2].split()  # what is said to be typed is enough
    assert main(["--chdir", "new", "validate", "--json", *given]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["valid"], document["project"]) == (True, name)


def test_the_editor_finds_the_schema(tmp_path: Path) -> None:
    assert main(["init"]) == 0
    first = (tmp_path / "lium.yaml").read_text(encoding="utf-8").splitlines()[0]
    place = first.removeprefix("# yaml-language-server: $schema=")
    assert json.loads((tmp_path / place).read_text(encoding="utf-8"))["title"]
    assert (tmp_path / ".gitignore").read_text(encoding="utf-8") == "state/\n"


def test_the_default_is_the_quickstart(tmp_path: Path) -> None:
    main(["init"])
    assert "project: quickstart" in (tmp_path / "lium.yaml").read_text(encoding="utf-8")


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "lium.yaml").write_text("mine", encoding="utf-8")
    (tmp_path / ".gitignore").write_text("mine too", encoding="utf-8")
    assert main(["init"]) == 1
    assert "overwrites nothing" in capsys.readouterr().err
    assert (tmp_path / "lium.yaml").read_text(encoding="utf-8") == "mine"
    assert not (tmp_path / ".lium-plan").exists()
    assert (tmp_path / ".gitignore").read_text(encoding="utf-8") == "mine too"


def test_an_unknown_example_names_the_known_ones(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--example", "nope"]) == 64
    assert "quickstart, serve, training" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["lium.yaml", ".gitignore", ".lium-plan/manifest.schema.json"])
def test_a_link_that_leads_nowhere_is_there_already(name: str, tmp_path: Path) -> None:
    (tmp_path / ".lium-plan").mkdir()
    (tmp_path / name).symlink_to(tmp_path / "elsewhere")
    assert main(["init"]) == (0 if name == ".gitignore" else 1)
    assert not (tmp_path / "elsewhere").exists()
