"""`python -m lium_plan.sim`: a local Lium for developing. `lium-plan sim serve` is the one for users."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from lium_plan.diagnostics import Failure
from lium_plan.sim.serve import ServeOptions, serve


def main() -> int:
    defaults = ServeOptions()
    parser = argparse.ArgumentParser(prog="python -m lium_plan.sim")
    parser.add_argument("--host", default=defaults.host)
    parser.add_argument("--port", type=int, default=defaults.port)
    parser.add_argument("--world", type=Path)
    parser.add_argument("--seed", type=int, default=defaults.seed)
    parser.add_argument("--speed", type=float, default=defaults.speed)
    parser.add_argument("--nodes", type=int, default=defaults.nodes)
    parser.add_argument("--balance", dest="balance_usd", type=float, default=defaults.balance_usd)
    parser.add_argument("--feed", type=Path)
    parser.add_argument("--scenario", type=Path)
    parser.add_argument("--confined", action="store_true")
    parser.add_argument("--idle-exit", dest="idle_exit_s", type=float, metavar="SECONDS")
    parser.add_argument("--lively", action="store_true")
    parser.add_argument("--no-machines", dest="machines", action="store_false")
    options = ServeOptions(**vars(parser.parse_args()))

    def say(text: str) -> None:
        sys.stderr.write(f"sim: {text}\n")

    def say_ready(base_url: str, key: str) -> None:
        sys.stdout.write(f"LIUM_BASE_URL={base_url}\nLIUM_API_KEY={key}\n")
        sys.stdout.flush()

    try:
        return serve(options, say_ready=say_ready, say=say)
    except Failure as failure:
        for diagnostic in failure.diagnostics:
            say(f"error: {diagnostic.message}")
        return int(failure.exit_code)


if __name__ == "__main__":
    sys.exit(main())
