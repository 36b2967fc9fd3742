"""Import: something that exists on the account comes under management, and the manifest's part for it is written.

Owns the look that it exists and that nobody else has it: no address of this state, no other state of the directory, no
other lineage's mark. Changes the state alone; the account is only read.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path

from lium_plan.addresses import Address, AddressError, parse
from lium_plan.answers import Imported
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, Severity, error, warning
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.holdings import HELD, Held, Holdings, Stanza, load_holdings
from lium_plan.kinds.protocol import Comparison, Resource
from lium_plan.kinds.registry import kind
from lium_plan.kinds.template.spec import implied_name
from lium_plan.manifest.expand import expand
from lium_plan.manifest.load import load
from lium_plan.manifest.model import Manifest
from lium_plan.operations.connecting import Connection, api_failures, connect
from lium_plan.operations.editing import editing
from lium_plan.operations.known import Known, load_known
from lium_plan.operations.outside import REAL, Outside
from lium_plan.operations.validating import load_manifest
from lium_plan.planning.guards import check_identity
from lium_plan.planning.importing import foreign, held_by
from lium_plan.requests import Sources
from lium_plan.settings import Settings
from lium_plan.state.model import State, new_state


@dataclass(frozen=True, slots=True)
class _Wanted:
    """What the import is to become, by the manifest or by the part that is written for it."""

    resource: Resource
    stanza: Stanza | None
    """None: the manifest declares it already."""


async def import_one(
    settings: Settings,
    sources: Sources,
    address: str,
    id: str,
    *,
    allow_foreign_lineage: bool = False,
    dry_run: bool = False,
    lock_timeout_s: float = 0,
    outside: Outside = REAL,
) -> Imported | None:
    """None when the address has that very thing already.

    Raises `Failure`: 64 for what is no address of something that exists by itself, 1 when the account has no such
    thing or the address is taken, 6 when somebody else has it.
    """
    wanted = _address(address)
    manifest = _manifest(settings, sources)
    unborn = None
    if manifest is not None:
        unborn = new_state(manifest.project, settings.stack, lineage=outside.new_uuid(), salt=outside.random_bytes(32))
    async with connect(settings, outside=outside) as connection:
        known = load_known(settings, outside)
        mine = known.states.get(settings.stack)
        there = None if mine is None else mine.record(wanted)
        if there is not None and there.id == id:
            return None
        if dry_run or (mine is None and unborn is None):
            state = mine or unborn or _no_project(settings)
            return await _import(
                settings, sources, connection, wanted, id, manifest, state, known, allow_foreign_lineage
            )
        async with editing(
            settings,
            "import",
            lock_timeout_s=lock_timeout_s,
            now=connection.client.server_time,
            unborn=unborn,
            outside=outside,
        ) as opened:
            known = load_known(settings, outside)
            found = await _import(
                settings, sources, connection, wanted, id, manifest, opened.state, known, allow_foreign_lineage
            )
            opened.ledger.bind(found.account_id, found.workspace_id)
            opened.ledger.reclaim(id)
            effect = opened.ledger.begin(wanted, "import", {"id": id})
            opened.ledger.done(effect, found.record)
    return found


def _no_project(settings: Settings) -> State:
    message = f"stack {settings.stack} has no state, and there is no manifest that names the project"
    raise Failure(ExitCode.ERROR, (error("no-state", message, hint="`lium-plan init` writes a manifest"),))


def _address(text: str) -> Address:
    try:
        address = parse(text)
    except AddressError as fault:
        raise Failure(ExitCode.USAGE, (error("bad-address", str(fault)),)) from None
    if address.kind not in HELD:
        message = f"{text} can't be imported: it has no id on the account; import its pod"
        raise Failure(ExitCode.USAGE, (error("bad-address", message),))
    return address


def _manifest(settings: Settings, sources: Sources) -> Manifest | None:
    """None where there is none and none was named."""
    try:
        return load_manifest(settings, sources)
    except Failure as failure:
        missing = all(item.code == "no-manifest" for item in failure.diagnostics)
        if missing and sources.files == (".",):
            return None
        raise


async def _import(
    settings: Settings,
    sources: Sources,
    connection: Connection,
    address: Address,
    id: str,
    manifest: Manifest | None,
    state: State,
    known: Known,
    allow_foreign_lineage: bool,
) -> Imported:
    _refuse_taken(state, address, id)
    with api_failures("look at the account"):
        me = await connection.client.me()
        check_identity(state, me.id, me.workspace_id)
        holdings = load_holdings(address.kind, connection.client, me.id)
        everything = await holdings.everything()
    held = _the_one(everything, address.kind, id)
    _refuse_owned(held, state, known, settings.stack, allow=allow_foreign_lineage)
    wanted = _wanted(settings, sources, manifest, state, address, held, holdings)
    comparison = _comparison(connection, state)
    record = holdings.record(held, wanted.resource, comparison)
    comparison = replace(comparison, records={**state.records, record.key: record})
    change = kind(record.kind).compare(wanted.resource, record, held.observation, comparison)
    return Imported(
        address=str(address),
        record=record,
        name=held.name,
        price_per_hour_usd=held.price_per_hour_usd,
        stanza=wanted.stanza,
        change=None if change.verb is None else change,
        account_id=me.id,
        workspace_id=me.workspace_id,
        diagnostics=tuple(_notes(held, wanted, state)),
    )


def _comparison(connection: Connection, state: State) -> Comparison:
    return Comparison(
        now=connection.client.server_time(),
        salt=state.salt,
        resolve=lambda reference: None,
        verbs={},
        records=state.records,
    )


# --- who has it ----------------------------------------------------------------------------------------------


def _refuse_taken(state: State, address: Address, id: str) -> None:
    there = state.record(address)
    if there is not None:
        hint = "import under another address, or release that one first: lium-plan state rm ADDRESS"
        taken = error("address-taken", f"{address} is {there.id} already", address=str(address), hint=hint)
        raise Failure(ExitCode.ERROR, (taken,))
    if any(effect.address == address for effect in state.open.values()):
        waiting = error("effect-open", "an effect here has no recorded outcome", address=str(address), hint=_SETTLE)
        raise Failure(ExitCode.ERROR, (waiting,))


_SETTLE = "`lium-plan apply` settles it first"


def _the_one(everything: tuple[Held, ...], kind_name: str, id: str) -> Held:
    held = next((item for item in everything if item.id == id), None)
    if held is None:
        close = get_close_matches(id, [item.id for item in everything], 1, 0.8)
        hint = f"did you mean {close[0]}?" if close else "`lium-plan orphans` lists what is there, with ids"
        raise Failure(ExitCode.ERROR, (error("no-such-id", f"the account has no {kind_name} {id}", hint=hint),))
    if held.leaving:
        raise Failure(ExitCode.ERROR, (error("being-deleted", f"{held.name} ({id}) is being deleted"),))
    return held


def _refuse_owned(held: Held, state: State, known: Known, stack: str, *, allow: bool) -> None:
    what, mark = f"{held.name} ({held.id})", held.lineage_mark
    everybody = replace(known, states={**known.states, stack: state})
    holder = everybody.holder(held)
    if holder is not None:
        refused = held_by(what, holder)
        if holder.stack == stack and holder.address is not None:
            refused = replace(refused, hint=f"to move it: lium-plan state mv '{holder.address}' ADDRESS")
        raise Failure(ExitCode.UNSAFE, (refused,))
    if mark is not None and everybody.by_mark(mark) is None and not allow:
        raise Failure(ExitCode.UNSAFE, (foreign(what, mark),))


# --- what it becomes -----------------------------------------------------------------------------------------


def _wanted(
    settings: Settings,
    sources: Sources,
    manifest: Manifest | None,
    state: State,
    address: Address,
    held: Held,
    holdings: Holdings,
) -> _Wanted:
    """The declared resource; else that of the part of a manifest that is written for what is there."""
    declared = None if manifest is None else _expanded(manifest, state, address).resources.get(address)
    if declared is not None:
        return _Wanted(declared, None)
    if address.kind == "credential":
        message = f"the manifest declares no templates.{address.name} with `registry_auth`, whose login this is to be"
        hint = "write `registry_auth: {username: …, password: …}` into that template first"
        raise Failure(ExitCode.ERROR, (error("not-declared", message, address=str(address), hint=hint),))
    if manifest is not None and manifest.block(f"{address.head}s", address.name) is not None:
        what = "has no such member: add it to `nodes`" if address.kind == "pod" else "is somebody else's there (`id`)"
        message = f"the manifest declares {address.head}.{address.name}, which {what}"
        raise Failure(ExitCode.ERROR, (error("not-declared", message, address=str(address)),))
    stanza = _with_images(holdings.stanza(held, address, state.records), state)
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / "lium.yaml"
        written.write_text(_whole(stanza, manifest, state), encoding="utf-8")
        files: tuple[str | Path, ...] = (written,) if manifest is None else (*sources.files, written)
        try:
            merged = load(
                files,
                stack=settings.stack,
                variables=sources.variables,
                var_files=sources.var_files,
                environ=settings.environ,
            )
            return _Wanted(_expanded(merged, state, address).resources[address], stanza)
        except Failure as failure:
            raise Failure(failure.exit_code, tuple(_unwritable(failure, address))) from None


def _with_images(stanza: Stanza, state: State) -> Stanza:
    """A template that a fleet's `image:` made is declared nowhere: the image is named in its place."""
    sections = {name: dict(blocks) for name, blocks in stanza.items()}
    fleets = sections.get("fleets", {})
    for name, block in fleets.items():
        record = state.records.get(f"template.{block.get('template')}")
        image = None if record is None else str(record.inputs.get("image"))
        if record is not None and image is not None and record.address.name == implied_name(image):
            rest = {key: value for key, value in block.items() if key != "template"}
            fleets[name] = {**rest, "image": image}
    return sections


def _unwritable(failure: Failure, address: Address) -> Iterator[Diagnostic]:
    """The file that they are found in exists for this moment only."""
    for item in failure.diagnostics:
        if item.severity is Severity.ERROR:
            message = f"what is there can't be written beside the rest of the manifest: {item.message}"
            yield error(item.code, message, address=str(address), hint=item.hint)


def _whole(stanza: Stanza, manifest: Manifest | None, state: State) -> str:
    """The part as a file that can be read; without a manifest beside it, with what it refers to."""
    if manifest is not None:
        return json.dumps(stanza)
    sections = {name: dict(blocks) for name, blocks in stanza.items()}
    for block in stanza.get("fleets", {}).values():
        for section, field in (("templates", "template"), ("volumes", "volume")):
            name = block.get(field)
            record = state.records.get(f"{field}.{name}")
            if record is not None:
                sections.setdefault(section, {})[str(name)] = {"id": record.id}
    return json.dumps({"version": 1, "project": state.project, **sections})


def _expanded(manifest: Manifest, state: State, address: Address) -> Desired:
    """With the members that live in this state, and the one that is imported."""
    members: dict[str, tuple[str, ...]] = {}
    for name, written in manifest.members().items():
        living = [
            record.address.member
            for record in state.records.values()
            if record.kind == "pod" and record.address.name == name and record.address.member is not None
        ]
        wanted = [address.member] if address.kind == "pod" and address.name == name and address.member else []
        members[name] = tuple(dict.fromkeys((*written, *living, *wanted)))
    return expand(manifest, stack=manifest.stack, members=members)


def _notes(held: Held, wanted: _Wanted, state: State) -> list[Diagnostic]:
    notes = []
    if wanted.stanza is not None and held.kind == "template" and held.row.environment:
        names = ", ".join(sorted(held.row.environment))
        message = f"its environment ({names}) is kept as it is; write it into `env` before you change anything of it"
        notes.append(warning("environment", message, address=str(wanted.resource.address)))
    login = held.row.docker_credential_id if held.kind == "template" else None
    if login is not None and not any(record.id == login for record in state.records.values()):
        message = f"it pulls its image with login {login}, which is not managed here"
        notes.append(warning("login", message, address=str(wanted.resource.address)))
    return notes
