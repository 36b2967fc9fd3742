"""A lost state, built anew from what the account shows and the manifest declares (`state recover`).

Owns the match of names with addresses: a pod or volume is taken only where its readable name fits exactly one
address, and that address only it; everything else is named with its cost, for `import`. Templates and their logins
come from the pods that use them. Refuses where a state with anything in it can still be read: what that one lacks
is the matter of `orphans`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal

from lium_plan.addresses import Address, parse
from lium_plan.answers import Orphan, Recovered, Taken
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, counted, error, warning
from lium_plan.kinds.credential.spec import address_for
from lium_plan.kinds.desired import Desired, Move
from lium_plan.kinds.holdings import HELD, Held, Holdings, load_holdings
from lium_plan.kinds.protocol import Comparison, Record, Resource
from lium_plan.kinds.registry import kind
from lium_plan.manifest.expand import expand
from lium_plan.marks import pod_tail, scope_mark
from lium_plan.money import rate
from lium_plan.operations.connecting import Connection, api_failures, connect
from lium_plan.operations.editing import owner_of, told_of
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.moving import targets
from lium_plan.requests import Sources
from lium_plan.settings import Settings
from lium_plan.state import codec
from lium_plan.state.model import State, new_state
from lium_plan.state.store import Store
from lium_plan.together import together


@dataclass(frozen=True, slots=True)
class _Account:
    """What is there of this project and stack, under one lineage; templates carry no scope, so those of the lineage."""

    account_id: str
    workspace_id: str | None
    mark: str
    held: Mapping[str, tuple[Held, ...]]
    """By kind."""
    holdings: Mapping[str, Holdings]


async def recover(
    settings: Settings,
    sources: Sources,
    *,
    lineage: str | None,
    dry_run: bool,
    lock_timeout_s: float = 0,
    outside: Outside = REAL,
) -> Recovered:
    """Raises `Failure`: 1 when there is a state, or nothing to recover; 6 when several lineages are there to choose."""
    manifest = load_manifest(settings, sources)
    store = outside.open_store(settings)
    _refuse_existing(store)
    async with connect(settings, outside=outside) as connection:
        account = await _look(connection, scope_mark(manifest.project, settings.stack), lineage)
        numbers = tuple(_numbers(account.held["pod"]))
        members = {name: tuple(dict.fromkeys((*found, *numbers))) for name, found in manifest.members().items()}
        desired = expand(manifest, stack=settings.stack, members=members)
        state = replace(
            new_state(
                manifest.project,
                settings.stack,
                lineage=_lineage(account.mark, outside.new_uuid()),
                salt=outside.random_bytes(32),
            ),
            serial=1,
            account_id=account.account_id,
            workspace_id=account.workspace_id,
        )
        building = _Building(desired, account, state, connection)
        building.take_all()
        state = replace(state, records=dict(sorted(building.records.items())))
        found = Recovered(state.lineage, tuple(_taken(state)), tuple(building.left), tuple(building.diagnostics))
        if dry_run:
            return found
        owner = owner_of("state recover", outside)
        with await store.lock(owner, timeout_s=lock_timeout_s):
            _refuse_existing(store)
            told = told_of("recover", owner, replace(state, records={}), state)
            return replace(found, kept=store.replace(state, told))


def _refuse_existing(store: Store) -> None:
    """A state that can be read and holds something is not lost."""
    try:
        state = store.load().state
    except codec.Unreadable:
        return
    if state is not None and (state.records or state.open):
        message = f"stack {state.stack} has a state that can be read, with {counted(len(state.records), 'resource')}"
        hint = "what the account has beside it: lium-plan orphans; to take one of those: lium-plan import ADDRESS ID"
        raise Failure(ExitCode.ERROR, (error("state-exists", message, hint=hint),))


def _lineage(mark: str, uuid: str) -> str:
    """A new identity under the old mark: names on the account go on being ours, and old saved plans are stale."""
    return mark + uuid[len(mark) :]


async def _look(connection: Connection, scope: str, lineage: str | None) -> _Account:
    with api_failures("look at the account"):
        me = await connection.client.me()
        holdings = {name: load_holdings(name, connection.client, me.id) for name in HELD}
        lists = await together(*(item.everything() for item in holdings.values()))
    ours = [held for items in lists for held in items if held.scope_mark == scope and not held.leaving]
    mark = _choose(ours, lineage)
    by_kind = {
        name: tuple(
            held
            for held in items
            if name == "credential" or (held.lineage_mark == mark and held.scope_mark in (scope, None))
        )
        for name, items in zip(holdings, lists, strict=True)
    }
    return _Account(me.id, me.workspace_id, mark, by_kind, holdings)


def _choose(ours: Iterable[Held], lineage: str | None) -> str:
    found: dict[str, list[Held]] = defaultdict(list)
    for held in ours:
        if held.lineage_mark is not None:
            found[held.lineage_mark].append(held)
    asked = None if lineage is None else lineage.replace("-", "").lower()[:6]
    if asked is not None and asked in found:
        return asked
    if not found:
        message = "the account shows nothing of this project and stack: there is nothing to recover"
        raise Failure(
            ExitCode.ERROR,
            (error("nothing-to-recover", message, hint="is it the right account? `lium-plan doctor` says"),),
        )
    told = "; ".join(
        f"{mark}: {counted(len(items), 'thing')}, {_cost_of(items)}" for mark, items in sorted(found.items())
    )
    if asked is not None:
        raise Failure(ExitCode.ERROR, (error("no-such-lineage", f"nothing carries {asked}; there are {told}"),))
    if len(found) > 1:
        message = f"several states of this project and stack made things: {told}"
        raise Failure(ExitCode.UNSAFE, (error("several-lineages", message, hint="choose one with --lineage HEX"),))
    return next(iter(found))


def _cost_of(items: Iterable[Held]) -> str:
    return rate(sum((item.price_per_hour_usd or Decimal(0) for item in items), Decimal(0)))


# --- names to addresses --------------------------------------------------------------------------------------


def _numbers(pods: Iterable[Held]) -> Iterator[str]:
    """Of a fleet that is counted, the numbers that live count too, whatever is asked for now. One that no pod of the
    fleet carries is an address at which nothing is found."""
    for held in pods:
        member = (held.tail or "").rpartition("-")[2]
        if member.isdigit() and str(int(member)) == member:
            yield member


def _pod_tail(address: Address) -> str:
    return pod_tail(address.name, str(address.member))


def _former(address: Address, moved: tuple[Move, ...]) -> Iterator[Address]:
    """The addresses that its thing may have been made under, by `moved`: its name on the account is still that one."""
    target = targets(moved)
    for entry in moved:
        head, _, name = entry.source.partition(".")
        source = parse(entry.source) if "[" in name else Address.of(head, name, address.member)
        if source.kind == address.kind and source != address and target(source) == address:
            yield source


@dataclass(slots=True)
class _Building:
    """The records so far, what was left, and what is to be said."""

    desired: Desired
    account: _Account
    state: State
    connection: Connection
    records: dict[str, Record] = field(default_factory=dict)
    left: list[Orphan] = field(default_factory=list)
    diagnostics: list[Diagnostic] = field(default_factory=list)

    def take_all(self) -> None:
        """Volumes and templates first: a pod's record names the addresses of what it uses."""
        pods = self._matched("pod", self._pod_tails)
        self._take(self._matched("volume", self._volume_tails))
        self._take_templates(pods)
        self._take(pods)
        if any(address.kind == "bootstrap" for address in self.desired.resources):
            message = "bootstraps and tasks count as not run: the next apply runs them"
            self.diagnostics.append(warning("not-run", message))

    def _pod_tails(self, address: Address) -> Iterator[str]:
        return map(_pod_tail, (address, *_former(address, self.desired.moved)))

    def _volume_tails(self, address: Address) -> Iterator[str]:
        yield str(self._resource(address).spec.name)
        # Where it had no name of its own, it was called as its address was then.
        yield from (former.name for former in _former(address, self.desired.moved))

    def _matched(self, name: str, tails_of: Callable[[Address], Iterator[str]]) -> list[tuple[Held, Address]]:
        addresses: dict[str, list[Address]] = defaultdict(list)
        for address in self.desired.resources:
            if address.kind == name:
                for tail in dict.fromkeys(tails_of(address)):
                    addresses[tail].append(address)
        fits = [(held, addresses.get(held.tail or "", [])) for held in self.account.held[name]]
        # By address, not by name: what moved may stand beside what was made in its place since.
        claims = Counter(fitting[0] for _, fitting in fits if len(fitting) == 1)
        matched = []
        for held, fitting in fits:
            if len(fitting) == 1 and claims[fitting[0]] == 1:
                matched.append((held, fitting[0]))
            else:
                self._leave(held, _why_left(fitting, claims))
        return matched

    def _resource(self, address: Address) -> Resource:
        return self.desired.resources[address]

    def _leave(self, held: Held, why: str) -> None:
        orphan = Orphan(
            held.kind, held.id, held.name, self.state.project, self.state.stack, held.price_per_hour_usd, held.since
        )
        self.left.append(orphan)
        cost = "" if held.price_per_hour_usd is None else f", for {rate(held.price_per_hour_usd)}"
        message = f"{held.kind} {held.name} ({held.id}) is left{cost}: {why}"
        self.diagnostics.append(
            warning(
                "left", message, hint=f"take it: lium-plan import ADDRESS {held.id}; or: lium-plan orphans --delete"
            )
        )

    def _take(self, matched: Iterable[tuple[Held, Address]]) -> None:
        for held, address in matched:
            self._put(held, address)

    def _put(self, held: Held, address: Address, *, deposed: bool = False) -> None:
        record = self.account.holdings[held.kind].record(held, self._resource(address), self._comparison())
        record = replace(record, deposed=deposed)
        self.records[record.key] = record

    def _comparison(self) -> Comparison:
        return Comparison(
            now=self.connection.client.server_time(),
            salt=self.state.salt,
            resolve=lambda reference: None,
            verbs={},
            records=self.records,
        )

    # --- templates and logins ------------------------------------------------------------------------------------

    def _take_templates(self, pods: Iterable[tuple[Held, Address]]) -> None:
        """At each address the template that most of its pods use; what others still use is on its way out there."""
        there = {held.id: held for held in self.account.held["template"]}
        used: dict[Address, Counter[str]] = defaultdict(Counter)
        for pod, address in pods:
            template: Address | None = self._resource(address).spec.template
            if template is not None and pod.row.template_id in there:
                used[template][pod.row.template_id] += 1
        taken: set[str] = set()
        for address, counts in used.items():
            for position, (id, _) in enumerate(sorted(counts.items(), key=lambda item: (-item[1], item[0]))):
                self._take_login(there[id], address)
                self._put(there[id], address, deposed=position > 0)
                taken.add(id)
        for held in there.values():
            if held.id not in taken and not self._take_unused(held):
                self._leave(held, "no pod uses it, and no template of the manifest is the same")

    def _take_unused(self, held: Held) -> bool:
        """One that a lost apply made and no pod uses yet: taken where the manifest declares exactly it."""
        for address in self.desired.resources:
            if address.kind != "template" or str(address) in self.records:
                continue
            before = dict(self.records)
            self._take_login(held, address)
            self._put(held, address)
            record = self.records[str(address)]
            if not kind("template").compare(self._resource(address), record, None, self._comparison()).verb:
                return True
            self.records = before
        return False

    def _take_login(self, held: Held, template: Address) -> None:
        login = address_for(template.name)
        if str(login) in self.records or login not in self.desired.resources:
            return
        id = held.row.docker_credential_id
        found = next((item for item in self.account.held["credential"] if item.id == id), None)
        if found is not None:
            self._put(found, login)


def _why_left(fitting: list[Address], claims: Counter[Address]) -> str:
    if not fitting:
        return "its name fits no address of the manifest"
    if len(fitting) > 1:
        return f"its name fits {' and '.join(str(address) for address in fitting)}"
    return f"{claims[fitting[0]]} carry the name of {fitting[0]}"


def _taken(state: State) -> Iterator[Taken]:
    for record in sorted(state.records.values(), key=lambda item: (item.address, item.deposed)):
        price = kind(record.kind).price_per_hour_usd(record)
        yield Taken(record.key, record.kind, str(record.id), record.status, price or None)
