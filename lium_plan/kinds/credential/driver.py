"""Registry credentials on the server (contract §2.11): no name, no idempotent creation, so ids are precious.

After a lost answer only the difference between two lists says anything; nothing is ever adopted or deleted by user
name alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from lium_plan.kinds.credential.spec import CredentialSpec
from lium_plan.kinds.failures import (
    begun_inputs,
    borne_out,
    delete,
    diagnose,
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
from lium_plan.lium.errors import LiumError
from lium_plan.lium.models import Credential
from lium_plan.lium.windows import Family
from lium_plan.marks import keyed_hash


def open_driver(services: Services) -> CredentialDriver:
    return CredentialDriver(services)


class CredentialDriver:
    def __init__(self, services: Services) -> None:
        self._client = services.client
        self._salt = services.identity.salt
        self._now = services.now
        # One creation at a time: two at once could not be told apart by comparing lists.
        self._creating = asyncio.Lock()

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        if not records:
            return Survey({})
        listed = await listed_by_id(self._client.credentials, records, self._now)
        observations = {
            record.key: (
                Observation(Presence.PRESENT)
                if record.id in listed
                else Observation(Presence.ABSENT, reason="not in the account's list of registry credentials")
            )
            for record in records
        }
        known = {record.id for record in records}
        others = tuple(
            Marked("credential", item.id, item.username, None, None, since=item.created_at)
            for item in listed.values()
            if item.id not in known
        )
        return Survey(observations, others)

    async def perform(self, step: Step, run: Run) -> None:
        if step.verb is Verb.DESTROY:
            await self._destroy(step.record, run)
        elif step.verb is Verb.UPDATE:
            await self._update(step, run)
        else:
            async with self._creating:
                await self._create(step, run)

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        match effect.op:
            case "create":
                return await self._settle_create(effect, run)
            case "delete":
                return await settle_delete(run, effect, still_there=await self._listed(effect.data.get("id")))
            case _:
                run.ledger.failed(effect, "sent again")
                return Settlement(Outcome.NOT_DONE, "the password is sent again")

    async def _listed(self, credential_id: object) -> bool:
        return any(credential.id == credential_id for credential in await self._client.credentials())

    async def _create(self, step: Step, run: Run) -> None:
        spec: CredentialSpec = step.wanted().spec
        username, password = run.resolve(spec.username), run.resolve(spec.password)
        before = sorted(credential.id for credential in await self._client.credentials())
        inputs = dict(step.inputs)

        async def post(begin: Begin) -> Credential:
            made = await self._client.create_credential(
                username, password, before_send=begin, on_wait=tell_wait(run, step.address, self._now)
            )
            return borne_out(made, before)

        await make(
            run,
            step.address,
            data={
                "before": before,
                "inputs": inputs,
                "username": keyed_hash(self._salt, username),
                "password": keyed_hash(self._salt, password),
            },
            post=post,
            made=lambda credential: Record(step.address, credential.id, "ready", inputs),
            replaces=step.record if step.verb is Verb.REPLACE else None,
            settle=lambda effect, refused: self._settle_create(effect, run, refused=refused),
            patience_s=self._client.limits.patience_s(Family.CREDENTIAL_CREATE),
        )

    async def _settle_create(self, effect: OpenEffect, run: Run, *, refused: bool = False) -> Settlement:
        before = effect.data.get("before")
        old = set(before) if isinstance(before, list | tuple) else set()
        old |= {record.id for record in run.ledger.records().values() if record.id}

        async def new_ones() -> list[Credential]:
            listed = await self._client.credentials()
            return [item for item in listed if item.id not in old and self._is_ours(effect, item)]

        ours = await look_for(effect, new_ones, self._now, run, refused=refused)
        if not ours:
            run.ledger.failed(effect, "no new credential is listed")
            return Settlement(Outcome.NOT_DONE, "no new credential is listed")
        if len(ours) > 1:
            ids = ", ".join(credential.id for credential in ours)
            return Settlement(Outcome.UNKNOWN, f"several new credentials look like ours: {ids}; delete all but one")
        if await self._used_by_foreign_template(ours[0].id, run):
            return Settlement(
                Outcome.UNKNOWN, f"credential {ours[0].id} is used by a template that is not in this state"
            )
        record_made(effect, Record(effect.address, ours[0].id, "ready", begun_inputs(effect)), run)
        return Settlement(Outcome.DONE, f"adopted credential {ours[0].id}")

    def _is_ours(self, effect: OpenEffect, credential: Credential) -> bool:
        return effect.data.get("username") == keyed_hash(self._salt, credential.username) and effect.data.get(
            "password"
        ) == keyed_hash(self._salt, credential.password)

    async def _used_by_foreign_template(self, credential_id: str, run: Run) -> bool:
        ours = {record.id for record in run.ledger.records().values() if record.kind == "template"}
        templates = await self._client.templates()
        return any(item.docker_credential_id == credential_id and item.id not in ours for item in templates)

    async def _update(self, step: Step, run: Run) -> None:
        spec: CredentialSpec = step.wanted().spec
        record, credential_id = step.owned()
        username, password = run.resolve(spec.username), run.resolve(spec.password)

        async def send(begin: Begin) -> None:
            effect = begin()
            try:
                await self._client.update_credential(credential_id, username=username, password=password)
            except LiumError as failure:
                # State keeps the old hash, so the next plan shows the change again; a PUT may be repeated.
                run.ledger.failed(effect, failure.reason)
                raise ActionFailed(diagnose(failure, step.address, "update")) from failure
            run.ledger.done(effect, replace(record, inputs=dict(step.inputs)))

        await run.effect(step.address, "update", {"id": credential_id}, send)

    async def _destroy(self, record: Record | None, run: Run) -> None:
        assert record is not None
        credential_id = record.id
        if credential_id is None:
            run.ledger.remove(record.key, "it was never created")
            return
        await delete(
            run,
            record,
            send_delete=lambda: self._client.delete_credential(credential_id),
            still_there=lambda: self._listed(credential_id),
        )
