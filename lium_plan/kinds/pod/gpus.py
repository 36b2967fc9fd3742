"""GPU names: the many ways a server or a person writes one, and the one way we do (contract §5.3). Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

_MODELS = """
    A10:24 A10G:24 A16:16 A40:48 A100:40,80 A4000:16 A4500:20 A5000:24 A6000:48 B200:180 B300:270 GB200:186 GB300:270
    GH200:96 H100:80 H100NVL:94 H200:141 H200NVL:141 L4:24 L40:48 L40S:48 P100:16 T4:16 V100:16,32
    RTX2060:6,12 RTX2060SUPER:8 RTX2070:8 RTX2070SUPER:8 RTX2080:8 RTX2080SUPER:8 RTX2080Ti:11 RTX3050:6,8 RTX3060:8,12
    RTX3060Ti:8 RTX3070:8 RTX3070Ti:8 RTX3080:10 RTX3080Ti:12 RTX3090:24 RTX3090Ti:24 RTX4060:8 RTX4060Ti:8,16
    RTX4070:12 RTX4070SUPER:12 RTX4070Ti:12 RTX4070TiSUPER:16 RTX4080:16 RTX4080SUPER:16 RTX4090:24 RTX5060:8
    RTX5060Ti:8,16 RTX5070:12 RTX5070Ti:16 RTX5080:16 RTX5090:32 RTX6000:24 RTX2000Ada:16 RTX4000Ada:20 RTX6000Ada:48
    RTXPRO4500:32 RTXPRO6000:96
"""
MEMORY_GIB: Mapping[str, tuple[int, ...]] = {
    name: tuple(map(int, sizes.split(","))) for name, _, sizes in (item.partition(":") for item in _MODELS.split())
}
"""What each model is sold with, in GiB."""
KNOWN: frozenset[str] = frozenset(MEMORY_GIB)
"""The NVIDIA models that can be asked for; the same as in the catalogue that dstack uses."""
NEARLY = 0.07
"""A report this near to what a model is sold with means that; drivers keep some for themselves."""

_BY_LOWER = {name.lower(): name for name in KNOWN}

# Words about the form factor, the memory or the product line, never about the model itself.
_NOISE = re.compile(
    r"\b(nvidia|geforce|tesla|quadro|tensor core gpu|generation|blackwell|server edition|workstation edition"
    r"|pcie|sxm\d?|hbm\d\w*|ac|pc|\d+\s*gb)\b",
    re.IGNORECASE,
)


@lru_cache(maxsize=1024)
def normalise(name: str) -> str | None:
    """`NVIDIA GeForce RTX 4090` and `rtx-4090` -> `RTX4090`; None for a model that is not known.

    The whole of what is left must be a known name, so `H200` never finds `GH200`.
    """
    return _lookup(name, re.IGNORECASE)


@lru_cache(maxsize=1024)
def listed_model(name: str) -> str | None:
    """As `normalise`, for what the feed says: it writes `RTX A6000`, and another case would be another thing."""
    return _lookup(name, re.NOFLAG)


def _lookup(name: str, flag: re.RegexFlag) -> str | None:
    words = _NOISE.sub(" ", name.replace("-", " "))
    words = re.sub(r"^RTX A(\d)", r"A\1", words.strip(), flags=flag)
    return _BY_LOWER.get(re.sub(r"\s+", "", words).lower())


def memory_gib(gpu: str, reported_gib: float) -> int:
    """Whole GiB of one GPU: the feed says 140 for an H200, which has 141 (contract §2.2)."""
    nearest = min(MEMORY_GIB[gpu], key=lambda size: abs(size - reported_gib))
    return nearest if abs(nearest - reported_gib) / nearest < NEARLY else round(reported_gib)
