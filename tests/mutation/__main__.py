"""Which single lines of recovery, journal and ordering could go without a test noticing.

    python -m tests.mutation [--jobs N] [PART-OF-A-PATH ...]

Prints every mutant that no test notices; those that `explained.toml` accounts for are counted only. Exit code 1 when
one is left without an explanation.
"""

from __future__ import annotations

import argparse
import json
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from time import monotonic

from tests.mutation.mutants import Identity
from tests.mutation.targets import PLANS, Plan
from tests.mutation.trials import Trial, Unusable, Verdict, try_mutants

EXPLAINED = Path(__file__).with_name("explained.toml")
ROOT = Path(__file__).parents[2]
REMEMBERED = Path("build") / "mutation.json"
"""Which test noticed a mutant last, under the root: it is tried first the next time. Only time depends on it."""
TELL_EVERY_S = 20.0


def read_explained(path: Path) -> dict[Identity, str]:
    """Why nobody needs to notice. `nth` is left out for the first of its text in its function."""
    rows = tomllib.loads(path.read_text()).get("survivor", [])
    return {(row["file"], row["within"], row["change"], row["text"], row.get("nth", 1)): row["why"] for row in rows}


def read_remembered(path: Path) -> dict[Identity, str]:
    rows = json.loads(path.read_text()) if path.exists() else []
    return {(file, within, change, text, nth): test for file, within, change, text, nth, test in rows}


def write_remembered(path: Path, noticed: Mapping[Identity, str]) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text("".join(("[\n", ",\n".join(json.dumps([*one, test]) for one, test in noticed.items()), "\n]\n")))


def say(text: str) -> None:
    sys.__stdout__.write(f"{text}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


class Teller:
    """Says how far it is, and each survivor when it is found."""

    def __init__(self, explained: Mapping[Identity, str]) -> None:
        self._explained = explained
        self._started = self._told = monotonic()
        self._tried = 0

    def __call__(self, trial: Trial) -> bool:
        """Whether it said how far it is."""
        self._tried += 1
        if not trial.verdict.noticed and trial.mutant.identity not in self._explained:
            say(f"{trial.verdict}: {trial.mutant}")
        if monotonic() - self._told < TELL_EVERY_S:
            return False
        self._told = monotonic()
        say(f"… {self._tried} tried in {self._told - self._started:.0f} s")
        return True


def main(
    arguments: Sequence[str] | None = None,
    *,
    plans: Sequence[Plan] = PLANS,
    root: Path = ROOT,
    explained_in: Path = EXPLAINED,
) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("parts", nargs="*", metavar="PART-OF-A-PATH")
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args(arguments)
    explained = read_explained(explained_in)
    remembered = read_remembered(root / REMEMBERED)
    teller = Teller(explained)
    started = monotonic()
    done: list[Trial] = []
    red: list[str] = []

    def remember() -> None:
        noticed = {trial.mutant.identity: trial.by for trial in done if trial.verdict.noticed}
        write_remembered(root / REMEMBERED, remembered | noticed)

    def note(trial: Trial) -> None:
        done.append(trial)
        if teller(trial):
            remember()  # a run that is killed has not been for nothing

    try:
        for plan in plans:
            if any(part in file for file in plan.targets for part in asked.parts or [""]):
                red += try_mutants(
                    plan,
                    root=root,
                    jobs=asked.jobs,
                    chosen=asked.parts,
                    remembered=remembered,
                    explained=explained.keys(),
                    each=note,
                    say=say,
                )
    except Unusable as problem:
        say(str(problem))
        return 1
    finally:
        remember()
    code = report(done, explained, seconds=monotonic() - started)
    if red:
        say(f"{len(red)} tests fail on unchanged code: {', '.join(red)}")
    return 1 if red else code


def report(trials: Sequence[Trial], explained: Mapping[Identity, str], *, seconds: float) -> int:
    found = {
        trial.mutant.identity: trial.verdict
        for trial in sorted(trials, key=lambda one: one.verdict.noticed, reverse=True)
    }
    files = {trial.mutant.file for trial in trials}
    for identity in explained:
        if identity[0] in files and identity not in found:
            say(f"stale: no such line any more: {' '.join(map(str, identity))}")
        elif identity in found and found[identity].noticed:
            say(f"stale: a test notices it now: {' '.join(map(str, identity))}")
    left = [trial for trial in trials if not trial.verdict.noticed and trial.mutant.identity not in explained]
    for trial in left:
        say(f"{trial.verdict}: {trial.mutant}")
    count = {verdict: sum(trial.verdict is verdict for trial in trials) for verdict in Verdict}
    unnoticed = count[Verdict.SURVIVED] + count[Verdict.NOT_COVERED]
    say(
        f"{len(trials)} mutants in {seconds:.0f} s: {count[Verdict.KILLED]} killed, {count[Verdict.HANGS]} ran away, "
        f"{unnoticed} survived ({count[Verdict.NOT_COVERED]} on lines that no test runs), {unnoticed - len(left)} of them explained"
    )
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
