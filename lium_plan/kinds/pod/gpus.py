"""GPU names: the many ways a server or a person writes one, and the one way we do (contract §5.3). Pure."""

from __future__ import annotations

import re
from functools import lru_cache

KNOWN: frozenset[str] = frozenset(
    """
    A10 A10G A16 A40 A100 A4000 A4500 A5000 A6000 B200 B300 GB200 GB300 GH200 H100 H100NVL H200 H200NVL L4 L40
    L40S P100 T4 V100 RTX2060 RTX2060SUPER RTX2070 RTX2070SUPER RTX2080 RTX2080SUPER RTX2080Ti RTX3050 RTX3060
    RTX3060Ti RTX3070 RTX3070Ti RTX3080 RTX3080Ti RTX3090 RTX3090Ti RTX4060 RTX4060Ti RTX4070 RTX4070SUPER
    RTX4070Ti RTX4070TiSUPER RTX4080 RTX4080SUPER RTX4090 RTX5060 RTX5060Ti RTX5070 RTX5070Ti RTX5080 RTX5090
    RTX6000 RTX2000Ada RTX4000Ada RTX6000Ada RTXPRO4500 RTXPRO6000
    """.split()
)
"""The NVIDIA models that can be asked for; the same table as the catalogue that dstack uses."""

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
    words = _NOISE.sub(" ", name.replace("-", " "))
    words = re.sub(r"^RTX A(\d)", r"A\1", words.strip(), flags=re.IGNORECASE)
    return _BY_LOWER.get(re.sub(r"\s+", "", words).lower())
