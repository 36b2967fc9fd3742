"""The stand-ins for hardware tools and the descriptions of images, without a pod."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from lium_plan.sim.pods import gpu, images
from lium_plan.sim.pods.output import Output

GPUS = gpu.Gpus(pod_id="pod-1", name="NVIDIA GeForce RTX 4090", count=3, memory_mib=24564)


@pytest.fixture
def nvidia_smi(tmp_path: Path) -> Path:
    path = tmp_path / "nvidia-smi"
    path.write_text(gpu.nvidia_smi(GPUS))
    return path


def _run(program: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["sh", str(program), *arguments], capture_output=True, text=True)


def test_the_list_has_a_line_for_each_gpu(nvidia_smi: Path) -> None:
    lines = _run(nvidia_smi, "-L").stdout.splitlines()
    assert lines == [f"GPU {i}: NVIDIA GeForce RTX 4090 (UUID: {uuid})" for i, uuid in enumerate(GPUS.uuids())]


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        ("csv", ["index, name, memory.total [MiB]", "1, NVIDIA GeForce RTX 4090, 24564 MiB"]),
        ("csv,noheader", ["1, NVIDIA GeForce RTX 4090, 24564 MiB"]),
        ("csv,nounits", ["index, name, memory.total", "1, NVIDIA GeForce RTX 4090, 24564"]),
        ("csv,noheader,nounits", ["1, NVIDIA GeForce RTX 4090, 24564"]),
    ],
)
def test_queries_are_printed_in_every_format(nvidia_smi: Path, form: str, lines: list[str]) -> None:
    done = _run(nvidia_smi, "--query-gpu=index, name,memory.total", f"--format={form}", "-i", "1")
    assert done.stdout.splitlines() == lines


def test_other_fields_have_plausible_values(nvidia_smi: Path) -> None:
    fields = "count,uuid,driver_version,utilization.gpu,memory.used,temperature.gpu,compute_cap,pci.bus_id"
    done = _run(nvidia_smi, f"--query-gpu={fields}", "--format=csv,noheader,nounits")
    rows = [line.split(", ") for line in done.stdout.splitlines()]
    assert [row[0] for row in rows] == ["3", "3", "3"]
    assert tuple(row[1] for row in rows) == GPUS.uuids()
    assert {row[2] for row in rows} == {gpu.DRIVER_VERSION}


@pytest.mark.parametrize("arguments", [("--query-gpu=nonsense", "--format=csv"), ("--query-gpu=name",), ("--wrong",)])
def test_what_the_real_one_refuses_is_refused(nvidia_smi: Path, arguments: tuple[str, ...]) -> None:
    assert _run(nvidia_smi, *arguments).returncode == 2


def test_the_table_is_a_table(nvidia_smi: Path) -> None:
    done = _run(nvidia_smi)
    assert done.returncode == 0
    assert {len(line) for line in done.stdout.splitlines()[1:] if line} == {91}
    assert done.stdout.count("24564MiB") == 3


def test_no_gpus_is_said(tmp_path: Path) -> None:
    path = tmp_path / "nvidia-smi"
    path.write_text(gpu.nvidia_smi(gpu.Gpus(pod_id="p", name="x", count=0, memory_mib=0)))
    assert _run(path, "-L").stdout == "No devices were found\n"


def test_mountpoint_without_the_host_s_own(tmp_path: Path) -> None:
    path = tmp_path / "mountpoint"
    path.write_text(gpu.mountpoint_from_mountinfo())
    if Path("/proc/self/mountinfo").exists():
        assert _run(path, "/").stdout == "/ is a mountpoint\n"
    assert _run(path, "-q", str(tmp_path)).returncode != 0


@pytest.mark.parametrize(
    ("reference", "directory", "tools"),
    [
        ("pytorch/pytorch:2.4.1-cuda12.1-cudnn9-runtime", "/workspace", images.Tools.ORDINARY),
        ("docker.io/pytorch/pytorch", "/workspace", images.Tools.ORDINARY),
        ("limsim/uid1000@sha256:00", "/home/user", images.Tools.ORDINARY),
        ("limsim/busybox:1", "/", images.Tools.MINIMAL),
        ("registry.example:5000/pytorch/pytorch:1", "/", images.Tools.ORDINARY),
    ],
)
def test_images_are_known_by_name(reference: str, directory: str, tools: images.Tools) -> None:
    image = images.describe(reference)
    assert (image.working_directory, image.tools) == (directory, tools)


def test_arguments_are_split_as_a_shell_does() -> None:
    assert images.arguments("/bin/sh", "-c 'exec sleep infinity'") == ("/bin/sh", "-c", "exec sleep infinity")
    assert images.arguments("", "") == ("sleep", "infinity")
    assert images.arguments("", "it's broken") == ("it's broken",)


def test_output_keeps_the_end_and_cuts_endless_lines() -> None:
    output = Output()
    output.add(b"x" * 100_000)
    output.add(b"\nlast")
    assert output.tail(1) == ("last",)
    assert max(map(len, output.tail(100))) <= 1 << 14
    output.add(b"\n" + b"line\n" * 500_000)
    assert len(output.tail(10_000_000)) < 300_000
    assert output.tail(0) == ()
