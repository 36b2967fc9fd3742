"""schemathesis, from its own environment, on the server's own OpenAPI document: no 500, no answer off schema."""

from __future__ import annotations

import subprocess
from collections.abc import Callable

import httpx
import pytest

from tests.contract.conftest import SCHEMATHESIS, Server, client

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_schema_conformance,response_headers_conformance"
)


@pytest.mark.timeout(240)
def test_whatever_is_sent_the_answer_is_one_of_those_described(start: Callable[..., Server]) -> None:
    program = client(*SCHEMATHESIS) / "schemathesis"
    server = start("--no-machines", "--speed", "1000", "--balance", "100000")
    limits = {"template_limits": False, "pods_limit_per_minute": 0, "feed_limit_per_minute": 0}
    server.control("POST", "/config", limits)
    furnish(server)
    command = [str(program), "run", f"{server.base_url}/openapi.json", "-H", "X-API-KEY: sk_sim_local"]
    command += ["--checks", CHECKS, "--phases", "coverage,fuzzing", "-n", "2", "--seed", "3", "--max-time", "40"]
    environ = {"PATH": "/usr/bin:/bin", "HOME": str(server.scratch), "NO_COLOR": "1"}
    done = subprocess.run(
        command, cwd=server.scratch, env=environ, capture_output=True, text=True, check=False, timeout=220
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "Tested" in done.stdout


def furnish(server: Server) -> None:
    """Something to find on the account."""
    with httpx.Client(base_url=server.base_url, headers={"X-API-KEY": "sk_sim_local"}) as account:
        template = account.post("/templates", json={"name": "t", "docker_image": "limsim/any"}).json()["id"]
        account.post("/volumes", json={"name": "v"}).raise_for_status()
        account.post("/ssh-keys", json={"name": "k", "public_key": "ssh-ed25519 AAAA"}).raise_for_status()
        node = next(row for row in account.get("/executors").json() if row["min_gpu_count_for_rental"] == 1)
        wanted = {"pod_name": "p", "template_id": template, "gpu_count": 1, "user_public_key": ["ssh-ed25519 AAAA"]}
        account.post(f"/executors/{node['id']}/rent", json=wanted).raise_for_status()
