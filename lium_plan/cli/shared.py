"""Options that several verbs share, and what they mean as requests to `operations`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from lium_plan.cli.verb import json_option, options
from lium_plan.diagnostics import ExitCode, Failure, error
from lium_plan.requests import PlanRequest, Sources

if TYPE_CHECKING:
    _Seconds = click.ParamType[float]
    _Money = click.ParamType[Decimal]
    _Pair = click.ParamType[tuple[str, str]]
else:
    # Older versions of click have no parameter here.
    _Seconds = _Money = _Pair = click.ParamType

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
LONGEST_S = 3650 * 86400
LARGEST_USD = 10**9
USUAL_WAIT_S = 900.0
_USD = re.compile(r"\$?([0-9]{1,10}(?:\.[0-9]{1,12})?)")


class Duration(_Seconds):
    """`30s`, `10m`, `1h30m`, `2d`, or `0` -> seconds. A bare number could mean minutes as well."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, int | float):
            return float(value)
        text = str(value).strip().lower()
        if not re.fullmatch(r"0|(?:[0-9]{1,9}[smhd])+", text):
            bare = text.isascii() and text.isdigit()
            wanted = f"{text}s or {text}m" if bare else "30s, 10m, 1h30m or 2d"
            self.fail(f"'{value}' is no duration: write {wanted}", param, ctx)
        seconds = sum(int(number) * _UNITS[unit or "s"] for number, unit in re.findall(r"([0-9]+)([smhd]?)", text))
        if seconds > LONGEST_S:
            self.fail(f"'{value}' is too long: {LONGEST_S // 86400}d at most", param, ctx)
        return float(seconds)


class Usd(_Money):
    """An amount of money, 0 to 1000000000 -> Decimal."""

    name = "usd"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Decimal:
        if isinstance(value, Decimal):
            return value
        match = _USD.fullmatch(str(value).strip())
        if match is None or Decimal(match[1]) > LARGEST_USD:
            self.fail(f"'{value}' is no amount in USD: a number from 0 to {LARGEST_USD}, such as 1.50", param, ctx)
        return Decimal(match[1])


class Assignment(_Pair):
    """`NAME=VALUE` -> (name, value)."""

    name = "assignment"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, content = str(value).partition("=")
        if not equals or not re.fullmatch(r"[a-z_][a-z0-9_]*", name):
            # The value is not repeated: it may be a secret.
            self.fail(f"'{name}' is no assignment: write NAME=VALUE with a name such as nodes or hf_token", param, ctx)
        return name, content


DURATION, USD = Duration(), Usd()

manifest_options = options(
    click.option("-f", "--file", "files", multiple=True, metavar="PATH", help="Manifest file or directory (.)."),
    click.option("--var", "variables", multiple=True, type=Assignment(), metavar="K=V", help="Set a variable."),
    click.option("--var-file", "var_files", multiple=True, metavar="FILE", help="Variables from a YAML file."),
)

report_options = options(
    json_option,
    click.option("--json-into", "json_into", metavar="FILE", help="The JSON beside the text for people."),
    click.option("--markdown", "as_markdown", is_flag=True, help="Markdown, for a pull request's comment."),
)

selection_options = options(
    click.option("--target", "targets", multiple=True, metavar="ADDR", help="Only this, and what it needs."),
    click.option("--exclude", "excludes", multiple=True, metavar="ADDR", help="Not this, nor what needs it."),
    click.option("--replace", "replace", multiple=True, metavar="ADDR", help="Make this anew."),
    click.option("--refresh-only", is_flag=True, help="Only take over what changed on the server."),
    click.option("--no-refresh", is_flag=True, help="Believe the state; don't look at what exists."),
    click.option("--max-hourly-cost", "max_hourly_cost", type=USD, metavar="USD", help="Refuse beyond this per hour."),
)

run_options = options(
    click.option(
        "--parallelism", type=click.IntRange(0), metavar="N", help="Actions at once; 0: no limit but the server's."
    ),
    click.option("--lock-timeout", type=DURATION, default=0.0, metavar="D", help="Wait for the lock (0s)."),
    click.option(
        "--wait-timeout", type=DURATION, default=USUAL_WAIT_S, metavar="D", help="Wait for things to go (15m)."
    ),
)

guard_options = options(
    click.option(
        "--allow-destroy", "allow_destroy", multiple=True, metavar="ADDR|N|all", help="Destructions that are meant."
    ),
    click.option("--fill", is_flag=True, help="Rent up to the maximum of MIN..MAX fleets again."),
    click.option("--rename-project", is_flag=True, help="The state's project takes the manifest's name."),
    click.option("--allow-foreign-lineage", is_flag=True, help="Go on although another state of this stack has pods."),
)

apply_options = options(
    click.option("--auto-approve", is_flag=True, help="Don't ask."),
    click.option(
        "--on-failure",
        type=click.Choice(("keep", "destroy-new")),
        default="keep",
        help="What a failed run keeps (keep).",
    ),
    click.option("--strict-offers", is_flag=True, help="Rent exactly the planned nodes or nothing."),
    click.option("--force-replace", is_flag=True, help="Replace even if nothing affordable is on offer."),
    click.option("--notify", metavar="CMD", help="Run this at the end; it gets JSON about it on stdin."),
)


def sources(values: Mapping[str, Any]) -> Sources:
    return Sources(
        files=tuple(values["files"]) or (".",),
        variables=dict(values["variables"]),
        var_files=tuple(values["var_files"]),
    )


def plan_request(values: Mapping[str, Any], *, destroying: bool = False) -> PlanRequest:
    """The request that these options mean. Raises `Failure` (64) for options that contradict each other."""
    check_report(values)
    if values["refresh_only"] and values["no_refresh"]:
        raise usage("--refresh-only and --no-refresh exclude each other")
    if values["refresh_only"] and (values["replace"] or destroying):
        raise usage("--refresh-only changes nothing, so it cannot be had with --replace or a destroy")
    return PlanRequest(
        sources=sources(values) if "files" in values else Sources(),
        destroying=destroying,
        targets=tuple(values["targets"]),
        excludes=tuple(values["excludes"]),
        replace=tuple(values["replace"]),
        refresh=not values["no_refresh"],
        refresh_only=values["refresh_only"],
        max_hourly_cost_usd=values["max_hourly_cost"],
        allow_destroy=_checked_allowances(tuple(values["allow_destroy"])),
        allow_foreign_lineage=values["allow_foreign_lineage"],
        rename_project=values["rename_project"],
        fill=values["fill"],
    )


def _checked_allowances(allowances: tuple[str, ...]) -> tuple[str, ...]:
    from lium_plan.addresses import AddressError, parse_pattern

    for text in allowances:
        try:
            parse_pattern(text)
        except AddressError as fault:
            raise usage(f"--allow-destroy: {fault}") from None
    return allowances


def check_report(values: Mapping[str, Any]) -> None:
    """Raises `Failure` (64) for two forms on one stdout."""
    if values["as_json"] and values["as_markdown"]:
        raise usage("--json and --markdown exclude each other; --json-into FILE writes the JSON beside the text")


def usage(message: str) -> Failure:
    return Failure(ExitCode.USAGE, (error("usage", message),))


def write_file(path: str | Path, text: str) -> None:
    """Write a file that the user asked for. Raises `Failure` (exit 1)."""
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as fault:
        raise Failure(ExitCode.ERROR, (error("cannot-write", f"cannot write {path}: {fault.strerror}"),)) from None
