"""Apply and destroy: show the plan, ask, run, show how it ended. What the two have in common.

Asks only on a terminal. Until the answer is yes, a signal simply ends the command; afterwards it asks the run to end.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lium_plan.cli.plan import plan_exit_code, print_plan
from lium_plan.cli.progress import JsonFile, Progress
from lium_plan.cli.session import Session
from lium_plan.diagnostics import ExitCode, Failure, error, worst
from lium_plan.requests import ApplyRequest, PlanRequest

if TYPE_CHECKING:
    from lium_plan.engine.events import RunReport
    from lium_plan.interrupts import Interrupt
    from lium_plan.planning.plan import Plan
    from lium_plan.settings import Settings


def perform(session: Session, request: PlanRequest, values: dict[str, Any]) -> ExitCode:
    """Plan, ask, do. `values` are the command's options."""
    performance = Performance(session, request, values)
    try:
        code = performance.run(session.server_settings())
    except Failure as failure:
        performance.progress.close(failure.exit_code, failure.diagnostics)
        if not values["as_json"]:
            session.show(failure.diagnostics)
        code = failure.exit_code
    except KeyboardInterrupt:
        from lium_plan.interrupts import ignore_signals

        ignore_signals()
        performance.progress.close(ExitCode.INTERRUPTED)
        if not performance.armed:
            raise
        session.printer.err("\nStopped. What was under way is in the journal; the next apply or destroy settles it.\n")
        code = ExitCode.INTERRUPTED
    except BaseException:
        performance.progress.close(ExitCode.BUG)
        raise
    code = performance.told(code)
    performance.notify(code)
    return code


class Performance:
    """One apply or destroy on the command line."""

    def __init__(self, session: Session, request: PlanRequest, values: dict[str, Any]) -> None:
        self._session = session
        self._printer = session.printer
        self._request = request
        self._values = values
        self._as_json: bool = values["as_json"]
        into = JsonFile(values["json_into"]) if values["json_into"] else None
        self._into = into
        self.progress = Progress(session.printer, as_json=self._as_json, into=into, typed=session.typed)
        self._interrupt: Interrupt | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._declined = False
        self._refused: ExitCode | None = None
        self._planned = False
        self._report: RunReport | None = None
        self._stack = session.options.stack or "default"
        self._plan_options: Mapping[str, object] = {}

    def run(self, settings: Settings) -> ExitCode:
        from lium_plan import operations

        values = self._values
        self._stack = settings.stack
        plan_file = values.get("plan_file")
        apply = ApplyRequest(
            parallelism=settings.parallelism,
            lock_timeout_s=values["lock_timeout"],
            wait_timeout_s=values["wait_timeout"],
            destroy_new_on_failure=values["on_failure"] == "destroy-new",
            strict_offers=values["strict_offers"],
            force_replace=values["force_replace"],
            plan_file=Path(plan_file) if plan_file else None,
        )

        async def work(interrupt: Interrupt) -> RunReport:
            self._interrupt = interrupt
            try:
                return await operations.apply(
                    settings,
                    self._request,
                    apply,
                    approve=self.approve,
                    on_event=self.progress.take,
                    interrupt=interrupt,
                )
            finally:
                await self._end_watching()

        try:
            report = self._session.run(work)
        except Failure as failure:
            if self._declined:
                return self._decline()
            if self._refused is None:
                raise
            # The plan and its findings were shown; machines have them as events.
            self.progress.close(self._refused, failure.diagnostics)
            return self._refused
        if self._refused is not None:
            # The plan and its findings were shown: that is all there is to say.
            self.progress.close(self._refused)
            return self._refused
        self._report = report
        return self._decline() if self._declined else self._finish(report)

    @property
    def armed(self) -> bool:
        """Whether something may have been changed."""
        return self._interrupt is not None and self._interrupt.armed

    # --- asking --------------------------------------------------------------------------------------------------

    def approve(self, plan: Plan) -> bool:
        """Show the plan and ask. Raises `Failure` (exit 1) when there is nobody to ask."""
        self._planned = True
        self._plan_options = plan.options or {}
        if not self._as_json and (self._must_ask(plan) or not self._printer.quiet or plan.refusal is not None):
            # `--json-into` holds the run's events, the plan's document is not written there.
            print_plan(self._session, plan, {**self._values, "json_into": None})
        if plan.refusal is not None or plan.errored:
            self._refused = plan_exit_code(plan)
            return False
        if plan.needs_consent:
            self._declined = not self._asked(plan)
        if self._declined:
            return False
        if self._interrupt is not None:
            self._interrupt.arm()
            self._session.changed = bool(plan.actions or plan.open)
            self._watcher = asyncio.get_running_loop().create_task(self.progress.watch(self._interrupt))
        return True

    def _must_ask(self, plan: Plan) -> bool:
        """Nobody says yes to what was not shown, `-q` or not."""
        return plan.needs_consent and not (self._values["auto_approve"] or self._values.get("plan_file"))

    def _asked(self, plan: Plan) -> bool:
        if not self._must_ask(plan):
            return True
        if self._as_json or not self._printer.interactive:
            option = "--destroy " if plan.destroying else ""
            reason = "with --json nobody is asked" if self._as_json else "there is no terminal to ask on"
            raise Failure(
                ExitCode.ERROR,
                (
                    error(
                        "approval-needed",
                        f"this plan needs a yes, and {reason}: nothing was changed",
                        hint="say it beforehand with --auto-approve, or save a plan and apply it: "
                        f"lium-plan plan {option}--out FILE, then lium-plan apply FILE",
                    ),
                ),
            )
        if self._printer.lost is not None:
            message = "this plan needs a yes, and could not be shown: nothing was changed"
            raise Failure(ExitCode.ERROR, (error("approval-needed", message),))
        if plan.destroying:
            count = plan.summary.destroy
            noun = "resource" if count == 1 else "resources"
            question = f"\nThis destroys {count} {noun} of {plan.project} (stack {plan.stack}), for good.\n"
            return ask(self._session, question + f"Type the project's name ({plan.project}) to go on: ") == plan.project
        return ask(self._session, "\nDo this? Only 'yes' goes on: ") == "yes"

    def _decline(self) -> ExitCode:
        self.progress.close(ExitCode.ERROR)
        self._printer.err("Not confirmed. Nothing was changed.\n")
        return ExitCode.ERROR

    # --- ending --------------------------------------------------------------------------------------------------

    async def _end_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None

    def _finish(self, report: RunReport) -> ExitCode:
        from lium_plan.views.events_text import outputs_text, report_text

        code = ExitCode(report.exit_code)
        if self._as_json:
            self.progress.close(code, report.diagnostics)
            return code
        written = report.diagnostics  # machines get hints as the events have them
        report = self._advised(report)
        if not self._planned:
            self._printer.talk("There is no state here: nothing to destroy.\n")
        causes = {item.cause for item in report.results}
        if self._values["as_markdown"]:
            from lium_plan.views.plan_markdown import report_markdown

            self._printer.out("\n" + report_markdown(report))
        elif (report.results or report.proofs or code is not ExitCode.OK) and not self._untold(report):
            self._printer.out("\n" + report_text(report, self._printer.out_paint))
        if report.outputs and not self._values["as_markdown"] and not self._untold(report):
            self._printer.out("\nOutputs:\n" + outputs_text(report.outputs))
        self._session.show(item for item in report.diagnostics if item not in causes)
        self.progress.close(code, written)
        return code

    def told(self, code: ExitCode) -> ExitCode:
        """The exit code of a run that would end with this one, now that all is written that could be."""
        lost = None if self._into is None else self._into.lost
        if lost is None:
            return code
        self._session.show((lost,))
        return worst((code, ExitCode.PARTIAL if self._session.changed else ExitCode.ERROR))

    def notify(self, code: ExitCode) -> None:
        """Tell the command of `--notify` how it ended; not of a plan that nobody wanted."""
        command = self._values["notify"]
        if command is None or self._declined:
            return
        from lium_plan.cli.notify import notify
        from lium_plan.views.events_json import ending_json

        verb = "destroy" if self._request.destroying else "apply"
        document = ending_json(verb, self._stack, code, self._report)
        lost = notify(command, document, self._printer)
        if lost is not None:
            self._session.show((lost,))

    def _untold(self, report: RunReport) -> bool:
        """With `-q` what went well is not told."""
        return self._printer.quiet and report.exit_code == ExitCode.OK

    def _advised(self, report: RunReport) -> RunReport:
        """With hints and the next command as they are to be typed."""
        advised, typed = self._session.advised, self._session.typed
        return replace(
            report,
            results=tuple(
                replace(item, cause=None if item.cause is None else advised(item.cause), note=typed(item.note))
                for item in report.results
            ),
            diagnostics=tuple(map(advised, report.diagnostics)),
            next_command=None if report.next_command is None else self._next_command(report.next_command, report),
        )

    def _next_command(self, command: str, report: RunReport) -> str:
        typed = self._session.typed(command)
        verb = command.removeprefix("lium-plan ")
        if verb not in ("apply", "destroy"):
            return typed
        from lium_plan.cli.again import with_options

        return with_options(
            typed, report, values=self._values, planned=self._plan_options, destroying=verb == "destroy"
        )


def ask(session: Session, question: str) -> str:
    """The answer typed on the terminal; empty at its end. Raises `KeyboardInterrupt` for any signal meanwhile."""
    # Handlers first: from the question on, a signal is an answer.
    with _interruptible():
        session.printer.err(question)
        return sys.stdin.readline().strip()


@contextlib.contextmanager
def _interruptible() -> Iterator[None]:
    """The event loop only marks signals, and it is not running while we wait for an answer."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = {}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            before[number] = signal.signal(number, stop)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
