"""A plan on the screen: what happens to what, why, at what price.

Owns the layout of the plan's text. Refuses to hide a destruction: only creations and runs of one fleet fold, never
what is deleted, replaced or rebooted.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal

from lium_plan.diagnostics import NEW_RENTS_ONLY, Diagnostic, counted
from lium_plan.kinds.protocol import Verb
from lium_plan.money import amount, balance_and_minimum, most, rate
from lium_plan.money import price as money
from lium_plan.planning.plan import UNREACHABLE, Action, Cost, Drift, Open, Plan
from lium_plan.views.columns import broken
from lium_plan.views.offer_rows import offer_words
from lium_plan.views.paint import PLAIN, Paint, one_line
from lium_plan.views.times import clock, duration, stamp
from lium_plan.views.values import change_words

SYMBOLS = {
    Verb.CREATE: "+",
    Verb.UPDATE: "~",
    Verb.REBOOT: "↻",
    Verb.REPLACE: "±",
    Verb.DESTROY: "-",
    Verb.RUN: "»",
    Verb.ADOPT: "→",
    Verb.FORGET: "-",
    Verb.MOVE: "→",
}
_COLOURS = {
    Verb.CREATE: "green",
    Verb.UPDATE: "yellow",
    Verb.REBOOT: "bold yellow",
    Verb.REPLACE: "bold red",
    Verb.DESTROY: "bold red",
    Verb.RUN: "cyan",
    Verb.ADOPT: "blue",
    Verb.FORGET: "dim",
    Verb.MOVE: "blue",
}
_FOLDING = (Verb.CREATE, Verb.RUN, Verb.FORGET, Verb.MOVE)
NO_OFFER = "no offer"
_FOLD_ABOVE = 8
_FOLD_SHOWN = 3
_ADDRESS_WIDTH = 35
_MIDDLE_WIDTH = 60
_LEAST_BESIDE = 30
"""Columns that must be left beside the addresses where lines have to be broken."""
_BELOW = " " * 6
_SILENT = (Verb.CREATE, Verb.MOVE)
"""Their changes say nothing that the line does not say."""
_REASONED = (Verb.REBOOT, Verb.REPLACE, Verb.DESTROY)


@dataclass(frozen=True, slots=True)
class _Row:
    """One line: symbol, address, what, price, note. Lines that continue another have no symbol and no address."""

    style: str
    symbol: str
    address: str
    middle: str
    price: str = ""
    note: str = ""


def plan_text(plan: Plan, paint: Paint = PLAIN, *, width: int | None = None, verbose: bool = False) -> str:
    """The whole plan as text. `width`: the terminal's, for which long lines are broken; None: as wide as it gets.

    `verbose` folds nothing and shows every field of what is created.
    """
    parts: list[str] = []
    if plan.drift:
        parts.append("Changed since the last apply, and not by it:\n\n" + _drift_text(plan.drift, paint, width))
    notes = list(_note_rows(plan.diagnostics, verbose))
    if notes:
        head = "Living pods that do not meet what new ones must:"
        parts.append(f"{_prose(head, width)}\n\n{_layout(notes, paint, width)}")
    rows = [*_open_rows(plan.open), *_action_rows(plan, verbose)]
    tidied = _tidied(plan)
    if rows:
        does = "change the state alone" if plan.refresh_only else "perform these actions"
        head = f"lium-plan will {does} ({_basis(plan)}):"
        parts.append(f"{_prose(head, width)}\n\n{_layout(rows, paint, width)}")
        parts.append(_totals(plan, paint, width))
    elif plan.refusal is not None:
        parts.append(f"Nothing would be done, and the plan is refused (stack {plan.stack}).\n")
    else:
        parts.append(paint("bold green", "No changes.") + f" {_nothing(plan)}\n")
    parts.append(_prose(tidied, width) + "\n" if tidied else "")
    parts.append(_outputs_text(plan))
    return "\n".join(part for part in parts if part)


def _basis(plan: Plan) -> str:
    words = f"stack {plan.stack}"
    if plan.market is not None:
        words += f", {counted(plan.market.nodes, 'node')} on offer, prices of {clock(plan.market.read_at)}"
    return words


def _nothing(plan: Plan) -> str:
    if plan.errored:
        return f"The plan could not be made (stack {plan.stack})."
    if plan.destroying and not plan.complete:
        after = plan.cost.after_per_hour_usd
        costs = f", and goes on costing {rate(after)}" if after else ""
        return f"What stack {plan.stack} holds was left out: it stays{costs}."
    if plan.destroying:
        return f"Stack {plan.stack} holds nothing that could be destroyed."
    if plan.refresh_only:
        return f"The state is as the account shows it (stack {plan.stack})."
    options = plan.options or {}
    if not plan.complete and (options.get("targets") or options.get("excludes")):
        missing = "; the warnings say what is missing" if plan.diagnostics else ""
        return f"There is nothing to do for what was selected (stack {plan.stack}){missing}."
    if not plan.complete:
        return f"Not all that is wanted can be reached now (stack {plan.stack}); the warnings say what is missing."
    after = plan.cost.after_per_hour_usd
    looked = (plan.options or {}).get("refresh", True)
    alone = "" if looked else ", by the state alone: nobody looked"
    return f"Everything is as the manifest says{alone} (stack {plan.stack}, {rate(after)})."


# --- rows ------------------------------------------------------------------------------------------------------


def _open_rows(items: Iterable[Open]) -> Iterator[_Row]:
    for item in items:
        what = f"begun {stamp(item.since.replace(microsecond=0))}, outcome unknown; apply will {one_line(item.will)}"
        yield _Row("bold magenta", "!", str(item.address), what)


def _tidied(plan: Plan) -> str:
    gone = [str(action.address) for action in plan.actions if action.tidies and not action.address.part]
    more = f" and {len(gone) - _FOLD_SHOWN} more" if len(gone) > _FOLD_SHOWN else ""
    return f"What is gone and not missed leaves the state: {', '.join(gone[:_FOLD_SHOWN])}{more}." if gone else ""


def _note_rows(diagnostics: Iterable[Diagnostic], verbose: bool) -> Iterator[_Row]:
    """Those that say the same of members of one fleet fold."""
    alike: dict[tuple[str, str], list[Diagnostic]] = {}
    for item in diagnostics:
        if item.code == NEW_RENTS_ONLY:
            alike.setdefault((str(item.address).partition("[")[0], item.message), []).append(item)
    for (fleet, message), items in alike.items():
        shown = len(items) if verbose or len(items) <= _FOLD_ABOVE else _FOLD_SHOWN
        for item in items[:shown]:
            yield _Row("yellow", "!", str(item.address), one_line(message))
        if shown < len(items):
            yield _Row("dim", "!", f"{fleet}[…]", f"{len(items) - shown} more like these")


def _action_rows(plan: Plan, verbose: bool) -> Iterator[_Row]:
    actions = [action for action in plan.actions if not action.tidies]
    folded = {} if verbose else _folded(actions)
    seen: dict[tuple[Verb, str, str, str], int] = {}
    for action in actions:
        key = _group(action)
        members = folded.get(key)
        if members is None:
            yield from _rows_of(action, verbose=verbose, destroying=plan.destroying)
            continue
        seen[key] = seen.get(key, 0) + 1
        if seen[key] <= _FOLD_SHOWN:
            yield from _rows_of(action, verbose=verbose, destroying=plan.destroying)
        elif seen[key] == len(members):
            yield _fold_row(members[_FOLD_SHOWN:])


def _group(action: Action) -> tuple[Verb, str, str, str]:
    part = "released" if action.releases else NO_OFFER if action.lacks_offer else action.address.part or ""
    return (action.verb, action.address.head, action.address.name, part)


def _folded(actions: Sequence[Action]) -> dict[tuple[Verb, str, str, str], list[Action]]:
    """Groups of many alike: same verb, same fleet or task, nothing about them that a reader must see one by one."""
    groups: dict[tuple[Verb, str, str, str], list[Action]] = {}
    for action in actions:
        if action.verb in _FOLDING and action.address.member is not None and not action.releases:
            groups.setdefault(_group(action), []).append(action)
    return {key: members for key, members in groups.items() if len(members) > _FOLD_ABOVE}


def _fold_row(rest: Sequence[Action]) -> _Row:
    first = rest[0]
    prices = [found for action in rest if not action.lacks_offer and (found := _price_of(action)) is not None]
    part = f".{first.address.part}" if first.address.part else ""
    address = f"{first.address.head}.{first.address.name}[…]{part}"
    words = f"… and {len(rest)} more like these (-v shows all)"
    note = ""
    if prices:
        low, high = min(prices), max(prices)
        spread = money(low) if low == high else f"{money(low, high)} to {money(high, low)}"
        note = f"(together; {spread} each)"
    price = f"{amount(sum(prices, Decimal(0)))}/h" if prices else NO_OFFER if first.lacks_offer else ""
    return _Row(_COLOURS[first.verb], SYMBOLS[first.verb], address, words, price, note)


def _price_of(action: Action) -> Decimal | None:
    return action.offer.price_per_hour_usd if action.offer is not None else action.price_per_hour_usd


def _rows_of(action: Action, *, verbose: bool, destroying: bool) -> Iterator[_Row]:
    style, symbol = _COLOURS[action.verb], SYMBOLS[action.verb]
    address = str(action.address) + (f" ({action.deposed_id[:8]}, replaced)" if action.deposed_id else "")
    told = action.verb in _SILENT or (action.verb is Verb.ADOPT and action.source is not None)
    changes = action.changes if not told or verbose else ()
    lines = [change_words(change) for change in changes]
    reasons = _reason(action, destroying=destroying)
    if action.verb in (Verb.UPDATE, Verb.REBOOT, Verb.REPLACE) and lines:
        if reasons:
            lines[0] += f"  # {reasons}"
        yield _Row(style, symbol, address, lines[0])
        yield from (_Row(style, "", "", line) for line in lines[1:])
        if action.offer is not None:
            yield _Row(style, "", "", offer_words(action.offer), rate(action.offer.price_per_hour_usd), _note(action))
        elif action.lacks_offer:
            yield _Row(style, "", "", one_line(action.title), NO_OFFER)
        return
    title, _, unit = action.title.partition("\t")
    if action.lacks_offer:
        unit = NO_OFFER
    middle = offer_words(action.offer) if action.offer is not None else one_line(title)
    price = None if action.lacks_offer else _price_of(action)
    note = _note(action)
    if reasons:
        marked = f"# {reasons}" if action.verb in _REASONED else f"({reasons})"
        if price is None and not unit:
            middle += f"  {marked}"
        else:
            note = f"{note}  {marked}".strip()
    yield _Row(style, symbol, address, middle, rate(price) if price is not None else unit, note)
    yield from (_Row(style, "", "", line) for line in lines)


def _reason(action: Action, *, destroying: bool) -> str:
    """Why, unless every change says so itself."""
    if action.reason:
        return one_line(action.reason)
    if action.verb is Verb.FORGET:
        return "goes with its pod"
    return "no longer declared" if action.verb is Verb.DESTROY and not destroying else ""


def _note(action: Action) -> str:
    words = []
    if action.offer is not None and action.alternatives:
        words.append(f"2nd choice {money(action.alternatives[0].price_per_hour_usd, action.offer.price_per_hour_usd)}")
    if action.ceiling_per_hour_usd is not None and action.offer is not None:
        words.append(f"ceiling {most(action.ceiling_per_hour_usd, action.offer.price_per_hour_usd)}")
    return f"({', '.join(words)})" if words else ""


# --- layout ----------------------------------------------------------------------------------------------------


def _layout(rows: Sequence[_Row], paint: Paint, width: int | None) -> str:
    """Rows in columns; when they don't fit into `width`, price and note go to a line of their own."""
    longest = max(len(row.address) for row in rows)
    priced = [len(row.middle) for row in rows if row.price]
    middle_width = min(max(priced, default=0), _MIDDLE_WIDTH)
    address_width = max(_ADDRESS_WIDTH, longest + 2)
    natural = (
        4
        + address_width
        + max(
            (max(len(row.middle), middle_width) + 3 + len(row.price) + 2 + len(row.note))
            if row.price
            else len(row.middle)
            for row in rows
        )
    )
    if width is None or natural <= width:
        return "".join(_line(row, paint, (address_width, middle_width), None) for row in rows)
    beside = width - 4 - (longest + 2)
    if beside < max(_LEAST_BESIDE, max(priced, default=0)):
        return "".join(_stacked(row, paint, width) for row in rows)
    return "".join(_line(row, paint, (longest + 2, middle_width), width) for row in rows)


def _stacked(row: _Row, paint: Paint, width: int) -> str:
    """Beside long addresses is no room for anything: what does not fit there goes below."""
    tail = row.price + (f"  {row.note}" if row.note else "")
    whole = f"{row.middle}   {tail}" if tail else row.middle
    lead = f"  {paint(row.style, row.symbol.ljust(1))} {row.address}  " if row.address else _BELOW
    beside = width - (len(row.address) + 6 if row.address else len(_BELOW))
    first, below = next(
        (text, rest) for text, rest in ((whole, ""), (row.middle, tail), ("", whole)) if len(text) <= beside or not text
    )
    space = width - len(_BELOW)
    parts = (below,) if len(below) <= space or first else (row.middle, tail)
    lines = [f"{lead}{_marked(first, paint)}".rstrip()]
    lines += [_BELOW + _marked(chunk, paint) for part in parts if part for chunk in broken(part, space)]
    return "".join(f"{line}\n" for line in lines if line)


def _line(row: _Row, paint: Paint, widths: tuple[int, int], limit: int | None) -> str:
    address_width, middle_width = widths
    symbol = paint(row.style, row.symbol.ljust(1))
    lead = f"  {symbol} {row.address.ljust(address_width)}"
    tail = row.price + (f"  {row.note}" if row.note else "")
    if limit is None:
        body = row.middle if not row.price else f"{row.middle.ljust(middle_width)}   {tail}"
        return f"{lead}{_marked(body, paint)}".rstrip() + "\n"
    indent = " " * (4 + address_width)
    space = limit - len(indent)
    together = f"{row.middle}   {tail}" if tail else row.middle
    texts = (together,) if len(together) <= space else (row.middle, tail)
    chunks = [chunk for text in texts if text for chunk in broken(text, space)]
    first, *more = chunks or [""]
    lines = [f"{lead}{_marked(first, paint)}".rstrip(), *(f"{indent}{_marked(chunk, paint)}" for chunk in more)]
    return "".join(f"{line}\n" for line in lines)


def _marked(text: str, paint: Paint) -> str:
    """The reason behind `#` in a colour of its own."""
    if text.startswith("# "):
        return paint("red", text)
    head, mark, reason = text.partition("  # ")
    return head + "  " + paint("red", "# " + reason) if mark else head


# --- around the actions ----------------------------------------------------------------------------------------


def _drift_text(items: Sequence[Drift], paint: Paint, width: int | None) -> str:
    """What needs a look is marked as such; lines that are too long are broken at spaces."""
    longest = max(len(str(item.address)) for item in items)
    address_width = max(_ADDRESS_WIDTH, longest + 2)
    if width is not None and width - 4 - address_width < _LEAST_BESIDE:
        address_width = min(longest + 2, width - 4 - _LEAST_BESIDE)
    lead = " " * (4 + address_width)
    lines = []
    for item in items:
        status = one_line(item.status)
        words = [change_words(change) for change in item.changes]
        texts = [f"{status}  {words[0]}" if words else status, *words[1:]]
        if width is not None:
            texts = [piece for text in texts for piece in broken(text, width - len(lead))]
        first, *more = texts
        symbol = paint("bold magenta", "!") if item.status == UNREACHABLE else " "
        shown = paint("yellow", status) + first.removeprefix(status)
        if len(str(item.address)) + 2 > address_width:
            lines += [f"  {symbol} {item.address}", lead + shown]
        else:
            lines.append(f"  {symbol} {item.address!s:<{address_width}}{shown}")
        lines += [lead + text for text in more]
    return "".join(f"{line}\n" for line in lines)


def _prose(text: str, width: int | None) -> str:
    return text if width is None else "\n".join(broken(text, width - 1))


def _totals(plan: Plan, paint: Paint, width: int | None) -> str:
    if plan.refresh_only:
        forgotten = sum(action.verb is Verb.FORGET for action in plan.actions)
        taken = len(plan.actions) - forgotten
        text = f"Plan: {taken} to take into the state, {forgotten} to forget. Nothing on the account changes."
        return _prose(text, width).replace("Plan:", paint("bold", "Plan:"), 1) + "\n"
    counts = plan.summary
    words = [f"{counts.create} to create", f"{counts.update} to change"]
    if counts.reboot:
        words.append(f"{counts.reboot} to reboot")
    words += [f"{counts.replace} to replace", f"{counts.destroy} to destroy", f"{counts.run} to run"]
    text = f"Plan: {', '.join(words)}."
    if plan.open:
        one = len(plan.open) == 1
        text += f" {len(plan.open)} open {'effect' if one else 'effects'} to settle first."
    lines = f"{_prose(text, width)}\n{_prose(f'Cost: {_cost(plan)}', width)}\n"
    if plan.cost.runway_s is not None and not plan.destroying:
        lines += f"{_prose(f'Balance: {_balance(plan.cost)}', width)}\n"
    for word in ("Plan:", "Cost:", "Balance:"):
        lines = lines.replace(word, paint("bold", word), 1)
    return lines


def _balance(cost: Cost) -> str:
    """Of all that is open on the account, ours or not: it pays for everything."""
    hours = (cost.runway_s or 0) / 3600
    lasts = f"{hours:,.0f} h" if hours >= 10 else f"{hours:.1f} h"
    balance, least = balance_and_minimum(cost.balance_usd or Decimal(0), cost.balance_floor_usd or Decimal(0))
    return f"{balance} lasts {lasts} with all open pods of the account; to rent takes more than {least}."


def _cost(plan: Plan) -> str:
    cost = plan.cost
    text = f"{rate(cost.before_per_hour_usd)} -> {rate(cost.after_per_hour_usd)}"
    if cost.ceiling_per_hour_usd is not None:
        text += f" (ceiling {rate(cost.ceiling_per_hour_usd)})"
    if cost.until_ttl_usd is not None:
        text += f", at most {amount(cost.until_ttl_usd)} until the last TTL" if cost.until_ttl_usd else ""
    elif cost.after_per_hour_usd:
        text += ", without an end: a pod has no TTL"
    text += f"{without_offer(plan)}."
    if plan.rate_limit_wait_s > 0:
        wait = plan.rate_limit_wait_s
        text += f" Rate limits add about {f'{wait:.0f} s' if wait < 120 else duration(wait)}."
    return text


def without_offer(plan: Plan) -> str:
    """`; 2 have no offer and are not in this figure`, or nothing."""
    count = sum(action.lacks_offer for action in plan.actions)
    have = "1 has no offer and is" if count == 1 else f"{count} have no offer and are"
    return f"; {have} not in this figure" if count else ""


def _outputs_text(plan: Plan) -> str:
    """Only outputs that this plan makes known: the values of others are what `output` is for."""
    if not plan.actions:
        return ""
    names = [name for name, output in plan.outputs.items() if output.unknown]
    if not names:
        return ""
    return "Outputs known after apply: " + ", ".join(names) + "\n"
