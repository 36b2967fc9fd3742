"""How long `--help` takes beside the official client's, and a bad manifest's six messages."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from bench.measure import in_turn, median, table
from bench.venvs import client_bin

OURS = Path(sys.executable).with_name("lium-plan")
HEAVY = ("httpx", "asyncssh", "pydantic", "deepdiff", "jsonschema")
RUNS = 15
BAD = """\
version: 1
project: Bad_Name
volumes:
  data: {size: 100GB}
fleets:
  a:
    nodes: many
    resources: {gpu: "H100:1", disc: 30GB..}
    template: torhc
    ttl: 30m
"""


def main() -> None:
    lium = client_bin("lium-0.32.0", "lium.io==0.32.0") / "lium"
    with tempfile.TemporaryDirectory() as home:
        env = {"PATH": os.environ["PATH"], "HOME": home, "LIUM_SELF_UPDATE_DISABLE": "1"}
        (Path(home) / "lium.yaml").write_text(BAD)
        samples = in_turn(
            {
                "lium-plan --help": (OURS, "--help"),
                "lium --help (0.32.0)": (lium, "--help"),
                "lium-plan validate, six faults": (OURS, "--chdir", home, "validate"),
            },
            runs=RUNS,
            env=env,
        )
        rows = [
            (
                name,
                f"{median(found, 'wall_s'):.3f}",
                f"{median(found, 'cpu_s'):.3f}",
                f"{median(found, 'peak_mib'):.0f}",
            )
            for name, found in samples.items()
        ]
        print(table(("medians of 15, in turn", "wall s", "cpu s", "MiB"), rows), end="")
        ours, theirs = (median(samples[name], "wall_s") for name in list(samples)[:2])
        print(f"help: {ours / theirs:.2f} of the official client's (limit 0.33)")
        print(f"loaded by --help of {', '.join(HEAVY)}: {loaded_by_help(env) or 'none'}")


def loaded_by_help(env: dict[str, str]) -> str:
    """Which of the heavy packages `--help` imports."""
    code = (
        "import sys; from lium_plan.cli.main import main\n"
        "try: main(['--help'])\n"
        "except SystemExit: pass\n"
        f"sys.stderr.write(' '.join(name for name in {HEAVY!r} if name in sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return done.stderr.strip()


if __name__ == "__main__":
    main()
