"""B4: a state that can't be read stops every command that would act on it, destroy above all. What helps is allowed,
and writes over nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from tests.statecmd.commands import FLEET, Desk, here
from tests.support.projects import Project

Damage = Callable[[bytes], bytes]


def half(data: bytes) -> bytes:
    return data[: len(data) // 2]


DAMAGE: Mapping[str, Damage] = {
    "empty": lambda data: b"",
    "truncated": half,
    "trailing comma": lambda data: data.rstrip()[:-1] + b",}\n",
    "byte order mark": lambda data: b"\xef\xbb\xbf" + data,
    "NUL tail": lambda data: data + bytes(512),
    "wrong type": lambda data: data.replace(b'"serial": ', b'"serial": "one", "was": '),
    "duplicate key": lambda data: data.replace(b'"project": "demo"', b'"project": "demo", "project": "other"'),
    "newer format": lambda data: data.replace(b'"format": "1.1"', b'"format": "2.0"'),
    "conflict marks": lambda data: b"<<<<<<< HEAD\n" + data + b"=======\n" + data + b">>>>>>> theirs\n",
    "unknown kind": lambda data: data.replace(b"volume.data", b"router.data"),
    "one digit of an id": lambda data: data.replace(b'"p1"', b'"p2"'),
    "two addresses with one id": lambda data: data.replace(b'"p1"', b'"p0"'),
    "not UTF-8": lambda data: data.replace(b'"project": "demo"', b'"project": "d\xe9mo"'),
    "another file": lambda data: b"%PDF-1.7\n" + data[9:],
}
ACTING = (
    "plan",
    "apply --auto-approve",
    "destroy --auto-approve",
    "show",
    "output",
    "status",
    "orphans",
    "orphans --delete",
    "extend fleet.workers[0] 1h",
    "import fleet.workers[5] 0b6f2a7e-4c1d-4e0f-9a3b-2d5e6f708192",
    "state list",
    "state show volume.data",
    "state mv fleet.workers fleet.other",
    "state rm fleet.workers",
    "state push good.json",
)
HARMLESS = ("validate", "events", "state pull", "state lock", "state unlock", "state repair --dry-run")

MANIFEST = """\
version: 1
project: demo
volumes: {data: {}}
templates: {base: {image: "ubuntu:22.04"}}
fleets: {workers: {nodes: 2, resources: {gpu: {count: 1}}, template: base, ttl: 1h}}
"""


@pytest.fixture(params=DAMAGE)
def damaged(request: pytest.FixtureRequest, desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Desk:
    """A state with an earlier snapshot beside it, then damaged; the server would answer nobody."""
    monkeypatch.setenv("LIUM_API_KEY", "sk_x")
    monkeypatch.setenv("LIUM_BASE_URL", "http://127.0.0.1:9/api")
    desk.write(MANIFEST)
    desk.fill(*FLEET[:3])
    desk.fill(*FLEET[3:])
    desk.write(desk.run("state", "pull").out, "good.json")
    path = desk.folder / "state" / "default.json"
    good = path.read_bytes()
    path.write_bytes(DAMAGE[request.param](good))
    assert path.read_bytes() != good
    return desk


def test_there_are_twelve_and_more() -> None:
    assert len(DAMAGE) >= 12


def test_everything_that_would_act_refuses_and_what_helps_writes_over_nothing(damaged: Desk) -> None:
    before = damaged.files()
    for command in ACTING:
        done = damaged.run(*command.split(), expect=1)
        assert "error: " in done.err, command
        # Refused for the state's sake: nothing was asked of the server before.
        assert "default.json" in done.err, (command, done)
        assert "state repair" in done.err, (command, done)
        assert damaged.files() == before, command
    for command in HARMLESS:
        done = damaged.run(*command.split(), expect=None)
        assert done.code in (0, 1, 3 if "repair" in command else 0), (command, done)
        assert "Traceback" not in done.err
        assert damaged.files() == before or command == "state lock", command
    helped(damaged, before)


def helped(damaged: Desk, before: Mapping[str, bytes]) -> None:
    damaged.run("validate")
    damaged.run("init", "new")
    pulled = damaged.run("state", "pull")
    assert '"t1"' in pulled.out
    assert "default.json.1 is what follows" in pulled.err
    dry = damaged.run("state", "repair", "--dry-run", expect=None)
    assert damaged.files() == before
    if dry.code == 1:  # a newer version's state is not damage, and an older one would undo its work
        assert "newer lium-plan" in dry.err
        return
    done = damaged.run("state", "repair", expect=None)
    assert done.code in (0, 3), done
    assert done.code == dry.code
    after = damaged.files()
    assert before["default.json"] in (after["default.json.unreadable-1"],)
    assert "t1" in {row.id for row in damaged.state().records.values()}
    damaged.run("state", "list")


def test_push_replaces_what_can_not_be_read_only_with_force(damaged: Desk) -> None:
    bad = damaged.files()["default.json"]
    damaged.run("state", "push", "good.json", expect=1)
    damaged.run("state", "push", "--force", "good.json")
    assert damaged.files()["default.json.unreadable-1"] == bad
    assert len(damaged.state().records) == len(FLEET)


def test_recover_sets_aside_what_can_not_be_read(project: Project) -> None:
    project = here(project)
    project.write("version: 1\nproject: demo\nvolumes: {data: {}}\n")
    project.apply()
    path = project.folder / "state" / "default.json"
    path.write_bytes(bad := half(path.read_bytes()))
    project.run("plan", expect=1)
    project.run("doctor", expect=1)
    assert path.read_bytes() == bad
    project.run("state", "recover", "--dry-run", expect=0)
    assert path.read_bytes() == bad
    project.run("state", "recover", expect=0)
    assert path.with_name("default.json.unreadable-1").read_bytes() == bad
    project.run("plan", "--detailed-exitcode", expect=0)
    project.destroy()
    assert project.ledger(open_only=True) == []
