"""A server that is killed in the middle of traffic, and started again on its world file."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from tests.support.nursery import SIM, Started, nursery

CLIENTS = 4
ENOUGH = 120
"""Answers after which the kill comes, while more are on their way."""


@contextmanager
def serving(world: Path) -> Iterator[tuple[Started, str]]:
    options = ["--no-machines", "--world", str(world), "--balance", "1000000"]
    with nursery().start(SIM, options, stderr=subprocess.DEVNULL) as process:
        try:
            assert process.stdout is not None
            yield process, process.stdout.readline().strip().partition("=")[2]
        finally:
            process.kill()


@dataclass(slots=True)
class Client:
    """Rents, deletes and makes volumes as fast as it can, and writes down what it was answered."""

    name: str
    base_url: str
    nodes: list[str]
    template: str
    answered: threading.Semaphore
    rented: dict[str, tuple[str, dict[str, Any], str]] = field(default_factory=dict)
    """Idempotency key -> path, body and pod id."""
    deleted: set[str] = field(default_factory=set)
    volumes: set[str] = field(default_factory=set)
    renamed: dict[str, str] = field(default_factory=dict)

    def account(self) -> httpx.Client:
        return httpx.Client(base_url=self.base_url, headers={"X-API-KEY": f"sk_sim_{self.name}"}, timeout=10)

    def run(self) -> None:
        with self.account() as client:
            try:
                for number, node in enumerate(self.nodes):
                    self.once(client, number, node)
            except httpx.TransportError:
                return

    def once(self, client: httpx.Client, number: int, node: str) -> None:
        key = f"{self.name}-{number}"
        path = f"/executors/{node}/rent"
        body = {"pod_name": key, "template_id": self.template, "gpu_count": 1, "user_public_key": "ssh-ed25519 AAAA"}
        answer = client.post(path, json=body, headers={"Idempotency-Key": key}).raise_for_status()
        pod_id = answer.json()["pod_id"]
        self.rented[key] = (path, body, pod_id)
        self.answered.release()
        volume = client.post("/volumes", json={"name": key}).raise_for_status().json()["id"]
        self.volumes.add(volume)
        self.answered.release()
        client.put(f"/volumes/{volume}", json={"name": f"{key} again"}).raise_for_status()
        self.renamed[volume] = f"{key} again"
        self.answered.release()
        if number % 2:
            client.delete(f"/pods/{pod_id}").raise_for_status()
            self.deleted.add(pod_id)
            self.answered.release()

    def check(self) -> None:
        """Everything that was answered is so."""
        with self.account() as client:
            pods = {row["id"]: row for row in client.get("/pods").json()}
            volumes = {row["id"]: row["name"] for row in client.get("/volumes").json()}
            assert volumes.keys() >= self.volumes
            assert {volume: volumes[volume] for volume in self.renamed} == self.renamed
            for key, (path, body, pod_id) in self.rented.items():
                assert pods[pod_id]["pod_name"] == key
                if pod_id in self.deleted:
                    assert pods[pod_id]["status"] == "DELETING"
                again = client.post(path, json=body, headers={"Idempotency-Key": key})
                assert (again.json()["pod_id"], again.headers["Idempotent-Replayed"]) == (pod_id, "true")
            named = [row["pod_name"] for row in pods.values()]
            assert len(named) == len(set(named))


def test_it_has_lost_nothing_that_it_had_answered(tmp_path: Path) -> None:
    world = tmp_path / "world.jsonl"
    answered = threading.Semaphore(0)
    with serving(world) as (process, base_url):
        nodes = [row["id"] for row in httpx.get(f"{base_url}/executors").json() if row["min_gpu_count_for_rental"] == 1]
        template = httpx.get(f"{base_url}/templates").json()[0]["id"]
        clients = [
            Client(f"c{number}", base_url, nodes[number::CLIENTS], template, answered) for number in range(CLIENTS)
        ]
        threads = [threading.Thread(target=client.run) for client in clients]
        for thread in threads:
            thread.start()
        for _ in range(min(ENOUGH, 2 * len(nodes))):
            assert answered.acquire(timeout=60)
        process.send_signal(signal.SIGKILL)
        process.wait(20)
        for thread in threads:
            thread.join(60)
    assert sum(len(client.rented) for client in clients) > 10
    with serving(world) as (process, base_url):
        ledger = httpx.get(base_url.removesuffix("/api") + "/_sim/ledger").json()
        charged = {row["id"] for row in ledger if row["kind"] == "pod"}
        for client in clients:
            client.base_url = base_url
            client.check()
            assert {pod_id for _, _, pod_id in client.rented.values()} <= charged
