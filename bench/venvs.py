"""Other people's programs, each in a virtual environment of its own under `build/clients/`, made once."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

CLIENTS = Path(__file__).parent.parent / "build" / "clients"


def client_bin(name: str, *requirements: str) -> Path:
    """The `bin` directory of the environment `name`, with `requirements` installed. Raises CalledProcessError."""
    folder = CLIENTS / name
    done = folder / ".installed"
    if not done.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        pip = [str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, *requirements], check=True)
        done.touch()
    return folder / "bin"
