"""`logs -f` of what nobody writes any more."""

from __future__ import annotations

import signal
from collections.abc import Callable

from remote_looks import BOOT, bootstrap_of, has_written

from tests.support.projects import Project, stop
from tests.support.sims import until


def test_following_ends_when_the_run_that_wrote_was_killed(fleet_of: Callable[..., Project]) -> None:
    project = fleet_of("      commands: ['echo begun; echo x > ~/trace; sleep 600']\n")
    applying = project.start("apply", "--auto-approve")
    until(lambda: has_written(project, "~/trace"), applying, what="the command on the pod")
    following = project.start("logs", BOOT, "-f")
    until(lambda: following.stdout is not None and "begun" in following.stdout.readline(), following, what="its output")
    applying.send_signal(signal.SIGKILL)
    stop(applying, within_s=10)
    done = stop(following, within_s=20)
    assert done.code == 0, done
    assert "is gone: `lium-plan apply` goes on where it was" in done.err
    assert bootstrap_of(project)["status"] == "running"
