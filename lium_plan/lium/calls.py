"""One call of the API: wait for the limits, send, read, repeat what may be repeated.

Owns the policy of repeats (contract §1.5), the estimate of the server's clock and the check of what a 2xx carries.
Refuses to know endpoints.
"""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum
from typing import Any

from lium_plan.lium.envelope import read_date, read_envelope
from lium_plan.lium.errors import (
    AuthError,
    LiumError,
    MalformedAnswerError,
    RateLimitedError,
    ServerError,
    TransportError,
    error_from,
)
from lium_plan.lium.fields import json_type
from lium_plan.lium.limits import Limits, Priority, Turn
from lium_plan.lium.rows import RowMemory
from lium_plan.lium.transport import Answer, Cut, Outgoing, Transport

ATTEMPTS = 3
SHORTEST_SECRET = 4
"""Shorter ones are struck out of the answers to their own call only: they would star every other word of the rest."""
_LOG = logging.getLogger(__name__)
NOTICES = logging.getLogger("lium_plan.notices")
"""What people wait for, for whoever wants to show it."""


class Repeat(Enum):
    """Which failures of a call are answered by sending it again."""

    READ = "read"
    """After 5xx and no answer, until `attempts` have failed: a read changes nothing. After 429 as `AFTER_429`, unless
    there is one attempt only."""
    IDEMPOTENT = "idempotent"
    """As `READ`: a change that may be made twice."""
    AFTER_429 = "after_429"
    """Only after 429, which was not executed, for as long as `Limits.patience_s` allows."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class Call:
    """A request and how to treat it. `family` is method and route: what the server counts together."""

    outgoing: Outgoing
    family: str
    repeat: Repeat
    priority: Priority
    urgency: float = 0.0
    """Seconds of work that wait for it, about: who goes first through a limit among those of one priority."""
    attempts: int = ATTEMPTS
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """Struck out of whatever the server says."""
    dated: bool = True
    """The answer's `Date` is the API server's own now, not that of a cache on the way."""
    before_send: Callable[[], object] | None = None
    """Runs when the limits allow the request and before it leaves; what it raises calls the request off."""
    on_wait: Callable[[float], object] | None = None
    """Is told how many seconds the limits are going to keep it, about, when they do."""


class ServerClock:
    """What the server's clock shows, from the `Date` of its answers and the event loop's clock.

    Each answer bounds the difference of the clocks: the server wrote its date, which is cut to the second, after we
    sent and before we had the answer. The bounds narrow with every answer; when they contradict each other a clock
    was set, and the newest answer alone counts. Between answers the estimate moves with the loop's clock.
    """

    def __init__(self, wall: Callable[[], datetime]) -> None:
        self._wall = wall
        self._low: float | None = None
        self._high = 0.0

    @property
    def known(self) -> bool:
        """Whether an answer told the time; before that the local wall clock has to do."""
        return self._low is not None

    def observe(self, date: datetime, sent_at: float, answered_at: float) -> None:
        low, high = date.timestamp() - answered_at, date.timestamp() + 1.0 - sent_at
        if self._low is not None and max(low, self._low) <= min(high, self._high):
            low, high = max(low, self._low), min(high, self._high)
        self._low, self._high = low, high

    def now(self) -> datetime:
        if self._low is None:
            return self._wall().astimezone(UTC)
        seconds = asyncio.get_running_loop().time() + (self._low + self._high) / 2
        return _EPOCH + timedelta(seconds=seconds)


_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Caller:
    """Carries out calls over one transport under one set of limits."""

    def __init__(
        self,
        transport: Transport,
        limits: Limits,
        *,
        clock: ServerClock,
        random: Callable[[], float],
        secrets: tuple[str, ...],
        key_hint: str | None,
    ) -> None:
        self._key_hint = key_hint
        self.limits = limits
        self.clock = clock
        self.transport = transport
        self._random = random
        self._secrets = set(secrets)

    def hide(self, secrets: Iterable[str]) -> None:
        """Strike these out of whatever the server says from now on, to whichever call."""
        self._secrets.update(secret for secret in secrets if len(secret) >= SHORTEST_SECRET)

    async def answer(self, call: Call) -> Answer:
        """The 2xx answer to a call; LiumError otherwise."""
        turn = self.limits.turn(call.family, call.priority, call.urgency)
        started_at = asyncio.get_running_loop().time()
        failed = 0
        while True:
            outcome = await self._attempt(call, turn)
            if isinstance(outcome, Answer):
                return outcome
            limited = isinstance(outcome, RateLimitedError)
            failed += not limited
            pause_s = self._pause_s(call, outcome, failed, started_at)
            if pause_s is None:
                raise outcome
            _LOG.debug("%s: repeating after: %s", call.outgoing.operation, outcome)
            told = f"the server limits {call.family}, waiting" if limited else f"{_in_short(outcome)}, trying again"
            NOTICES.info("%s", told)
            await asyncio.sleep(pause_s)

    async def json(self, call: Call) -> object:
        """The parsed body of a 2xx answer; MalformedAnswerError when there is none."""
        answer = await self.answer(call)
        return parsed_body(call, answer)

    async def rows(self, call: Call, memory: RowMemory[Any] | None = None) -> Iterator[Any]:
        """The rows of a list answer, each parsed when it is asked for: a big list is never held whole.

        With a `memory` they are its rows instead of parsed values, and what it knows is not parsed again. Anything but
        a list is an error, never an empty list; it may be found out half-way.
        """
        answer = await self.answer(call)
        if answer.cut is not None:
            raise malformed(call, f"it is incomplete, {answer.cut.value}", status=answer.status)
        body, status = answer.body, answer.status
        del answer
        return parsed_rows(call, body, status, memory)

    async def _attempt(self, call: Call, turn: Turn) -> Answer | LiumError:
        await self.limits.enter(turn, on_wait=call.on_wait)
        sent = False
        try:
            if call.before_send is not None:
                call.before_send()
            sent = True
            return self._judge(call, turn, await self.transport.send(call.outgoing))
        except TransportError as error:
            sent = error.sent
            return error
        except LiumError as error:
            return error
        finally:
            self.limits.leave(turn, sent=sent)

    def _judge(self, call: Call, turn: Turn, answer: Answer) -> Answer | LiumError:
        date = read_date(answer.headers) if call.dated else None
        if date is not None:
            self.clock.observe(date, answer.sent_at, answer.answered_at)
        _LOG.debug("%s: %d, %d bytes", call.outgoing.operation, answer.status, len(answer.body))
        if 200 <= answer.status < 300:
            self.limits.accepted(turn)
            if call.repeat is Repeat.READ and answer.cut in (Cut.BROKEN_OFF, Cut.TOO_SLOW):
                message = f"the answer is incomplete, {answer.cut.value}"
                return TransportError(message, sent=True, operation=call.outgoing.operation)
            return answer
        envelope = read_envelope(
            answer.status,
            answer.headers,
            answer.body,
            secrets=(*self._secrets, *call.secrets),
            now=self.clock.now(),
        )
        error = error_from(envelope, operation=call.outgoing.operation)
        if isinstance(error, RateLimitedError):
            self.limits.refused(turn, error.retry_after_s)
        elif not isinstance(error, ServerError):
            self.limits.accepted(turn)
        if isinstance(error, AuthError) and self._key_hint is not None:
            error.hint = self._key_hint
        return error

    def _pause_s(self, call: Call, error: LiumError, failed: int, started_at: float) -> float | None:
        """Seconds until the call is repeated, None when it isn't. After a 429 the limits do the waiting.

        `failed`: how many attempts have failed so far, those that met a limit left out.
        """
        if call.repeat is Repeat.NEVER or call.attempts == 1:
            return None
        if isinstance(error, RateLimitedError):
            elapsed_s = asyncio.get_running_loop().time() - started_at
            return 0.0 if elapsed_s < self.limits.patience_s(call.family) else None
        if call.repeat is Repeat.AFTER_429 or failed >= call.attempts:
            return None
        if not isinstance(error, (ServerError, TransportError)):
            return None
        return max(2.0 ** (failed - 1) + self._random() * 0.5, error.retry_after_s or 0.0)


def _in_short(error: LiumError) -> str:
    return f"the server answers {error.status}" if error.status else error.message


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


def parsed_rows(call: Call, body: bytes, status: int, memory: RowMemory[Any] | None = None) -> Iterator[Any]:
    """The elements of a JSON array one by one. Raises MalformedAnswerError for anything else."""
    if memory is not None:
        memory.begin()
    try:
        text = body.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise malformed(call, "it is not JSON", status=status) from None
    del body  # both at once would be the most that a plan of thousands of pods ever needs
    index = _after_space(text, 0)
    if text[index : index + 1] != "[":
        raise malformed(call, _no_list(text), status=status)
    index = _after_space(text, index + 1)
    if text[index : index + 1] == "]":
        index += 1
    else:
        while True:
            found = None if memory is None else memory.find(text, index)
            if found is not None:
                value, index = found
            else:
                value, index = _element(call, text, index, status, memory)
            yield value
            index = _after_space(text, index)
            mark, index = text[index : index + 1], index + 1
            if mark == "]":
                break
            if mark != ",":
                raise malformed(call, "it is not JSON", status=status)
            index = _after_space(text, index)
    if _after_space(text, index) != len(text):
        raise malformed(call, "it is not JSON", status=status)
    if memory is not None:
        memory.end()


def _element(call: Call, text: str, index: int, status: int, memory: RowMemory[Any] | None) -> tuple[Any, int]:
    """The value at `index`, or the memory's row of it, and where it ends."""
    try:
        value, end = _DECODER.raw_decode(text, index)
    except (ValueError, RecursionError):
        raise malformed(call, "it is not JSON", status=status) from None
    return (value if memory is None else memory.keep(text, index, end, value)), end


def _after_space(text: str, index: int) -> int:
    found = _SPACE.match(text, index)
    return index if found is None else found.end()


def _no_list(text: str) -> str:
    if not text.strip():
        return "it is empty"
    try:
        return f"expected a list, got {json_type(json.loads(text))}"
    except (ValueError, RecursionError):
        return "it is not JSON"


def parsed_body(call: Call, answer: Answer) -> object:
    """A 2xx answer's JSON; MalformedAnswerError for anything else."""
    if answer.cut is not None:
        raise malformed(call, f"it is incomplete, {answer.cut.value}", status=answer.status)
    try:
        return json.loads(answer.body)
    except (ValueError, RecursionError):
        shown = "empty" if not answer.body.strip() else "not JSON"
    raise malformed(call, f"it is {shown}", status=answer.status)


def malformed(call: Call, why: str, *, status: int = 200) -> MalformedAnswerError:
    """The error for a 2xx answer that can't be used."""
    return MalformedAnswerError(
        status,
        message=f"the server's answer can't be used: {why}",
        hint="check that LIUM_BASE_URL is the address of the API",
        operation=call.outgoing.operation,
    )
