"""Volumes on the server (contract §2.10). A volume of ours is known by its marked name."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lium_plan.addresses import Address
from lium_plan.diagnostics import error
from lium_plan.kinds.failures import (
    begun_inputs,
    borne_out,
    delete,
    diagnose,
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
from lium_plan.kinds.volume.spec import VolumeSpec
from lium_plan.lium.errors import LiumError, Refusal, classify_refusal
from lium_plan.lium.models import Volume
from lium_plan.lium.windows import Family
from lium_plan.marks import Marks, lineage_mark, parse_volume_name, scope_mark, volume_base, volume_name


def open_driver(services: Services) -> VolumeDriver:
    return VolumeDriver(services)


class VolumeDriver:
    def __init__(self, services: Services) -> None:
        self._client = services.client
        self._now = services.now
        who = services.identity
        self._marks = Marks(scope_mark(who.project, who.stack), lineage_mark(who.lineage))

    async def survey(self, records: Sequence[Record], *, scope_mark: str, lineage_mark: str | None) -> Survey:
        listed = await listed_by_id(self._client.volumes, records, self._now)
        observations = {
            record.key: (
                Observation(Presence.PRESENT, attributes=_facts(listed[record.id]))
                if record.id in listed
                else Observation(Presence.ABSENT, reason="not in the account's list of volumes")
            )
            for record in records
        }
        known = {record.id for record in records}
        return Survey(observations, tuple(_marked(volume) for volume in listed.values() if volume.id not in known))

    async def perform(self, step: Step, run: Run) -> None:
        if step.verb is Verb.DESTROY:
            await self._destroy(step.record, run)
        elif step.verb is Verb.UPDATE:
            await self._update(step, run)
        else:
            await self._create(step, run)

    async def settle(self, effect: OpenEffect, run: Run) -> Settlement:
        if effect.op == "create":
            return await self._settle_create(effect, run)
        listed = {volume.id: volume for volume in await self._client.volumes()}
        if effect.op == "delete":
            return await settle_delete(run, effect, still_there=effect.data.get("id") in listed)
        run.ledger.failed(effect, "what the server shows is compared again")
        return Settlement(Outcome.NOT_DONE, "the change is compared again")

    async def _create(self, step: Step, run: Run) -> None:
        spec: VolumeSpec = step.wanted().spec
        name = volume_name(spec.name, self._marks)
        inputs = dict(step.inputs)
        protected = step.wanted().lifecycle.prevent_destroy

        async def post(begin: Begin) -> Volume:
            listed = await self._client.volumes()
            self._refuse_forgotten(listed, step.address, name, run)
            made = await self._client.create_volume(
                name, spec.description, before_send=begin, on_wait=tell_wait(run, step.address, self._now)
            )
            return borne_out(made, {row.id for row in listed}, is_ours=made.name == name)

        await make(
            run,
            step.address,
            data={"name": name, "inputs": inputs, "protected": protected},
            post=post,
            made=lambda volume: _record(step.address, volume, inputs, protected),
            replaces=None,
            settle=lambda effect, refused: self._settle_create(effect, run, refused=refused),
            patience_s=self._client.limits.patience_s(Family.VOLUME_CREATE),
        )

    def _refuse_forgotten(self, listed: Sequence[Volume], address: Address, name: str, run: Run) -> None:
        """A state that was put back to an earlier day must not make a second, empty volume beside the one with data."""
        twin = next((item for item in listed if item.name == name and not run.ledger.holders("volume", item.id)), None)
        if twin is not None:
            hint = (
                f"take it in: lium-plan import {address} {twin.id}; delete it: lium-plan orphans --id {twin.id} "
                "--delete; or give the new one another `name`"
            )
            message = f"create: volume {name} ({twin.id}) is there already, made by this state, which does not know it"
            raise ActionFailed(error("volume-exists", message, address=str(address), hint=hint))

    async def _settle_create(self, effect: OpenEffect, run: Run, *, refused: bool = False) -> Settlement:
        known = {record.id for record in run.ledger.records().values()}
        name = effect.data.get("name")

        async def named() -> list[Volume]:
            listed = await self._client.volumes()
            return [volume for volume in listed if volume.name == name and volume.id not in known]

        found = await look_for(effect, named, self._now, run, refused=refused)
        if not found:
            run.ledger.failed(effect, "no volume of that name is listed")
            return Settlement(Outcome.NOT_DONE, "no volume of that name is listed")
        if len(found) > 1:
            return Settlement(
                Outcome.UNKNOWN,
                f"{len(found)} volumes are called {name}: {', '.join(volume.id for volume in found)}; keep one",
            )
        protected = bool(effect.data.get("protected"))
        record_made(effect, _record(effect.address, found[0], begun_inputs(effect), protected), run)
        return Settlement(Outcome.DONE, f"adopted volume {found[0].id}")

    async def _update(self, step: Step, run: Run) -> None:
        spec: VolumeSpec = step.wanted().spec
        record, volume_id = step.owned()
        name = volume_name(spec.name, self._marks)

        async def send(begin: Begin) -> None:
            effect = begin()
            try:
                await self._client.update_volume(volume_id, name=name, description=spec.description)
            except LiumError as failure:
                # Whatever became of it, the next plan compares what the server shows.
                run.ledger.failed(effect, failure.reason)
                unsure = classify_refusal(failure) is Refusal.UNKNOWN
                raise ActionFailed(
                    diagnose(failure, step.address, "update (its outcome is not known)" if unsure else "update")
                ) from failure
            facts = {**record.attributes, "name": spec.name, "remote_name": name, "description": spec.description}
            run.ledger.done(effect, replace(record, inputs=dict(step.inputs), attributes=facts))

        await run.effect(step.address, "update", {"id": volume_id, "name": name}, send)

    async def _destroy(self, record: Record | None, run: Run) -> None:
        assert record is not None
        volume_id = record.id
        if volume_id is None:
            run.ledger.remove(record.key, "it was never created")
            return

        async def listed() -> bool:
            return any(volume.id == volume_id for volume in await self._client.volumes())

        await delete(
            run,
            record,
            send_delete=lambda: self._client.delete_volume(volume_id),
            still_there=listed,
            foreign_user=lambda: foreign_pod(self._client, run, lambda pod: pod.volume_id == volume_id),
        )


def _record(address: Address, volume: Volume, inputs: dict[str, Json], protected: bool) -> Record:
    return Record(address, volume.id, "ready", inputs, {**_facts(volume), "remote_name": volume.name}, (), protected)


def _facts(volume: Volume) -> dict[str, Json]:
    return {
        "name": volume_base(volume.name),
        "description": volume.description,
        "size_gb": None if volume.size_bytes is None else round(volume.size_bytes / 2**30, 3),
    }


def _marked(volume: Volume) -> Marked:
    marks = parse_volume_name(volume.name)
    return Marked(
        "volume",
        volume.id,
        volume.name,
        marks.scope if marks else None,
        marks.lineage if marks else None,
        since=volume.created_at,
    )
