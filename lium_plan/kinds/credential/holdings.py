"""The registry logins of an account (contract §2.11). They have no name, so no mark says whose they are."""

from __future__ import annotations

from collections.abc import Mapping

from lium_plan.addresses import Address
from lium_plan.expressions import Text
from lium_plan.kinds.credential.spec import Credentials, CredentialSpec
from lium_plan.kinds.differ import sensitive
from lium_plan.kinds.holdings import Held, Stanza
from lium_plan.kinds.protocol import Comparison, Json, Observation, Presence, Record, Resource
from lium_plan.lium.client import LiumClient
from lium_plan.lium.models import Credential
from lium_plan.marks import keyed_hash


def open_holdings(client: LiumClient, account_id: str) -> CredentialHoldings:
    return CredentialHoldings(client)


class CredentialHoldings:
    def __init__(self, client: LiumClient) -> None:
        self._client = client

    async def everything(self) -> tuple[Held, ...]:
        return tuple(_held(credential) for credential in await self._client.credentials())

    def record(self, held: Held, resource: Resource, comparison: Comparison) -> Record:
        spec: CredentialSpec = resource.spec
        row: Credential = held.row
        wanted = Credentials().inputs(spec, comparison)

        def applied(field: str, text: Text, value: str) -> Json:
            filled = text.fill(comparison.resolve)
            same = filled.known and filled.reveal() == value
            return wanted[field] if same else sensitive(keyed_hash(comparison.salt, value))

        inputs = {
            "username": applied("username", spec.username, row.username),
            "password": applied("password", spec.password, row.password),
        }
        return Record(resource.address, held.id, "ready", inputs)

    def stanza(self, held: Held, address: Address, records: Mapping[str, Record]) -> Stanza:
        login = {"username": "${{ env.REG_USER }}", "password": "${{ env.REG_PASS }}"}
        return {"templates": {address.name: {"registry_auth": login}}}

    async def delete(self, id: str) -> None:
        await self._client.delete_credential(id)


def _held(credential: Credential) -> Held:
    return Held(
        "credential",
        credential.id,
        credential.username,
        None,
        None,
        Observation(Presence.PRESENT),
        credential,
        since=credential.created_at,
    )
