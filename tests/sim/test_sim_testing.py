"""The fixtures that other projects import, used as they would."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import lium_plan

CONFTEST = """
import pytest
pytest_plugins = ["lium_plan.sim.testing"]

@pytest.fixture(scope="session")
def local_lium_options():
    return ("--no-machines", "--nodes", "5")
"""
TESTS = """
import httpx, pytest

def rent(lium, **headers):
    api = httpx.Client(base_url=lium.base_url, headers={"X-API-KEY": lium.api_key, **headers})
    node = next(row for row in api.get("/executors").json())
    body = {"pod_name": "p", "template_id": api.get("/templates").json()[0]["id"], "user_public_key": "k"}
    return api, api.post(f"/executors/{node['id']}/rent", json=body)

def test_a_pod_runs_after_a_minute(local_lium):
    api, answer = rent(local_lium)
    local_lium.advance(60)
    assert api.get(f"/pods/{answer.json()['pod_id']}").json()["status"] == "RUNNING"
    assert [row["name"] for row in local_lium.ledger(open_only=True)] == ["p"]
    assert local_lium.requests()[-1]["path"].startswith("/pods/")
    local_lium.configure(rents_per_minute=1)
    local_lium.fault({"do": "answer", "status": 500}, match={"path": "/never"})

def test_what_others_did_is_not_here(local_lium):
    assert local_lium.ledger() == []
    assert local_lium.control("GET", "/faults") == []
    assert local_lium.control("GET", "/config")["rents_per_minute"] == 0
    local_lium.fault({"do": "lose_reply"}, match={"path": "/executors/*/rent"})
    with pytest.raises(httpx.RemoteProtocolError):
        rent(local_lium)
    assert len(local_lium.ledger()) == 1
    assert local_lium.environ["LIUM_API_KEY"] == local_lium.api_key
"""


def test_a_project_s_tests_run_against_it(tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_it.py").write_text(TESTS)
    root = str(Path(lium_plan.__file__).parent.parent)
    environ = {"PATH": "/usr/bin:/bin", "PYTHONPATH": root, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "."],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout
