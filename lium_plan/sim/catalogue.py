"""What the simulated market is made of: GPU models, places, the platform's own templates. Data, no rules."""

from __future__ import annotations

from dataclasses import dataclass

from lium_plan.sim.rows import Place


@dataclass(frozen=True, slots=True)
class GpuModel:
    machine_name: str
    """As the catalogue and `nvidia-smi` say it."""
    feed_name: str
    memory_mib: int
    usd_low: float
    usd_high: float
    sizes: tuple[int, ...]
    """GPUs per host, by how common they are."""
    cpus_per_gpu: int
    ram_gib_per_gpu: int
    nvlink: bool
    weight: int
    """How many of 84 nodes have it."""


MODELS = (
    GpuModel("NVIDIA H100 80GB HBM3", "H100 80GB HBM3", 81559, 1.69, 2.45, (8, 8, 4, 1), 24, 240, True, 11),
    GpuModel("NVIDIA GeForce RTX 4090", "RTX 4090", 24564, 0.29, 0.46, (8, 4, 1, 2), 12, 62, False, 12),
    GpuModel("NVIDIA GeForce RTX 3090", "RTX 3090", 24576, 0.14, 0.24, (1, 4, 8, 2), 10, 31, False, 9),
    GpuModel("NVIDIA H200", "H200", 143771, 2.95, 3.99, (8, 8, 4), 24, 251, True, 8),
    GpuModel("NVIDIA GeForce RTX 5090", "RTX 5090", 32607, 0.38, 0.59, (8, 1, 4), 24, 62, False, 11),
    GpuModel("NVIDIA A100-SXM4-80GB", "A100-SXM4-80GB", 81920, 0.99, 1.39, (8, 4, 1), 30, 221, True, 9),
    GpuModel("NVIDIA L40S", "L40S", 46068, 0.55, 0.79, (8, 4, 2), 16, 93, False, 4),
    GpuModel("NVIDIA RTX A6000", "RTX A6000", 49140, 0.33, 0.49, (4, 8, 1), 12, 62, False, 4),
    GpuModel("NVIDIA B200", "B200", 183359, 4.10, 5.20, (8,), 28, 251, True, 3),
    GpuModel(
        "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "RTX PRO 6000 Blackwell Server Edition",
        97887,
        1.05,
        1.45,
        (8, 4),
        24,
        125,
        False,
        4,
    ),
    GpuModel(
        "NVIDIA RTX 6000 Ada Generation",
        "RTX 6000 Ada Generation",
        49140,
        0.59,
        0.79,
        (4, 8),
        16,
        93,
        False,
        3,
    ),
    GpuModel("NVIDIA H100 PCIe", "H100 PCIe", 81559, 1.55, 1.95, (4, 8), 24, 186, False, 2),
    GpuModel("NVIDIA L4", "L4", 23034, 0.22, 0.32, (4, 8), 8, 31, False, 2),
    GpuModel("NVIDIA H200 NVL", "H200 NVL", 143771, 2.75, 3.25, (4,), 24, 188, True, 1),
    GpuModel("NVIDIA B300 SXM6 AC", "B300 SXM6 AC", 275040, 5.40, 6.20, (8,), 30, 377, True, 1),
)

PLACES = (
    Place("United States", "US", "MS", "Mississippi", "Jackson", 32.2988, -90.1848, "America/Chicago"),
    Place("United States", "US", "CA", "California", "San Jose", 37.3382, -121.8863, "America/Los_Angeles"),
    Place("Japan", "JP", "13", "Tokyo", "Chiyoda City", 35.694, 139.7536, "Asia/Tokyo"),
    Place("United States", "US", "VA", "Virginia", "Ashburn", 39.0438, -77.4874, "America/New_York"),
    Place("Norway", "NO", "03", "Oslo", "Oslo", 59.9139, 10.7522, "Europe/Oslo"),
    Place("Germany", "DE", "HE", "Hesse", "Frankfurt am Main", 50.1109, 8.6821, "Europe/Berlin"),
    Place("Russia", "RU", "MOW", "Moscow", "Moscow", 55.7558, 37.6173, "Europe/Moscow"),
    Place("United Kingdom", "GB", "ENG", "England", "London", 51.5074, -0.1278, "Europe/London"),
    Place("Canada", "CA", "QC", "Quebec", "Montreal", 45.5019, -73.5674, "America/Toronto"),
    Place("Finland", "FI", "18", "Uusimaa", "Helsinki", 60.1699, 24.9384, "Europe/Helsinki"),
    Place("United States", "US", "MN", "Minnesota", "Minneapolis", 44.9778, -93.265, "America/Chicago"),
    Place("France", "FR", "IDF", "Île-de-France", "Paris", 48.8566, 2.3522, "Europe/Paris"),
    Place("Singapore", "SG", None, None, "Singapore", 1.2897, 103.8501, "Asia/Singapore"),
    Place("Netherlands", "NL", "NH", "North Holland", "Amsterdam", 52.374, 4.8897, "Europe/Amsterdam"),
)

CPUS = (
    "AMD EPYC 9654 96-Core Processor",
    "Intel(R) Xeon(R) Platinum 8480+",
    "AMD EPYC 7763 64-Core Processor",
    "Intel(R) Xeon(R) Gold 6430",
    "AMD EPYC 9354 32-Core Processor",
)

DRIVERS = (("550.90.07", 12.4), ("560.35.03", 12.6), ("570.124.06", 12.8), ("580.65.06", 13.0))


@dataclass(frozen=True, slots=True)
class OfficialTemplate:
    name: str
    image: str
    tag: str
    category: str
    ports: tuple[int, ...] = (22, 8000)
    command: str = ""
    docker_in_docker: bool = False


OFFICIAL_TEMPLATES = (
    OfficialTemplate("Pytorch (Cuda)", "daturaai/pytorch", "2.6.0-py3.12-cuda12.6.0-devel-ubuntu22.04", "PYTORCH"),
    OfficialTemplate("Pytorch 2.8 (Cuda)", "daturaai/pytorch", "2.8.0-py3.12-cuda12.8.0-devel-ubuntu24.04", "PYTORCH"),
    OfficialTemplate("Ubuntu 24.04", "daturaai/ubuntu", "24.04-py3.12", "UBUNTU"),
    OfficialTemplate("Docker in Docker", "daturaai/dind", "0.0.1", "DOCKER", docker_in_docker=True),
    OfficialTemplate("Multi-node cluster", "daturaai/lium-cluster", "1.2.0", "PYTORCH"),
)

MACHINES_IN_FEED = {model.feed_name: model for model in MODELS}
MACHINES_BY_NAME = {model.machine_name: model for model in MODELS}
