"""The next command after a run that did not come to its end: what was given of ceilings, guards and selection."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import click
import pytest

from lium_plan.addresses import parse
from lium_plan.cli import apply as apply_verb
from lium_plan.cli.again import with_options
from lium_plan.cli.verb import GlobalOption
from lium_plan.engine.events import ActionResult, ResultKind, RunReport
from lium_plan.kinds.protocol import Verb

NOT_REPEATED = {
    "--json": "how the run is shown",
    "--json-into": "how the run is shown",
    "--markdown": "how the run is shown",
    "--auto-approve": "somebody is to read the next plan",
    "--rename-project": "the state has the name already",
}


def values(*arguments: str) -> dict[str, Any]:
    """The options of `apply`, as click hands them over."""
    context = apply_verb.command.make_context("apply", list(arguments))
    return {name: value for name, value in context.params.items() if not name.startswith("global_")}


def again(*arguments: str, results: tuple[ActionResult, ...] = (), shown: Mapping[str, str] | None = None) -> str:
    given = values(*arguments)
    planned = {
        **{name: list(given[name]) for name in ("files", "var_files", "targets", "excludes", "replace")},
        "refresh": not given["no_refresh"],
        "refresh_only": given["refresh_only"],
        "fill": given["fill"],
    }
    ended = RunReport("r1", results, Decimal(0), 0, shown_variables=shown or {})
    return with_options("lium-plan apply", ended, values=given, planned=planned, destroying=False)


def test_ceilings_and_guards_are_not_lost() -> None:
    given = "--target fleet.f --var n=2 --max-hourly-cost 3 --on-failure destroy-new --parallelism 4"
    assert again(*given.split(), "--strict-offers", shown={"n": "2"}) == (
        "lium-plan apply --target fleet.f --var n=2 --strict-offers --max-hourly-cost 3 --on-failure destroy-new "
        "--parallelism 4"
    )


def test_nothing_given_is_nothing_repeated() -> None:
    assert again() == "lium-plan apply"


@pytest.mark.parametrize(
    "option", [item for item in apply_verb.command.params if not isinstance(item, click.Argument | GlobalOption)],
    ids=lambda item: item.opts[0],
)  # fmt: skip
def test_every_option_is_repeated_or_has_a_reason_not_to_be(option: click.Option) -> None:
    flag = next(name for name in (*option.opts, "") if name != "--file")
    samples = {"--var": "n=2", "--max-hourly-cost": "2.50", "--on-failure": "destroy-new", "--parallelism": "3"}
    sample = samples.get(flag, "20m" if flag.endswith("timeout") else "fleet.a[0]")
    given = (flag,) if option.is_flag else (flag, sample)
    unfinished = ActionResult(parse("fleet.a[0]"), Verb.REPLACE, ResultKind.FAILED, 1.0)
    shown = again(*given, results=(unfinished,), shown={"n": "2"})
    assert (flag in shown.split()) != (flag in NOT_REPEATED)


def test_patience_that_was_too_short_is_not_repeated() -> None:
    assert again("--wait-timeout", "5s") == "lium-plan apply"


def test_what_was_made_anew_is_not_made_anew_again() -> None:
    results = (
        ActionResult(parse("fleet.a[0]"), Verb.REPLACE, ResultKind.DONE, 1.0),
        ActionResult(parse("fleet.a[1]"), Verb.REPLACE, ResultKind.FAILED, 1.0),
    )
    assert again("--replace", "fleet.a", results=results) == "lium-plan apply --replace 'fleet.a[1]'"


def test_a_secret_is_named_and_not_shown() -> None:
    shown = again("--var", "token=hunter2", "--var", "n=2", shown={"n": "2"})
    assert shown == "LIUM_PLAN_VAR_token=… lium-plan apply --var n=2"


def test_a_saved_plan_hands_on_its_own_options() -> None:
    planned = {
        "files": ["."], "targets": ["fleet.a"], "replace": [], "refresh": False, "fill": True,
        "max_hourly_cost_usd": "2.50",
    }  # fmt: skip
    ended = RunReport("r1", (), Decimal(0), 0, shown_variables={"n": "2"})
    shown = with_options("lium-plan apply", ended, values=values("saved.json"), planned=planned, destroying=False)
    assert shown == "lium-plan apply --target fleet.a --var n=2 --no-refresh --fill --max-hourly-cost 2.50"
    lower = values("saved.json", "--max-hourly-cost", "2")
    assert "--max-hourly-cost 2" in with_options(
        "lium-plan apply", ended, values={**lower, "max_hourly_cost": Decimal(2)}, planned=planned, destroying=False
    )
