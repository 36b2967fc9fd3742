"""The Lium backend of dstack 0.22.5: template, rent, reconciliation, runner bootstrap over paramiko, termination."""

from __future__ import annotations

import json
import subprocess
import textwrap

import pytest

from tests.contract.conftest import DSTACK, Server, client

BACKEND = """
import json, sys, time, uuid
from types import SimpleNamespace
from dstack._internal.core.backends.lium import api_client, compute
from dstack._internal.core.backends.lium.models import LiumAPIKeyCreds, LiumConfig
from dstack._internal.core.errors import ComputeError, NotYetTerminated
from dstack._internal.utils.common import get_current_datetime
from dstack._internal.utils.crypto import generate_rsa_key_pair_bytes
base, name = sys.argv[1:3]
api_client.API_URL = base
lium = compute.LiumCompute(LiumConfig(creds=LiumAPIKeyCreds(api_key=f"sk_sim_{name}")))
api = lium.api_client
private, public = (part.decode() for part in generate_rsa_key_pair_bytes(comment="dstack"))

def prepare(node, pod_name, volume_id=None):
    command = "env >/root/seen; sleep 600"
    data = compute.LiumInstanceBackendData(pod_name=pod_name, executor_id=node, startup_command=command)
    data.credential_id = api.create_docker_credential({"docker_username": "demo", "docker_password": "demo"})["id"]
    data.template_id = lium._create_template({
        "name": pod_name, "docker_image": "limsim/private-any:1", "docker_image_tag": "", "docker_image_digest": "",
        "entrypoint": "/bin/sh", "startup_commands": "-c 'exec sleep infinity'", "internal_ports": [22, 10022],
        "volumes": ["/root"], "is_private": True, "supports_docker": False, "supports_volume_encryption": False,
        "docker_credential_id": data.credential_id,
    })
    data.rent_payload = {
        "pod_name": pod_name, "template_id": data.template_id, "user_public_key": public, "gpu_count": 1,
        "initial_port_count": 2, "enable_jupyter": False, "enable_volume_encryption": False,
    }
    if volume_id:
        data.rent_payload["volume_id"] = volume_id
    data.idempotency_key = str(uuid.uuid4())
    data.rent_started_at = get_current_datetime()
    return data

def provision(data, pod_id):
    job = SimpleNamespace(instance_id=pod_id or data.pod_name, backend_data=data.model_dump_json(), hostname=None,
                          ssh_port=None, ssh_proxy=None)
    for _ in range(60):
        lium.update_provisioning_data(job, public, private)
        if job.hostname:
            return job
        time.sleep(0.5)
    raise SystemExit("never came up")

def terminate(job):
    for _ in range(60):
        try:
            lium.terminate_instance(job.instance_id, "", job.backend_data)
            return
        except NotYetTerminated:
            time.sleep(0.5)
    raise SystemExit("never went away")
"""


def run(server: Server, name: str, code: str) -> object:
    python = client(*DSTACK) / "python"
    source = BACKEND + textwrap.dedent(code)
    command = [str(python), "-c", source, server.base_url, name]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=170)
    assert done.returncode == 0, (done.stdout, done.stderr)
    return json.loads(done.stdout.splitlines()[-1])


def a_node(server: Server, *, taken: tuple[str, ...] = ()) -> str:
    nodes = server.control("GET", "/world")["nodes"]
    return str(
        next(
            node["id"]
            for node in nodes
            if node["min_rentable"] == 1 and node["available_gpu_count"] > 1 and node["id"] not in taken
        )
    )


def test_a_job_s_machine_from_its_template_to_its_end(server: Server) -> None:
    node = a_node(server)
    seen = run(
        server,
        "dstack",
        f"""
        volume = api.create_volume("data")["id"]
        data = prepare({node!r}, "dstack-main-0-0", volume)
        job = provision(data, lium._rent(data))
        from dstack._internal.core.models.instances import SSHConnectionParams
        import paramiko
        pod = api.get_pod(job.instance_id)
        ssh = compute._get_provider_ssh(pod)
        with paramiko.SSHClient() as shell:
            shell.set_missing_host_key_policy(paramiko.AutoAddPolicy())
            shell.connect(ssh.hostname, ssh.port, "root", look_for_keys=False, allow_agent=False,
                          pkey=compute.pkey_from_str(compute.convert_ssh_key_to_pem(private)))
            place = compute.VolumeMountPoint(name="v", path="/mnt")
            spec = SimpleNamespace(job_spec=SimpleNamespace(volumes=[place]))
            check = compute._get_volume_commands(None, spec, [SimpleNamespace(name="v")])[0]
            mounted = shell.exec_command(check)[1].channel.recv_exit_status()
        terminate(job)
        try:
            api.delete_volume(volume)
        finally:
            print(json.dumps({{"mounted": mounted, "port": job.ssh_port, "mapped": pod["ports_mapping"]["10022"],
                              "templates": [row["name"] for row in api.get_templates() if row["is_private"]]}}))
        """,
    )
    assert isinstance(seen, dict)
    assert seen["mounted"] == 0
    assert seen["port"] == seen["mapped"]
    assert seen["templates"] == []
    assert server.control("GET", "/ledger?account=dstack&open_only=true") == []


@pytest.mark.parametrize("where", ["before", "after"])
def test_a_lost_rent_is_reconciled(server: Server, where: str) -> None:
    name = f"dstack-lost-{where}"
    node = a_node(server)
    match = {"path": "/executors/*/rent", "account": name}
    server.control("POST", "/faults", {"effect": {"do": "lose_reply", "where": where}, "match": match})
    seen = run(
        server,
        name,
        f"""
        data = prepare({node!r}, "lost-0-0")
        first = lium._rent(data)
        job = provision(data, first)
        pods = [row["id"] for row in api.get_pods()]
        terminate(job)
        print(json.dumps({{"first": first, "pods": pods, "job": job.instance_id}}))
        """,
    )
    assert isinstance(seen, dict)
    assert seen["first"] is None
    assert seen["pods"] == [seen["job"]]
    rows = [row for row in server.control("GET", f"/ledger?account={name}") if row["kind"] == "pod"]
    assert len(rows) == 1


def test_a_taken_node_is_no_capacity_and_leaves_nothing(server: Server) -> None:
    node = a_node(server)
    match = {"path": "/executors/*/rent", "account": "dstack-taken"}
    server.control("POST", "/faults", {"effect": {"do": "take_node"}, "match": match})
    seen = run(
        server,
        "dstack-taken",
        f"""
        data = prepare({node!r}, "taken-0-0")
        try:
            lium._rent(data)
        except compute.NoCapacityError as problem:
            print(json.dumps(str(problem)))
        """,
    )
    server.control("POST", "/faults", {"effect": {"do": "free_node", "node": node}})
    assert "node_unavailable" in str(seen)
    assert server.control("GET", "/ledger?account=dstack-taken&open_only=true") == []
