"""`sim serve|stop|status|reset`: a local Lium for any client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lium_plan.cli.session import Session
from lium_plan.cli.shared import DURATION, USD, usage
from lium_plan.cli.verb import Verbs, json_option, verb
from lium_plan.diagnostics import ExitCode, Failure, error, in_words


@verb("serve", help="Run a local Lium in the foreground; its address and key on stdout, for `eval`.")
@click.option("--host", default="127.0.0.1", metavar="HOST", help="Loopback address to listen on (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), default=0, help="0: any free one.")
@click.option("--world", metavar="FILE", help="Keep the world here, and go on with it.")
@click.option("--seed", type=int, default=1, metavar="N", help="One seed, one history (1).")
@click.option("--speed", type=click.FloatRange(0.0, min_open=True), default=1.0, metavar="X", help="Times as fast (1).")
@click.option("--nodes", type=click.IntRange(0), metavar="N", help="How many nodes are on offer (84).")
@click.option("--balance", type=USD, default="100", metavar="USD", help="What an account has when it is opened (100).")
@click.option("--feed", metavar="FILE", help="Nodes from a saved public feed.")
@click.option("--scenario", metavar="FILE", help="Faults to play, from YAML or JSON.")
@click.option("--confined", is_flag=True, help="Pods without namespaces, each in a directory of its own.")
@click.option("--lively", is_flag=True, help="Other renters come and go, prices move, pods break.")
@click.option("--idle-timeout", type=DURATION, metavar="D", help="End by itself after this long without a request.")
def serve_command(session: Session, **values: Any) -> ExitCode:
    from lium_plan.settings import is_loopback
    from lium_plan.sim.seeding import DEFAULT_NODES
    from lium_plan.sim.serve import ServeOptions, serve

    if not is_loopback(values["host"]):
        raise usage(f"--host {values['host']}: the local Lium has no real keys, so it listens on loopback only")

    printer = session.printer

    def say_ready(base_url: str, key: str) -> None:
        printer.out(f"LIUM_BASE_URL={base_url}\nLIUM_API_KEY={key}\n")

    given = {name: Path(values[name]) for name in ("world", "feed", "scenario") if values[name]}
    options = ServeOptions(
        host=values["host"],
        port=values["port"],
        seed=values["seed"],
        speed=values["speed"],
        nodes=DEFAULT_NODES if values["nodes"] is None else values["nodes"],
        balance_usd=float(values["balance"]),
        confined=values["confined"],
        lively=values["lively"],
        idle_exit_s=values["idle_timeout"],
        world=given.get("world"),
        feed=given.get("feed"),
        scenario=given.get("scenario"),
    )
    return ExitCode(serve(options, say_ready=say_ready, say=lambda line: printer.talk(line.rstrip("\n") + "\n")))


@verb("stop", help="End the background local Lium of the state directory. Its world stays.")
def stop_command(session: Session) -> ExitCode:
    from lium_plan.sim.background import stop

    stopped = stop(session.settings().state_dir)
    session.printer.talk("The local Lium has ended.\n" if stopped else "No local Lium was running.\n")
    return ExitCode.OK


@verb(
    "status", help="Show the background local Lium of the state directory.", failed=lambda session: {"running": False}
)
@json_option
def status_command(session: Session, as_json: bool) -> ExitCode:
    from lium_plan.sim.background import find

    local = find(session.settings().state_dir)
    if as_json:
        from lium_plan.views.diagnostics_json import document

        body: dict[str, Any] = {"running": local is not None}
        if local is not None:
            body.update(base_url=local.base_url, pid=local.pid, log=str(local.log))
        session.printer.json(document(body, ()))
    elif local is None:
        session.printer.out("No local Lium is running; any command with --sim starts it.\n")
    else:
        session.printer.out(
            f"A local Lium runs at {local.base_url} (pid {local.pid}), page for people: "
            f"{local.base_url.removesuffix('/api')}/_sim/\nIts log: {local.log}\n"
        )
    return ExitCode.OK


@verb("reset", help="Make the background local Lium's world anew: no pods, nothing billed.")
def reset_command(session: Session) -> ExitCode:
    from lium_plan.sim.background import find, forget_world

    state_dir = session.settings().state_dir
    local = find(state_dir)
    if local is None:
        existed = forget_world(state_dir)
        session.printer.talk(
            "Its world is gone; the next start makes a new one.\n" if existed else "There was no world.\n"
        )
        return ExitCode.OK
    import http.client

    connection = http.client.HTTPConnection("127.0.0.1", local.port, timeout=30)
    try:
        connection.request("POST", "/_sim/reset", body=json.dumps({}), headers={"Content-Type": "application/json"})
        status = connection.getresponse().status
    except (OSError, http.client.HTTPException) as fault:
        raise Failure(
            ExitCode.ERROR, (error("local-lium", f"the local Lium did not answer: {in_words(fault)}"),)
        ) from None
    finally:
        connection.close()
    if status >= 300:
        raise Failure(ExitCode.ERROR, (error("local-lium", f"the local Lium answered {status} to the reset"),))
    session.printer.talk("The local Lium's world is new.\n")
    return ExitCode.OK


command = Verbs(
    name="sim",
    help="Run a local Lium for any client: real HTTP, real SSH, no account and no money.",
    commands={each.name or "": each for each in (serve_command, stop_command, status_command, reset_command)},
)
