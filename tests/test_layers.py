"""Who may import whom. The table is the architecture: an arrow that is not in it fails here, whoever drew it.

Modules are named below `lium_plan`; a pattern's `*` is one part of a name, a trailing `.**` the module and all below.
An import for types only (`if TYPE_CHECKING`) runs nothing, so it may also point at what TYPES allows.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "lium_plan"

LEAVES = (
    "addresses",
    "diagnostics",
    "garbage",
    "settings",
    "expressions.__init__",
    "marks",
    "money",
    "requests",
    "answers",
    "interrupts",
    "together",
    "turns",
    "__init__",
)

DRIVER_SHARED = (
    *("kinds.services", "kinds.sessions", "kinds.sending", "kinds.failures", "kinds.holdings"),
    *("kinds.logs", "kinds.masking"),
)
"""What drivers of several kinds have in common: it may do I/O."""

DRIVERS = (
    *("kinds.*.driver", "kinds.*.holdings"),
    *("kinds.pod.orders", "kinds.pod.rent", "kinds.pod.removal", "kinds.pod.waiting", "kinds.pod.extensions"),
    "kinds.pod.reboots",
    *("kinds.bootstrap.attempt", "kinds.bootstrap.resuming"),
)
"""A driver and the parts that it was cut into."""

PURE_KINDS = ("pure:kinds.**",)
"""The rest of `kinds`: what is written, compared, needed. No I/O, so manifest, planning and views may look."""

ALLOWED: tuple[tuple[str, tuple[str, ...], str], ...] = (
    (
        "addresses|diagnostics|garbage|settings|marks|money|requests|answers|interrupts|together|turns",
        LEAVES,
        "leaves know leaves only",
    ),
    ("expressions.**", (*LEAVES, "expressions.**"), "a leaf of several modules; others see its face alone"),
    ("__init__", (), "importing the package loads nothing"),
    ("__main__", ("cli.main",), "`python -m lium_plan` is the command"),
    ("manifest.**", (*LEAVES, "manifest.**", *PURE_KINDS), "YAML to Desired: needs what kinds say can be written"),
    (*PURE_KINDS, (*LEAVES, *PURE_KINDS), "protocol, specs, blocks and what they share are pure"),
    (
        "|".join(DRIVER_SHARED),
        (*LEAVES, *PURE_KINDS, *DRIVER_SHARED, "lium.**", "ssh.**"),
        "the shared part of drivers does I/O",
    ),
    *(
        (
            "|".join(one.replace("*", kind) for one in DRIVERS if one.split(".")[1] in ("*", kind)),
            (*LEAVES, *PURE_KINDS, *DRIVER_SHARED, f"kinds.{kind}.**", "lium.**", "ssh.**"),
            "a driver talks to server and pods, and knows its own kind only",
        )
        for kind in ("bootstrap", "credential", "pod", "task", "template", "volume")
    ),
    ("planning.**", (*LEAVES, "planning.**", *PURE_KINDS, "state.model"), "a plan is a value made from values"),
    ("state.**", (*LEAVES, "state.**", "kinds.__init__", "kinds.protocol"), "records are the protocol's"),
    (
        "engine.**",
        (
            *(*LEAVES, "engine.**", "planning.**", "state.**"),
            *("kinds.__init__", "kinds.protocol", "kinds.registry", "kinds.desired", "kinds.digests"),
            *("kinds.pod.__init__", "kinds.pod.offers", "kinds.pod.deposing"),
        ),
        "knows the protocol and no kind; offers are the market's, which it keeps, and what stands aside is bookkeeping",
    ),
    (
        "lium.**",
        ("lium.**", "__init__", "turns"),
        "the client knows the server and nothing of plans; it says our version",
    ),
    ("ssh.**", ("ssh.**", "garbage"), "knows machines, nothing of Lium"),
    ("sim.**", (*LEAVES, "sim.**"), "shares no code with the client, so that it can't share its mistakes"),
    (
        "views.**",
        (
            *(*LEAVES, "views.**", "planning.**", "state.model", "state.events", "state.__init__"),
            *("engine.events", "engine.__init__", "kinds.__init__", "kinds.protocol"),
            *("kinds.pod.__init__", "kinds.pod.offers"),
        ),
        "values to text; the audit log's rows and the market's offers are values too",
    ),
    (
        "operations.**",
        (
            *(*LEAVES, "operations.**", "engine.**", "planning.**", "state.**", "manifest.**"),
            *("kinds.**", "lium.**", "ssh.**", "views.**"),
        ),
        "the imperative shell, over everything but the command line and the simulator",
    ),
    (
        "cli.**",
        (
            *(*LEAVES, "cli.**", "operations.**", "views.**", "sim.**"),
            *("engine.__init__", "engine.events", "planning.__init__", "planning.plan"),
            *("manifest.__init__", "manifest.schema", "state.__init__", "state.schema"),
        ),
        "thin: shows what operations return (events, plans), prints schemas, starts the simulator",
    ),
    ("cli.session", ("ssh.__init__", "ssh.keys"), "with --sim it makes the key that is missing"),
)
"""(who, whom, why). A module may import what any line that fits it allows."""

TYPES: tuple[tuple[str, tuple[str, ...], str], ...] = (
    ("expressions.**", ("kinds.__init__", "kinds.protocol"), "a text is resolved through the protocol's look-up"),
    (
        "answers",
        ("kinds.__init__", "kinds.holdings", "kinds.protocol", "kinds.pod.__init__", "kinds.pod.offers"),
        "an answer carries offers, and what was found on the account",
    ),
    ("kinds.registry", ("kinds.services",), "names what a driver is given"),
    ("kinds.pod.rows|kinds.template.rows", ("lium.models",), "a row is read, not asked for"),
    ("cli.**", ("state.**", "engine.**", "planning.**"), "annotations of what operations return"),
)

OUTSIDE: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("asyncssh", ("ssh.wire", "sim.pods.**")),
    ("httpx", ("lium.transport", "sim.inprocess")),
    ("fastapi", ("sim.**",)),
    ("uvicorn", ("sim.**",)),
    ("click", ("cli.**",)),
    ("rich", ("cli.**", "views.**")),
    ("yaml", ("manifest.**", "sim.**")),
    ("deepdiff", ("kinds.differ",)),
    ("jsonschema", ("manifest.**",)),
    ("highspy", ("planning.solver",)),
    ("numpy", ("planning.solver",)),
)
"""Libraries, and the only places that may load them."""


@dataclass(frozen=True, slots=True)
class Arrow:
    source: str
    target: str
    line: int
    types_only: bool

    def __str__(self) -> str:
        return f"{self.source} (line {self.line}) -> {self.target}"


def name_of(path: Path) -> str:
    return ".".join(path.relative_to(PACKAGE).with_suffix("").parts)


MODULES = {name_of(path): path for path in sorted(PACKAGE.rglob("*.py"))}


def fits(pattern: str, name: str) -> bool:
    """`pure:` before a pattern leaves out drivers and what they share."""
    if pattern.startswith("pure:"):
        io = (*DRIVER_SHARED, *DRIVERS)
        return fits(pattern.removeprefix("pure:"), name) and not any(fits(one, name) for one in io)
    for one in pattern.split("|"):
        if one.endswith(".**"):
            stem = re.escape(one[:-3]).replace(r"\*", "[^.]+")
            if re.fullmatch(rf"{stem}(\..+)?", name):
                return True
        elif re.fullmatch(re.escape(one).replace(r"\*", "[^.]+"), name):
            return True
    return False


def arrows(name: str, tree: ast.Module) -> Iterator[Arrow]:
    """Imports of our own modules, wherever in the file, and of libraries (as `!library`)."""
    typed: set[int] = set()
    for node in ast.walk(tree):  # parents come before what is in them
        if isinstance(node, ast.If) and ast.unparse(node.test) in ("TYPE_CHECKING", "typing.TYPE_CHECKING"):
            typed.update(map(id, ast.walk(node)))
        if isinstance(node, ast.Import):
            targets = [resolve(alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name}: relative import"
            targets = [resolve(f"{node.module}.{alias.name}") for alias in node.names]
        else:
            continue
        for target in targets:
            yield Arrow(name, target, node.lineno, id(node) in typed)


def resolve(dotted: str) -> str:
    """The module that an imported name belongs to."""
    parts = dotted.split(".")
    if parts[0] != "lium_plan":
        return f"!{parts[0]}"
    for end in range(len(parts), 1, -1):
        inner = ".".join(parts[1:end])
        if inner in MODULES:
            return inner
        if f"{inner}.__init__" in MODULES:
            return f"{inner}.__init__"
    return "__init__"


@cache
def every_arrow() -> tuple[Arrow, ...]:
    return tuple(arrow for name, path in MODULES.items() for arrow in arrows(name, ast.parse(path.read_text())))


def allows(table: tuple[tuple[str, tuple[str, ...], str], ...], arrow: Arrow) -> bool:
    return any(fits(who, arrow.source) and any(fits(target, arrow.target) for target in whom) for who, whom, _ in table)


def test_only_the_arrows_of_the_table() -> None:
    ours = [arrow for arrow in every_arrow() if not arrow.target.startswith("!")]
    wrong = [
        str(arrow) for arrow in ours if not allows(ALLOWED, arrow) and not (arrow.types_only and allows(TYPES, arrow))
    ]
    assert len(ours) > 500
    assert not wrong, "\n".join(wrong)


def test_libraries_are_loaded_where_they_belong() -> None:
    places = dict(OUTSIDE)
    wrong = [
        str(arrow)
        for arrow in every_arrow()
        if (where := places.get(arrow.target[1:])) is not None
        and not arrow.types_only
        and not any(fits(place, arrow.source) for place in where)
    ]
    assert not wrong, "\n".join(wrong)


def test_drivers_do_not_know_each_other() -> None:
    """Also not through the package: a driver is reached by the registry's name for it only."""
    drivers = [arrow for arrow in every_arrow() if fits("kinds.*.driver", arrow.target)]
    assert [str(arrow) for arrow in drivers if arrow.source.rpartition(".")[0] != arrow.target.rpartition(".")[0]] == []


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ("planning.planner", "from lium_plan.lium.client import Client"),
        ("planning.planner", "import lium_plan.engine.walk"),
        ("planning.planner", "def late():\n    from lium_plan.kinds.pod import driver"),
        ("kinds.pod.spec", "from lium_plan.ssh import keys"),
        ("kinds.pod.rent", "from lium_plan.kinds.volume.driver import VolumeDriver"),
        ("sim.world", "from lium_plan.lium import models"),
        ("lium.client", "from lium_plan import diagnostics"),
    ],
)
def test_a_forbidden_arrow_is_seen(source: str, line: str) -> None:
    found = list(arrows(source, ast.parse(line)))
    assert len(found) == 1
    assert not allows(ALLOWED, found[0])


@pytest.mark.parametrize(
    "module", ["lium_plan.planning.planner", "lium_plan.manifest", "lium_plan.manifest.load", "lium_plan.cli.main"]
)
def test_thinking_loads_nothing_that_talks(module: str) -> None:
    code = f"import sys, {module}; print(*sorted({{'httpx', 'asyncssh', 'fastapi', 'uvicorn'}} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_what_only_talks_to_pods_loads_no_market() -> None:
    """`ssh`, `logs` and `status` connect, and rent nothing."""
    code = (
        "import sys, lium_plan.operations.connecting;"
        "print(*(name for name in sys.modules if name.startswith(('lium_plan.kinds.pod.feed', 'lium_plan.planning.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
