"""Run the benchmarks: all of them, or those named."""

from __future__ import annotations

import sys
import time
from importlib import import_module
from pathlib import Path

FOLDER = Path(__file__).parent
NOT_ONE = ("__init__", "__main__", "measure", "venvs", "watched")


def main(names: list[str]) -> int:
    known = sorted(path.stem for path in FOLDER.glob("*.py") if path.stem not in NOT_ONE)
    unknown = sorted(set(names) - set(known))
    if unknown:
        print(f"no such benchmark: {', '.join(unknown)}; there are: {', '.join(known)}", file=sys.stderr)
        return 64
    worst = 0
    for name in names or known:
        started = time.perf_counter()
        print(f"== {name}", flush=True)
        worst = max(worst, import_module(f"bench.{name}").main() or 0)
        print(f"   ({time.perf_counter() - started:.0f} s)\n", flush=True)
    return worst


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
