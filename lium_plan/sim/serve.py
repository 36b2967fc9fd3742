"""Serving a local Lium over HTTP until told to stop."""

from __future__ import annotations

import asyncio
import json
import logging
import signal
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import uvicorn
import yaml
from pydantic import ValidationError
from starlette.types import Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from lium_plan.diagnostics import ExitCode, Failure, error
from lium_plan.sim.accounts import DEFAULT_KEY
from lium_plan.sim.app import BASE, LocalLium
from lium_plan.sim.bare import BareRuntime
from lium_plan.sim.clock import RealClock
from lium_plan.sim.faults import FAULTS, FaultSpec, check
from lium_plan.sim.rows import PodStatus
from lium_plan.sim.runtime import Runtime
from lium_plan.sim.seeding import DEFAULT_NODES, FeedFile
from lium_plan.sim.settings import Market, Settings
from lium_plan.sim.simulator import Beginning, Simulator
from lium_plan.sim.store import BrokenWorld, FileStore
from lium_plan.sim.wire import DROP


@dataclass(frozen=True, slots=True)
class ServeOptions:
    host: str = "127.0.0.1"
    port: int = 0
    """0: any free one."""
    world: Path | None = None
    """Where the world is kept; None: in memory."""
    seed: int = 1
    speed: float = 1.0
    nodes: int = DEFAULT_NODES
    balance_usd: float = 100.0
    feed: Path | None = None
    scenario: Path | None = None
    confined: bool = False
    lively: bool = False
    idle_exit_s: float | None = None
    """End when for so long nobody asked for anything, no pod is on its way, and nothing that came in over SSH runs in
    one; None: never. Pods that are left go on with the world, when it is opened again."""
    machines: bool = True
    """Whether pods have machines behind them; without, only the API is there."""


class DroppableProtocol(H11Protocol):
    """Lets the app cut its own connection, for replies that get lost."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        inner = self.app

        async def app(scope: Scope, receive: Receive, send: Send) -> None:
            scope["extensions"] = {**(scope.get("extensions") or {}), DROP: self._cut}
            await inner(scope, receive, send)

        self.app = app

    def _cut(self) -> None:
        self.transport.abort()


def serve(options: ServeOptions, *, say_ready: Callable[[str, str], None], say: Callable[[str], None]) -> int:
    """Serve until SIGTERM or SIGINT, then 0. `say_ready(base_url, key)` is called once, when requests are answered;
    `say` gets everything else there is to tell. Raises Failure for options that can't be met."""
    beginning = load_beginning(options)
    return asyncio.run(_serve(options, beginning, say_ready, say))


def load_beginning(options: ServeOptions) -> Beginning:
    """Read what the options name. Raises Failure."""
    market = Market.LIVELY if options.lively else Market.CALM
    try:
        settings = Settings(speed=options.speed, balance_usd=options.balance_usd, market=market)
    except ValidationError as problem:
        raise _failure("sim-options", _told("sim serve", problem)) from None
    return Beginning(
        seed=options.seed,
        nodes=options.nodes,
        settings=settings,
        feed=None if options.feed is None else _load_feed(options.feed),
        scenario=() if options.scenario is None else _load_scenario(options.scenario, settings),
    )


def _failure(code: str, message: str, hint: str | None = None) -> Failure:
    return Failure(ExitCode.ERROR, (error(code, message, hint=hint),))


_FEED_HINT = "Save an answer of GET /public/v1/nodes and give that file."
_SCENARIO_HINT = "A scenario is a YAML or JSON list of faults, as POST /_sim/faults takes them."


def _load_feed(path: Path) -> dict[str, object]:
    try:
        feed = json.loads(path.read_bytes())
    except OSError as problem:
        raise _failure("sim-feed", f"{path}: {problem.strerror}", _FEED_HINT) from None
    except (ValueError, RecursionError) as problem:
        raise _failure("sim-feed", f"{path}: not JSON: {problem}", _FEED_HINT) from None
    if not isinstance(feed, dict) or not isinstance(feed.get("nodes"), list):
        raise _failure("sim-feed", f"{path}: no object with a list `nodes`", _FEED_HINT)
    try:
        FeedFile.model_validate(feed)
    except ValidationError as problem:
        raise _failure("sim-feed", _told(path, problem), _FEED_HINT) from None
    return feed


def _load_scenario(path: Path, settings: Settings) -> list[FaultSpec]:
    try:
        specs = FAULTS.validate_python(yaml.safe_load(path.read_text(encoding="utf-8")))
    except OSError as problem:
        raise _failure("sim-scenario", f"{path}: {problem.strerror}", _SCENARIO_HINT) from None
    except ValidationError as problem:
        raise _failure("sim-scenario", _told(path, problem), _SCENARIO_HINT) from None
    except (yaml.YAMLError, ValueError, RecursionError) as problem:
        raise _failure("sim-scenario", f"{path}: not YAML: {problem}", _SCENARIO_HINT) from None
    for index, spec in enumerate(specs):
        try:
            check(spec, settings)
        except ValidationError as problem:
            raise _failure("sim-scenario", _told(path, problem, f"[{index}].effect.settings"), _SCENARIO_HINT) from None
        except ValueError as problem:
            raise _failure("sim-scenario", f"{path}: [{index}]: {problem}", _SCENARIO_HINT) from None
    return specs


_TOLD = 5


def _told(what: Path | str, problem: ValidationError, within: str = "") -> str:
    """The first few things that are wrong, a line for each with its place: `nodes[3].gpu_count: Input should be …`."""
    lines = []
    for item in problem.errors()[:_TOLD]:
        place = within + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in item["loc"])
        lines.append(f"{what}: {place.lstrip('.') or 'it'}: {item['msg']}")
    more = problem.error_count() - _TOLD
    return "\n".join(lines if more <= 0 else [*lines, f"and {more} more"])


async def _serve(
    options: ServeOptions,
    beginning: Beginning,
    say_ready: Callable[[str, str], None],
    say: Callable[[str], None],
) -> int:
    with TemporaryDirectory(prefix="lium-sim-") as scratch:
        root = Path(scratch) if options.world is None else options.world.with_name(options.world.name + ".pods")
        listener = _listen(options)
        try:
            store = None if options.world is None else FileStore(options.world)
            runtime = _runtime(options, root, say)
            simulator = Simulator(beginning, clock=RealClock(), runtime=runtime, store=store, say=say)
        except BrokenWorld as problem:
            listener.close()
            raise _failure("sim-world", str(problem)) from None
        except OSError as problem:
            listener.close()
            where = problem.filename or options.world
            raise _failure("sim-world", f"cannot keep the world: {where}: {problem.strerror}") from None
        if simulator.resumed:
            say(
                f"going on with the world in {options.world}: its own nodes, balances and faults; "
                "of the options only the speed is taken over"
            )
        async with simulator:
            await _answer(options, simulator, listener, say_ready, say)
    return ExitCode.OK


def _runtime(options: ServeOptions, root: Path, say: Callable[[str], None]) -> Runtime:
    if not options.machines:
        return BareRuntime()
    from lium_plan.sim.pods import open_runtime  # loads asyncssh

    return open_runtime(root, confined=options.confined, say=say)


def _listen(options: ServeOptions) -> socket.socket:
    family = socket.AF_INET6 if ":" in options.host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((options.host, options.port))
    except OSError as problem:
        listener.close()
        where = f"{options.host}:{options.port}"
        raise _failure("sim-listen", f"cannot listen on {where}: {problem.strerror}") from None
    listener.listen(1024)
    return listener


logging.getLogger("uvicorn.error").disabled = True
"""What goes wrong the app says itself; uvicorn would add a traceback for each request that is cut off at the end."""


class _Server(uvicorn.Server):
    """uvicorn that says when it is up, and leaves the process's signals to `serve`."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


async def _answer(
    options: ServeOptions,
    simulator: Simulator,
    listener: socket.socket,
    say_ready: Callable[[str, str], None],
    say: Callable[[str], None],
) -> None:
    app = LocalLium(simulator)
    config = uvicorn.Config(
        app,
        http=DroppableProtocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        date_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=2,
    )
    server = _Server(config)
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:  # as it is under nohup
        loop.add_signal_handler(signal.SIGHUP, stop.set)
    port = listener.getsockname()[1]
    host = f"[{options.host}]" if ":" in options.host else options.host
    serving = asyncio.create_task(server.serve([listener]))
    await server.up.wait()
    say_ready(f"http://{host}:{port}{BASE}", DEFAULT_KEY)
    say(f"{len(simulator.world.nodes)} nodes; control and a page for people: http://{host}:{port}/_sim/")
    idle = asyncio.create_task(_idle(options.idle_exit_s, app, stop))
    await asyncio.wait((serving, asyncio.create_task(stop.wait())), return_when=asyncio.FIRST_COMPLETED)
    idle.cancel()
    server.should_exit = True
    await serving


async def _is_at_work(simulator: Simulator) -> bool:
    moving = (PodStatus.PENDING, PodStatus.REBOOT_PENDING)
    under_way = any(pod.status in moving for pod in simulator.world.pods.where("alive", True))
    return under_way or await simulator.runtime.working()


async def _idle(limit_s: float | None, app: LocalLium, stop: asyncio.Event) -> None:
    """Set `stop` when nothing was asked for `limit_s`, no pod comes or goes, and no task runs in any."""
    if limit_s is None:
        return
    loop = asyncio.get_running_loop()
    since = loop.time()
    while True:
        last = max(since, app.wire.last_request_at)
        left = last + limit_s - loop.time()
        if left <= 0 and not await _is_at_work(app.simulator):
            stop.set()
            return
        await asyncio.sleep(max(left, min(limit_s, 30.0)))
