"""The main job from end to end on a local Lium: `make demo`.

Validates, plans, applies the quickstart, shows what its task printed, plans again (nothing to do), destroys, and proves
that the account is empty. Each command is printed before it runs; the first that does not end as it should ends all.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

QUICKSTART = Path(__file__).parent / "quickstart"
COMMAND = Path(sys.executable).with_name("lium-plan")
# The pair that the local Lium takes for images called limsim/private-*; a made-up home keeps real keys out of it.
REGISTRY = {"REG_USER": "demo", "REG_PASS": "demo"}


def main() -> int:
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="lium-plan-demo-") as folder:
        project = Path(folder) / "quickstart"
        shutil.copytree(QUICKSTART, project, ignore=shutil.ignore_patterns("state"))
        home = Path(folder) / "home"
        home.mkdir()
        environ = {"PATH": os.environ["PATH"], "HOME": str(home), "LANG": "C.UTF-8", **REGISTRY}
        try:
            run_all(project, environ)
        finally:
            subprocess.run([COMMAND, "sim", "stop", "-q"], cwd=project, env=environ, check=False)
    print(f"\nDone in {time.monotonic() - started:.0f} s.")
    return 0


def run_all(project: Path, environ: dict[str, str]) -> None:
    step(project, environ, "validate")
    step(project, environ, "--sim", "plan")
    step(project, environ, "--sim", "apply", "--auto-approve")
    for log in sorted((project / "state" / "logs").rglob("task.*.log")):
        print(f"\n$ cat {log.relative_to(project)}\n{log.read_text()}", end="")
    step(project, environ, "--sim", "status")
    print("\nA second plan finds nothing to do (--detailed-exitcode would be 2 if there were changes):")
    step(project, environ, "--sim", "plan", "--detailed-exitcode")
    step(project, environ, "--sim", "destroy", "--auto-approve")
    print("\nAnd what the account still has, asked of it directly:")
    found = step(project, environ, "--sim", "state", "list", "--json", show=False)
    left = json.loads(found.stdout)["addresses"]
    listed = remote_objects(project)
    print(f"state: {left or 'nothing'}; account: {listed or 'nothing'}")
    if left or listed:
        sys.exit("the account is not empty")


def step(
    project: Path, environ: dict[str, str], *arguments: str, show: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run one command; its output is shown as it comes unless it is to be read."""
    if show:
        print(f"\n$ lium-plan {' '.join(arguments)}", flush=True)
    done = subprocess.run(
        [COMMAND, *arguments], cwd=project, env=environ, check=False, text=True, capture_output=not show
    )
    if done.returncode != 0:
        sys.exit(f"lium-plan {arguments[0]} ended with {done.returncode}\n{done.stderr or ''}")
    return done


def remote_objects(project: Path) -> list[str]:
    """What the local Lium's ledger still has open, read as any other client would."""
    import httpx

    server = json.loads((project / "state" / ".sim" / "server.json").read_text())
    ledger = httpx.get(f"http://127.0.0.1:{server['port']}/_sim/ledger").json()
    return [f"{line['kind']} {line['name']}" for line in ledger if line["to"] is None]


if __name__ == "__main__":
    sys.exit(main())
