"""A client that openapi-python-client makes from the server's own document, and nothing else known of it."""

from __future__ import annotations

import subprocess
import textwrap
from pathlib import Path

from tests.contract.conftest import GENERATOR, Server, client

STORY = """
import datetime, importlib, io, pkgutil, sys, time, uuid
import lium_client
from lium_client import AuthenticatedClient, Client, models as m
from lium_client.types import File

calls = {}
for module in pkgutil.walk_packages(importlib.import_module("lium_client.api").__path__, "lium_client.api."):
    if not module.ispkg:
        calls[module.name.rpartition(".")[2]] = importlib.import_module(module.name)

def call(start, *path, **rest):
    (found,) = [name for name in calls if name.startswith(start)]
    return calls[found].sync_detailed(*path, client=rest.pop("client", keyed), **rest)

def good(start, *path, **rest):
    answer = call(start, *path, **rest)
    assert answer.status_code < 300, (start, answer)
    return answer.parsed

base, account = sys.argv[1:]
keyed = AuthenticatedClient(base_url=base, token=f"sk_sim_{account}", prefix="", auth_header_name="X-API-KEY")
anonymous = Client(base_url=base)

assert good("me_").balance == 100
assert good("public_nodes_", client=anonymous).count > 10
node = next(row for row in good("executors_executors_", client=anonymous) if row.min_gpu_count_for_rental == 1)
assert good("quote_", node.id, hours=2.0, gpu_count=1).total_usd > 0
volume = good("create_volume_", body=m.VolumeBody(name="v"))
login = good("create_credential_", body=m.CredentialBody(docker_username="demo", docker_password="demo"))
wanted = m.TemplateBody(name="t", docker_image="limsim/private-x", docker_credential_id=login.id)
template = good("create_template_", body=wanted)
assert template.id in [row.id for row in good("list_templates_")]
body = m.RentBody(
    pod_name="p", user_public_key=["k"], template_id=template.id, gpu_count=1, volume_id=volume.id, termination_hours=2
)
key = str(uuid.uuid4())
rented = good("rent_executors_", node.id, body=body, idempotency_key=key)
again = call("rent_executors_", node.id, body=body, idempotency_key=key)
assert (again.parsed, again.headers["Idempotent-Replayed"]) == (rented, "true")
while (pod := good("show_pod_", rented.pod_id)).status != "RUNNING":
    time.sleep(0.2)
assert pod.ssh_connect_cmd.endswith(str(pod.ports_mapping["22"]))
assert [row.id for row in good("list_pods_")] == [pod.id]
moment = datetime.datetime(2099, 1, 1, tzinfo=datetime.timezone.utc)
scheduled = good("schedule_removal_", pod.id, body=m.RemovalBody(removal_scheduled_at=moment))
assert scheduled.removal_scheduled_at == "2099-01-01T00:00:00"
assert good("cancel_removal_", pod.id).removal_scheduled_at is None
assert call("rent_executors_", uuid.uuid4(), body=body).parsed.error.code == "node_not_found"
dear = m.SpecBody(gpu_type="H100", pod_name="q", user_public_key="k", max_price_per_gpu_hour=0.001)
assert call("rent_by_spec_", body=dear).parsed.code == "no_executor_matches_spec"
assert call("delete_template_", template.id).parsed.message == "Template is used by a pod"
assert len(good("build_context_", body=File(payload=io.BytesIO(b"\\x1f\\x8b"))).sha256) == 64
assert good("delete_pod_", pod.id).success is True
while call("show_pod_", pod.id).status_code != 404:
    time.sleep(0.2)
assert good("statement_", pod.id).removed is True
assert len(good("pod_events_", pod.id)) == 4
good("delete_template_", template.id)
assert call("delete_credential_", login.id).status_code == 204
good("delete_volume_", volume.id)
assert call("delete_volume_", volume.id).parsed.error.code == "not_found"
"""


def test_a_generated_client_does_a_pod_s_life(server: Server, tmp_path: Path) -> None:
    made_by = client(*GENERATOR)
    source = tmp_path / "lium_client"
    generate = [str(made_by / "openapi-python-client"), "generate", "--url", f"{server.base_url}/openapi.json"]
    generate += ["--meta", "none", "--output-path", str(source), "--fail-on-warning"]
    (tmp_path / "config.yaml").write_text("post_hooks: []\n")
    generate += ["--config", str(tmp_path / "config.yaml")]
    environ = {"PATH": f"{made_by}:/usr/bin:/bin", "HOME": str(tmp_path), "PYTHONPATH": str(tmp_path)}
    made = subprocess.run(generate, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert made.returncode == 0, made.stdout + made.stderr
    story = [str(made_by / "python"), "-c", textwrap.dedent(STORY), server.base_url, "generated"]
    told = subprocess.run(story, env=environ, capture_output=True, text=True, check=False, timeout=120)
    assert told.returncode == 0, told.stdout + told.stderr
    assert server.control("GET", "/ledger?account=generated&open_only=true") == []
