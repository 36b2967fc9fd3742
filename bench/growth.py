"""What a thousand and ten thousand members cost: validate, a first plan and a plan without changes, beside peers.

Ours in two shapes: one fleet of N members, and N fleets of one, which is what a flat list of resources is for others.
The account's answers are recorded and served by a process of their own. Wall and CPU in seconds, the peak in MiB; each
figure is the median of three runs in turn. GROWTH_SIZES="100 1000" chooses other sizes, GROWTH_RUNS another count.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.growing.answering import Answers, answering
from bench.growing.peers import octodns, terraform
from bench.growing.shapes import SHAPES, make_stack
from bench.measure import Sample, median, run_once, table

OURS = Path(sys.executable).with_name("lium-plan")
OPERATIONS = ("validate", "create", "no change")
MOST_CALLS = 8
PEER = "terraform, flat"
LIMITS = {1_000: (1 / 2, 1 / 2), 10_000: (1 / 6, 1 / 5)}
"""Size -> the parts of Terraform's time and memory that a plan without changes may take."""

Found = dict[str, dict[str, list[Sample]]]
"""Program -> operation -> its runs."""


def main() -> None:
    sizes = [int(size) for size in os.environ.get("GROWTH_SIZES", "1000 10000").split()]
    runs = int(os.environ.get("GROWTH_RUNS", "3"))
    all_found = {size: _measure(size, runs) for size in sizes}
    for size, found in all_found.items():
        _judge(size, found)
    if len(sizes) > 1:
        _linear(all_found, min(sizes), max(sizes))


def _measure(size: int, runs: int) -> Found:
    with tempfile.TemporaryDirectory() as scratch, ExitStack() as stack:
        commands = dict(_ours(Path(scratch), size, stack))
        peers = {
            PEER: terraform(Path(scratch) / "terraform", size),
            "octoDNS": octodns(Path(scratch) / "octodns", size),
        }
        found: Found = {}
        for operation in OPERATIONS:
            for name, peer in peers.items():
                if peer is not None:
                    command, folder = peer[operation]
                    commands[name, operation] = (command, folder, None)
        for number in range(runs):
            for (name, operation), (command, folder, server) in commands.items():
                environ = {**os.environ, "HOME": scratch, "TF_CLI_CONFIG_FILE": "/dev/null"}
                if server is not None:
                    environ |= {"LIUM_BASE_URL": server.base_url, "LIUM_API_KEY": "sk_bench"}
                sample = run_once(command, env=environ, cwd=folder)
                if sample.status:
                    raise SystemExit(f"{name}, {operation}: exit {sample.status}")
                found.setdefault(name, {}).setdefault(operation, []).append(sample)
                if server is not None and (calls := server.asked()) > MOST_CALLS:
                    raise SystemExit(f"{name}, {operation}: {calls} calls of the API, at most {MOST_CALLS} are allowed")
                if number == 0 and operation == "no change" and server is not None:
                    print(f"{name} of {size}, {operation}: {calls} calls of the API")
    _show(size, found)
    return found


def _ours(
    scratch: Path, size: int, stack: ExitStack
) -> Iterator[tuple[tuple[str, str], tuple[Sequence[str | Path], Path, Answers]]]:
    for shape in SHAPES:
        where = scratch / shape.replace(" ", "-")
        for operation, verb, applied in (
            ("validate", "validate", False),
            ("create", "plan", False),
            ("no change", "plan", True),
        ):
            place = where / operation.replace(" ", "-")
            make_stack(place, shape, size, applied=applied)
            server = stack.enter_context(answering(place / "answers"))
            yield (f"lium-plan, {shape}", operation), ((OURS, verb), place / "stack", server)


def _show(size: int, found: Found) -> None:
    rows = [
        (name, *(_figures(operations.get(operation)) for operation in OPERATIONS)) for name, operations in found.items()
    ]
    print(table((f"{size} (wall s / cpu s / MiB)", *OPERATIONS), rows))


def _figures(samples: list[Sample] | None) -> str:
    if samples is None:
        return "-"
    return f"{median(samples, 'wall_s'):.2f} / {median(samples, 'cpu_s'):.2f} / {median(samples, 'peak_mib'):.0f}"


def _judge(size: int, found: Mapping[str, Mapping[str, list[Sample]]]) -> None:
    if PEER not in found or size not in LIMITS:
        print(
            f"{size}: nothing to compare with: terraform is not on PATH" if PEER not in found else f"{size}: no limit"
        )
        return
    peer = found[PEER]["no change"]
    for name in (f"lium-plan, {shape}" for shape in SHAPES):
        ours = found[name]["no change"]
        parts = [median(ours, what) / median(peer, what) for what in ("wall_s", "peak_mib")]
        words = ", ".join(
            f"{part:.2f} of its {what} (limit {limit:.2f}{'' if part <= limit else ': MISSED'})"
            for part, limit, what in zip(parts, LIMITS[size], ("time", "memory"), strict=True)
        )
        print(f"{name}, no change of {size}, beside {PEER}: {words}")


def _linear(found: Mapping[int, Found], small: int, large: int) -> None:
    for shape in SHAPES:
        cpu = [median(found[size][f"lium-plan, {shape}"]["no change"], "cpu_s") for size in (small, large)]
        print(f"{shape}: {large // small} times as many members take {cpu[1] / cpu[0]:.1f} times as much CPU")


if __name__ == "__main__":
    main()
