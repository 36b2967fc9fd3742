"""The Lium API as methods: one per endpoint, each with exactly one meaning.

    async with LiumClient(base_url, api_key) as lium:
        for pod in await lium.pods(): ...

Owns paths, parameters and the rows' types. Refuses to compose: a lost rent, a pod that must be proved gone, a
template to be shared are the caller's. Every method raises `LiumError` (see `errors.py`) and nothing of the HTTP
library's.

What is repeated inside: reads, up to three times, and so whatever sets a pod's end, which may be done twice; other
changes only after a 429, which was not executed; what creates something never, since a server may refuse what it has
done. Waits for rate limits happen inside and can be cancelled at once.
"""

from __future__ import annotations

import os
import random as random_module
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, date, datetime
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from lium_plan import __version__
from lium_plan.lium.calls import (
    ATTEMPTS,
    Call,
    Caller,
    Repeat,
    ServerClock,
    malformed,
    parsed_body,
)
from lium_plan.lium.envelope import is_replayed
from lium_plan.lium.errors import MalformedAnswerError, NotFoundError
from lium_plan.lium.fields import as_mapping, as_time, as_uuid, json_type
from lium_plan.lium.limits import Limits, Priority
from lium_plan.lium.models import (
    Account,
    AccountEvent,
    Credential,
    Deletion,
    Pod,
    PublicFeed,
    RentAnswer,
    RowError,
    SshKey,
    Statement,
    Template,
    Version,
    Volume,
)
from lium_plan.lium.requests import environment_values, item, parameter, read, segment, write
from lium_plan.lium.rows import RowMemory
from lium_plan.lium.transport import AsyncTransport, Transport
from lium_plan.lium.windows import Family

_Row = TypeVar("_Row")


class LiumClient:
    """One account at one address. An async context manager; belongs to the event loop it is used in.

    `api_key` None sends none: the public routes still answer. `transport` stands in for the network. `wall` is the
    local clock, used until the first answer tells the server's. `key_hint` is the advice for a key that the server
    refuses: it can't know where that came from. Raises LiumConfigError for an address or key that can't be used.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | None,
        *,
        source: str = "cli",
        limits: Limits | None = None,
        transport: AsyncTransport | None = None,
        random: Callable[[], float] = random_module.random,
        wall: Callable[[], datetime] = lambda: datetime.now(UTC),
        timeout_s: float = 30.0,
        environ: Mapping[str, str] | None = None,
        key_hint: str | None = None,
    ) -> None:
        headers = {
            "Accept": "application/json",
            "User-Agent": f"lium-plan/{__version__}",
            "X-Source": source,
            "X-Lium-Client-Version": __version__,
        }
        self._transport = Transport(
            base_url,
            api_key,
            headers=headers,
            transport=transport,
            timeout_s=timeout_s,
            environ=os.environ if environ is None else environ,
        )
        self.limits = limits if limits is not None else Limits(random=random)
        self._caller = Caller(
            self._transport,
            self.limits,
            clock=ServerClock(wall),
            random=random,
            secrets=(api_key,) if api_key else (),
            key_hint=key_hint,
        )
        self._pods_seen = {True: RowMemory(Pod.from_row), False: RowMemory(partial(Pod.from_row, hosts=False))}

    def __repr__(self) -> str:
        return f"<LiumClient of {self._transport.base_url}>"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections."""
        await self._transport.aclose()

    @property
    def changes_sent(self) -> int:
        """How many requests were sent that may have changed something, whatever became of their answers."""
        return self._transport.changes_sent

    def server_time(self) -> datetime:
        """The server's now, aware UTC, from the `Date` of its answers; the local clock's before the first one."""
        return self._caller.clock.now()

    @property
    def server_time_known(self) -> bool:
        """Whether any answer has told the server's time yet."""
        return self._caller.clock.known

    def hide(self, secrets: Iterable[str]) -> None:
        """What the server knows and may repeat in any of its answers is not to be seen in an error."""
        self._caller.hide(secrets)

    # What exists and who we are

    async def version(self) -> Version:
        """What the server can do (contract §2.1)."""
        return await self._one(read("version"), Version.from_row)

    async def me(self) -> Account:
        """The key's account (contract §2.14). AuthError: bad key; ScopeError: the key lacks `read`."""
        return await self._one(read("users/me"), Account.from_row)

    async def public_nodes(self) -> PublicFeed:
        """The public feed (contract §2.2), at most a minute old. No key is sent."""
        call = read("public/v1/nodes", with_key=False, dated=False)
        body = as_mapping(await self._caller.json(call))
        nodes = body.get("nodes")
        if not isinstance(nodes, list):
            raise malformed(call, f"`nodes` should be a list, not {json_type(nodes)}")
        rows = tuple(row for row in nodes if isinstance(row, dict))
        return PublicFeed(generated_at=as_time(body.get("generated_at")), nodes=rows)

    async def executors(self, **filters: str | int | float | bool) -> tuple[Mapping[str, object], ...]:
        """Rows of the nodes that can be rented now (contract §2.3.1, §3.1), with `view=summary` unless given."""
        given = {"view": "summary", **filters}
        call = read("executors", params=tuple((name, parameter(value)) for name, value in given.items()))
        return tuple(row for row in await self._caller.rows(call) if isinstance(row, dict))

    # Pods

    async def rent(
        self,
        node_id: str,
        body: bytes,
        key: str,
        *,
        urgency: float = 0.0,
        before_send: Callable[[], object] | None = None,
    ) -> RentAnswer:
        """Rent (contract §2.4). Sent once and never repeated here; the body leaves byte for byte as given.

        `before_send` runs after any wait for the rate limit and right before the bytes leave, the place for a last
        look at the price; what it raises calls the rent off. `classify_refusal` says what a LiumError means. A 2xx
        that names no pod is an answer with `pod_id` None: the pod may exist.
        """
        call = write(
            "POST",
            f"executors/{segment(node_id)}/rent",
            family=Family.RENT,
            content=body,
            headers={"Idempotency-Key": key},
            repeat=Repeat.NEVER,
            priority=Priority.START,
            urgency=urgency,
            before_send=before_send,
        )
        answer = await self._caller.answer(call)
        try:
            row = as_mapping(parsed_body(call, answer))
        except MalformedAnswerError:
            row = {}
        named = None if row.get("success") is False else as_uuid(row.get("pod_id")) or as_uuid(row.get("id"))
        return RentAnswer(pod_id=named, replayed=is_replayed(answer.headers))

    async def pods(self, *, attempts: int = ATTEMPTS, hosts: bool = True) -> tuple[Pod, ...]:
        """Every pod the key may see (contract §2.7.1). A failed list is an error, never an empty one.

        Without `hosts` the rows of hosts (but for their addresses) and templates are left out.
        """
        return await self._many_again(read("pods", attempts=attempts), self._pods_seen[hosts])

    async def pod(self, pod_id: str) -> Pod:
        """One pod. NotFoundError once it is deleted, and at times while the list still shows it (contract §2.7.2)."""
        return await self._one(item("GET", "pods", pod_id), Pod.from_row)

    async def delete_pod(self, pod_id: str) -> Deletion:
        """Ask for a pod's end (contract §2.7.3). Asynchronous: an answer is no proof. ConflictError: again later."""
        return await self._delete("pods", pod_id)

    async def schedule_removal(self, pod_id: str, at: datetime) -> None:
        """Have the server remove a pod at `at` (aware); repeating is safe (contract §2.7.6)."""
        if at.tzinfo is None:
            raise ValueError("`at` must be aware")
        moment = at.astimezone(UTC).replace(tzinfo=None).isoformat(timespec="seconds") + "Z"
        body = {"removal_scheduled_at": moment}
        idempotent, free = Repeat.IDEMPOTENT, Priority.FREE
        call = item("POST", "pods", pod_id, "schedule-removal", json=body, repeat=idempotent, priority=free)
        await self._caller.answer(call)

    async def cancel_removal(self, pod_id: str) -> Deletion:
        """Take a scheduled removal back (contract §2.7.6)."""
        return await self._delete("pods", pod_id, "schedule-removal", repeat=Repeat.IDEMPOTENT)

    async def switch_template(self, pod_id: str, template_id: str) -> None:
        """Restart a pod from another template, on its node and at its price (contract §2.7.5)."""
        body = {"template_id": template_id}
        await self._caller.answer(item("PUT", "pods", pod_id, "switch-template", json=body))

    async def reboot(self, pod_id: str, *, volume_id: str | None = None) -> None:
        """Replace a pod's container, attaching a volume where one is given (contract §2.7.4)."""
        body: dict[str, object] = {"volume_id": volume_id} if volume_id else {}
        await self._caller.answer(item("POST", "pods", pod_id, "reboot", json=body))

    async def pod_events(self, pod_id: str) -> tuple[AccountEvent, ...]:
        """A pod's history, oldest first, also after its end (contract §2.8.2). NotFoundError on old servers."""
        return await self._many(item("GET", "pods", pod_id, "events"), AccountEvent.from_row)

    async def events(
        self, *, since: datetime | None = None, limit: int | None = None, pod_id: str | None = None
    ) -> tuple[AccountEvent, ...]:
        """The account's history, newest first (contract §2.8.1); `limit` 1 to 1000. 403 without the `read` scope."""
        params: list[tuple[str, str]] = []
        if since is not None:
            params.append(("since", since.astimezone(UTC).replace(tzinfo=None).isoformat() + "Z"))
        if limit is not None:
            params.append(("limit", str(limit)))
        if pod_id is not None:
            params.append(("pod_id", pod_id))
        return await self._many(read("users/me/events", params=tuple(params)), AccountEvent.from_row)

    async def statement(self, pod_id: str) -> Statement:
        """A pod's bill, also after its end (contract §2.7.9)."""
        call = item("GET", "pods", pod_id, "statement")
        statement = await self._one(call, Statement.from_row)
        if statement.pod_id != pod_id:
            raise malformed(call, "it is another pod's statement")
        return statement

    async def statements(self, since: date) -> tuple[Statement, ...]:
        """The bills of all pods of the account from a day on, those that are gone too (contract §2.14)."""
        call = read("billing/statement", params=(("start_day", since.isoformat()),))
        body = await self._caller.json(call)
        rows = as_mapping(body).get("pods")
        if not isinstance(rows, list):
            raise malformed(call, "it has no list of pods")
        try:
            return tuple(Statement.from_row(row) for row in rows)
        except RowError as error:
            why = str(error)
        raise malformed(call, why)

    # Templates

    async def templates(self) -> tuple[Template, ...]:
        """Every template the account can see, the platform's too (contract §2.9.1)."""
        return await self._many(read("templates"), Template.from_row)

    async def create_template(
        self,
        body: Mapping[str, object],
        *,
        urgency: float = 0.0,
        before_send: Callable[[], object] | None = None,
        on_wait: Callable[[float], object] | None = None,
    ) -> Template:
        """Create a template from the fields of contract §2.9.3. Waits for the account's limit, the urgent ones less.

        `before_send` as with `rent`. Like it, never repeated inside. `on_wait` is told how many seconds the limit keeps
        it, about.
        """
        call = write(
            "POST",
            "templates",
            family=Family.TEMPLATE_CREATE,
            json=body,
            repeat=Repeat.NEVER,
            secrets=environment_values(body),
            urgency=urgency,
            before_send=before_send,
            on_wait=on_wait,
        )
        return await self._one(call, Template.from_row)

    async def delete_template(self, template_id: str) -> Deletion:
        """Delete a template; 400 while any pod refers to it, one in DELETING too (contract §2.9.6)."""
        return await self._delete("templates", template_id)

    # Volumes

    async def volumes(self) -> tuple[Volume, ...]:
        """The account's volumes (contract §2.10)."""
        return await self._many(read("volumes"), Volume.from_row)

    async def create_volume(
        self,
        name: str,
        description: str = "",
        *,
        before_send: Callable[[], object] | None = None,
        on_wait: Callable[[float], object] | None = None,
    ) -> Volume:
        """Create a volume; names need not be unique. `before_send` and `on_wait` as with `create_template`."""
        body = {"name": name, "description": description}
        family, never = Family.VOLUME_CREATE, Repeat.NEVER
        call = write(
            "POST", "volumes", family=family, json=body, repeat=never, before_send=before_send, on_wait=on_wait
        )
        return await self._one(call, Volume.from_row)

    async def update_volume(self, volume_id: str, *, name: str | None = None, description: str | None = None) -> None:
        """Rename or redescribe a volume; None leaves a field as it is."""
        body = {"name": name, "description": description}
        given = {field: value for field, value in body.items() if value is not None}
        await self._caller.answer(item("PUT", "volumes", volume_id, json=given))

    async def delete_volume(self, volume_id: str) -> Deletion:
        """Delete a volume and its content; refused while a pod holds it."""
        return await self._delete("volumes", volume_id)

    # Registry credentials: the collection's path ends in a slash, an item's does not (contract §2.11)

    async def credentials(self) -> tuple[Credential, ...]:
        """The account's registry logins, passwords included (contract §2.11)."""
        listed = await self._many(read("docker-credentials/"), Credential.from_row)
        for credential in listed:
            self._hide_login(credential.username, credential.password)
        return listed

    async def create_credential(
        self,
        username: str,
        password: str,
        *,
        before_send: Callable[[], object] | None = None,
        on_wait: Callable[[float], object] | None = None,
    ) -> Credential:
        """Create a registry login. Not idempotent, and it has no name: after a lost answer compare the ids.

        `before_send` and `on_wait` as with `create_template`.
        """
        body = {"docker_username": username, "docker_password": password}
        self._hide_login(username, password)
        call = write(
            "POST",
            "docker-credentials/",
            family=Family.CREDENTIAL_CREATE,
            json=body,
            repeat=Repeat.NEVER,
            secrets=(password,),
            before_send=before_send,
            on_wait=on_wait,
        )
        return await self._one(call, Credential.from_row)

    async def update_credential(self, credential_id: str, *, username: str, password: str) -> None:
        """Replace a login's user name and password in place."""
        body = {"docker_username": username, "docker_password": password}
        self._hide_login(username, password)
        call = item("PUT", "docker-credentials", credential_id, json=body, secrets=(password,))
        await self._caller.answer(call)

    def _hide_login(self, username: str, password: str) -> None:
        """A refusal of a template may quote the login it pulls with, as registries are sent it: `user:password`."""
        if password:
            self.hide((password, f"{username}:{password}"))

    async def delete_credential(self, credential_id: str) -> Deletion:
        """Delete a login; a template that refers to it goes first."""
        return await self._delete("docker-credentials", credential_id)

    # Account keys

    async def ssh_keys(self) -> tuple[SshKey, ...]:
        """The account's SSH keys (contract §2.12). A pod gets the keys of its rent, not these."""
        return await self._many(read("ssh-keys"), SshKey.from_row)

    # Reading answers

    async def _delete(
        self, collection: str, item_id: str, tail: str = "", *, repeat: Repeat = Repeat.AFTER_429
    ) -> Deletion:
        # No body: the edge refuses some (contract §2.7.3). Any 2xx body will do, an empty one too.
        try:
            await self._caller.answer(item("DELETE", collection, item_id, tail, repeat=repeat))
        except NotFoundError:
            return Deletion.GONE
        return Deletion.ACCEPTED

    async def _one(self, call: Call, row: Callable[[object], _Row]) -> _Row:
        body = await self._caller.json(call)
        try:
            return row(body)
        except RowError as error:
            why = str(error)
        raise malformed(call, why)

    async def _many_again(self, call: Call, memory: RowMemory[_Row]) -> tuple[_Row, ...]:
        rows = await self._caller.rows(call, memory)
        try:
            return tuple(rows)
        except RowError as error:
            why = str(error)
        raise malformed(call, why)

    async def _many(self, call: Call, row: Callable[[object], _Row]) -> tuple[_Row, ...]:
        rows = await self._caller.rows(call)
        try:
            return tuple(row(value) for value in rows)
        except RowError as error:
            why = str(error)
        raise malformed(call, why)
