"""The tool itself: what it changes, and that it tells what is noticed from what is not."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mutation.__main__ import ROOT
from tests.mutation.mutants import mutants, mutated
from tests.mutation.targets import PLANS

SAMPLE = '''\
"""A module."""

LIMIT = 3
UNUSED = 4


class Counter:
    """Counts."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def up(self, by: int) -> int:
        if by > LIMIT:
            raise ValueError(by)
        for _ in range(by):
            self.count += 1
        self.seen = True
        return self.count

    def never_called(self) -> None:
        self.count = -1


def forever(count: int) -> int:
    while count > 0:
        count -= 1
    return count
'''
TESTS = """\
import pytest
from sample import Counter, forever

def test_counts():
    counter = Counter()
    assert counter.up(2) == 2
    assert counter.up(1) == 3

@pytest.mark.parametrize("much", [4, 5])
def test_refuses(much):
    with pytest.raises(ValueError):
        Counter().up(much)

def test_forever():
    assert forever(3) == 0
"""
EXPLAINED = """\
[[survivor]]
file = "sample.py"
within = "Counter.up"
change = "deleted"
text = "self.seen = True"
why = "nobody reads it"

[[survivor]]
file = "sample.py"
within = "Counter.up"
change = "deleted"
text = "return self.count"
why = "this is wrong"

[[survivor]]
file = "sample.py"
within = "Counter.up"
change = "deleted"
text = "self.gone = True"
why = "it was there once"
"""
RUN = """\
import sys
from pathlib import Path
from tests.mutation.__main__ import main
from tests.mutation.targets import Plan
plan = Plan({"sample.py": ("",)}, ("test_sample.py",), left_out=("[5]",))
sys.exit(main([], plans=[plan], root=Path.cwd(), explained_in=Path("explained.toml")))
"""


def test_what_is_noticed_and_what_is_not(tmp_path: Path) -> None:
    (tmp_path / "sample.py").write_text(SAMPLE)
    (tmp_path / "test_sample.py").write_text(TESTS)
    (tmp_path / "explained.toml").write_text(EXPLAINED)
    (tmp_path / "pytest.ini").write_text("[pytest]\npythonpath = .\n")
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n{RUN}"]
    ran = subprocess.run(command, cwd=tmp_path, text=True, capture_output=True, timeout=170, check=False)
    told = ran.stdout.splitlines()
    assert ran.returncode == 1, ran.stdout + ran.stderr
    survivors = {line for line in told if line.startswith(("survived: ", "not covered: "))}
    assert survivors == {
        "survived: sample.py:4  (module)  [deleted]  UNUSED = 4",
        "survived: sample.py:11  Counter.__init__  [deleted]  super().__init__()",
        "not covered: sample.py:23  Counter.never_called  [deleted]  self.count = -1",
    }
    assert "stale: a test notices it now: sample.py Counter.up deleted return self.count 1" in told
    assert "stale: no such line any more: sample.py Counter.up deleted self.gone = True 1" in told
    assert "2 ran away" in told[-1], "a loop without an end is stopped"
    assert told[-1].endswith("4 survived (1 on lines that no test runs), 1 of them explained")
    assert (tmp_path / "sample.py").read_text() == SAMPLE


@pytest.mark.parametrize(
    ("source", "changes"),
    [
        ("x = 1", ["x = 1 -> pass"]),
        ("import os\n'doc'\nx: int\npass", []),
        ("if TYPE_CHECKING:\n    x = 1", []),
        ("if a:\n    b()", ["if a: -> if False:\n    b()", "if a: -> if True:\n    b()", "b() -> if a:\n    pass"]),
        ("while True:\n    pass", ["while True: -> while False:\n    pass"]),
        ("for a in b:\n    pass", ["for a in b: -> for a in ():\n    pass"]),
        ("with a:\n    pass", ["with a: -> pass"]),
        ("try:\n    pass\nexcept E:\n    pass", ["except E: -> pass"]),
        (
            "try:\n    pass\nexcept E:\n    pass\nfinally:\n    pass",
            [
                "except E: -> try:\n    pass\nfinally:\n    pass",
                "try: … finally: -> try:\n    pass\nexcept E:\n    pass\npass",
            ],
        ),
        ("match a:\n    case 1:\n        pass\n    case _:\n        pass",
         ["1: -> match a:\n    case _:\n        pass", "_: -> match a:\n    case 1:\n        pass"]),
        ("f(\n    1,\n)", ["f( 1, ) -> pass"]),
    ],
)  # fmt: skip
def test_changes(source: str, changes: list[str]) -> None:
    assert [f"{one.text} -> {ast.unparse(mutated(source, one))}" for one in mutants("m.py", source)] == changes


def test_equal_lines_of_a_function_are_told_apart() -> None:
    found = mutants("m.py", "def f():\n    g()\n    g()\n\ndef h():\n    g()\n")
    assert [(one.within, one.text, one.nth) for one in found] == [("f", "g()", 1), ("f", "g()", 2), ("h", "g()", 1)]


def test_a_statement_in_several_lines_is_one() -> None:
    (one,) = mutants("m.py", "f(\n    1,\n)")
    assert one.lines == range(1, 4)


@pytest.mark.parametrize("file", [file for plan in PLANS for file in plan.targets])
def test_every_function_that_is_to_be_changed_is_there(file: str) -> None:
    prefixes = next(plan.targets[file] for plan in PLANS if file in plan.targets)
    found = {mutant.within for mutant in mutants(file, (ROOT / file).read_text(), prefixes)}
    assert [prefix for prefix in prefixes if not any(within.startswith(prefix) for within in found)] == []
