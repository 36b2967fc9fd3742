"""The plan on the screen, against texts that were read by people."""

from __future__ import annotations

import re
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from view_samples import empty_plan, offer, rich_plan, sample_plan

from lium_plan.addresses import parse
from lium_plan.diagnostics import NEW_RENTS_ONLY, ExitCode, warning
from lium_plan.kinds.protocol import FieldChange, Verb
from lium_plan.planning.plan import Action, Cost, Drift, Plan, Summary
from lium_plan.views.paint import Paint
from lium_plan.views.plan_markdown import plan_markdown
from lium_plan.views.plan_text import plan_text

GOLDEN = Path(__file__).parent / "golden"

SAMPLE = """\
lium-plan will perform these actions (stack default, 84 nodes on offer, prices of 10:41:07Z):

  + volume.datasets                    S3 volume, no fixed size                         usage-billed
  + template.torch                     pytorch/pytorch:2.4.0-cuda12.1-cudnn9-runtime
  + fleet.trainers[0]                  1×H100 80GB · 24 cpu · 249 GB · us-ms · secure   $1.99/h  (2nd choice $2.05, ceiling $2.50)
  » fleet.trainers[0].bootstrap        2 commands, 1 file
  ~ fleet.api[0]                       ttl: 4h -> 6h
  ± fleet.api[1]                       resources.gpu: RTX4090 -> H100  # forces replacement

Plan: 3 to create, 1 to change, 1 to replace, 0 to destroy, 1 to run.
Cost: $0.72/h -> $4.46/h (ceiling $12.00/h), at most $26.76 until the last TTL. Rate limits add about 5 s.
"""


def golden(name: str) -> str:
    return (GOLDEN / name).read_text(encoding="utf-8")


def one(action: Action) -> str:
    return plan_text(replace(empty_plan(), actions=(action,), summary=Summary(create=1)))


@pytest.mark.parametrize("name", ["a", "inference-of-the-big-model-eu-1"])
def test_on_80_columns_a_rent_takes_few_lines_and_no_word_is_broken(name: str) -> None:
    rents = tuple(
        Action(
            parse(f"fleet.{name}[{number}]"), Verb.CREATE, "1×H100", offer=offer(), alternatives=(offer("2.10"),),
            ceiling_per_hour_usd=Decimal("2.50"),
        )
        for number in range(3)
    )  # fmt: skip
    drift = (
        Drift(
            parse(f"fleet.{name}[7]"),
            "ttl-changed",
            (FieldChange("removal_at", "2026-09-10T10:41:07Z", "2026-09-10T12:41:07Z"),),
        ),
    )
    plan = replace(empty_plan(), actions=rents, drift=drift, summary=Summary(create=3))
    shown = plan_text(plan, width=80)
    assert max(map(len, shown.splitlines())) <= 80
    assert re.search(r"\[7\]\s+ttl-changed\s", shown)
    assert "2026-09-10T10:41:07Z" in shown
    assert "2026-09-10T12:41:07Z" in shown
    body = shown.partition("):\n\n")[2].partition("\n\nPlan:")[0]
    lines = body.splitlines()
    assert len(lines) >= 3
    assert len(lines) <= 3 * 3


def test_the_documented_sample_is_printed_to_the_letter() -> None:
    assert plan_text(sample_plan()) == SAMPLE


@pytest.mark.parametrize(
    ("name", "plan", "width"),
    [
        ("plan_rich.txt", rich_plan(), None),
        ("plan_rich_80.txt", rich_plan(), 80),
        ("plan_sample_80.txt", sample_plan(), 80),
    ],
)
def test_layout(name: str, plan: Plan, width: int | None) -> None:
    assert plan_text(plan, width=width) == golden(name)


@pytest.mark.parametrize("width", [40, 60, 80, 100, 120, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    for plan in (sample_plan(), rich_plan()):
        lines = plan_text(plan, width=width).splitlines()
        longest_word = max(len(word) for line in lines for word in line.split(" "))
        assert max(len(line) for line in lines) <= max(width, 36 + 24, 36 + longest_word)


def test_markdown() -> None:
    assert plan_markdown(sample_plan()) == golden("plan_sample.md")


def test_markdown_fence_cannot_be_closed_from_inside() -> None:
    text = plan_markdown(replace(empty_plan(), actions=(Action(parse("template.a"), Verb.CREATE, "a```b"),)))
    assert "````text\n" in text


def test_a_long_plan_is_cut_where_a_comment_would_be_refused() -> None:
    actions = tuple(Action(parse(f"fleet.a[{n}]"), Verb.DESTROY, "1×H100", reason="x" * 60) for n in range(2000))
    text = plan_markdown(replace(empty_plan(), actions=actions))
    assert len(text) < 65_536
    assert "cut here" in text


def test_every_victim_is_named_however_many_there_are() -> None:
    actions = tuple(
        Action(parse(f"fleet.a[{n}]"), verb, "1×H100", reason="because") for n in range(300) for verb in (Verb.DESTROY,)
    )
    text = plan_text(replace(empty_plan(), actions=actions))
    assert all(f"- fleet.a[{n}] " in text for n in range(300))


def test_creations_of_one_fleet_fold_and_verbose_unfolds_them() -> None:
    actions = tuple(Action(parse(f"fleet.a[{n}]"), Verb.CREATE, "", offer=offer("2.00")) for n in range(20))
    plan = replace(empty_plan(), actions=actions, summary=Summary(create=20))
    assert "fleet.a[3]" not in plan_text(plan)
    assert "… and 17 more like these (-v shows all)          $34.00/h  (together; $2.00 each)" in plan_text(plan)
    assert "fleet.a[19]" in plan_text(plan, verbose=True)


def test_what_has_no_offer_says_so_and_is_in_no_figure() -> None:
    lacking = Action(parse("fleet.a[0]"), Verb.CREATE, "8×B200", lacks_offer=True)
    replaced = Action(parse("fleet.b[0]"), Verb.REPLACE, "1×H100", price_per_hour_usd=Decimal("1.99"), lacks_offer=True)
    there = Action(parse("fleet.a[1]"), Verb.CREATE, "", offer=offer("2.00"))
    plan = replace(empty_plan(), actions=(lacking, there), cost=Cost(Decimal(0), Decimal(2), until_ttl_usd=Decimal(4)))
    text = plan_text(plan)
    assert re.search(r"\+ fleet\.a\[0\] +8×B200 +no offer\n", text), text
    assert "$4.00 until the last TTL; 1 has no offer and is not in this figure." in text
    text = plan_text(replace(plan, actions=(lacking, replaced)))
    assert re.search(r"± fleet\.b\[0\] +1×H100 +no offer\n", text), text
    assert "2 have no offer and are not in this figure." in text
    assert "| $0.00/h → $2.00/h; 1 has no offer and is not in this figure |" in plan_markdown(plan)


def test_members_without_an_offer_fold_apart_from_those_that_have_one() -> None:
    actions = tuple(
        Action(parse(f"fleet.a[{n}]"), Verb.CREATE, "1×H100", offer=None if n > 9 else offer("2.00"), lacks_offer=n > 9)
        for n in range(20)
    )
    text = plan_text(replace(empty_plan(), actions=actions))
    assert re.search(r"and 7 more like these \(-v shows all\) +no offer\n", text), text
    assert re.search(r"and 7 more like these \(-v shows all\) +\$14.00/h", text), text


def test_verbose_shows_the_fields_of_what_is_created() -> None:
    action = Action(parse("template.a"), Verb.CREATE, "img", changes=(FieldChange("image", None, "img"),))
    plan = replace(empty_plan(), actions=(action,))
    assert "image: (none) -> img" not in plan_text(plan)
    assert "image: (none) -> img" in plan_text(plan, verbose=True)


def test_a_sensitive_value_is_never_shown() -> None:
    change = FieldChange("env.TOKEN", "hunter2", "hunter3", sensitive=True)
    text = one(Action(parse("fleet.a[0]"), Verb.UPDATE, "", changes=(change,)))
    assert "env.TOKEN: (sensitive, changed)" in text
    assert "hunter" not in text


def test_stand_ins_of_secrets_and_unknowns_read_as_words() -> None:
    change = FieldChange("env", {"A": {"$sensitive": "0a1b"}}, {"A": {"$unknown": "fleet.b[0].host"}})
    text = one(Action(parse("fleet.a[0]"), Verb.UPDATE, "", changes=(change,)))
    assert "env: {A: (sensitive)} -> {A: (known after apply)}" in text
    assert "0a1b" not in text


def test_text_of_a_server_cannot_drive_the_terminal() -> None:
    text = one(Action(parse("template.a"), Verb.CREATE, "evil\x1b[2J\x9b31m\u202eimage"))
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e]", text)
    assert "evil\\x1b[2J" in text


def test_colours_only_when_told_and_around_the_same_text() -> None:
    coloured = plan_text(sample_plan(), Paint(True))
    assert "\x1b[" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == SAMPLE


def test_nothing_to_do() -> None:
    plan = replace(empty_plan(), cost=Cost(Decimal("1.99"), Decimal("1.99")))
    assert plan_text(plan) == "No changes. Everything is as the manifest says (stack default, $1.99/h).\n"
    unseen = replace(plan, options={"refresh": False})
    assert "as the manifest says, by the state alone: nobody looked (stack" in plan_text(unseen)
    assert plan_text(replace(plan, destroying=True)).startswith("No changes. Stack default holds nothing")
    assert "Not all that is wanted" in plan_text(replace(plan, complete=False))
    assert "could not be made" in plan_text(replace(plan, errored=True))


def test_what_was_left_out_of_a_destroy_still_costs() -> None:
    plan = replace(empty_plan(), destroying=True, complete=False, cost=Cost(Decimal("0.36"), Decimal("0.36")))
    words = "What stack default holds was left out: it stays, and goes on costing $0.36/h."
    assert plan_text(plan) == f"No changes. {words}\n"
    assert "all was left out" in plan_markdown(plan).splitlines()[0]
    free = replace(plan, cost=Cost(Decimal(0), Decimal(0)))
    assert "was left out: it stays.\n" in plan_text(free)
    assert "holds nothing" in plan_text(replace(free, complete=True))


def test_living_pods_that_new_ones_must_not_be_like_have_a_row_each_until_they_are_many() -> None:
    def said(count: int, *, verbose: bool = False) -> list[str]:
        notes = tuple(
            warning(
                NEW_RENTS_ONLY, "nvlink: false -> true, which binds new rents only: it stays", address=f"fleet.a[{n}]"
            )
            for n in range(count)
        )
        text = plan_text(replace(empty_plan(), diagnostics=notes), verbose=verbose)
        assert text.startswith("Living pods that do not meet what new ones must:\n\n  ! fleet.a[0] ")
        assert "No changes." in text
        return [line.split()[1] for line in text.splitlines() if line.startswith("  !")]

    assert said(2) == ["fleet.a[0]", "fleet.a[1]"]
    assert said(20) == ["fleet.a[0]", "fleet.a[1]", "fleet.a[2]", "fleet.a[…]"]
    assert len(said(20, verbose=True)) == 20


def test_what_is_gone_and_not_missed_does_not_look_like_a_destruction() -> None:
    gone = [Action(parse(f"fleet.a[{n}]"), Verb.FORGET, "1×H100", "gone", counted=False) for n in range(5)]
    hosted = Action(parse("fleet.a[0].bootstrap"), Verb.FORGET, "bootstrap", counted=False)
    plan = replace(empty_plan(), actions=(*gone, hosted))
    assert plan_text(plan).splitlines()[0].startswith("No changes. ")
    assert plan_text(plan).endswith(
        "What is gone and not missed leaves the state: fleet.a[0], fleet.a[1], fleet.a[2] and 2 more.\n"
    )
    assert not plan.needs_consent
    assert not plan.has_changes
    destroys = Action(parse("fleet.b[0]"), Verb.DESTROY, "1×H100")
    assert replace(plan, actions=(*gone, destroys)).needs_consent


def test_a_refused_plan_without_actions_does_not_say_that_all_is_well() -> None:
    said = plan_text(replace(empty_plan(), refusal=ExitCode.UNSAFE))
    assert said == "Nothing would be done, and the plan is refused (stack default).\n"


def test_refused_plans_are_shown_whole() -> None:
    assert plan_text(replace(sample_plan(), refusal=ExitCode.UNSAFE)) == SAMPLE


@pytest.mark.parametrize(
    ("cost", "expected"),
    [
        (Cost(Decimal(0), Decimal("1.5")), "Cost: $0.00/h -> $1.50/h, without an end: a pod has no TTL."),
        (Cost(Decimal("1.5"), Decimal(0), None, Decimal(0)), "Cost: $1.50/h -> $0.00/h."),
        (Cost(Decimal(0), Decimal("0.23517"), None, Decimal("1.4")), "$0.24/h, at most $1.40 until the last TTL."),
    ],
)
def test_cost_line(cost: Cost, expected: str) -> None:
    plan = replace(empty_plan(), actions=(Action(parse("fleet.a[0]"), Verb.CREATE, ""),), cost=cost)
    assert expected in plan_text(plan)
