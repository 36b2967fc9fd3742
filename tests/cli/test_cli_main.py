"""The command line itself: help, usage, exit codes, where options may stand, what is imported."""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
from pathlib import Path

import click
import pytest

from lium_plan.cli.crash import crash_text
from lium_plan.cli.main import COMMANDS, cli, main
from lium_plan.cli.schema import NAMES
from lium_plan.cli.verb import GlobalOption

HEAVY = ("httpx", "asyncssh", "pydantic", "deepdiff", "jsonschema", "rich", "yaml", "asyncio", "fastapi")


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No settings of this machine, and a directory of one's own."""
    for name in ("LIUM_API_KEY", "LIUM_API_API_KEY", "LIUM_BASE_URL", "LIUM_PLAN_STACK", "LIUM_PLAN_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("arguments", [["--help"], ["--version"], ["plan", "--help"], ["sim", "serve", "--help"], []])
def test_help_loads_nothing_heavy(arguments: list[str]) -> None:
    code = (
        "import sys\nfrom lium_plan.cli.main import main\n"
        f"main({arguments!r})\n"
        f"print([name for name in {HEAVY!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stderr.splitlines()[-1] == "[]"


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    shown = capsys.readouterr().out
    assert all(f"  {name} " in shown for name in COMMANDS)
    assert "70 our bug" in shown


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_what_the_list_says(name: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    assert isinstance(command, click.Command)
    assert command.name == name
    assert command.help


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[tuple[str, ...], click.Command]]:
    if not isinstance(command, click.Group):
        return [(path, command)]
    context = click.Context(command)
    return [
        leaf
        for name in command.list_commands(context)
        if (member := command.get_command(context, name)) is not None
        for leaf in leaves(member, (*path, name))
    ]


def test_every_command_takes_the_global_options_and_explains_all_of_its_own() -> None:
    for path, command in leaves(cli):
        names = {option for item in command.params if isinstance(item, GlobalOption) for option in item.opts}
        assert {"--chdir", "--stack", "--state", "--sim", "-v", "-q", "--color"} <= names, path
        for item in command.params:
            assert not isinstance(item, click.Option) or item.help, (path, item.name)


@pytest.mark.parametrize("name", ["validate", "plan", "show", "output", "offers", "status", "events", "doctor"])
def test_reading_commands_take_json(name: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    assert any("--json" in item.opts for item in command.params)


@pytest.mark.parametrize("name", ["plan", "apply", "destroy"])
def test_the_common_options(name: str) -> None:
    command = importlib.import_module(COMMANDS[name][0]).command
    names = {option for item in command.params for option in item.opts}
    assert {
        "-f", "--var", "--var-file", "--target", "--exclude", "--replace", "--refresh-only", "--no-refresh",
        "--parallelism", "--lock-timeout", "--wait-timeout", "--max-hourly-cost", "--json", "--json-into", "--markdown",
    } <= names  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["plna"], "Did you mean 'plan'?"),
        (["plan", "--nope"], "No such option"),
        (["plan", "--max-hourly-cost", "much"], "no amount in USD"),
        (["apply", "--lock-timeout", "soon"], "no duration"),
        (["apply", "--wait-timeout", "5"], "write 5s or 5m"),
        (["extend", "fleet.a", "90"], "write 90s or 90m"),
        (["apply", "--json", "--markdown"], "exclude each other"),
        (["show", "--json", "--markdown"], "exclude each other"),
        (["apply", "--parallelism", "-1"], "-1"),
        (["plan", "--var", "hunter2"], "NAME=VALUE"),
        (["plan", "--refresh-only", "--no-refresh"], "exclude each other"),
        (["plan", "--allow-destroy", "a b"], "--allow-destroy"),
        (["apply", "plan.json", "--target", "fleet.a"], "--target"),
        (["offers", "--csv", "--json"], "--csv"),
        (["offers", "-f", "x"], "--fleet"),
        (["state", "show", "nonsense"], "no address"),
        (["sim", "serve", "--host", "0.0.0.0"], "loopback only"),
        (["--chdir", "/nonexistent", "version"], "--chdir"),
        (["version", "--color", "pink"], "pink"),
    ],
)
def test_usage_errors_are_64_and_on_stderr(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    shown = capsys.readouterr()
    assert word in (shown.out if "--json" in arguments else shown.err)
    assert "Traceback" not in shown.err


@pytest.mark.parametrize("arguments", [[], ["state"], ["sim"]])
def test_nothing_asked_is_answered_with_help(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 64
    assert capsys.readouterr().err.startswith("Usage: lium-plan")


def test_a_variables_value_is_not_repeated_in_the_error(capsys: pytest.CaptureFixture[str]) -> None:
    main(["plan", "--var", "BAD=hunter2"])
    assert "hunter2" not in capsys.readouterr().err


def test_no_key_is_an_error_with_its_cure(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-q"]) == 0
    assert main(["plan"]) == 1
    shown = capsys.readouterr().err
    assert "an API key is needed" in shown
    assert "--sim" in shown


def test_failures_are_documents_with_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--json", "-f", "missing.yaml"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert (document["errored"], document["actions"]) == (True, [])
    assert document["diagnostics"][0]["severity"] == "error"


def test_a_plan_that_cannot_be_made_still_says_of_which_project(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "-q"]) == 0
    capsys.readouterr()
    assert main(["plan", "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["errored"]
    assert document["project"] == "quickstart"
    assert (document["lineage"], document["serial"]) == (None, 0)


def test_a_failed_apply_is_a_whole_stream(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "--json", "--json-into", "events.jsonl", "-f", "missing.yaml"]) == 1
    shown = capsys.readouterr()
    rows = [json.loads(line) for line in shown.out.splitlines()]
    assert [row["type"] for row in rows] == ["version", "diagnostic", "change_summary"]
    assert rows[-1]["exit_code"] == 1
    assert shown.err == ""
    assert Path("events.jsonl").read_text(encoding="utf-8") == shown.out


def test_json_into_that_cannot_be_written_is_told_before_anything_is_done(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["apply", "--json-into", "no/such/place"]) == 1
    assert "cannot write no/such/place" in capsys.readouterr().err


def test_global_options_before_and_after_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "w").mkdir()
    assert main(["--chdir", "w", "init", "-q"]) == 0
    assert (tmp_path / "w" / "lium.yaml").is_file()
    assert main(["state", "--stack", "prod", "--state", "file:elsewhere", "list", "--json"]) == 1
    assert "stack prod has no state in elsewhere" in capsys.readouterr().out
    assert main(["show", "--stack", "prod", "--json", "--state", "file:elsewhere"]) == 1
    assert json.loads(capsys.readouterr().out)["stack"] == "prod"


def test_a_later_option_wins(capsys: pytest.CaptureFixture[str]) -> None:
    main(["--stack", "one", "show", "--json", "--stack", "two"])
    assert json.loads(capsys.readouterr().out)["stack"] == "two"


@pytest.mark.parametrize("name", NAMES)
def test_schemas_are_printed_as_they_are_kept(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["schema", name]) == 0
    kept = Path(__file__).parents[2] / "schemas" / f"{name}.schema.json"
    assert capsys.readouterr().out == kept.read_text(encoding="utf-8")


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert "_LIUM_PLAN_COMPLETE" in capsys.readouterr().out


def test_completion_completes() -> None:
    done = subprocess.run(
        (sys.executable, "-c", "from lium_plan.cli.main import main; main()"),
        env={"_LIUM_PLAN_COMPLETE": "bash_complete", "COMP_WORDS": "lium-plan st", "COMP_CWORD": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plain,status", "plain,state"]


class TestCrash:
    """A bug of ours: exit 70, one line, a report without values."""

    def fault(self) -> Exception:
        secret = "hunter2"
        try:
            try:
                raise KeyError(secret)
            except KeyError as inner:
                raise RuntimeError(f"key {secret}") from inner
        except RuntimeError as outer:
            return outer

    def test_the_report_names_types_and_lines_and_no_values(self) -> None:
        text = crash_text(self.fault(), ["plan", "--var", "token=hunter2", "--stack=hunter2", "-fhunter2"])
        assert "builtins.RuntimeError" in text
        assert "builtins.KeyError" in text
        assert "test_cli_main.py" in text
        assert "command: plan  options: --var --stack -f" in text
        assert "hunter2" not in text

    def test_groups_are_taken_apart(self) -> None:
        text = crash_text(ExceptionGroup("hunter2", [self.fault()]), [])
        assert "member 0:" in text
        assert "hunter2" not in text


def test_an_unexpected_exception_is_70(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setitem(COMMANDS, "bad", ("lium_plan.no_such_module_hunter", "Only here."))
    monkeypatch.setattr("tempfile.tempdir", None)
    assert main(["bad"]) == 70
    shown = capsys.readouterr().err
    assert shown.count("\n") == 1
    assert "a bug in lium-plan: ModuleNotFoundError" in shown
    (report,) = tmp_path.glob("lium-plan-crash-*.txt")
    assert report.stat().st_mode & 0o777 == 0o600
