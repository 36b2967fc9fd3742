"""Where settings come from, and what is refused."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from lium_plan.cli.main import main
from lium_plan.diagnostics import ExitCode, Failure
from lium_plan.settings import DEFAULT_BASE_URL, Flags, Settings, resolve


def found(
    home: Path, environ: Mapping[str, str] | None = None, *, flags: Flags | None = None, config: str | None = None
) -> Settings:
    if config is not None:
        (home / ".lium").mkdir(exist_ok=True)
        (home / ".lium" / "config.ini").write_text(config, encoding="utf-8")
    return resolve(flags or Flags(), environ or {}, home)


def refusal(home: Path, environ: Mapping[str, str] | None = None, *, flags: Flags | None = None) -> str:
    with pytest.raises(Failure) as caught:
        found(home, environ, flags=flags)
    assert caught.value.exit_code is ExitCode.ERROR
    return str(caught.value)


def test_defaults(tmp_path: Path) -> None:
    settings = found(tmp_path)
    assert settings.base_url == DEFAULT_BASE_URL
    assert (settings.stack, settings.state_dir, settings.parallelism) == ("default", Path("state"), 0)
    assert settings.api_key is None
    assert settings.ssh_key_path is None


def test_flags_before_environment(tmp_path: Path) -> None:
    environ = {"LIUM_PLAN_STACK": "env", "LIUM_PLAN_STATE": "file:env", "LIUM_PLAN_PARALLELISM": "3"}
    settings = found(tmp_path, environ)
    assert (settings.stack, settings.state_dir, settings.parallelism) == ("env", Path("env"), 3)
    settings = found(tmp_path, environ, flags=Flags("flag", "file:/x/flag", False, 0))
    assert (settings.stack, settings.state_dir, settings.parallelism) == ("flag", Path("/x/flag"), 0)
    assert settings.provenance["stack"] == "--stack"


CONFIG = """
[api]
api_key = sk_api
[workspaces]
active = Team
[workspace.team]
api_key = sk_team
[workspace.other]
api_key = sk_%other
[ssh]
key_path = ~/keys/mine
"""


@pytest.mark.parametrize(
    ("environ", "key"),
    [
        ({"LIUM_API_API_KEY": "sk_1", "LIUM_API_KEY": "sk_2"}, "sk_1"),
        ({"LIUM_API_KEY": "sk_2"}, "sk_2"),
        ({}, "sk_team"),
        ({"LIUM_WORKSPACE": "Other", "LIUM_API_KEY": "sk_2"}, "sk_%other"),
        ({"LIUM_WORKSPACE": "missing", "LIUM_API_KEY": "sk_2"}, None),
    ],
)
def test_the_key_is_found_as_the_official_client_finds_it(
    tmp_path: Path, environ: Mapping[str, str], key: str | None
) -> None:
    assert found(tmp_path, environ, config=CONFIG).api_key == key


def test_without_a_workspace_the_api_section_counts(tmp_path: Path) -> None:
    assert found(tmp_path, config="[api]\napi_key = sk_api\n").api_key == "sk_api"


def test_ssh_key(tmp_path: Path) -> None:
    assert found(tmp_path, config=CONFIG).ssh_key_path == tmp_path / "keys" / "mine"
    assert found(tmp_path, {"LIUM_SSH_KEY_PATH": "/k/id.pub"}).ssh_key_path == Path("/k/id")


def test_the_first_ssh_key_that_exists(tmp_path: Path) -> None:
    (tmp_path / ".ssh").mkdir()
    for name in ("id_ecdsa", "id_rsa"):
        (tmp_path / ".ssh" / name).write_text("key", encoding="utf-8")
    assert found(tmp_path).ssh_key_path == tmp_path / ".ssh" / "id_rsa"


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:8000/api", "http://localhost/api/", "http://[::1]:1/api", "https://lium.example/api"]
)
def test_accepted_base_urls(tmp_path: Path, url: str) -> None:
    assert found(tmp_path, {"LIUM_BASE_URL": url}).base_url == url.rstrip("/")


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("http://lium.io/api", "plain http"),
        ("http://127.0.0.1.evil.example/api", "plain http"),
        ("http://localhost.evil.example/api", "plain http"),
        ("ftp://lium.io", "no http(s) URL"),
        ("lium.io/api", "no http(s) URL"),
        ("https://user:hunter2@lium.io/api", "a user"),
        ("https://lium.io/api?key=hunter2", "a query"),
    ],
)
def test_refused_base_urls(tmp_path: Path, url: str, word: str) -> None:
    message = refusal(tmp_path, {"LIUM_BASE_URL": url})
    assert word in message
    assert "hunter2" not in message


def test_every_fault_is_told_at_once(tmp_path: Path) -> None:
    environ = {
        "LIUM_BASE_URL": "http://lium.io",
        "LIUM_PLAN_STACK": "Not a name",
        "LIUM_PLAN_STATE": "s3://bucket",
        "LIUM_PLAN_PARALLELISM": "-1",
        "LIUM_PLAN_STATE_KEY": "secret",
    }
    message = refusal(tmp_path, environ)
    for word in ("plain http", "stack's name", "no place for a state", "whole number", "encrypted state"):
        assert word in message
    assert "secret" not in message


def test_a_broken_config_is_named_without_its_content(tmp_path: Path) -> None:
    (tmp_path / ".lium").mkdir()
    (tmp_path / ".lium" / "config.ini").write_text("sk_hunter2\n", encoding="utf-8")
    message = refusal(tmp_path)
    assert "config.ini" in message
    assert "hunter2" not in message


def test_the_key_is_not_shown(tmp_path: Path) -> None:
    settings = found(tmp_path, {"LIUM_API_KEY": "sk_hunter2"})
    assert "hunter2" not in repr(settings)
    assert "hunter2" not in str(settings.described())
    assert settings.described()["API key"] == "set (LIUM_API_KEY)"


def test_commands_that_need_a_key_say_how_to_give_one(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        found(tmp_path).require_key()
    assert "LIUM_API_KEY" in (caught.value.diagnostics[0].hint or "")
    assert found(tmp_path, {"LIUM_API_KEY": "sk_1"}).require_key() == "sk_1"
    with pytest.raises(Failure):
        found(tmp_path).require_ssh_key()


def test_sim_ignores_key_and_server_of_elsewhere(tmp_path: Path) -> None:
    environ = {"LIUM_API_KEY": "sk_real", "LIUM_BASE_URL": "http://lium.io", "LIUM_WORKSPACE": "team"}
    settings = found(tmp_path, environ, flags=Flags(sim=True))
    assert (settings.api_key, settings.base_url, settings.workspace) == (None, "", None)
    local = settings.simulated(base_url="http://127.0.0.1:1/api", api_key="sk_sim_local", ssh_key_path=Path("k"))
    assert (local.api_key, local.base_url, local.ssh_key_path) == ("sk_sim_local", "http://127.0.0.1:1/api", Path("k"))
    assert "--sim" in local.provenance["api_key"]


@pytest.mark.parametrize(
    "url", ["ftp://user:pw-canary@exa[mple.com/api", "https://[::1/api", "https://h:99999/api", "https://h:x/api"]
)
def test_what_is_no_url_is_refused_and_not_shown(tmp_path: Path, url: str) -> None:
    assert refusal(tmp_path, {"LIUM_BASE_URL": url}) == "LIUM_BASE_URL is no URL"


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("none", "no such file or directory"),
        ("", "is a directory"),
        ("text", "it is no private key"),
        ("locked", "it is protected by a passphrase and no ssh-agent runs (SSH_AUTH_SOCK is not set)"),
    ],
)
def test_the_doctor_says_what_is_wrong_with_a_key(
    name: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text").write_text("hello")
    keygen = ("ssh-keygen", "-q", "-t", "ed25519", "-N", "a passphrase", "-f", str(tmp_path / "locked"))
    subprocess.run(keygen, check=True)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LIUM_BASE_URL", "http://127.0.0.1:9/api")
    monkeypatch.setenv("LIUM_SSH_KEY_PATH", str(tmp_path / name))
    assert main(["doctor", "--json"]) == 1
    checks = {row["name"]: row for row in json.loads(capsys.readouterr().out)["checks"]}
    assert checks["ssh-key"]["ok"] is False
    assert checks["ssh-key"]["detail"] == f"{tmp_path / name} can't be used: {why}"
    assert checks["ssh-key"]["cure"]
