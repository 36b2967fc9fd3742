"""The local Lium under load: a thousand pods listed every second beside two hundred small requests, with and without
machines behind the pods."""

from __future__ import annotations

import asyncio
import json
import random
import signal
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from bench.measure import table

ACCOUNTS = 5
PODS = 1000
SMALL_PER_SECOND = 200
SECONDS = 60
WARM_UP_S = 5
SSH_PODS = 20
SSH_SECONDS = 10
CONNECTIONS = 20
SHARES = {"detail": 70, "version": 20, "rent": 5, "delete": 5}
"""Of a hundred small requests. As many pods are rented as deleted, so that their number stays."""
LIMIT_RSS_GROWTH_MIB = 16


@dataclass(slots=True)
class Seen:
    """What the clients saw: seconds per answer by route, and what went wrong."""

    took_s: dict[str, list[float]] = field(default_factory=lambda: defaultdict(list))
    errors: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    first_error: str = ""

    def fail(self, route: str, what: str) -> None:
        self.errors[route] += 1
        self.first_error = self.first_error or f"{route}: {what}"


@dataclass(slots=True)
class Connection:
    """One kept connection with one request on it at a time: far cheaper than a client library, so that what is
    measured is the server."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def ask(self, method: str, path: str, key: str | None, body: object = None) -> tuple[int, bytes]:
        lines = [f"{method} /api{path} HTTP/1.1", "Host: 127.0.0.1"]
        raw = b"" if body is None else json.dumps(body).encode()
        if key is not None:
            lines.append(f"X-API-KEY: {key}")
        if raw:
            lines += ["Content-Type: application/json", f"Content-Length: {len(raw)}"]
        self.writer.write("\r\n".join([*lines, "", ""]).encode() + raw)
        head = await self.reader.readuntil(b"\r\n\r\n")
        length = 0
        for line in head.split(b"\r\n")[1:]:
            name, _, value = line.partition(b":")
            if name.lower() == b"content-length":
                length = int(value)
        return int(head[9:12]), await self.reader.readexactly(length)


class Crowd:
    """The accounts, their pods, and connections to talk over."""

    def __init__(self, port: int, seen: Seen) -> None:
        self.port = port
        self.seen = seen
        self.keys = [f"sk_sim_load{number}" for number in range(ACCOUNTS)]
        self.pods: dict[str, list[str]] = {key: [] for key in self.keys}
        self.free: list[str] = []
        """Nodes, one entry per GPU that may be rented."""
        self.template = ""
        self.public_key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMo0m3Qk2PYRYPmVYt0z9y3nJ3n0X4mXwJ7nQw0mYw1u bench"
        self._idle: asyncio.Queue[Connection] = asyncio.Queue()
        self._dice = random.Random(3)
        self._rented = 0

    async def connect(self, connections: int) -> None:
        for _ in range(connections):
            reader, writer = await asyncio.open_connection("127.0.0.1", self.port, limit=1 << 24)
            self._idle.put_nowait(Connection(reader, writer))

    def close(self) -> None:
        while not self._idle.empty():
            self._idle.get_nowait().writer.close()

    async def ask(self, route: str, method: str, path: str, key: str | None = None, body: object = None) -> bytes:
        """The answer's body; its time counts from the moment it was due, waiting for a connection included."""
        began = time.perf_counter()
        connection = await self._idle.get()
        try:
            status, answer = await asyncio.wait_for(connection.ask(method, path, key, body), 30)
        except (OSError, EOFError, TimeoutError) as problem:
            self.seen.fail(route, repr(problem))
            await self.connect(1)
            return b""
        self._idle.put_nowait(connection)
        self.seen.took_s[route].append(time.perf_counter() - began)
        if status >= 300:
            self.seen.fail(route, f"{status} {answer[:200]!r}")
            return b""
        return answer

    async def settle_in(self, pods: int) -> None:
        """Rent so many pods, shared out evenly, and wait until all are RUNNING."""
        rows = json.loads(await self.ask("feed", "GET", "/public/v1/nodes"))["nodes"]
        for row in rows:
            if row.get("min_rentable_gpu_count") == 1:
                self.free += [row["id"]] * row["available_gpu_count"]
        templates = json.loads(await self.ask("templates", "GET", "/templates", self.keys[0]))
        self.template = next(row["id"] for row in templates if row["category"] == "PYTORCH")
        self._dice.shuffle(self.free)
        await asyncio.gather(*(self.rent(self.keys[index % ACCOUNTS]) for index in range(pods)))
        for key in self.keys:
            running = b'"status":"RUNNING"'
            while (await self.ask("list", "GET", "/pods", key)).count(running) < len(self.pods[key]):  # noqa: ASYNC110
                await asyncio.sleep(1)

    async def rent(self, key: str) -> None:
        self._rented += 1
        node = self.free.pop()
        body = {
            "pod_name": f"load-{self._rented}",
            "template_id": self.template,
            "user_public_key": [self.public_key],
            "gpu_count": 1,
        }
        answer = await self.ask("rent", "POST", f"/executors/{node}/rent", key, body)
        if answer:
            self.pods[key].append(json.loads(answer)["pod_id"])

    async def small(self, route: str) -> None:
        key = self._dice.choice(self.keys)
        if route == "version":
            await self.ask(route, "GET", "/version")
        elif route == "rent":
            await self.rent(key)
        elif route == "detail":
            pod_id = self._dice.choice(self.pods[key][len(self.pods[key]) // 2 :])
            await self.ask(route, "GET", f"/pods/{pod_id}", key)
        else:
            pod_id = self.pods[key].pop(0)
            await self.ask(route, "DELETE", f"/pods/{pod_id}", key)

    async def list_pods(self, key: str) -> None:
        steady = self.pods[key][len(self.pods[key]) // 2 :]
        answer = await self.ask("list", "GET", "/pods", key)
        missing = [pod_id for pod_id in steady if pod_id.encode() not in answer] if answer else []
        if missing:
            self.seen.fail("list", f"{len(missing)} pods are missing")

    async def live(self, seconds: float, *, per_second: int) -> None:
        """Ask at fixed moments, whether or not the earlier answers have come."""
        loop = asyncio.get_running_loop()
        began = loop.time()
        wheel = [route for route, share in SHARES.items() for _ in range(share)]
        self._dice.shuffle(wheel)
        due = [
            (second + index / ACCOUNTS, key) for second in range(int(seconds)) for index, key in enumerate(self.keys)
        ]
        plan: list[tuple[float, str, str]] = [(at, "list", key) for at, key in due]
        count = int(seconds * per_second)
        plan += [(index / per_second, wheel[index % len(wheel)], "") for index in range(count)]
        asking: set[asyncio.Task[None]] = set()
        for at, route, key in sorted(plan):
            await asyncio.sleep(max(0.0, began + at - loop.time()))
            task = asyncio.create_task(self.list_pods(key) if route == "list" else self.small(route))
            asking.add(task)
            task.add_done_callback(asking.discard)
        await asyncio.gather(*asking)


@contextmanager
def a_server(*options: str) -> Iterator[tuple[int, int]]:
    """Port and pid of a fresh local Lium."""
    command = [sys.executable, "-m", "lium_plan.sim", "--balance", "1000000", *options]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        assert process.stdout is not None
        try:
            base_url = process.stdout.readline().strip().partition("=")[2]
            yield int(base_url.split(":")[2].split("/")[0]), process.pid
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(30)


@asynccontextmanager
async def a_crowd(port: int, pods: int, connections: int = CONNECTIONS) -> AsyncIterator[Crowd]:
    crowd = Crowd(port, Seen())
    await crowd.connect(connections)
    try:
        await crowd.settle_in(pods)
        if crowd.seen.first_error:
            raise RuntimeError(f"could not rent {pods} pods: {crowd.seen.first_error}")
        yield crowd
    finally:
        crowd.close()


def usage(pid: int) -> tuple[float, float]:
    """Resident MiB and CPU seconds so far."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return pages * 4096 / 2**20, (int(fields[11]) + int(fields[12])) / 100


def at_share(samples: list[float], share: float) -> float:
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * share))]


def report(seen: Seen, seconds: float) -> str:
    rows = [
        (
            route,
            str(len(took)),
            f"{len(took) / seconds:.1f}",
            f"{statistics.median(took) * 1000:.1f}",
            f"{at_share(took, 0.99) * 1000:.1f}",
            f"{max(took) * 1000:.0f}",
            str(seen.errors[route]),
        )
        for route, took in sorted(seen.took_s.items())
    ]
    return table(("route", "answers", "per s", "p50 ms", "p99 ms", "max ms", "errors"), rows)


async def load(port: int, pid: int, *, pods: int, seconds: int, per_second: int) -> None:
    async with a_crowd(port, pods) as crowd:
        await crowd.live(WARM_UP_S, per_second=per_second)
        crowd.seen = Seen()
        before_mib, before_cpu_s = usage(pid)
        began = time.perf_counter()
        await crowd.live(seconds, per_second=per_second)
        took_s = time.perf_counter() - began
        after_mib, after_cpu_s = usage(pid)
        print(report(crowd.seen, took_s), end="")
        print(
            f"server: {before_mib:.0f} MiB at the start, {after_mib:.0f} at the end (limit: "
            f"{LIMIT_RSS_GROWTH_MIB} more), {(after_cpu_s - before_cpu_s) / took_s:.0%} of one core"
        )
        if crowd.seen.first_error:
            print(f"first error: {crowd.seen.first_error}")


async def with_ssh(port: int, pid: int) -> None:
    """The same on a smaller scale while every pod runs a command a second."""
    import asyncssh

    key = asyncssh.generate_private_key("ssh-ed25519")
    crowd = Crowd(port, Seen())
    crowd.public_key = key.export_public_key().decode().strip()
    await crowd.connect(CONNECTIONS)
    await crowd.settle_in(SSH_PODS)
    doors: list[int] = []
    for account in crowd.keys:
        rows = json.loads(await crowd.ask("list", "GET", "/pods", account))
        doors += [int(row["ports_mapping"]["22"]) for row in rows]
    crowd.seen = Seen()

    async def commands(door: int) -> None:
        began = time.perf_counter()
        options = {"username": "root", "client_keys": [key], "known_hosts": None, "config": []}
        async with asyncssh.connect("127.0.0.1", door, **options) as shell:  # type: ignore[arg-type]
            crowd.seen.took_s["ssh connect"].append(time.perf_counter() - began)
            for _ in range(SSH_SECONDS):
                began = time.perf_counter()
                done = await shell.run("nvidia-smi -L | wc -l")
                crowd.seen.took_s["ssh exec"].append(time.perf_counter() - began)
                if done.exit_status != 0:
                    crowd.seen.fail("ssh exec", str(done.stderr))
                await asyncio.sleep(max(0.0, 1 - (time.perf_counter() - began)))

    reading = asyncio.create_task(read_only(crowd, SSH_SECONDS))
    before_mib, before_cpu_s = usage(pid)
    began = time.perf_counter()
    await asyncio.gather(*(commands(door) for door in doors), reading)
    took_s = time.perf_counter() - began
    after_mib, after_cpu_s = usage(pid)
    print(report(crowd.seen, took_s), end="")
    busy = (after_cpu_s - before_cpu_s) / took_s
    print(f"server: {before_mib:.0f} MiB at the start, {after_mib:.0f} at the end, {busy:.0%} of one core")
    if crowd.seen.first_error:
        print(f"first error: {crowd.seen.first_error}")
    crowd.close()


async def read_only(crowd: Crowd, seconds: int) -> None:
    for _ in range(seconds):
        await asyncio.gather(*(crowd.list_pods(key) for key in crowd.keys), *(crowd.small("detail") for _ in range(20)))
        await asyncio.sleep(1)


def main() -> None:
    print(f"{PODS} pods on {ACCOUNTS} accounts, each listed once a second, {SMALL_PER_SECOND} small requests a second")
    with a_server("--no-machines", "--nodes", "600", "--speed", "20") as (port, pid):
        asyncio.run(load(port, pid, pods=PODS, seconds=SECONDS, per_second=SMALL_PER_SECOND))
    print(f"\n{SSH_PODS} pods with machines, a command a second on each")
    with a_server("--speed", "20") as (port, pid):
        asyncio.run(with_ssh(port, pid))


if __name__ == "__main__":
    main()
