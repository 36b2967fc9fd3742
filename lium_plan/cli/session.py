"""Session: one command's run: its global options, its settings, its printer, and how it ends.

Owns the way from an exception to an exit code. Loads the simulator and the event loop only when they are asked for.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar

from lium_plan.cli.printer import Printer
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error, worst

if TYPE_CHECKING:
    from lium_plan.interrupts import Interrupt
    from lium_plan.settings import Settings

T = TypeVar("T")
_COMMAND = re.compile(r"(?<!this )(?<!newer )lium-plan (?=[a-z]|(?P<stack>--stack ))")
LOOK_FOR_READER_S = 0.2


class ReaderLeft(Exception):
    """Nobody reads stdout any more, and it was all that there was to do: the command ends as if it were done."""


@dataclass(slots=True)
class GlobalOptions:
    """The options that may stand before and after the command; the later one wins."""

    chdir: str | None = None
    stack: str | None = None
    state: str | None = None
    sim: bool = False
    verbose: int = 0
    quiet: bool = False
    color: str = "auto"

    def repeated(self) -> tuple[str, ...]:
        """Those without which another command would mean another stack, state or server, as they are typed."""
        named = (("--chdir", self.chdir), ("--stack", self.stack), ("--state", self.state))
        given = [part for flag, value in named if value is not None for part in (flag, value)]
        return (*given, *(("--sim",) if self.sim else ()))

    def take(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name == "verbose":
                self.verbose += value
            elif value is not None and value is not False:
                setattr(self, name, value)


@dataclass(slots=True)
class Session:
    options: GlobalOptions = field(default_factory=GlobalOptions)
    printer: Printer = field(default_factory=lambda: Printer(os.environ))
    as_json: bool = False
    """stdout is for machines, and nobody reads along."""
    parallelism: int | None = None
    """From `--parallelism`."""
    changed: bool = False
    """Something may have been changed: whatever goes wrong from now on, the exit code is not 1."""
    _shown: set[Diagnostic] = field(default_factory=set)
    _moved: bool = False

    def start(self) -> None:
        """Make the global options true: directory, colours, verbosity. Raises `Failure` for a bad `--chdir`."""
        self.printer.quiet = self.options.quiet
        self.printer.logging = self.options.verbose > 0
        self.printer.set_colours(self.options.color)
        if self.options.chdir is not None and not self._moved:
            try:
                os.chdir(self.options.chdir)
            except OSError as fault:
                raise Failure(
                    ExitCode.USAGE,
                    (error("bad-chdir", f"--chdir {self.options.chdir}: {fault.strerror}"),),
                ) from None
            self._moved = True
        if self.options.verbose:
            import logging

            level = logging.INFO if self.options.verbose == 1 else logging.DEBUG
            logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(name)s: %(message)s")
            logging.getLogger("lium_plan").setLevel(level)

    # --- settings ----------------------------------------------------------------------------------------------

    def settings(self) -> Settings:
        """The settings, for commands that need no server. Raises `Failure`."""
        from pathlib import Path

        from lium_plan.settings import Flags, resolve

        flags = Flags(self.options.stack, self.options.state, self.options.sim, self.parallelism)
        return resolve(flags, os.environ, Path.home())

    def server_settings(self) -> Settings:
        """The settings with a server to talk to: with `--sim`, the local Lium is started or joined first."""
        settings = self.settings()
        if not settings.sim:
            return settings
        from lium_plan.sim.background import start_or_join

        local = start_or_join(settings.state_dir)
        if local.started:
            end = self.typed("lium-plan sim stop")
            self.printer.talk(f"Started a local Lium at {local.base_url} ({end} ends it).\n")
        key = settings.ssh_key_path
        if key is None:
            key = local.directory / "id_ed25519"
            if not key.exists():
                from lium_plan.ssh.keys import make_key

                make_key(key)
        return settings.simulated(base_url=local.base_url, api_key=local.api_key, ssh_key_path=key)

    # --- running -----------------------------------------------------------------------------------------------

    def run(self, work: Callable[[Interrupt], Awaitable[T]], *, for_reader: bool = False) -> T:
        """Run `work` on an event loop that hears signals. Raises `KeyboardInterrupt` when one ended it.

        With `for_reader` it makes nothing but what is printed: raises `ReaderLeft` soon after stdout has no reader.
        """
        import asyncio

        from lium_plan.cli.threads import Unawaited
        from lium_plan.interrupts import Interrupt

        self._show_notices()

        async def main() -> T:
            asyncio.get_running_loop().set_default_executor(Unawaited())
            interrupt = Interrupt()
            task = asyncio.current_task()
            assert task is not None
            watch = asyncio.create_task(self._until_unread(task.cancel)) if for_reader else None
            with interrupt.listening(task.cancel, to_the_end=True):
                self.printer.on_closed_terminal = interrupt.trigger
                try:
                    return await work(interrupt)
                except asyncio.CancelledError:
                    if interrupt.count:
                        raise KeyboardInterrupt from None
                    if watch is not None and watch.done():
                        raise ReaderLeft from None
                    raise
                finally:
                    self.printer.on_closed_terminal = None
                    if watch is not None:
                        watch.cancel()

        return asyncio.run(main())

    async def _until_unread(self, end: Callable[[], object]) -> None:
        import asyncio

        while True:
            if self.printer.unread:
                end()
                return
            await asyncio.sleep(LOOK_FOR_READER_S)

    def _show_notices(self) -> None:
        """What the client waits for, each once; with `-v` the log says it."""
        import logging

        from lium_plan.cli.notices import NoticeHandler

        logger = logging.getLogger("lium_plan.notices")
        logger.handlers.clear()
        if not (self.as_json or self.options.verbose):
            logger.setLevel(logging.INFO)
            logger.addHandler(NoticeHandler(self.printer.notice))
        logger.propagate = self.options.verbose > 0

    # --- ending ------------------------------------------------------------------------------------------------

    def end(self, exit_code: int) -> int:
        """The exit code of a command that would end with this one, now that all is printed that could be."""
        if self.printer.lost is None:
            return exit_code
        self.printer.err(f"error: stdout can't be written, what was printed is not complete: {self.printer.lost}\n")
        if exit_code not in (ExitCode.OK, ExitCode.CHANGES, ExitCode.ERROR):
            return exit_code
        return int(ExitCode.PARTIAL if self.changed else ExitCode.ERROR)

    def typed(self, text: str) -> str:
        """The text with the global options that were given in each command that it names, to be typed as it is."""

        def completed(found: re.Match[str]) -> str:
            # A command about another stack names it.
            options = replace(self.options, stack=None) if found["stack"] else self.options
            return " ".join(("lium-plan", *map(shlex.quote, options.repeated()), ""))

        return _COMMAND.sub(completed, text)

    def advised(self, found: Diagnostic) -> Diagnostic:
        """The finding with its hint as it is to be typed."""
        return found if found.hint is None else replace(found, hint=self.typed(found.hint))

    def show(self, diagnostics: Iterable[Diagnostic]) -> None:
        """Findings as text on stderr, each once a run; but for those that a plan has rows for."""
        from lium_plan.diagnostics import NEW_RENTS_ONLY
        from lium_plan.views.diagnostics_text import diagnostics_text

        diagnostics = map(self.advised, diagnostics)
        told = (item for item in diagnostics if item.code != NEW_RENTS_ONLY)
        fresh = [item for item in dict.fromkeys(told) if item not in self._shown]
        self._shown.update(fresh)
        if self.options.quiet:
            fresh = [item for item in fresh if item.severity == "error"]
        self.printer.err(diagnostics_text(fresh, self.printer.err_paint))


def ending(exit_code: ExitCode, diagnostics: Iterable[Diagnostic]) -> ExitCode:
    """The exit code of a command that has these findings: an error among them is never 0."""
    failed = any(item.severity == "error" for item in diagnostics)
    return worst((exit_code, ExitCode.ERROR)) if failed else exit_code
