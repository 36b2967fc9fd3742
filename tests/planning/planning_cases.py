"""Planning cases: a manifest, a state and what the API shows, as short rows; README.md beside the cases explains them.

A case needs no Python: this module turns its rows into the values that the planner takes, and the plan into lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml
from planning_markets import NOW, feed, offer

from lium_plan.addresses import Address, parse
from lium_plan.kinds.desired import Desired
from lium_plan.kinds.digests import content_digest
from lium_plan.kinds.pod.facts import offer_facts
from lium_plan.kinds.pod.offers import Offer, Requirement
from lium_plan.kinds.protocol import Marked, Observation, OpenEffect, Presence, Record, Resource, Verb
from lium_plan.kinds.registry import kind
from lium_plan.manifest.expand import expand, outline
from lium_plan.manifest.load import load
from lium_plan.marks import Marks, lineage_mark, scope_mark, volume_name
from lium_plan.planning.bookkeeping import begin
from lium_plan.planning.decisions import comparison_with
from lium_plan.planning.late import at_their_places, with_late
from lium_plan.planning.members import completed_fleets, completions_by_records, members_now
from lium_plan.planning.moving import relocate, targets
from lium_plan.planning.observed import Found, Holder, Late, Observed, Pace
from lium_plan.planning.plan import Action, Plan
from lium_plan.planning.planner import make_plan
from lium_plan.planning.rents import due_at, host_of, ttl_s
from lium_plan.planning.situation import situation
from lium_plan.requests import PlanRequest
from lium_plan.state.entries import Completion
from lium_plan.state.model import State, new_state
from lium_plan.state.values import freeze_record

FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The same in C, where the library was built with it: ten times as fast."""
CASES = Path(__file__).parent.parent / "cases" / "planning"
SALT = b"\x01" * 32
LINEAGE = "11111111-1111-4111-8111-111111111111"
KEYS = {
    "case", "manifest", "files", "applied", "state", "observed", "open", "others", "completions", "feed", "account",
    "request", "paces", "refreshed", "imports", "late", "released", "expect",
}  # fmt: skip


def load_cases() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted(CASES.glob("*.yaml")):
        for case in yaml.load(path.read_text(), FAST):
            unknown = set(case) - KEYS
            assert not unknown, f"{path.name}: {case.get('case')}: unknown keys {unknown}"
            yield f"{path.stem}: {case['case']}", case


@dataclass(frozen=True)
class Given:
    """A case as values."""

    desired: Desired | None
    state: State | None
    observed: Observed
    request: PlanRequest
    members: Mapping[str, tuple[str, ...]]
    project: str

    def plan(self, now: datetime = NOW) -> Plan:
        return make_plan(
            self.desired,
            self.state,
            self.observed,
            self.request,
            salt=SALT,
            project=self.project,
            stack="default",
            now=now,
        )


def read_case(case: Mapping[str, Any], folder: Path) -> Given:
    request = read_request(case.get("request", {}))
    manifest = load_manifest(case, case["manifest"], folder / "now") if "manifest" in case else None
    written = expand(manifest) if manifest is not None else None
    project = written.project if written is not None else case["request"]["project"]
    state = read_state(case, written, folder / "before")
    observed = read_observed(case, state, project)
    members: Mapping[str, tuple[str, ...]] = {}
    desired = written
    if state is not None:
        late = tuple(read_late(case, None, state))
        observed = replace(observed, late=at_their_places(late, state, written.moved if written is not None else ()))
    if manifest is not None and written is not None:
        moved = relocate(written.moved, state, observed).state
        if moved is not None:
            there = expand(manifest, members=members_now(outline(manifest), state, observed, request))
            found = completions_by_records(there, moved, observed, salt=SALT, now=NOW)
            done = {address: Completion(content, 0, at) for address, (content, at) in found.items()}
            moved = replace(moved, completions={**done, **moved.completions})
        ended = completed_fleets(
            lambda members: expand(manifest, members=members),
            written.fleets,
            moved,
            members_now(outline(manifest), state, observed, request),
            salt=SALT,
            replacing=request.replace,
        )
        known = with_late(state, observed)[0]
        members = members_now(outline(manifest), known, observed, request, completed=ended)
        desired = expand(manifest, members=members)
        observed = replace(observed, imports=dict(read_imports(case, desired, state)))
        if state is not None:
            late = tuple(read_late(case, desired, state))
            observed = replace(observed, late=at_their_places(late, state, desired.moved))
    return Given(desired, state, observed, request, members, project)


def load_manifest(case: Mapping[str, Any], text: str, folder: Path) -> Any:
    folder.mkdir()
    (folder / "lium.yaml").write_text(
        "version: 1\n" + ("" if re.search("^project:", text, re.M) else "project: lab\n") + text
    )
    for name, content in case.get("files", {}).items():
        (folder / name).write_text(content)
    return load([folder], stack="default", environ={})


def read_request(row: Mapping[str, Any]) -> PlanRequest:
    row = {name: tuple(map(str, value)) if isinstance(value, list) else value for name, value in row.items()}
    row.pop("project", None)
    if "max_hourly_cost_usd" in row:
        row["max_hourly_cost_usd"] = Decimal(str(row["max_hourly_cost_usd"]))
    return PlanRequest(**row)


# --- state: what was applied, and how the rows differ from that ------------------------------------------------


def read_state(case: Mapping[str, Any], written: Desired | None, folder: Path) -> State | None:
    if not {"applied", "state", "open", "completions"} & set(case):
        return None
    before = written
    if isinstance(case.get("applied"), str) and case["applied"] != "same":
        before = expand(load_manifest(case, case["applied"], folder))
    rows: Mapping[str, str] = case.get("state", {})
    if "applied" not in case:
        resources = {
            address: item for address, item in (before.resources if before else {}).items() if str(address) in rows
        }
    else:
        resources = dict(before.resources) if before is not None else {}
    before_project = before.project if before is not None else case["request"]["project"]
    state = new_state(before_project, "default", lineage=LINEAGE, salt=SALT)
    records: dict[str, Record] = {}
    for resource in sorted(resources.values(), key=lambda item: kind(item.kind).hosted):
        row = rows.get(str(resource.address), "")
        if row != "none":
            record = record_of(resource, row, before, records)
            records[record.key] = record
    for key, row in rows.items():
        if key not in records and row != "none":
            record = loose_record(key, row, before, records)
            records[record.key] = record
    effects = dict(read_effect(number, row) for number, row in enumerate(case.get("open", ()), 1))
    done = {
        row: Completion(content_digest(before.resources[parse(row)], SALT), 0, NOW)
        for row in case.get("completions", ())
        if before is not None
    }
    account = case.get("account", {})
    return replace(
        state, records=records, open=effects, completions=done, serial=7, account_id=account.get("state_id", "acc")
    )


def words(row: str) -> tuple[dict[str, str], list[str]]:
    """`key=value` pairs, and the other words."""
    parts = row.split()
    return dict(part.split("=", 1) for part in parts if "=" in part), [part for part in parts if "=" not in part]


def record_of(resource: Resource, row: str, before: Desired | None, records: Mapping[str, Record]) -> Record:
    """The record that an apply of this resource leaves, with what the row says instead."""
    named, flags = words(row)
    address = resource.address
    context = situation(before, None, Observed(NOW, ""), PlanRequest(), salt=SALT, now=NOW)
    comparison = replace(
        comparison_with(context, {}), records=records, resolve=lambda reference: known(reference, records)
    )
    attributes: dict[str, Any] = {}
    requirement = kind(resource.kind).requirement(resource.spec)
    host = host_of(resource)
    if requirement is not None:
        default = f"node-{address.name}-{address.member} {fitting(requirement)}"
        attributes = rented(offer(" ".join(flags_of_offer(flags) or [default])), address)
        created = moment(named.get("created", "-1h"))
        ttl = ttl_s(resource)
        attributes["created_at"] = created.isoformat()
        if ttl is not None:
            attributes["removal_at"] = (created + timedelta(seconds=ttl)).isoformat()
        if resource.spec.template is not None:
            attributes["template_id"] = f"id-{resource.spec.template}"
    elif resource.kind == "template" and resource.spec.credential is not None:
        login = records.get(str(resource.spec.credential))
        attributes = {} if login is None else {"credential_id": login.id}
    elif host is not None:
        pod = records.get(str(host))
        attributes = {"pod_id": pod.id if pod is not None else "id-of-a-pod-long-gone"}
        if pod is not None and "ready_at" in pod.attributes:
            attributes["container_ready_at"] = pod.attributes["ready_at"]
    plain = {"true": True, "false": False}
    own = ("status", "id", "created")
    attributes.update({name: plain.get(value, value) for name, value in named.items() if name not in own})
    return freeze_record(
        Record(
            address,
            named.get("id", f"id-{address}"),
            named.get("status", "completed" if address.head == "task" else "ready"),
            kind(resource.kind).inputs(resource.spec, comparison),
            attributes,
            resource.depends_on,
            protected=resource.lifecycle.prevent_destroy or "protected" in flags,
        )
    )


def fitting(requirement: Requirement) -> str:
    """A slice that meets the requirement, at $2.00/h unless that is too much."""
    each = {"gmem": requirement.gpu_memory, "cpu": requirement.cpu, "mem": requirement.memory, "disk": requirement.disk}
    figures = [
        f"{name}={-(-int(bounds.minimum or bounds.maximum) // requirement.gpu_count)}"
        for name, bounds in each.items()
        if bounds.minimum or bounds.maximum
    ]
    places = [f"at={requirement.regions[0]}"] if requirement.regions else []
    gpu = (requirement.gpus or ("h100",))[0].upper()
    price = min(Decimal("2.00"), requirement.max_price_usd or Decimal(2))
    row = [f"{requirement.gpu_count}x{gpu} {price}", *figures, *places, f"tier={requirement.tiers[0]}"]
    return " ".join(row)


def loose_record(key: str, row: str, before: Desired | None, records: Mapping[str, Record]) -> Record:
    """A record that the applied manifest does not have: `ADDRESS`, or `ADDRESS#ID` for a deposed one."""
    text, _, identity = key.partition("#")
    address = parse(text)
    model = before.resources.get(address) if before is not None else None
    if model is not None:
        record = record_of(model, row, before, records)
    else:
        named, flags = words(row)
        attributes: dict[str, Any] = dict(named)
        if flags_of_offer(flags):
            attributes = {**rented(offer(" ".join(flags_of_offer(flags))), address), **named}
        depends_on = tuple(parse(item) for item in attributes.pop("on", "").split(",") if item)
        status = attributes.pop("status", "ready")
        record = Record(address, f"id-{address}", status, {}, attributes, depends_on, protected="protected" in flags)
    return replace(record, id=identity, deposed=True) if identity else record


def flags_of_offer(flags: list[str]) -> list[str]:
    return [flag for flag in flags if flag != "protected"]


def rented(slice_: Offer, address: Address) -> dict[str, Any]:
    return {
        "pod_name": f"lp-x-{address.name}-{address.member}",
        "node_id": slice_.node_id,
        "gpu": slice_.gpu,
        "gpu_count": slice_.gpu_count,
        "gpu_memory_gib": slice_.gpu_memory_gib,
        "cpu": slice_.cpu,
        "memory_gib": slice_.memory_gib,
        "disk_gb": slice_.disk_gb,
        "local_disk_gb": slice_.local_disk_gb,
        "location": slice_.location,
        "tier": str(slice_.tier),
        "price_per_hour_usd": str(slice_.price_per_hour_usd),
        "host": f"host-{address.name}-{address.member}",
        "ip": "192.0.2.1",
        "ssh_port": 2222,
        "ports": {"8000": 40000},
    }


def known(reference: Any, records: Mapping[str, Record]) -> Any:
    members: dict[str, list[str]] = {}
    for record in records.values():
        if record.address.kind == "pod" and record.address.member is not None:
            members.setdefault(record.address.name, []).append(record.address.member)
    values = []
    for address in reference.addresses(lambda fleet: tuple(members.get(fleet, ()))):
        record = records.get(str(address))
        values.append(None if record is None else kind(record.kind).exported(record, reference.path))
    if reference.is_list:
        return values
    return values[0] if values else None


def read_effect(number: int, row: str) -> tuple[int, OpenEffect]:
    """`ADDRESS OP [offer]`."""
    where, op, *slice_ = row.split()
    address, at = parse(where), NOW - timedelta(minutes=10)
    marks = Marks(scope_mark("lab", "default"), lineage_mark(LINEAGE))
    data: dict[str, Any] = (
        {"name": volume_name(address.name, marks)} if address.kind == "volume" else {"pod_name": "lp-n"}
    )
    if slice_:
        taken = offer(" ".join(slice_))
        data |= {"offer": offer_facts(taken), "ceiling_per_hour_usd": str(taken.price_per_hour_usd * 2)}
    return number, OpenEffect(number, address, op, at, "run-1", data)


def moment(text: str) -> datetime:
    """`-2h`, `-30m`, `-5s`, `+1h`: counted from now."""
    unit = {"h": "hours", "m": "minutes", "s": "seconds", "d": "days"}[text[-1]]
    return NOW + timedelta(**{unit: int(text[:-1])})


# --- what the API shows ----------------------------------------------------------------------------------------


def read_observed(case: Mapping[str, Any], state: State | None, project: str) -> Observed:
    rows: Mapping[str, str] = case.get("observed", {})
    refreshed = case.get("refreshed", True)
    seen: dict[str, Observation] = {}
    for record in state.records.values() if state is not None and refreshed else ():
        if record.key in rows or not kind(record.kind).hosted:
            seen[record.key] = observation(record, rows.get(record.key, ""))
    missing = set(rows) - set(seen)
    assert not missing, f"observed rows for no record: {missing}"
    account = case.get("account", {})

    def money(name: str) -> Decimal | None:
        return Decimal(str(account[name])) if name in account else None

    return Observed(
        at=NOW,
        server="http://127.0.0.1/api",
        account_id=account.get("id", "acc"),
        balance_usd=money("balance"),
        observations=seen,
        others=tuple(other(row, project) for row in case.get("others", ())),
        released=tuple(other(row, project) for row in case.get("released", ())),
        feed=feed(*case["feed"]) if "feed" in case else None,
        open_pods_price_usd=money("open_pods_price"),
        spent_usd=money("spent"),
        paces={name: tuple(Pace(*pace) for pace in paces) for name, paces in case.get("paces", {}).items()},
        refreshed=refreshed,
    )


def read_imports(case: Mapping[str, Any], desired: Desired, state: State | None) -> Iterator[tuple[Address, Found]]:
    """`{ADDRESS: row}`: what an import finds. `absent`, or a row as in the state; `lineage=` is another state's mark,
    `holder=STACK:ADDRESS` another stack that has it."""
    records = dict(state.records) if state is not None else {}
    for entry in desired.imports:
        row = case.get("imports", {}).get(str(entry.address), "absent")
        resource = desired.resources.get(entry.address)
        if row == "absent" or resource is None:
            yield entry.address, Found(None, Observation(Presence.ABSENT))
            continue
        named, flags = words(row)
        shown = {name: value for name, value in named.items() if name not in ("lineage", "holder", *WRITTEN)}
        fields = " ".join((*flags, *(f"{name}={value}" for name, value in shown.items())))
        record = record_of(resource, f"{fields} id={entry.id}", desired, records)
        inputs = {**record.inputs, **{name: value for name, value in named.items() if name in WRITTEN}}
        record = freeze_record(replace(record, inputs=inputs))
        records[record.key] = record
        stack, _, where = named.get("holder", "").partition(":")
        holder = Holder(stack, parse(where)) if where else None
        yield entry.address, Found(record, observation(record, named.get("shows", "")), named.get("lineage"), holder)


LATE = "which appeared after its rent had been settled as not done"


def read_late(case: Mapping[str, Any], desired: Desired | None, state: State) -> Iterator[Late]:
    """`ADDRESS NAME [row as in the state]`: a pod under a watched name. Without its row at an address that is wanted
    and empty, its price and node are known of it."""
    taken = set(state.records)
    now_at = targets(desired.moved if desired is not None else ())
    for text in case.get("late", ()):
        where, name, *fields = text.split()
        resource = desired.resources.get(now_at(parse(where))) if desired is not None else None
        row = " ".join((*fields, f"pod_name={name}"))
        if resource is not None and not {where, str(resource.address)} & taken:
            record = record_of(resource, f"{row} id=id-{name} status=pending", desired, state.records)
        else:
            record = replace(loose_record(where, f"{row} status=pending", None, {}), id=f"id-{name}")
        record = freeze_record(replace(record, deposed=where in taken))
        taken.add(record.key)
        yield Late(name, record, observation(record, ""), NOW - timedelta(minutes=5), LATE)


WRITTEN = ("name", "description", "image", "template", "volume")
"""Fields of an import's row that belong to what was written, not to what the server made of it."""


def observation(record: Record, row: str) -> Observation:
    """`[absent|unreachable|silent|STATUS] [key=value …] [words of a reason]`; nothing: all is as recorded."""
    named, flags = words(row)
    first = flags[0] if flags else ""
    reason = " ".join(flags[1:])
    if first == "silent":
        return Observation(Presence.PRESENT, reason=reason)
    if first in ("absent", "unreachable"):
        status = flags[1] if len(flags) > 1 and flags[1].isupper() else None
        return Observation(Presence(first), status, reason=reason)
    shared = {name: record.attributes[name] for name in ("removal_at", "template_id") if name in record.attributes}
    shown: dict[str, Any] = {
        name: None if value == "none" else moment(value).isoformat() if name.endswith("_at") else value
        for name, value in named.items()
    }
    attributes = {**shared, **shown}
    return Observation(Presence.PRESENT, first or ("RUNNING" if "node_id" in record.attributes else None), attributes)


def other(row: str, project: str) -> Marked:
    """`NAME LINEAGE|- PRICE [STATUS] [holds=VOLUME]`: a pod of this project and stack; or `volume NAME LINEAGE`."""
    named, flags = words(row)
    if flags[0] == "volume":
        marks = Marks(scope_mark(project, "default"), flags[2])
        return Marked("volume", f"id-{flags[1]}", volume_name(flags[1], marks), marks.scope, marks.lineage)
    name, lineage, price, *status = flags
    mark = None if lineage == "-" else lineage
    return Marked(
        "pod",
        f"id-{name}",
        name,
        scope_mark(project, "default") if mark else None,
        mark,
        Decimal(price),
        NOW,
        {"status": status[0] if status else "RUNNING", "volume_id": named.get("holds")},
    )


# --- the plan as lines -----------------------------------------------------------------------------------------


def action_line(action: Action) -> str:
    parts = [f"{action.verb} {action.address}"]
    if action.deposed_id is not None:
        parts[0] += f"#{action.deposed_id}"
    if action.offer is not None:
        parts.append(f"@{action.offer.node_id} ${action.offer.price_per_hour_usd.normalize():f}")
    if action.lacks_offer:
        parts.append(f"nothing on offer for {action.title}")
    if action.ceiling_per_hour_usd is not None:
        parts.append(f"ceiling {action.ceiling_per_hour_usd.normalize():f}")
    if action.alternatives:
        parts.append("then " + ",".join(item.node_id for item in action.alternatives))
    parts.extend(f"{item.path}: {item.before} -> {'?' if item.unknown else item.after}" for item in action.changes)
    if action.reason:
        parts.append(f"({action.reason})")
    if action.releases:
        parts.append("releases")
    if action.depends_on:
        parts.append("after " + ",".join(str(address) for address in action.depends_on))
    if not action.counted:
        parts.append("uncounted")
    return " ; ".join(parts)


def summary_line(plan: Plan) -> str:
    summary = plan.summary
    names = ("create", "update", "reboot", "replace", "destroy", "run")
    return ", ".join(f"{getattr(summary, name)} {name}" for name in names if getattr(summary, name)) or "nothing"


# --- what an apply would leave ---------------------------------------------------------------------------------


def carried_out(given: Given, plan: Plan) -> Given:
    """The same wishes after every action of the plan was done, as the next run finds them."""
    assert given.state is not None or given.desired is not None
    state = given.state or new_state(given.project, "default", lineage=LINEAGE, salt=SALT)
    if given.observed.late or any(action.source is not None for action in plan.actions):
        start = begin(
            given.desired, state, given.observed, given.request, salt=SALT, project=given.project, stack="default"
        )
        assert start.state is not None
        state = start.state
    records = dict(state.records)
    for action in plan.actions:
        if action.source is None:
            carry_out(given, action, records)
    done = replace(state, project=given.project, records=records, open={}, serial=state.serial + 1)
    seen = {record.key: observation(record, "") for record in records.values() if not kind(record.kind).hosted}
    observed = replace(given.observed, observations=seen, refreshed=True, balance_usd=None, imports={}, late=())
    return replace(given, state=done, observed=observed)


def carry_out(given: Given, action: Action, records: dict[str, Record]) -> None:
    """What one action leaves in the state."""
    key = str(action.address) if action.deposed_id is None else f"{action.address}#{action.deposed_id}"
    resource = given.desired.resources.get(action.address) if given.desired is not None else None
    if action.verb in (Verb.DESTROY, Verb.FORGET):
        assert key in records, f"{action.verb} {key}: there is no such record"
        del records[key]
        return
    assert resource is not None
    old = records.get(key)
    create_first = kind(resource.kind).create_first or resource.lifecycle.create_before_destroy
    if action.verb is Verb.REPLACE and old is not None and create_first and not kind(resource.kind).hosted:
        records[f"{key}#{old.id}"] = replace(old, deposed=True)
    record = record_of(resource, "created=-0h", given.desired, records)
    if action.offer is not None:
        record = replace(record, attributes={**record.attributes, **rented(action.offer, action.address)})
    if action.verb in (Verb.UPDATE, Verb.REBOOT, Verb.ADOPT, Verb.RUN) and old is not None:
        attributes = {name: old.attributes[name] for name in KEPT_BY_A_POD if name in old.attributes}
        record = replace(record, id=old.id, attributes={**record.attributes, **attributes})
        if resource.kind == "pod" and action.verb is not Verb.REBOOT:
            # Its template stays: one whose change is ignored is still in use.
            template_id = old.attributes.get("template_id", record.attributes.get("template_id"))
            record = replace(
                record,
                inputs={**old.inputs, "ttl_s": record.inputs["ttl_s"]} if old.inputs else record.inputs,
                attributes={**record.attributes, "template_id": template_id},
                depends_on=old.depends_on,
            )
        due = due_at(record, resource, NOW)
        if due is not None:
            record = replace(record, attributes={**record.attributes, "removal_at": due.isoformat()})
    elif action.verb in (Verb.CREATE, Verb.REPLACE):
        record = replace(record, id=f"new-{record.id}")
    if action.verb in (Verb.CREATE, Verb.REPLACE, Verb.REBOOT):
        record = with_current_template(record, records)
    record = freeze_record(record)
    records[record.key] = record


KEPT_BY_A_POD = ("created_at", "node_id", "gpu", "gpu_count", "gpu_memory_gib", "cpu", "memory_gib", "disk_gb",
                 "location", "tier", "price_per_hour_usd", "ready_at")  # fmt: skip


def with_current_template(record: Record, records: Mapping[str, Record]) -> Record:
    template = records.get(str(record.inputs.get("template")))
    if template is None or "template_id" not in record.attributes:
        return record
    return replace(record, attributes={**record.attributes, "template_id": template.id})
