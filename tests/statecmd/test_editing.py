"""`state mv|rm|pull|push|lock|unlock|repair`: offline, with any manifest, and never without a way back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta

import pytest

from lium_plan.addresses import parse
from lium_plan.state.codec import decode_snapshot, encode_snapshot
from lium_plan.state.entries import Completion
from tests.statecmd.commands import FLEET, NOW, Desk, pod, record, store

BROKEN = "fleets: {workers: {nodes: [}"


@pytest.fixture
def fleet(desk: Desk) -> Desk:
    """A state of two pods, and a manifest that can't be read: none of this needs one."""
    desk.fill(*FLEET)
    desk.write(BROKEN)
    return desk


# --- mv ------------------------------------------------------------------------------------------------------


def test_a_fleet_moves_with_all_that_is_on_it(fleet: Desk) -> None:
    said = fleet.run("state", "mv", "fleet.workers", "fleet.trainers")
    state = fleet.state()
    assert sorted(state.records) == [
        "fleet.trainers[0]",
        "fleet.trainers[0].bootstrap",
        "fleet.trainers[1]",
        "task.train[0]",
        "template.base",
        "volume.data",
    ]
    assert state.records["fleet.trainers[0].bootstrap"].depends_on == (parse("fleet.trainers[0]"),)
    assert state.records["task.train[0]"].depends_on == (parse("fleet.trainers[0]"),)
    assert said.out.splitlines()[0] == "fleet.workers[0] -> fleet.trainers[0]"


def test_one_member_moves_with_its_bootstrap(fleet: Desk) -> None:
    fleet.run("state", "mv", "fleet.workers[0]", "fleet.workers[head]")
    assert {key for key in fleet.state().records if key.startswith("fleet.")} == {
        "fleet.workers[head]",
        "fleet.workers[head].bootstrap",
        "fleet.workers[1]",
    }


def test_what_uses_a_template_names_it_as_it_is_called_now(fleet: Desk) -> None:
    fleet.run("state", "mv", "template.base", "template.torch")
    moved = fleet.state().records["fleet.workers[0]"]
    assert moved.inputs["template"] == "template.torch"
    assert moved.depends_on == (parse("template.torch"),)


def test_a_deposed_pod_and_what_is_watched_move_along(fleet: Desk) -> None:
    with fleet.writing() as ledger:
        ledger.put(replace(pod("fleet.workers[0]", "p9"), deposed=True))
        ledger.watch("lp-000000-a1b2c3-bbbbbbbb-workers-0", parse("fleet.workers[0]"), NOW + timedelta(days=9999))
        ledger.complete(parse("task.train[0]"), Completion("cafe", 0, NOW))
    fleet.run("state", "mv", "fleet.workers[0]", "fleet.other[5]")
    fleet.run("state", "mv", "task.train", "task.learn")
    state = fleet.state()
    assert "fleet.other[5]#p9" in state.records
    assert [str(item.address) for item in state.watched] == ["fleet.other[5]"]
    assert list(state.completions) == ["task.learn[0]"]


@pytest.mark.parametrize(
    ("source", "target", "code"),
    [
        ("fleet.workers", "task.workers", 64),
        ("fleet.workers[0]", "fleet.other", 64),
        ("fleet.workers[0].bootstrap", "fleet.workers[1].bootstrap", 64),
        ("fleet.workers", "fleet.workers", 64),
        ("router.x", "router.y", 64),
        ("fleet.nobody", "fleet.other", 1),
        ("fleet.workers[0]", "fleet.workers[1]", 1),
    ],
)
def test_what_can_not_move_is_said_and_nothing_is_written(fleet: Desk, source: str, target: str, code: int) -> None:
    before = fleet.files()
    done = fleet.run("state", "mv", source, target, expect=code)
    assert done.err.startswith("error: ")
    assert fleet.files() == before


@pytest.mark.parametrize("op", ["rent", "delete"])
def test_an_open_effect_is_settled_before_anything_moves(fleet: Desk, op: str) -> None:
    open_effect(fleet, "fleet.workers[0]", op, id="p0")
    assert "lium-plan apply" in fleet.run("state", "mv", "fleet.workers", "fleet.trainers", expect=1).err


def open_effect(desk: Desk, where: str, op: str, **data: str) -> None:
    with desk.writing() as ledger:
        ledger.begin(parse(where), op, dict(data))


# --- rm ------------------------------------------------------------------------------------------------------


def test_what_is_released_is_listed_with_what_it_costs(fleet: Desk) -> None:
    said = fleet.run("state", "rm", "fleet.workers[0]")
    state = fleet.state()
    assert sorted(state.records) == ["fleet.workers[1]", "template.base", "volume.data"]
    assert [(item.kind, item.id, item.price_per_hour_usd) for item in state.released] == [("pod", "p0", "0.5")]
    assert "costs $0.50/h" in said.out
    assert "$0.50/h if it still runs" in fleet.run("show").out
    shown = fleet.run("show", "--json").json["released"]
    assert shown[0]["price_per_hour_usd"] == 0.5


def test_a_whole_fleet_and_several_addresses_can_be_released(fleet: Desk) -> None:
    fleet.run("state", "rm", "fleet.workers", "volume.data")
    assert list(fleet.state().records) == ["template.base"]
    assert [item.id for item in fleet.state().released] == ["p0", "p1", "v1"]


def test_what_still_uses_it_is_said(fleet: Desk) -> None:
    done = fleet.run("state", "rm", "template.base")
    assert "fleet.workers[0]: it uses template.base" in done.err


def test_a_template_that_another_address_shares_is_not_released(fleet: Desk) -> None:
    fleet.fill(record("template.same", "t1"))
    fleet.run("state", "rm", "template.base")
    assert fleet.state().released == ()
    assert "template.same" in fleet.state().records


def test_a_deletion_without_an_outcome_is_given_up_and_a_rent_is_not(fleet: Desk) -> None:
    open_effect(fleet, "fleet.workers[0]", "delete", id="p0")
    fleet.run("state", "rm", "fleet.workers[0]")
    assert fleet.state().open == {}
    open_effect(fleet, "fleet.workers[1]", "rent", pod_name="lp-x")
    fleet.run("state", "rm", "fleet.workers[1]", expect=1)
    assert len(fleet.state().open) == 1


def test_the_hint_for_an_unreachable_pod_works_as_printed(fleet: Desk) -> None:
    fleet.fill(replace(pod("fleet.workers[0]", "p9"), deposed=True))
    fleet.run("state", "rm", "fleet.workers[0]#p9")
    assert "fleet.workers[0]" in fleet.state().records
    assert [item.id for item in fleet.state().released] == ["p9"]


def test_nothing_is_released_by_a_slip(fleet: Desk) -> None:
    before = fleet.files()
    assert "did you mean fleet.workers[0]?" in fleet.run("state", "rm", "fleet.worker[0]", expect=1).err
    fleet.run("state", "rm", "fleet workers", expect=64)
    fleet.run("state", "rm", expect=64)
    assert fleet.files() == before


# --- a way back ----------------------------------------------------------------------------------------------

CHANGES = [
    ("mv", "fleet.workers", "fleet.trainers"),
    ("rm", "fleet.workers[0]"),
    ("push", "new.json"),
    ("push", "--force", "old.json"),
]


@pytest.fixture
def pending(fleet: Desk) -> Desk:
    """The last entries are in the journal alone, as a killed apply leaves them."""
    fleet.fill(pod("fleet.workers[2]", "p2"), compact=False)
    state = fleet.state()
    (fleet.folder / "new.json").write_bytes(encode_snapshot(replace(state, serial=state.serial + 1)))
    kept = {key: item for key, item in state.records.items() if not key.startswith("fleet.")}
    (fleet.folder / "old.json").write_bytes(encode_snapshot(replace(state, serial=1, records=kept)))
    return fleet


@pytest.mark.parametrize("arguments", CHANGES, ids=lambda arguments: " ".join(arguments[:2]))
def test_a_dry_run_says_it_and_writes_nothing(pending: Desk, arguments: tuple[str, ...]) -> None:
    before = pending.files()
    done = pending.run("state", *arguments, "--dry-run")
    assert "nothing was written" in done.err
    assert pending.files() == before


@pytest.mark.parametrize("arguments", CHANGES, ids=lambda arguments: " ".join(arguments[:2]))
def test_the_state_before_is_kept_whole(pending: Desk, arguments: tuple[str, ...]) -> None:
    before = pending.state()
    pending.run("state", *arguments)
    after = pending.state()
    assert after.serial > before.serial
    assert decode_snapshot(pending.files()["default.json.1"], file="f") == before


@pytest.mark.parametrize("arguments", [*CHANGES, ("lock",), ("unlock",), ("repair",)])
def test_nothing_is_changed_while_a_run_holds_the_lock(pending: Desk, arguments: tuple[str, ...]) -> None:
    with pending.locked(store(pending.folder), "bob"):
        before = pending.files()
        done = pending.run("state", *arguments, expect=5)
        assert "bob" in done.err
        assert pending.files() == before
        for reading in ("state list", "state show volume.data", "state pull", "show", "output", "events"):
            pending.run(*reading.split())


def test_without_a_state_there_is_nothing_to_change(desk: Desk) -> None:
    for arguments in (("mv", "fleet.a", "fleet.b"), ("rm", "fleet.a"), ("pull",), ("repair",)):
        assert "has no state" in desk.run("state", *arguments, expect=1).err


# --- pull, push ----------------------------------------------------------------------------------------------


def test_a_pulled_state_is_the_whole_state_and_can_be_pushed_elsewhere(pending: Desk) -> None:
    pulled = pending.run("state", "pull").out
    assert json.loads(pulled)["records"]["fleet.workers[2]"]["id"] == "p2"
    (pending.folder / "there.json").write_text(pulled)
    pending.run("state", "push", "there.json", "--state", "file:elsewhere")
    assert pending.run("state", "list", "--state", "file:elsewhere").out == pending.run("state", "list").out
    assert "already" in pending.run("state", "push", "there.json").err


@pytest.mark.parametrize(
    ("change", "code", "word"),
    [
        ({"serial": 3}, 6, "does not follow"),
        ({"serial": 99, "lineage": "b1b2c3d4-0000-4000-8000-000000000001"}, 6, "lineage"),
        ({"serial": 99, "records": {}}, 6, "does not know p0, p1, p2"),
        ({"serial": 99, "stack": "other"}, 1, "stack other"),
        ({"serial": 99, "format": "9.0"}, 1, "newer lium-plan"),
        ({"serial": "many"}, 1, "must be a whole number"),
    ],
)
def test_what_does_not_follow_is_not_pushed(pending: Desk, change: dict[str, object], code: int, word: str) -> None:
    document = {**json.loads(pending.run("state", "pull").out), **change}
    (pending.folder / "f.json").write_text(json.dumps(document))
    before = pending.files()
    assert word in pending.run("state", "push", "f.json", expect=code).err
    assert pending.files() == before


def test_with_force_the_serial_still_only_grows(pending: Desk) -> None:
    before = pending.state()
    done = pending.run("state", "push", "--force", "old.json")
    after = pending.state()
    assert "fleet.workers[0]" not in after.records
    assert after.serial == before.serial + 1
    assert after.sequence == before.sequence
    assert "default.json.1" in done.err
    assert "warning: it does not know p0, p1, p2" in done.err


def test_a_file_that_is_not_there_is_said(fleet: Desk) -> None:
    assert "cannot read nowhere.json" in fleet.run("state", "push", "nowhere.json", expect=1).err


# --- lock, unlock --------------------------------------------------------------------------------------------


def test_a_lock_by_hand_stops_everybody_and_says_why(fleet: Desk) -> None:
    fleet.run("state", "lock", "--reason", "migrating the account", "--ttl", "2h")
    done = fleet.run("state", "rm", "volume.data", expect=5)
    assert "migrating the account" in done.err
    assert "until" in done.err
    fleet.run("state", "lock", expect=5)
    fleet.run("state", "list")
    fleet.run("state", "unlock")
    fleet.run("state", "rm", "volume.data")
    assert "was not locked" in fleet.run("state", "unlock").err


def test_a_lock_by_hand_ends_by_itself(fleet: Desk) -> None:
    fleet.run("state", "lock", "--ttl", "0")
    fleet.run("state", "rm", "volume.data")


def test_a_lock_by_hand_that_can_not_be_read_can_be_lifted(fleet: Desk) -> None:
    (fleet.folder / "state" / "default.hold").write_text("{")
    assert "state unlock" in fleet.run("state", "rm", "volume.data", expect=5).err
    fleet.run("state", "unlock")
    fleet.run("state", "rm", "volume.data")


# --- repair --------------------------------------------------------------------------------------------------


def test_a_sound_state_is_left_alone(fleet: Desk) -> None:
    before = fleet.files()
    assert "sound" in fleet.run("state", "repair").err
    assert fleet.files() == before


def edited(desk: Desk, change: str) -> None:
    """B7: what somebody's editor may leave behind."""
    path = desk.folder / "state" / "default.json"
    document = json.loads(path.read_text())
    records = document["records"]
    if change == "dangling dependency":
        records["fleet.workers[0]"]["depends_on"] = ["template.gone"]
    elif change == "two addresses with one id":
        records["fleet.workers[1]"]["id"] = "p0"
    else:
        records["router.x"] = {**records["volume.data"], "address": "router.x", "id": "r1"}
    path.write_text(json.dumps(document))


@pytest.mark.parametrize("change", ["dangling dependency", "two addresses with one id", "unknown kind"])
def test_repair_explains_and_mends_what_an_editor_broke(fleet: Desk, change: str) -> None:
    edited(fleet, change)
    told = fleet.run("state", "repair", "--dry-run")
    assert "warning: " in told.err
    kept = fleet.files()
    fleet.run("state", "repair")
    fleet.run("state", "list")
    assert kept["default.json"] in fleet.files().values()
    known = {row.id for row in fleet.state().records.values()} | {item.id for item in fleet.state().released}
    assert {"p0", "t1", "v1"} <= known
    assert change != "unknown kind" or "r1" in known
    assert "sound" in fleet.run("state", "repair").err


# --- checksums -----------------------------------------------------------------------------------------------


def hand(desk: Desk, name: str) -> None:
    """Another id for a pod, by an editor or by a bad disk."""
    path = desk.folder / name
    path.write_text(path.read_text().replace('"p1"', '"q1"'))


def test_a_changed_digit_stops_everything_and_repair_takes_it_when_asked(fleet: Desk) -> None:
    fleet.fill(record("volume.late", "v9"))
    hand(fleet, "state/default.json")
    before = fleet.files()
    assert "checksum" in fleet.run("state", "list", expect=1).err
    assert "default.json.1 is what follows" in fleet.run("state", "pull").err
    told = fleet.run("state", "repair", "--dry-run", expect=3).err
    assert "fleet.workers[1] is q1 now and was p1 in state/default.json.1" in told
    assert "orphans" in told
    assert fleet.files() == before
    fleet.run("state", "repair", expect=3)  # whether something was lost can't be known
    assert {row.id for row in fleet.state().records.values()} >= {"p0", "q1", "v9"}
    assert "sound" in fleet.run("state", "repair").err


def test_repair_of_an_edit_that_changes_no_id_loses_nothing(fleet: Desk) -> None:
    path = fleet.folder / "state" / "default.json"
    path.write_text(path.read_text() + "\n")
    assert "taken as it is" in fleet.run("state", "repair").err
    fleet.run("state", "list")


def test_an_edited_pull_can_be_pushed_and_is_written_anew(fleet: Desk) -> None:
    pulled = json.loads(fleet.run("state", "pull").out)
    del pulled["checksum"]
    pulled["serial"] += 1
    pulled["outputs"] = {"hand": "made"}
    fleet.write(json.dumps(pulled, indent=4), "mine.json")
    assert "edited" in fleet.run("state", "push", "mine.json").err
    assert fleet.run("output", "hand").out == "made\n"
    pulled["serial"] = 10**15
    fleet.write(json.dumps(pulled), "mine.json")
    assert "at most" in fleet.run("state", "push", "--force", "mine.json", expect=1).err


@pytest.mark.parametrize("name", ["serial", "sequence"])
def test_an_edit_that_makes_a_number_jump_is_not_pushed(fleet: Desk, name: str) -> None:
    pulled = json.loads(fleet.run("state", "pull").out)
    before = fleet.files()
    document = {**pulled, "serial": pulled["serial"] + 1, name: 10**12}
    fleet.write(json.dumps(document), "mine.json")
    refused = fleet.run("state", "push", "mine.json", expect=6).err
    assert f"its `{name}` jumps from {pulled[name]} to 1000000000000" in refused
    assert fleet.files() == before
    fleet.run("state", "push", "mine.json", "--state", "file:elsewhere", expect=6)
    document[name] = pulled[name] + 10**6
    fleet.write(json.dumps(document), "mine.json")
    fleet.run("state", "push", "mine.json")


def test_what_pull_wrote_can_be_pushed_however_far_it_has_counted(fleet: Desk) -> None:
    pulled = json.loads(fleet.run("state", "pull").out)
    fleet.write(json.dumps({**pulled, "serial": 10**12, "sequence": 10**12}), "far.json")
    fleet.run("state", "push", "--force", "far.json")
    fleet.fill(record("volume.late", "v9"))
    written = fleet.run("state", "pull").out
    assert json.loads(written)["serial"] > 10**12
    fleet.write(written, "pulled.json")
    assert "already" in fleet.run("state", "push", "pulled.json").err
    fleet.run("state", "push", "pulled.json", "--state", "file:elsewhere")
    fleet.write(json.dumps({**json.loads(written), "serial": json.loads(written)["serial"] + 1}), "edited.json")
    fleet.run("state", "push", "edited.json")


def test_a_backup_from_before_the_checksum_can_be_put_back(fleet: Desk) -> None:
    path = fleet.folder / "state" / "default.json"
    document = {**json.loads(path.read_text()), "format": "1.0"}
    del document["checksum"]
    path.write_text(json.dumps(document))
    fleet.run("state", "list")
    fleet.fill(record("volume.late", "v9"))
    assert json.loads(path.read_text())["format"] == "1.1"
    fleet.write(json.dumps(document), "old.json")
    assert "an older lium-plan" in fleet.run("state", "push", "--force", "old.json").err
