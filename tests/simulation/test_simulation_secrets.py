"""Secrets: canaries in every place where one may pass, and in every disguise, are nowhere afterwards (O6)."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from lium_plan import operations
from tests.simulation.manifests import HEAD
from tests.simulation.telling import told
from tests.support.world import World
from tests.support.world_machines import Behaviour
from tests.support.world_oracles import no_secrets

PLAIN = "canary-8c1f-plain"
LINES = "canary-line-one\ncanary-line-two\ncanary-line-three"
QUOTED = 'canary "quoted" \\ back\\slash é'
URL = "https://user:canary-url-password@example.org/x"
ENVIRON = {
    "REG_USER": "robot",
    "REG_PASS": "canary-registry",
    "PLAIN": PLAIN,
    "LINES": LINES,
    "QUOTED": QUOTED,
    "URL": URL,
}
SECRETS = (PLAIN, QUOTED, "canary-registry", "canary-url-password", *LINES.splitlines())
OUTPUT = b"\n".join(
    (
        b"plain " + PLAIN.encode() + b" end",
        LINES.encode(),
        QUOTED.encode(),
        json.dumps(QUOTED).encode(),
        URL.encode(),
        base64.b64encode(PLAIN.encode()),
        b"",
    )
)

MANIFEST = (
    HEAD
    + """\
templates:
  t:
    image: limsim/torch:2.4
    registry_auth: {username: "${{ env.REG_USER }}", password: "${{ env.REG_PASS }}"}
    env: {TEMPLATE_TOKEN: "${{ env.PLAIN }}"}
fleets:
  a:
    resources: {gpu: "RTX4090:1"}
    template: t
    ttl: 24h
    bootstrap:
      env: {A: "${{ env.PLAIN }}", B: "${{ env.LINES }}", C: "${{ env.QUOTED }}", D: "${{ env.URL }}"}
      files: [{source: key.txt, target: work/key, template: true}]
      commands: [make ready]
tasks:
  train:
    fleet: a
    env: {A: "${{ env.PLAIN }}", B: "${{ env.LINES }}", C: "${{ env.QUOTED }}", D: "${{ env.URL }}"}
    commands: [run it]
    wait: completed
    max_duration: 10m
"""
)


@contextmanager
def everything_logged() -> Iterator[list[str]]:
    """What `-vv` would show."""
    lines: list[str] = []

    class Keep(logging.Handler):
        def emit(self, entry: logging.LogRecord) -> None:
            lines.append(self.format(entry))

    logger, handler = logging.getLogger("lium_plan"), Keep(logging.DEBUG)
    before = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.DEBUG)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before)


@pytest.mark.parametrize("exit_status", [0, 1])
def test_h1_canaries_are_nowhere(exit_status: int) -> None:
    async def story(world: World) -> None:
        world.secrets = SECRETS
        world.write("key.txt", "key=${{ env.PLAIN }}\n")
        with everything_logged() as lines:
            await world.apply(environ=ENVIRON)
            no_secrets(world)
            await world.apply(environ=ENVIRON)
            await world.destroy(environ=ENVIRON)
        no_secrets(world)
        for secret in SECRETS:
            assert not [line for line in lines if secret in line], "H4: a log line shows it"
        logs = b"".join(data for name, data in world.files().items() if "logs/" in name)
        assert b"plain" in logs, "the logs are there, masked"

    told(
        story,
        manifest=MANIFEST,
        behaviours=(Behaviour("make ready", 1, exit_status, OUTPUT), Behaviour("run it", 9, exit_status, OUTPUT)),
    )


def test_h1_also_when_the_run_is_killed_or_the_server_quotes_them() -> None:
    async def story(world: World) -> None:
        world.secrets = SECRETS
        world.write("key.txt", "key=${{ env.PLAIN }}\n")
        for path, secret in (("templates", PLAIN), ("docker-credentials", "canary-registry")):
            quoting = {"do": "answer", "status": 422, "text": json.dumps({"detail": f"bad value {secret}"})}
            world.fault(quoting, method="POST", path=path)
        await world.apply(environ=ENVIRON)
        for number in range(60, 500, 60):
            await world.apply(environ=ENVIRON, crash_at=number)
            no_secrets(world)

    told(story, manifest=MANIFEST, behaviours=(Behaviour("make ready", 1, 0, OUTPUT),))


def test_h3_a_saved_plan_shows_no_secret() -> None:
    async def story(world: World) -> None:
        world.secrets = SECRETS
        world.write("key.txt", "key=${{ env.PLAIN }}\n")
        path = world.folder / "plan.json"
        await world.apply(environ=ENVIRON, approve=lambda plan: (operations.save_plan(plan, path), False)[1])
        text = path.read_text()
        for secret in SECRETS:
            assert secret not in text
            assert json.dumps(secret)[1:-1] not in text
            assert base64.b64encode(secret.encode()).decode() not in text

    told(story, manifest=MANIFEST)
