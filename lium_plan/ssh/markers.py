"""Reading what a bootstrap run recorded on the pod, after its connection was lost or its caller was killed."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from lium_plan.ssh.posix import AT_HOME, BASE, GROUP, RECORDS, RUN_RECORDS
from lium_plan.ssh.protocol import Session
from lium_plan.ssh.quoting import quote_path
from lium_plan.ssh.reports import ask


class RunState(StrEnum):
    NEVER_STARTED = "never-started"
    RUNNING = "running"
    EXITED = "exited"
    LOST = "lost"
    """Begun and neither running nor ended: the pod restarted or the run was killed."""


@dataclass(frozen=True, slots=True)
class Markers:
    state: RunState
    finished_steps: tuple[int, ...]
    """Indices of the commands that ended well, in order. The next one may have begun."""
    exit_status: int | None
    shell_as_before: bool = False
    """After the last of them the shell had the variables, directory and options that it began with."""
    restarted: bool = False
    """The pod's container was restarted since the run began."""
    begun: bool = False
    """The first command was reached: an exit status is a command's, not the launcher's."""


_READ = r"""
if __lp_has_ended; then
    echo "lium-plan:exited $__lp_code"
elif ! __lp_has_begun; then
    echo lium-plan:never-started
elif __lp_goes_on; then
    echo lium-plan:running
elif __lp_has_ended; then
    echo "lium-plan:exited $__lp_code"
else
    echo lium-plan:lost
fi
if __lp_has_begun; then
    __lp_this_boot
    [ "$__lp_on" = "$__lp_boot" ] || echo lium-plan:restarted
fi
[ ! -e "$__lp_marks.begun" ] || echo lium-plan:begun
[ ! -e "$__lp_marks.steps" ] || while read -r __lp_step; do
    echo "lium-plan:step $__lp_step"
done <"$__lp_marks.steps"
exit 0
"""


async def read_markers(session: Session, markers: str, *, timeout_s: float) -> Markers:
    """What the run with these `markers` has done so far (see `image_env.run_in_image`)."""
    script = f"{BASE}{AT_HOME}{RECORDS}{GROUP}{RUN_RECORDS}__lp_use_marks {quote_path(markers)}\n{_READ}"
    state, status, steps = RunState.NEVER_STARTED, None, []
    as_before = restarted = begun = False
    for line in await ask(session, script, timeout_s=timeout_s):
        word, _, rest = line.partition(" ")
        if word == "step":
            number, _, shell = rest.partition(" ")
            steps.append(int(number))
            as_before = shell == "as-before"
        elif word == "restarted":
            restarted = True
        elif word == "begun":
            begun = True
        else:
            state = RunState(word)
            status = int(rest) if state is RunState.EXITED else None
    return Markers(state, tuple(steps), status, as_before, restarted, begun)
