"""`orphans`, `import`, `state recover`, `extend`: what a state and an account know of each other."""

from __future__ import annotations

import shutil
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path

import pytest

from lium_plan.kinds.pod.lifetimes import TTL_TOLERANCE
from tests.statecmd.commands import here
from tests.support.projects import Project, new_project
from tests.support.sims import Row, until

FLEET = """\
version: 1
project: demo
volumes:
  data: {description: training data}
templates:
  base:
    image: limsim/private-torch:2.4
    registry_auth: {username: "${{ env.REG_USER }}", password: "${{ env.REG_PASS }}"}
    ports: [8000]
    env: {STAGE: one, TOKEN: "${{ env.TOKEN }}"}
fleets:
  workers:
    nodes: 2
    resources: {gpu: {count: 1}}
    max_price: 3.00
    template: base
    ttl: 2h
    bootstrap: {commands: ["true"]}
  store:
    resources: {gpu: {count: 1}}
    max_price: 3.00
    image: ubuntu:22.04
    volume: data
    ttl: 2h
"""
ONE = """\
version: 1
project: demo
fleets:
  box:
    resources: {gpu: {count: 1}}
    max_price: 3.00
    image: ubuntu:22.04
    ttl: 2h
"""
CANARY = "tok-canary-4711"


@pytest.fixture
def project(project: Project) -> Project:
    return here(project)


@pytest.fixture
def fleet(project: Project) -> Project:
    """Three pods, a volume, two templates and a login, made by an apply."""
    made = replace(project, more={"TOKEN": CANARY})
    made.write(FLEET)
    made.apply()
    return made


@pytest.fixture
def box(project: Project) -> Project:
    project.write(ONE)
    project.apply()
    return project


def state_folder(project: Project) -> Path:
    return project.folder / "state"


def orphans(project: Project, *arguments: str, expect: int = 0) -> Row:
    found: Row = project.run("orphans", "--json", *arguments, expect=expect).json
    return found


def ids(rows: list[Row], kind: str | None = None) -> set[str]:
    return {row["id"] for row in rows if kind in (None, row["kind"])}


def billed(project: Project) -> set[str]:
    return {row["id"] for row in project.ledger(open_only=True)}


def foreign(project: Project, kind: str, **body: object) -> str:
    wanted = {"account": project.account, "kind": kind, "body": body}
    return str(project.sim.control("POST", "/objects", wanted)["id"])


def secretless(project: Project) -> None:
    """O6: none of what the state and its neighbours hold shows a secret."""
    for path in state_folder(project).rglob("*"):
        if path.is_file():
            assert CANARY.encode() not in path.read_bytes(), path


# --- recover -------------------------------------------------------------------------------------------------


def test_a_lost_state_comes_back_and_nothing_is_rented_twice(fleet: Project) -> None:
    before, pods = billed(fleet), fleet.resources("pod")
    shutil.rmtree(state_folder(fleet))
    refused = fleet.run("apply", "--auto-approve", expect=6)
    assert "lium-plan state recover" in refused.err

    fleet.run("state", "recover", "--dry-run", expect=0)
    assert not (state_folder(fleet) / "default.json").exists()
    done = fleet.run("state", "recover", expect=0)
    assert "6 recovered" not in done.out  # seven: three pods, two templates, a login, a volume
    assert "7 recovered" in done.out

    after = fleet.resources("pod")
    assert {address: pod["id"] for address, pod in after.items()} == {a: pod["id"] for a, pod in pods.items()}
    facts = ("node_id", "gpu", "gpu_count", "gpu_memory_gib", "cpu", "memory_gib", "location", "tier")
    for address, pod in pods.items():
        shown = after[address]["attributes"]
        assert [shown[name] for name in facts] == [pod["attributes"][name] for name in facts]
    planned = fleet.run("plan", "--json", expect=0).json
    assert [(item["address"], item["action"]) for item in planned["actions"]] == [
        ("fleet.workers[0].bootstrap", "run"),
        ("fleet.workers[1].bootstrap", "run"),
    ]
    fleet.apply()
    fleet.run("plan", "--detailed-exitcode", expect=0)
    secretless(fleet)
    assert orphans(fleet)["lost"] == []
    assert billed(fleet) == before
    fleet.destroy()
    assert billed(fleet) == set()


def test_what_was_moved_in_the_manifest_is_found_under_its_old_name(project: Project) -> None:
    """A pod keeps the name that it was rented under; so do volumes that have none of their own."""
    project.write(ONE.replace("box:", "box:\n    nodes: 2").replace("fleets:", "volumes: {old: {}}\nfleets:"))
    project.apply()
    before = {pod["id"] for pod in project.resources("pod").values()}
    moved = "moved: [{from: fleet.box, to: fleet.bin}, {from: fleet.bin, to: fleet.crate}, "
    renamed = ONE.replace("box:", "crate:\n    nodes: 2").replace("fleets:", "volumes: {new: {}}\nfleets:")
    project.write(f"{renamed}{moved}{{from: volume.old, to: volume.new}}]\n")
    shutil.rmtree(state_folder(project))
    project.run("state", "recover", expect=0)
    pods = project.resources("pod")
    assert set(pods) == {"fleet.crate[0]", "fleet.crate[1]"}
    assert {pod["id"] for pod in pods.values()} == before
    assert set(project.resources("volume")) == {"volume.new"}
    project.apply()
    assert (len(project.ledger("pod")), len(project.ledger("volume"))) == (2, 1)
    project.run("plan", "--detailed-exitcode", expect=0)


def test_what_fits_no_address_is_named_and_can_be_imported(fleet: Project) -> None:
    pods = fleet.resources("pod")
    shutil.rmtree(state_folder(fleet))
    fleet.write(FLEET.replace("store:", "depot:"))
    done = fleet.run("state", "recover", expect=3)
    store = pods["fleet.store[0]"]
    assert f"{store['id']}) is left, for $" in done.err
    assert "fits no address" in done.err
    lost = orphans(fleet, "--detailed-exitcode", expect=2)["lost"]
    assert store["id"] in ids(lost)
    assert all(row["project"] == "demo" and row["stack"] == "default" for row in lost)
    fleet.run("import", "fleet.depot[0]", store["id"], expect=0)
    assert fleet.resources("pod")["fleet.depot[0]"]["id"] == store["id"]
    template = [row["id"] for row in lost if row["kind"] == "template"]
    assert template == []  # the pod's own is taken with it, or stays where it is


def test_members_have_the_numbers_in_their_names_whatever_nodes_says(box: Project) -> None:
    box.write(ONE.replace("  box:\n", "  box:\n    nodes: 2\n"))
    box.apply()
    second = box.resources("pod")["fleet.box[1]"]["id"]
    box.write(ONE)
    shutil.rmtree(state_folder(box))
    box.run("state", "recover", expect=0)
    assert box.resources("pod")["fleet.box[1]"]["id"] == second


def test_of_two_that_bear_one_name_neither_is_taken(box: Project) -> None:
    (real,) = box.ledger("pod", open_only=True)
    prefix = "-".join(real["name"].split("-")[:3])
    node = next(
        row["id"]
        for row in box.sim.world()["nodes"]
        if row["listed"] and row["min_rentable"] == 1 and row["available_gpu_count"] > 0
    )
    template = box.resources("template")["template.image-ubuntu-22-04-cb28"]["id"]
    twin = foreign(
        box,
        "pod",
        executor_id=node,
        pod_name=f"{prefix}-aaaaaaaa-box-0",
        template_id=template,
        gpu_count=1,
        user_public_key=["ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIL6l8eNG2NQ0Dd7D5GzUhQ0b6mX6J5M4nM0hW7o0n6nT twin"],
    )
    shutil.rmtree(state_folder(box))
    done = box.run("state", "recover", expect=3)
    assert "2 carry the name of fleet.box[0]" in done.err
    assert {real["id"], twin} <= ids(orphans(box)["lost"], "pod")
    box.run("import", "fleet.box[0]", real["id"], expect=0)
    orphans(box, "--delete")
    assert real["id"] in billed(box)
    assert twin not in billed(box)


def test_several_lineages_are_not_guessed_between(box: Project) -> None:
    first = box.resources("pod")["fleet.box[0]"]["id"]
    shutil.move(state_folder(box), box.folder / "first")
    box.apply("--allow-foreign-lineage")
    second = box.resources("pod")["fleet.box[0]"]["id"]
    shutil.move(state_folder(box), box.folder / "second")
    refused = box.run("state", "recover", expect=6)
    assert "--lineage HEX" in refused.err
    marks = {row["name"].split("-")[2] for row in box.ledger("pod", open_only=True)}
    assert all(mark in refused.err for mark in marks)
    assert "nothing carries ffffff" in box.run("state", "recover", "--lineage", "ffffff", expect=1).err
    name = next(row["name"] for row in box.ledger("pod", open_only=True) if row["id"] == first)
    box.run("state", "recover", "--lineage", name.split("-")[2], expect=0)
    assert box.resources("pod")["fleet.box[0]"]["id"] == first
    assert ids(orphans(box)["other_lineage"], "pod") == {second}


def test_a_state_that_is_there_is_not_recovered_over(box: Project) -> None:
    before = (state_folder(box) / "default.json").read_bytes()
    assert "orphans" in box.run("state", "recover", expect=1).err
    assert (state_folder(box) / "default.json").read_bytes() == before


def test_on_an_empty_account_there_is_nothing_to_recover(project: Project) -> None:
    project.write(ONE)
    assert "nothing to recover" in project.run("state", "recover", expect=1).err


# --- orphans -------------------------------------------------------------------------------------------------


@pytest.fixture
def losing(box: Project) -> tuple[Project, str]:
    """An older copy of the state was put back: the pod that it does not know is lost."""
    shutil.copytree(state_folder(box), box.folder / "older")
    box.write(ONE.replace("  box:\n", "  box:\n    nodes: 2\n"))
    box.apply()
    lost = box.resources("pod")["fleet.box[1]"]["id"]
    shutil.rmtree(state_folder(box))
    shutil.move(box.folder / "older", state_folder(box))
    return box, lost


def test_the_three_words(losing: tuple[Project, str], tmp_path: Path) -> None:
    project, lost = losing
    volume = foreign(project, "volume", name="theirs", description="")
    beside = here(new_project(project.sim, project.account, tmp_path / "beside"))
    beside.write(ONE.replace("demo", "other"))
    beside.apply()
    theirs = beside.resources("pod")["fleet.box[0]"]["id"]

    found = orphans(project, "--detailed-exitcode", expect=2)
    assert ids(found["lost"]) == {lost}
    assert found["lost"][0]["project"] == "demo"
    assert found["lost"][0]["price_per_hour_usd"] > 0
    assert theirs in ids(found["other_lineage"], "pod")
    assert ids(found["foreign"]) == {volume}
    assert found["foreign"][0]["price_per_hour_usd"] is None
    text = project.run("orphans", expect=0)
    assert lost in text.out
    assert "lium-plan import ADDRESS ID" in text.err

    done = orphans(project, "--delete")
    assert [(row["id"], row["gone"]) for row in done["deleted"]] == [(lost, True)]
    assert done["lost"] == []
    assert lost not in billed(project)
    assert {volume, theirs} <= billed(project)
    events = project.run("events", "--json", expect=0).json["events"]
    last = events[-1]
    assert (last["action"], last["id"], last["result"]) == ("delete", lost, "done")
    assert last["price_per_hour_usd"] > 0
    project.run("plan", expect=0)

    project.run("orphans", "--delete", "--id", volume, expect=6)
    project.run("orphans", "--delete", "--id", "nobody", expect=1)
    mine = project.resources("pod")["fleet.box[0]"]["id"]
    assert "destroy --target" in project.run("orphans", "--delete", "--id", mine, expect=6).err
    project.run("orphans", "--id", theirs, expect=64)
    assert {volume, theirs, mine} <= billed(project)
    orphans(project, "--delete", "--id", theirs)
    assert theirs not in billed(project)
    assert {volume, mine} <= billed(project)


def test_a_lost_volume_goes_by_its_id_alone(project: Project) -> None:
    project.write("version: 1\nproject: demo\nvolumes: {a: {}}\n")
    project.apply()
    shutil.copytree(state_folder(project), project.folder / "older")
    project.write("version: 1\nproject: demo\nvolumes: {a: {}, b: {}}\n")
    project.apply()
    lost = project.resources("volume")["volume.b"]["id"]
    shutil.rmtree(state_folder(project))
    shutil.move(project.folder / "older", state_folder(project))
    assert ids(orphans(project)["lost"]) == {lost}
    cure = f"lium-plan orphans --delete --id {lost}"
    listed = project.run("orphans", expect=0).err
    assert cure in listed
    assert "orphans --delete\n" not in listed, "that would delete nothing"
    assert orphans(project, "--delete", expect=3)["deleted"] == []
    spared = project.run("orphans", "--delete", expect=3).err
    assert f"({lost}) was not deleted: what holds data goes by its id alone" in spared
    assert cure in spared
    assert lost in billed(project)
    project.run(*cure.split()[1:], expect=0)
    assert lost not in billed(project)


def test_what_a_destroy_leaves_goes_by_the_command_that_it_names(project: Project) -> None:
    project.write("version: 1\nproject: demo\nvolumes: {a: {}}\n")
    project.apply()
    shutil.copytree(state_folder(project), project.folder / "older")
    project.write("version: 1\nproject: demo\nvolumes: {a: {}, b: {}}\n")
    project.apply()
    lost = project.resources("volume")["volume.b"]["id"]
    shutil.rmtree(state_folder(project))
    shutil.move(project.folder / "older", state_folder(project))
    done = project.destroy(expect=3)
    following = next(line for line in done.out.splitlines() if line.startswith("Next: lium-plan "))
    assert following.endswith(f" orphans --delete --id {lost}")
    project.run(*following.split()[2:], expect=0)
    assert billed(project) == set()


def test_every_stack_of_the_directory_counts_and_released_things_are_no_orphans(project: Project) -> None:
    project.write("version: 1\nproject: demo\nvolumes: {a: {}}\n")
    project.apply()
    project.run("--stack", "prod", "apply", "--auto-approve", expect=0)
    nothing = {"lost": [], "other_lineage": [], "foreign": []}
    assert {name: rows for name, rows in orphans(project).items() if name in nothing} == nothing
    project.run("state", "rm", "volume.a", "--stack", "prod", expect=0)
    assert orphans(project)["lost"] == []
    (state_folder(project) / "prod.json").write_text("{")
    project.run("orphans", expect=1)


def test_what_a_running_apply_makes_is_no_orphan(project: Project) -> None:
    project.write(ONE)
    late = {"do": "delay", "seconds": 5, "where": "after"}
    project.sim.fault(late, match={"path": "/executors/*/rent", "account": project.account})
    with project.start("apply", "--auto-approve") as running:
        until(lambda: bool(project.ledger("pod", open_only=True)), running, what="the pod is rented")
        assert orphans(project)["lost"] == []
        assert orphans(project, "--delete")["deleted"] == []
        out, err = running.communicate(timeout=90)
    assert running.returncode == 0, (out, err)
    assert len(project.ledger("pod")) == 1


def test_another_accounts_key_says_nothing(box: Project) -> None:
    other = replace(box, account="somebody-else")
    done = other.run("orphans", "--json", expect=1)
    assert done.json["diagnostics"][0]["code"] == "other-account"
    before = (state_folder(box) / "default.json").read_bytes()
    for command in ("extend fleet.box[0] 1h", "import fleet.other[0] nothing", "plan"):
        other.run(*command.split(), expect=1)
    assert (state_folder(box) / "default.json").read_bytes() == before


# --- import --------------------------------------------------------------------------------------------------


def test_everything_can_be_released_and_taken_back(fleet: Project) -> None:
    rows = {
        row["address"]: row["id"] for row in fleet.state()["resources"] if row["id"] and "bootstrap" not in row["kind"]
    }
    order = sorted(rows, key=lambda address: ("volume", "credential", "template", "fleet").index(address.split(".")[0]))
    fleet.run("state", "rm", "fleet.*", "template.*", "credential.*", "volume.*", expect=0)
    assert fleet.state()["resources"] == []
    for address in order:
        done = fleet.run("import", address, rows[address], expect=0)
        assert done.out == "", "the manifest declares it already"
    assert fleet.state()["released"] == []
    planned = fleet.run("plan", "--json", expect=0).json
    assert {(item["address"], item["action"]) for item in planned["actions"]} == {
        ("fleet.workers[0].bootstrap", "run"),
        ("fleet.workers[1].bootstrap", "run"),
    }
    secretless(fleet)
    fleet.destroy()
    assert billed(fleet) == set()


def test_what_is_printed_plans_to_no_change(fleet: Project, tmp_path: Path) -> None:
    """Each thing that somebody made, under a name of its own, into an empty project."""
    pods = fleet.resources("pod")
    taken = {
        "volume.old-data": fleet.resources("volume")["volume.data"]["id"],
        "template.old-base": fleet.resources("template")["template.base"]["id"],
        "fleet.one[0]": pods["fleet.workers[0]"]["id"],
        "fleet.two[head]": pods["fleet.store[0]"]["id"],
    }
    other = here(new_project(fleet.sim, fleet.account, tmp_path / "other"))
    other.write("version: 1\nproject: taken\n")
    for address, id in taken.items():
        refused = other.run("import", address, id, expect=6)
        assert "carries the mark of another state" in refused.err
        done = other.run("import", address, id, "--allow-foreign-lineage", expect=0)
        assert CANARY not in done.out + done.err
        name = address.replace(".", "-").replace("[", "-").rstrip("]")
        other.write(done.out, f"{name}.lium.yaml")
        other.write("version: 1\nproject: taken\n", "a.lium.yaml")
        other.run("validate", expect=0)
        planned = other.run("plan", "--allow-foreign-lineage", "--detailed-exitcode", expect=0)
        assert "No changes" in planned.out, planned
    other.run("apply", "--auto-approve", "--allow-foreign-lineage", expect=0)
    assert {row["id"] for row in other.state()["resources"]} == set(taken.values())


def test_a_pod_of_an_image_is_printed_with_its_image(box: Project) -> None:
    pod = box.resources("pod")["fleet.box[0]"]["id"]
    box.run("state", "rm", "fleet.box", expect=0)
    printed = box.run("import", "fleet.other[0]", pod, expect=0).out
    assert 'image: "ubuntu:22.04"' in printed
    box.write(f"version: 1\nproject: demo\n{printed}")
    assert "No changes" in box.run("plan", expect=0).out


def test_only_what_is_there_and_nobody_has_is_imported(box: Project) -> None:
    pod = box.resources("pod")["fleet.box[0]"]["id"]
    before = (state_folder(box) / "default.json").read_bytes()
    gone = "0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192"
    for command, code, word in (
        (f"import fleet.box[0] {gone}", 1, "already"),
        (f"import fleet.box[0] {pod}", 0, "already: nothing to do"),
        (f"import fleet.box[1] {pod}", 6, "in stack default already"),
        (f"import fleet.box[1] {gone}", 1, "has no pod"),
        (f"import fleet.box[0].bootstrap {pod}", 64, "can't be imported"),
        (f"import task.x[0] {pod}", 64, "can't be imported"),
        (f"import box {pod}", 64, "no address"),
        (f"--stack prod import fleet.box[0] {pod}", 6, "in stack default already"),
        (f"import credential.x {gone}", 1, "has no credential"),
    ):
        assert word in box.run(*command.split(), expect=code).err, command
    assert (state_folder(box) / "default.json").read_bytes() == before
    assert not (state_folder(box) / "prod.json").exists()


def test_what_another_stack_has_is_imported_neither_by_a_command_nor_by_the_manifest(box: Project) -> None:
    pod = box.resources("pod")["fleet.box[0]"]["id"]
    box.write(ONE.replace("box:", "mine:") + f'imports: [{{to: "fleet.mine[0]", id: {pod}}}]\n')
    other = ("--stack", "prod", "--allow-foreign-lineage")
    for command in (("plan",), ("apply", "--auto-approve"), ("import", "fleet.mine[0]", pod)):
        refused = box.run(*command, *other, expect=6)
        assert "is in stack default already, as fleet.box[0]" in refused.err, refused
        assert "lium-plan --stack default state rm 'fleet.box[0]'" in refused.err, refused
    assert not (state_folder(box) / "prod.json").exists()
    box.run("state", "rm", "fleet.box[0]", expect=0)
    planned = box.run("plan", "--stack", "prod", expect=0)
    assert "fleet.mine[0]" in planned.out, "the mark of a stack that lies here is no stranger's"


def test_a_dry_import_writes_nothing(project: Project) -> None:
    id = foreign(project, "volume", name="results (2026)", description="of last year")
    project.write("version: 1\nproject: demo\n")
    done = project.run("import", "volume.results", id, "--dry-run", expect=0)
    assert done.out == 'volumes:\n  results:\n    name: "results (2026)"\n    description: of last year\n'
    assert not (state_folder(project) / "default.json").exists()
    done = project.run("import", "volume.results", id, expect=0)
    project.write("version: 1\nproject: demo\n" + done.out)
    project.run("plan", "--detailed-exitcode", expect=0)
    project.destroy()
    assert id not in billed(project)


def about(span: timedelta, hours: float) -> bool:
    """As near as a removal is left alone: the server counts a rent's own time from the moment the pod runs."""
    return abs(span - timedelta(hours=hours)) <= TTL_TOLERANCE


# --- extend --------------------------------------------------------------------------------------------------


def removal(project: Project, address: str = "fleet.box[0]") -> datetime:
    shown = project.resources("pod")[address]
    (pod,) = [pod for pod in project.sim.world()["pods"] if pod["id"] == shown["id"]]
    at = datetime.fromisoformat(shown["attributes"]["removal_at"])
    assert abs(datetime.fromisoformat(pod["removal_scheduled_at"]) - at) < timedelta(seconds=2)
    return at


def test_more_time_holds_until_the_manifest_says_another_ttl(box: Project) -> None:
    before = removal(box)
    done = box.run("extend", "fleet.box[0]", "90m", expect=0)
    assert done.out.startswith("fleet.box[0]: ")
    assert about(removal(box) - before, 1.5)
    planned = box.run("plan", "--detailed-exitcode", expect=0)
    assert "extended to" in planned.err
    box.apply()
    assert about(removal(box) - before, 1.5)
    box.run("extend", "fleet.box", "30m", expect=0)
    assert about(removal(box) - before, 2)

    box.write(ONE.replace("ttl: 2h", "ttl: 3h"))
    assert "ttl: 2h -> 3h" in box.run("plan", "--detailed-exitcode", expect=2).out
    box.apply()
    assert about(removal(box) - before, 1)
    assert "extended to" not in box.run("plan", "--detailed-exitcode", expect=0).err


def test_no_more_than_the_policy_and_the_server_allow(box: Project) -> None:
    before = removal(box)
    for command, code, word in (
        ("extend fleet.box[0] 30d", 1, "at most 720 h"),
        ("extend fleet.box[1] 1h", 1, "no pod of the state"),
        ("extend volume.x 1h", 1, "no pod of the state"),
        ("extend fleet.box[0] soon", 64, "no duration"),
        ("extend fleet.box[0] 1s", 64, "a minute at least"),
    ):
        assert word in box.run(*command.split(), expect=code).err, command
    price = box.resources("pod")["fleet.box[0]"]["attributes"]["price_per_hour_usd"]
    box.write(ONE + f"policy: {{max_total_cost: {round(price * 3, 2)}}}\n")
    assert "max_total_cost" in box.run("extend", "fleet.box[0]", "5h", expect=6).err
    assert removal(box) == before
    box.run("extend", "fleet.box[0]", "30m", expect=0)
    box.write("version: 1\nproject: demo\nfleets: [")
    box.run("extend", "fleet.box[0]", "30m", expect=1)
    (box.folder / "lium.yaml").unlink()
    assert "no policy limits this" in box.run("extend", "fleet.box[0]", "30m", expect=0).err
    assert about(removal(box) - before, 1)


@pytest.mark.parametrize("at", ["before POST /pods/*/schedule-removal #1", "answered POST /pods/*/schedule-removal #1"])
def test_an_extension_that_was_cut_off_is_not_added_twice(box: Project, at: str) -> None:
    before = removal(box)
    assert box.crash("extend", "fleet.box[0]", "1h", at=at).code == -9
    took = at.startswith("answered")
    box.run("extend", "fleet.box[0]", "1h", expect=0)
    assert about(removal(box) - before, 2 if took else 1)
    assert box.state()["open"] == []
    box.run("plan", "--detailed-exitcode", expect=0)


def test_a_lost_answer_is_settled_at_once(box: Project) -> None:
    before = removal(box)
    lost = {"do": "lose_reply", "where": "after"}
    box.sim.fault(lost, match={"path": "/pods/*/schedule-removal", "account": box.account, "times": 5})
    box.run("extend", "fleet.box[0]", "1h", expect=0)
    assert about(removal(box) - before, 1)


def test_what_was_released_is_listed_beside_the_proof(box: Project) -> None:
    pod = box.resources("pod")["fleet.box[0]"]["id"]
    box.run("state", "rm", "fleet.box", expect=0)
    # Its template can't go while it runs, so that the destruction is not complete.
    done = box.destroy("--wait-timeout", "0s", expect=3)
    assert f"({pod}) was released and is still there, for $" in done.err
    assert not [line for line in done.out.splitlines() if "LEFT" in line and pod in line]
    assert "nothing of it is billed" not in done.out
    assert "Nothing of stack default runs.\n1 released pod costs $" in done.out
    assert pod in billed(box)
