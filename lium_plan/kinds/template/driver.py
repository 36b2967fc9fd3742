"""Templates on the server (contract §2.9). One per content within a state: equal ones share a remote object.

Creating is the tightest limit of all (20 an hour), so one that exists under our name with the same fields is taken.
A template can't go while any pod row refers to it, also one in DELETING.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.kinds.failures import (
    begun_depends_on,
    begun_inputs,
    borne_out,
    delete,
    foreign_pod,
    listed_by_id,
    look_for,
    make,
    record_made,
    settle_delete,
    tell_wait,
)
from lium_plan.kinds.protocol import (
    ActionFailed,
    Begin,
    Json,
    Marked,
    Observation,
    OpenEffect,
    Outcome,
    Presence,
    Record,
    Run,
    Settlement,
    Step,
    Survey,
    Verb,
)
from lium_plan.kinds.services import Services
from lium_plan.kinds.template.rows import EDITED, edits, facts_of
from lium_plan.kinds.template.spec import TemplateSpec
from lium_plan.lium.models import Deletion, Template
from lium_plan.lium.windows import Family
from lium_plan.marks import parse_template_name, template_name
from lium_plan.together import Shared


def open_driver(services: Services) -> TemplateDriver:
    return TemplateDriver(services)


class TemplateDriver:
    def __init__(self, services: Services) -> None:
        self._client = services.client
        self._now = services.now
        self._identity = services.identity
        # Names are not unique on the server: two creators of one content must not race.
        self._creating: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        self._templates = Shared(self._client.templates)
        self._leaving: set[str] = set()
        """The ids that this run has asked the server to delete: a list may still show them, and they may still go."""

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        listed = await listed_by_id(self._client.templates, records, self._now)
        self._count_earlier(listed.values())
        observations = {
            record.key: (
                Observation(Presence.PRESENT, attributes=self._edited(listed[record.id], record))
                if record.id in listed
                else Observation(Presence.ABSENT, reason="not in the account's list of templates")
            )
            for record in records
        }
        known = {record.id for record in records}
        others = tuple(
            _marked(template)
            for template in listed.values()
            if template.id not in known and template.user_id is not None
        )
        return Survey(observations, others)

    def _count_earlier(self, listed: Iterable[Template]) -> None:
        """What the account has made lately counts in its limit, whoever made it. Private rows are its own."""
        made = (row.created_at for row in listed if row.is_private and row.user_id is not None)
        ages_s = ((self._now() - at).total_seconds() for at in made if at is not None)
        self._client.limits.count_earlier(Family.TEMPLATE_CREATE, ages_s)

    async def perform(self, step: Step, run: Run) -> None:
        if step.verb is Verb.DESTROY:
            await self._destroy(step.record, run)
            return
        if step.verb is Verb.ADOPT:
            await self._take_in(step, run)
            return
        name = template_name(self._identity.lineage, self._identity.salt, self._content(step, run))
        async with self._creating[name]:
            await self._create(step, name, run)

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        if effect.op == "create":
            return await self._settle_create(effect, run)
        listed = {template.id for template in await self._client.templates()}
        return await settle_delete(run, effect, still_there=effect.data.get("id") in listed)

    def _edited(self, row: Template, record: Record) -> Mapping[str, Json]:
        """What was changed by hand; nothing where the row does not say that it was."""
        if row.status != EDITED:
            return {}
        found = dict(edits(row, record.inputs, self._identity.salt))
        if row.name != record.attributes.get("remote_name"):
            found["remote_name"] = row.name
        if "docker_credential_id" in row.told:
            found["credential_id"] = row.docker_credential_id
        return found

    async def _take_in(self, step: Step, run: Run) -> None:
        """What was edited by hand is as it is declared: the state says so from here on."""
        record, template_id = step.owned()
        row = next((item for item in await self._templates() if item.id == template_id), None)
        facts = {} if row is None else facts_of(row.name, row.docker_credential_id)
        run.ledger.put(replace(record, inputs=dict(step.inputs), attributes={**record.attributes, **facts}))

    def _is(self, row: Template, name: Json, inputs: Mapping[str, Json]) -> bool:
        """Whether it is one of ours with this content, and stays: names are not unique, and don't follow an edit."""
        if row.id in self._leaving or row.user_id is None:
            return False
        return row.name == name and not edits(row, inputs, self._identity.salt)

    def _content(self, step: Step, run: Run) -> Mapping[str, Json]:
        """What makes two templates the same: their inputs, and which credential they pull with."""
        return {**step.inputs, "credential_id": self._credential_id(step, run)}

    def _credential_id(self, step: Step, run: Run) -> str | None:
        credential: Address | None = step.wanted().spec.credential
        if credential is None:
            return None
        record = run.ledger.record(credential)
        if record is None or record.id is None:
            raise ActionFailed(error("missing-dependency", f"{credential} does not exist", address=str(step.address)))
        return record.id

    async def _create(self, step: Step, name: str, run: Run) -> None:
        spec: TemplateSpec = step.wanted().spec
        credential_id = self._credential_id(step, run)
        inputs, depends_on = dict(step.inputs), step.wanted().depends_on
        body = self._body(spec, name, credential_id, run)

        async def find_or_post(begin: Begin) -> Template:
            listed = await self._templates()  # they go on in their order
            self._count_earlier(listed)
            for template in listed:
                if self._is(template, name, inputs):
                    return template
            made = await self._client.create_template(
                body, urgency=step.urgency, before_send=begin, on_wait=tell_wait(run, step.address, self._now)
            )
            return borne_out(made, {row.id for row in listed}, is_ours=made.name == name)

        await make(
            run,
            step.address,
            data={
                "name": name,
                "inputs": inputs,
                "protected": step.wanted().lifecycle.prevent_destroy,
                "depends_on": [str(address) for address in depends_on],
                "credential_id": credential_id,
            },
            post=find_or_post,
            made=lambda template: Record(
                step.address,
                template.id,
                "ready",
                inputs,
                facts_of(name, credential_id),
                depends_on,
                step.wanted().lifecycle.prevent_destroy,
            ),
            replaces=step.record if step.verb is Verb.REPLACE else None,
            settle=lambda effect, refused: self._settle_create(effect, run, refused=refused),
            patience_s=self._client.limits.patience_s(Family.TEMPLATE_CREATE),
        )

    def _body(self, spec: TemplateSpec, name: str, credential_id: str | None, run: Run) -> dict[str, object]:
        body: dict[str, object] = {
            "name": name,
            "description": name,
            "docker_image": spec.image,
            "docker_image_tag": "",
            "docker_image_digest": "",
            "internal_ports": list(spec.ports),
            "startup_commands": spec.command,
            "entrypoint": spec.entrypoint,
            "environment": {key: run.resolve(text) for key, text in spec.env.items()},
            "volumes": [spec.local_volume],
            "is_private": True,
        }
        if credential_id is not None:
            body["docker_credential_id"] = credential_id
        return body

    async def _settle_create(self, effect: OpenEffect, run: Run, *, refused: bool = False) -> Settlement:
        name = effect.data.get("name")

        async def named() -> list[Template]:
            listed = await self._client.templates()
            return [template for template in listed if self._is(template, name, begun_inputs(effect))]

        found = await look_for(effect, named, self._now, run, refused=refused)
        if not found:
            run.ledger.failed(effect, "no template of that name is listed")
            return Settlement(Outcome.NOT_DONE, "no template of that name is listed")
        # A name stands for its content, so any of them will do; the smallest id makes every run choose the same.
        template = min(found, key=lambda item: item.id)
        record = Record(
            effect.address,
            template.id,
            "ready",
            begun_inputs(effect),
            facts_of(template.name, effect.data.get("credential_id")),
            begun_depends_on(effect),
            bool(effect.data.get("protected")),
        )
        record_made(effect, record, run)
        return Settlement(Outcome.DONE, f"adopted template {template.id}")

    async def _destroy(self, record: Record | None, run: Run) -> None:
        assert record is not None
        template_id = record.id
        if template_id is None:
            run.ledger.remove(record.key, "never created")
            return

        def shared() -> str | None:
            others = (other for other in run.ledger.holders("template", template_id) if other.key != record.key)
            return "another address uses the same template" if any(others) else None

        async def send_delete() -> Deletion:
            self._leaving.add(template_id)  # from here on no other address takes it
            return await self._client.delete_template(template_id)

        async def listed() -> bool:
            return any(template.id == template_id for template in await self._client.templates())

        await delete(
            run,
            record,
            send_delete=send_delete,
            still_there=listed,
            foreign_user=lambda: foreign_pod(self._client, run, lambda pod: pod.template_id == template_id),
            spared=shared,
        )


def _marked(template: Template) -> Marked:
    mark = parse_template_name(template.name)
    return Marked(
        "template",
        template.id,
        template.name,
        None,
        mark.lineage if mark else None,
        since=template.created_at,
    )
