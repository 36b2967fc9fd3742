"""`offers`: what can be rented now, filtered as a fleet would. No key needed."""

from __future__ import annotations

from typing import Any

import click

from lium_plan.answers import OffersQuery
from lium_plan.cli.session import Session, ending
from lium_plan.cli.shared import USD, manifest_options, sources, usage
from lium_plan.cli.verb import json_option, options, verb
from lium_plan.diagnostics import ExitCode

_filters = options(
    click.option("--gpu", metavar="SPEC", help="NAME[,NAME…][:MEMORY][:COUNT], e.g. H100:80GB:8."),
    click.option("--cpu", metavar="R", help="Cores, e.g. 8 or 8..32."),
    click.option("--memory", metavar="R", help="e.g. 64GB.."),
    click.option("--disk", metavar="R", help="Container filesystem, e.g. 100GB.."),
    click.option("--region", "regions", multiple=True, metavar="R", help="Country or country-subdivision; repeatable."),
    click.option(
        "--spot-policy", type=click.Choice(("on-demand", "spot", "auto")), help="on-demand, spot or auto (auto)."
    ),
    click.option("--max-price", type=USD, metavar="USD", help="For the whole slice and an hour."),
    click.option("--min-download", metavar="S", help="e.g. 500Mbps."),
    click.option("--nvlink", is_flag=True, help="Only with NVLink."),
    click.option("--reliable", is_flag=True, help="Only nodes that are not known as unreliable."),
    click.option("--min-cuda", type=USD, metavar="V", help="e.g. 12.4."),
    click.option("--fleet", metavar="NAME", help="As this fleet of the manifest asks; other filters narrow it."),
)


@verb(
    "offers",
    help="List what can be rented now, cheapest first, filtered as a fleet would. No key needed.",
    failed=lambda session: {"generated_at": None, "offers": [], "skipped": []},
)
@_filters
@manifest_options
@click.option("--group-by", type=click.Choice(("gpu", "region")), help="A line a GPU model or a region.")
@click.option("--limit", type=click.IntRange(1), metavar="N", help="At most so many.")
@click.option("--csv", "as_csv", is_flag=True, help="CSV on stdout.")
@click.option("--skipped", is_flag=True, help="Also the nodes that give no offer, and why.")
@json_option
def command(session: Session, **values: Any) -> ExitCode:
    from lium_plan import operations
    from lium_plan.views import offers_view

    if values["as_csv"] and (values["as_json"] or values["group_by"]):
        raise usage("--csv excludes --json and --group-by")
    if (values["files"] or values["variables"] or values["var_files"]) and not values["fleet"]:
        raise usage("-f, --var and --var-file are for --fleet NAME")
    settings = session.server_settings()
    asked = _query(values)
    answer = session.run(lambda interrupt: operations.list_offers(settings, asked), for_reader=True)
    printer, limit = session.printer, values["limit"]
    if values["as_json"]:
        grouping = offers_view.Grouping(values["group_by"]) if values["group_by"] else None
        printer.json(offers_view.offers_json(answer, limit=limit, grouping=grouping))
    elif values["as_csv"]:
        printer.out(offers_view.offers_csv(answer, limit=limit))
    elif values["group_by"]:
        grouped = offers_view.Grouping(values["group_by"])
        printer.out(offers_view.groups_text(answer, grouped, printer.out_paint, limit=limit))
    else:
        printer.out(offers_view.offers_text(answer, printer.out_paint, limit=limit, skipped=values["skipped"]))
    if not values["as_json"]:
        session.show(answer.diagnostics)
    return ending(ExitCode.OK, answer.diagnostics)


def _query(values: dict[str, Any]) -> OffersQuery:
    return OffersQuery(
        gpu=values["gpu"],
        cpu=values["cpu"],
        memory=values["memory"],
        disk=values["disk"],
        regions=tuple(values["regions"]),
        spot_policy=values["spot_policy"],
        max_price_usd=values["max_price"],
        min_download=values["min_download"],
        nvlink=values["nvlink"],
        reliable=values["reliable"],
        min_cuda=values["min_cuda"],
        fleet=values["fleet"],
        sources=sources(values) if values["fleet"] else None,
    )
