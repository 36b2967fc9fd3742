"""Where a bootstrap that did not finish begins again. Pure.

All commands run in one shell, so a later one may rely on what an earlier one left in it: variables, the directory,
functions, jobs in the background. A retry therefore begins after the commands that are known to have finished only
when nothing of theirs but files can matter to the rest; otherwise it begins with the first. What is known to have
finished is what the pod recorded, in the same container since.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from lium_plan.ssh.markers import Markers, RunState

# What the pod's comparison of the shell before and after can't see: functions, sourced files, traps, aliases,
# redirections, jobs (`&>` begins one everywhere but in bash). A word inside quotes counts too: beginning again is never
# wrong, only slower.
_LEAVES_SOMETHING = re.compile(
    r"\(\s*\)"
    r"|(?:^|[\s;&|({!])\.[ \t]+[^\s;&|)]"
    r"|(?:^|[\s;&|({!])(?:source|exec|trap|alias|eval|function|coproc|nohup|setsid|disown|bg|ulimit|enable)(?=[\s<>&|;)]|$)"
    r"|(?<![&><])&(?!&)",
    re.MULTILINE,
)


def first_command(commands: Sequence[str], found: Markers) -> int:
    """The index of the command to begin with; their number when all have finished."""
    finished = len(found.finished_steps)
    if found.restarted or found.state is RunState.NEVER_STARTED or finished == 0:
        return 0
    if finished >= len(commands):
        return finished if found.exit_status == 0 else 0
    if not found.shell_as_before:
        return 0
    return 0 if any(_LEAVES_SOMETHING.search(command) for command in commands[:finished]) else finished
