"""Again: the options with which an apply or destroy that did not come to its end goes on.

What decides what is touched, and what may be spent or destroyed, is repeated as it was given: whoever pastes the
command must not lose a ceiling. What is left out: how the run is shown, `--auto-approve` (somebody is to read the
next plan), `--rename-project` (it holds already), a `--wait-timeout` shorter than the usual one (it may be why
something was not seen to go), and values that may be secret.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import TYPE_CHECKING, Any

from lium_plan.addresses import matches_any, parse_pattern
from lium_plan.cli.shared import USUAL_WAIT_S
from lium_plan.settings import VARIABLE_PREFIX

if TYPE_CHECKING:
    from lium_plan.engine.events import ActionResult, RunReport

_REPEATED = (("-f", "files"), ("--var-file", "var_files"), ("--target", "targets"), ("--exclude", "excludes"))


def with_options(
    command: str, report: RunReport, *, values: Mapping[str, Any], planned: Mapping[str, object], destroying: bool
) -> str:
    """`lium-plan VERB` as it is to be typed. `values`: the command's options; `planned`: those of the plan."""
    # A destroy reads no variables.
    variables = {} if destroying else {**report.shown_variables, **dict(values["variables"])}
    shown = report.shown_variables
    parts = [part for flag, name in _REPEATED for value in _lists(planned, name) for part in (flag, value)]
    parts += (part for name in variables if name in shown for part in ("--var", f"{name}={shown[name]}"))
    parts += _unfinished(_lists(planned, "replace"), report.results)
    parts += _guards(values, planned)
    hidden = "".join(f"{VARIABLE_PREFIX}{name}=… " for name in variables if name not in shown)
    return f"{hidden}{command}" + (f" {shlex.join(parts)}" if parts else "")


def _lists(planned: Mapping[str, object], name: str) -> list[str]:
    given = planned.get(name)
    texts = [str(value) for value in given] if isinstance(given, list | tuple) else []
    return [] if (name, texts) == ("files", ["."]) else texts


def _unfinished(replace: Iterable[str], results: Iterable[ActionResult]) -> Iterator[str]:
    """`--replace` for what is still to be made anew: what was is not to be made a third time."""
    patterns = [parse_pattern(text) for text in replace]
    for result in results:
        if result.kind != "done" and result.verb in ("replace", "run") and matches_any(patterns, result.address):
            yield from ("--replace", str(result.address))


def _guards(values: Mapping[str, Any], planned: Mapping[str, object]) -> Iterator[str]:
    flags = (
        ("--refresh-only", planned.get("refresh_only")),
        ("--no-refresh", planned.get("refresh") is False),
        ("--fill", planned.get("fill") or values["fill"]),
        ("--allow-foreign-lineage", values["allow_foreign_lineage"]),
        ("--strict-offers", values["strict_offers"]),
        ("--force-replace", values["force_replace"]),
    )
    yield from (flag for flag, given in flags if given)
    ceilings = (values["max_hourly_cost"], planned.get("max_hourly_cost_usd"))
    ceiling = min((Decimal(str(given)) for given in ceilings if given is not None), default=None)
    if ceiling is not None:
        yield from ("--max-hourly-cost", format(ceiling, "f"))
    for allowed in values["allow_destroy"]:
        yield from ("--allow-destroy", allowed)
    if values["on_failure"] != "keep":
        yield from ("--on-failure", values["on_failure"])
    if values["notify"]:
        yield from ("--notify", values["notify"])
    if values["parallelism"]:
        yield from ("--parallelism", str(values["parallelism"]))
    if values["lock_timeout"]:
        yield from ("--lock-timeout", f"{values['lock_timeout']:g}s")
    if values["wait_timeout"] > USUAL_WAIT_S:
        yield from ("--wait-timeout", f"{values['wait_timeout']:g}s")
