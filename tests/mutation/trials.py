"""Trying mutants: each in a process of its own, forked from one that has collected the tests and imported everything.

The files on disk are never touched. In the fork the code of one function is replaced, which takes milliseconds; what
stands outside of functions (a constant, a field) is imported anew, with the tests that cover the file.
"""

from __future__ import annotations

import gc
import importlib
import importlib.machinery
import importlib.util
import io
import os
import pickle
import re
import resource
import select
import shutil
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass, field
from enum import StrEnum
from itertools import accumulate
from pathlib import Path
from time import monotonic, process_time
from types import CodeType, FunctionType, ModuleType

import coverage
import pytest

from tests.mutation.mutants import Function, Identity, Mutant, mutants, mutated
from tests.mutation.targets import Plan

LEAST_S = 5.0
TIMES_LONGER = 5.0
"""A test that needs more of a processor than this, and so many times what it needs for unchanged code, hangs."""
WAITS_S = 120.0
"""So does one that is not done after so long, whatever else the machine does."""
ENOUGH_S = 60.0
"""Of a processor, for the tests of one mutant: those that are least likely to notice are left out."""
ENOUGH_IF_EXPLAINED_S = 10.0
"""The same, for one that nobody needs to notice: enough to see most explanations that have become stale."""
NAMESAKE, RELATIVE = 50.0, 5.0
"""So much likelier to notice is a test of the file named like the mutant's, or of one whose name has its name in it."""
IN_MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Where forks leave their files: a sync costs nothing there."""
MOST_MEMORY = 4 * 2**30
MOST_ON_DISK = 64 * 2**20
OPTIONS = ("-p", "no:xdist", "-p", "no:cacheprovider", "-s", "--tb=native")

Say = Callable[[str], None]


class Verdict(StrEnum):
    KILLED = "killed"
    HANGS = "hangs"
    """Also when the process died."""
    SURVIVED = "survived"
    NOT_COVERED = "not covered"

    @property
    def noticed(self) -> bool:
        return self in (Verdict.KILLED, Verdict.HANGS)


@dataclass(frozen=True, slots=True)
class Trial:
    mutant: Mutant
    verdict: Verdict
    by: str = ""
    """The test that noticed."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What the tests do on unchanged code."""

    seconds: Mapping[str, float]
    lines: Mapping[str, Mapping[int, frozenset[str]]]
    """File -> line -> tests that run it."""
    red: Mapping[str, str]
    """Tests that fail on unchanged code can't notice anything; test -> how it fails."""
    imported: frozenset[str]
    """What they imported, functions' own imports too."""


class Unusable(Exception):
    """The tests can't be collected, or not be run to their end, before anything is changed."""


def try_mutants(
    plan: Plan,
    *,
    root: Path,
    jobs: int,
    chosen: Sequence[str] = (),
    remembered: Mapping[Identity, str],
    explained: Collection[Identity] = (),
    each: Callable[[Trial], None],
    say: Say,
) -> tuple[str, ...]:
    """Try all mutants of the plan's files whose path has one of `chosen` in it, and tell `each` how it went.

    `remembered` are tests that noticed a mutant in an earlier run: they go first. Those in `explained` get less time.
    The tests that fail on unchanged code, and so were left out. Raises `Unusable`.
    """
    trials = _Trying(plan, root, jobs, tuple(chosen), remembered, explained, each, say)
    words = io.StringIO()
    with redirect_stdout(words), redirect_stderr(words):
        code = pytest.main([*plan.tests, *OPTIONS, "--rootdir", str(root)], plugins=[trials])
    if trials.problem or code != pytest.ExitCode.OK:
        raise Unusable(trials.problem or words.getvalue())
    return trials.red


@dataclass(slots=True)
class _Child:
    """A fork. It says the id of each test that it begins, and how it ended at last."""

    pid: int
    reads: int
    scratch: Path
    said: bytes = b""
    test: str = ""
    since: float = field(default_factory=monotonic)
    cpu_before_s: float = 0.0
    dead: bool = False


class _Trying:
    """A pytest plugin that runs in place of the loop over tests."""

    def __init__(
        self,
        plan: Plan,
        root: Path,
        jobs: int,
        chosen: tuple[str, ...],
        remembered: Mapping[Identity, str],
        explained: Collection[Identity],
        each: Callable[[Trial], None],
        say: Say,
    ) -> None:
        self._plan = plan
        self._root = root
        self._jobs = jobs
        self._chosen = chosen
        self._remembered = remembered
        self._explained = explained
        self._each = each
        self._say = say
        self._red = ""
        self._killers: dict[tuple[str, str], list[str]] = defaultdict(list)
        self.problem = ""
        self.red: tuple[str, ...] = ()

    # --- pytest's hooks ------------------------------------------------------------------------------------------

    def pytest_configure(self) -> None:
        """The same examples each time, and no shrinking: that one is red is all that counts."""
        import hypothesis  # pytest wants to be the first to import it

        phases = [hypothesis.Phase.explicit, hypothesis.Phase.generate]
        hypothesis.settings.register_profile("mutation", derandomize=True, database=None, deadline=None, phases=phases)
        hypothesis.settings.load_profile("mutation")

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = [item for item in items if not any(part in item.nodeid for part in self._plan.left_out)]

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed:
            return False
        try:
            self._go(session.items)
        except Unusable as found:
            self.problem = str(found)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._red = report.nodeid
            self._why = str(report.longrepr)

    # --- all of it -----------------------------------------------------------------------------------------------

    def _go(self, items: Sequence[pytest.Item]) -> None:
        files = [file for file in self._plan.targets if not self._chosen or any(part in file for part in self._chosen)]
        self._sources = {file: (self._root / file).read_text() for file in files}
        self._items = {item.nodeid: item for item in items}
        started = monotonic()
        measured = self._measure(items)
        self._warm_up(measured)
        gc.unfreeze()  # what is frozen is not among the objects that are looked through
        self._functions = _functions({str(self._root / file): file for file in files})
        gc.collect()
        gc.freeze()
        self._say(
            f"{len(items)} tests, {sum(measured.seconds.values()):.0f} s of them, measured in"
            f" {monotonic() - started:.0f} s"
        )
        for test, why in measured.red.items():
            self._say(f"fails on unchanged code: {test}\n{why}")
        self.red = tuple(measured.red)
        todo = [mutant for file in files for mutant in self._mutants(file)]
        self._say(f"{len(todo)} mutants of {len(files)} files")
        self._try(todo, measured)

    def _warm_up(self, measured: Measured) -> None:
        """What is imported or made ready at its first use is so here, once, and not again in each fork."""
        for name in sorted(measured.imported - sys.modules.keys()):
            with suppress(ImportError):
                importlib.import_module(name)
        for lines in measured.lines.values():
            covering = {test for tests in lines.values() for test in tests}
            if covering:
                test = min(covering, key=lambda test: (measured.seconds[test], test))
                self._items[test].ihook.pytest_runtest_protocol(item=self._items[test], nextitem=None)
        self._red = ""

    def _mutants(self, file: str) -> list[Mutant]:
        prefixes = self._plan.targets[file]
        found = mutants(file, self._sources[file], prefixes)
        for prefix in prefixes:
            if not any(mutant.within.startswith(prefix) for mutant in found):
                raise Unusable(f"{file} has no function that begins with {prefix}")
        return found

    def _try(self, todo: Sequence[Mutant], measured: Measured) -> None:
        waiting = iter(todo)
        running: dict[int, tuple[_Child, Mutant]] = {}
        try:
            while True:
                while len(running) < self._jobs and (mutant := next(waiting, None)) is not None:
                    if tests := self._tests_for(mutant, measured):
                        child = self._fork(lambda say, m=mutant, t=tests: self._attempt(m, t, say))  # type: ignore[misc]
                        running[child.reads] = child, mutant
                    else:
                        self._end(Trial(mutant, Verdict.NOT_COVERED))
                if not running:
                    return
                self._listen(running, measured)
        finally:
            for child, _ in running.values():
                _kill(child)
                _bury(child)

    def _listen(self, running: dict[int, tuple[_Child, Mutant]], measured: Measured) -> None:
        readable, _, _ = select.select([*running], [], [], 0.5)
        for handle in readable:
            child, mutant = running[handle]
            if not _hear(child):
                del running[handle]
                _bury(child)
                self._end(_judged(child, mutant))
        for child, _ in running.values():
            if _hangs(child, measured.seconds.get(child.test, 0.0)):
                _kill(child)

    def _end(self, trial: Trial) -> None:
        if trial.by:
            killers = self._killers[trial.mutant.file, trial.mutant.within]
            with suppress(ValueError):
                killers.remove(trial.by)
            killers.insert(0, trial.by)
        self._each(trial)

    def _tests_for(self, mutant: Mutant, measured: Measured) -> list[str]:
        """What noticed it before, then what noticed its neighbours; then those first that run what few others run of
        the function, and those of the file that is named after it."""
        lines = measured.lines.get(mutant.file, {})
        ran = mutant.lines if mutant.function is not None else self._mentions(mutant) & lines.keys() or lines
        tests = {test for line in ran for test in lines.get(line, ())}
        if not tests:
            # Of a coroutine whose awaited one caught what was thrown into it, coverage does not see how it goes on.
            tests = {test for line in mutant.around for test in lines.get(line, ())}
        worth = dict.fromkeys(tests, 0.0)
        for line in mutant.around or ran:
            for test in tests & lines.get(line, frozenset()):
                worth[test] += 1 / len(lines[line])
        stem = Path(mutant.file).stem
        for test in tests:
            name = Path(test.partition("::")[0]).stem
            worth[test] *= NAMESAKE if name == f"test_{stem}" else RELATIVE if stem in name else 1.0
        rank = {test: place for place, test in enumerate(self._killers[mutant.file, mutant.within])}
        rank[self._remembered.get(mutant.identity, "")] = -1
        order = sorted(
            tests, key=lambda test: (rank.get(test, len(rank)), (0.02 + measured.seconds[test]) / worth[test], test)
        )
        used = accumulate(measured.seconds[test] for test in order)
        enough_s = ENOUGH_IF_EXPLAINED_S if mutant.identity in self._explained else ENOUGH_S
        return [test for test, so_far in zip(order, used, strict=True) if so_far <= enough_s] or order[:1]

    def _mentions(self, mutant: Mutant) -> set[int]:
        """The other lines of its file with the name that a statement outside of functions begins with."""
        name = re.compile(rf"\b{re.escape(mutant.text.partition(' ')[0].rstrip(':'))}\b")
        numbered = enumerate(self._sources[mutant.file].splitlines(), 1)
        return {number for number, text in numbered if number not in mutant.lines and name.search(text)}

    # --- what is done in forks -----------------------------------------------------------------------------------

    def _attempt(self, mutant: Mutant, tests: Sequence[str], say: Say) -> None:
        path = str(self._root / mutant.file)
        try:
            code = compile(mutated(self._sources[mutant.file], mutant), path, "exec", dont_inherit=True)
        except SyntaxError:
            say("!red")
            return
        if mutant.function is None or not self._replaced(mutant, code):
            self._import_anew(mutant, code, tests, say)
            return
        self._run([self._items[test] for test in tests], say)

    def _replaced(self, mutant: Mutant, module: CodeType) -> bool:
        """Whether the function could be given its new code; one that no longer uses `super()` can't."""
        assert mutant.function is not None
        new = next((code for code in _codes(module) if _function(code) == mutant.function), None)
        olds = self._functions[mutant.file].get(mutant.function, ())
        if new is None or not olds:
            return False
        try:
            for old in olds:
                old.__code__ = new
        except ValueError:
            return False
        return True

    def _run(self, items: Sequence[pytest.Item], say: Say) -> None:
        for item, after in zip(items, [*items[1:], None], strict=True):
            say(item.nodeid)
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
            if self._red:
                say("!red")
                return
        say("!green")

    def _import_anew(self, mutant: Mutant, code: CodeType, tests: Sequence[str], say: Say) -> None:
        name = mutant.file.removesuffix(".py").replace("/", ".")
        for module in tuple(sys.modules.values()):
            if _is_ours(module, self._root) and module.__name__ != __name__:
                sys.modules.pop(module.__name__, None)
        sys.meta_path.insert(0, _Finder(name, str(self._root / mutant.file), code))
        files = {test.partition("::")[0]: None for test in tests}
        arguments = [*files, *OPTIONS, "-x", "--rootdir", str(self._root)]
        code_of_run = pytest.main(arguments, plugins=[_Chosen(tests, say)])
        say("!green" if code_of_run == pytest.ExitCode.OK else "!red")

    def _measure(self, items: Sequence[pytest.Item]) -> Measured:
        """Run all tests once on unchanged code, each half in a fork."""
        parts = [part for number in range(self._jobs) if (part := items[number :: self._jobs])]
        folder = Path(tempfile.mkdtemp(prefix="lium-plan-mutation-"))
        files = [folder / f"{number}" for number in range(len(parts))]
        children = [
            self._fork(lambda say, p=part, f=file: self._measure_part(p, f))  # type: ignore[misc]
            for part, file in zip(parts, files, strict=True)
        ]
        for child in children:
            while _hear(child):
                pass
            _bury(child)
        try:
            answers: list[Measured] = [pickle.loads(file.read_bytes()) for file in files]
        except FileNotFoundError:
            raise Unusable("a run of the tests on unchanged code died") from None
        finally:
            shutil.rmtree(folder)
        seconds: dict[str, float] = {}
        red: dict[str, str] = {}
        lines: dict[str, dict[int, frozenset[str]]] = {file: {} for file in self._sources}
        imported = frozenset[str]().union(*(answer.imported for answer in answers))
        for answer in answers:
            seconds |= answer.seconds
            red |= answer.red
            for file, found in answer.lines.items():
                for line, tests in found.items():
                    lines[file][line] = lines[file].get(line, frozenset()) | tests
        return Measured(seconds, lines, red, imported)

    def _measure_part(self, items: Sequence[pytest.Item], file: Path) -> None:
        watched = {str(self._root / name): name for name in self._sources}
        cov = coverage.Coverage(data_file=None, config_file=False, include=list(watched))
        seconds: dict[str, float] = {}
        red: dict[str, str] = {}
        cov.start()
        for item, after in zip(items, [*items[1:], None], strict=True):
            cov.switch_context(item.nodeid)
            started = process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=after)
            seconds[item.nodeid] = process_time() - started
            if self._red:
                red[self._red], self._red = self._why, ""
        cov.stop()
        data = cov.get_data()
        lines = {
            name: {
                line: frozenset(test for test in tests if test and test not in red)
                for line, tests in data.contexts_by_lineno(path).items()
            }
            for path, name in watched.items()
        }
        file.write_bytes(pickle.dumps(Measured(seconds, lines, red, frozenset(sys.modules))))

    def _fork(self, work: Callable[[Say], None]) -> _Child:
        scratch = Path(tempfile.mkdtemp(prefix="lium-plan-mutation-", dir=IN_MEMORY))
        reads, writes = os.pipe()
        pid = os.fork()
        if pid:
            os.close(writes)
            return _Child(pid, reads, scratch)
        try:
            os.close(reads)
            _settle_in(scratch)
            work(lambda text: _write(writes, text))
        finally:
            os._exit(0)


def _judged(child: _Child, mutant: Mutant) -> Trial:
    match child.said.decode().splitlines()[-1:]:
        case ["!green"]:
            return Trial(mutant, Verdict.SURVIVED)
        case ["!red"]:
            return Trial(mutant, Verdict.KILLED, child.test)
    return Trial(mutant, Verdict.HANGS, child.test)


def _settle_in(scratch: Path) -> None:
    """A fork says nothing, leaves nothing behind, and takes no more than it may."""
    os.setpgid(0, 0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for handle in (0, 1, 2):
        os.dup2(nothing, handle)
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    resource.setrlimit(resource.RLIMIT_AS, (MOST_MEMORY, MOST_MEMORY))
    resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_ON_DISK, MOST_ON_DISK))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _write(handle: int, text: str) -> None:
    os.write(handle, f"{text}\n".encode())


def _hear(child: _Child) -> bool:
    """Take in what a child says; False once it has ended."""
    heard = os.read(child.reads, 65536)
    child.said += heard
    for line in heard.decode(errors="replace").splitlines():
        if not line.startswith("!"):
            child.test, child.since, child.cpu_before_s = line, monotonic(), _cpu_s(child.pid)
    return bool(heard)


def _cpu_s(pid: int) -> float:
    """Of a processor, so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _hangs(child: _Child, usual_s: float) -> bool:
    used_s = _cpu_s(child.pid) - child.cpu_before_s
    too_much = bool(child.test) and used_s > max(LEAST_S, TIMES_LONGER * usual_s)  # before the first test it imports
    return not child.dead and (too_much or monotonic() - child.since > WAITS_S)


def _kill(child: _Child) -> None:
    """With what it started; and the folder in memory that it works in goes."""
    with suppress(OSError):
        folder = Path(f"/proc/{child.pid}/cwd").readlink()
        if folder.name.startswith("lium-plan-world-"):
            shutil.rmtree(folder, ignore_errors=True)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    child.dead = True


def _bury(child: _Child) -> None:
    os.close(child.reads)
    os.waitpid(child.pid, 0)
    with suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)
    shutil.rmtree(child.scratch, ignore_errors=True)


# --- code ------------------------------------------------------------------------------------------------------------


def _function(code: CodeType) -> Function:
    return code.co_qualname, code.co_firstlineno


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for part in code.co_consts:
        if isinstance(part, CodeType):
            yield from _codes(part)


def _functions(files: Mapping[str, str]) -> dict[str, dict[Function, list[FunctionType]]]:
    """Every function object of these files, decorated and registered ones too."""
    found: dict[str, dict[Function, list[FunctionType]]] = defaultdict(lambda: defaultdict(list))
    for item in gc.get_objects():
        if isinstance(item, FunctionType) and item.__code__.co_filename in files:
            found[files[item.__code__.co_filename]][_function(item.__code__)].append(item)
    return found


def _is_ours(module: ModuleType, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    return file is not None and file.startswith(f"{root}{os.sep}") and "site-packages" not in file


class _Finder(importlib.machinery.SourceFileLoader):
    """Finds and loads one module, as it has been changed."""

    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._code = code

    def find_spec(self, name: str, path: object = None, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname: str) -> CodeType:
        return self._code


@dataclass(slots=True)
class _Chosen:
    """A pytest plugin that runs these tests only, in this order."""

    tests: Sequence[str]
    say: Say
    place: Mapping[str, int] = field(init=False)

    def __post_init__(self) -> None:
        self.place = {test: index for index, test in enumerate(self.tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted(
            (item for item in items if item.nodeid in self.place), key=lambda item: self.place[item.nodeid]
        )

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.say(nodeid)
