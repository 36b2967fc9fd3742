"""The templates of an account, whoever made them; the platform's own are nobody's (contract §2.9).

The environment of a template may hold secrets: it is stored as hashes, and never written out.
"""

from __future__ import annotations

from collections.abc import Mapping

from lium_plan.addresses import Address
from lium_plan.kinds.credential.spec import address_for
from lium_plan.kinds.differ import sensitive
from lium_plan.kinds.holdings import Held, Stanza
from lium_plan.kinds.protocol import Comparison, Json, Observation, Presence, Record, Resource
from lium_plan.kinds.template.rows import facts_of, image_of, local_volume_of, ports_of
from lium_plan.kinds.template.spec import DEFAULT_LOCAL_VOLUME, KEEP_ALIVE, SSH_PORT, Templates, TemplateSpec
from lium_plan.lium.client import LiumClient
from lium_plan.lium.models import Template
from lium_plan.marks import keyed_hash, parse_template_name


def open_holdings(client: LiumClient, account_id: str) -> TemplateHoldings:
    return TemplateHoldings(client, account_id)


class TemplateHoldings:
    def __init__(self, client: LiumClient, account_id: str) -> None:
        self._client = client
        self._account_id = account_id

    async def everything(self) -> tuple[Held, ...]:
        return tuple(
            _held(template) for template in await self._client.templates() if template.user_id == self._account_id
        )

    def record(self, held: Held, resource: Resource, comparison: Comparison) -> Record:
        spec: TemplateSpec = resource.spec
        row: Template = held.row
        wanted = Templates().inputs(spec, comparison)
        inputs: dict[str, Json] = {
            "image": image_of(row),
            "ports": ports_of(row),
            "env": {name: _env(spec, name, value, comparison) for name, value in sorted(row.environment.items())},
            "entrypoint": row.entrypoint,
            "command": row.startup_commands,
            "local_volume": local_volume_of(row),
            "registry_auth": self._login(row, spec, wanted, comparison),
        }
        facts = facts_of(row.name, row.docker_credential_id)
        needs = tuple(address for address in resource.depends_on if str(address) in comparison.records)
        return Record(resource.address, held.id, "ready", inputs, facts, needs, resource.lifecycle.prevent_destroy)

    def _login(self, row: Template, spec: TemplateSpec, wanted: Mapping[str, Json], comparison: Comparison) -> Json:
        if row.docker_credential_id is None or spec.credential is None:
            return None
        held = comparison.records.get(str(spec.credential))
        if held is not None and held.id == row.docker_credential_id:
            return wanted["registry_auth"]
        return {"credential": f"login {row.docker_credential_id}"}

    def stanza(self, held: Held, address: Address, records: Mapping[str, Record]) -> Stanza:
        row: Template = held.row
        block: dict[str, Json] = {"image": image_of(row)}
        ignored: list[Json] = []
        login = records.get(str(address_for(address.name)))
        if row.docker_credential_id is not None and login is not None and login.id == row.docker_credential_id:
            block["registry_auth"] = {"username": "${{ env.REG_USER }}", "password": "${{ env.REG_PASS }}"}
        others = [port for port in row.internal_ports if port != SSH_PORT]
        if others:
            block["ports"] = others
        if SSH_PORT not in row.internal_ports:
            ignored.append("ports")
        if row.environment:
            ignored.append("env")
        if (row.entrypoint, row.startup_commands) != KEEP_ALIVE:
            block["entrypoint"], block["command"] = row.entrypoint, row.startup_commands
        if local_volume_of(row) != DEFAULT_LOCAL_VOLUME:
            block["local_volume"] = local_volume_of(row)
        if ignored:
            block["lifecycle"] = {"ignore_changes": ignored}
        return {"templates": {address.name: block}}

    async def delete(self, id: str) -> None:
        await self._client.delete_template(id)


def _env(spec: TemplateSpec, name: str, value: str, comparison: Comparison) -> Json:
    written = spec.env.get(name)
    if written is not None:
        filled = written.fill(comparison.resolve)
        if filled.known and filled.reveal() == value and not written.sensitive:
            return value
    return sensitive(keyed_hash(comparison.salt, value))


def _held(template: Template) -> Held:
    mark = parse_template_name(template.name)
    return Held(
        "template",
        template.id,
        template.name,
        None,
        mark.lineage if mark else None,
        Observation(Presence.PRESENT),
        template,
        since=template.created_at,
    )
