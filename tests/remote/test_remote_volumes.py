"""Data on /mnt outlives its pods; who may write there is said beforehand (contract hazard 36)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from remote_looks import log_of, nothing_to_do, pod_of

from tests.support.projects import Project

Fleet = Callable[..., Project]
MANIFEST = """\
version: 1
project: keeping
volumes:
  data: {{}}
fleets:
  x:
    resources: {{gpu: "RTX4090:1"}}
    max_price: 2.00
    ttl: 2h
    image: {image}
    volume: data
    bootstrap:
      commands: ['test -e /mnt/count || echo 0 > /mnt/count; echo $(($(cat /mnt/count) + 1)) > /mnt/count']
tasks:
  t: {{fleet: x, commands: ['echo $(id -u) sees $(cat /mnt/count)'], user: {user}}}
"""


@pytest.mark.parametrize("image", ["ubuntu:22.04", "limsim/busybox:1"])
def test_data_is_there_after_the_fleet_was_destroyed_and_applied_again(project: Project, image: str) -> None:
    project.write(MANIFEST.format(image=image, user="root"))
    project.apply()
    assert "0 sees 1" in log_of(project, "task.t[0]")
    first = pod_of(project)
    project.destroy("--target", "fleet.x")
    assert project.ledger("pod", open_only=True) == []
    assert len(project.ledger("volume", open_only=True)) == 1
    project.apply()
    assert "0 sees 2" in log_of(project, "task.t[0]")
    assert pod_of(project)["id"] != first["id"]
    nothing_to_do(project)


def test_a_volume_with_a_user_that_is_not_root_is_warned_about_and_runs_as_that_user(project: Project) -> None:
    project.write(MANIFEST.format(image="limsim/uid1000:1", user="image"))
    checked = project.run("validate", "--json", expect=0).json["diagnostics"]
    found = [item for item in checked if item["code"] == "volume-user"]
    assert len(found) == 1, checked
    assert found[0]["severity"] == "warning"
    assert "/mnt" in found[0]["message"]
    assert found[0]["line"] == 15
    project.apply()
    assert "1000 sees 1" in log_of(project, "task.t[0]")
