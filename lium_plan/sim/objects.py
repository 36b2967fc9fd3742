"""Volumes, registry credentials and SSH keys (contract §2.10–§2.12)."""

from __future__ import annotations

from lium_plan.sim import containers
from lium_plan.sim.accounts import Caller
from lium_plan.sim.bodies import CredentialBody, SshKeyBody, SshKeyUpdate, VolumeBody, VolumeUpdate
from lium_plan.sim.listing import note_created, note_deleted, until
from lium_plan.sim.refusal import Refusal, not_found
from lium_plan.sim.rows import Credential, Pod, SshKey, Volume
from lium_plan.sim.twist import PLAIN, Twist
from lium_plan.sim.world import World

# -- volumes ------------------------------------------------------------------------------------------------------


def volume_holder(world: World, volume_id: str) -> Pod | None:
    """The pod row that has the volume, whatever its status."""
    return next(iter(world.pods.where("volume", volume_id)), None)


def create_volume(world: World, caller: Caller, body: VolumeBody, twist: Twist = PLAIN) -> Volume:
    volume = world.volumes.put(
        Volume(
            id=world.new_id(),
            account_id=caller.account.id,
            serial=world.next_serial(),
            name=body.name,
            description=body.description,
            created_at=world.now,
            updated_at=world.now,
            hidden_until=until(world, twist.hide_seconds),
        )
    )
    note_created(world, caller, "volume", volume.id, volume.name)
    return volume


def own_volume(world: World, caller: Caller, volume_id: str) -> Volume:
    volume = world.volumes.get(volume_id)
    if volume is None or volume.account_id != caller.account.id or volume.deleted_at is not None:
        raise not_found("Volume")
    return volume


def update_volume(world: World, volume: Volume, body: VolumeUpdate) -> Volume:
    given = body.model_dump(exclude_none=True)
    return world.volumes.change(volume.id, updated_at=world.now, **given)


def delete_volume(world: World, caller: Caller, volume: Volume, twist: Twist = PLAIN) -> None:
    """Raises Refusal 409 while a pod row has it (contract §2.10)."""
    holder = volume_holder(world, volume.id)
    if holder is not None:
        raise Refusal(409, None, f"Volume is attached to pod {holder.id}")
    world.volumes.change(volume.id, deleted_at=world.now, listed_until=until(world, twist.linger_seconds))
    containers.forget_volume(world, volume.id)
    note_deleted(world, caller, "volume", volume.id, volume.name)


# -- credentials --------------------------------------------------------------------------------------------------


def create_credential(world: World, caller: Caller, body: CredentialBody, twist: Twist = PLAIN) -> Credential:
    credential = world.credentials.put(
        Credential(
            id=world.new_id(),
            user_id=caller.account.id,
            serial=world.next_serial(),
            username=body.docker_username,
            password=body.docker_password,
            created_at=world.now,
            updated_at=world.now,
            hidden_until=until(world, twist.hide_seconds),
        )
    )
    note_created(world, caller, "credential", credential.id, credential.username)
    return credential


def default_credential(world: World, caller: Caller) -> Credential:
    """What a POST without a body gives: the account's default one, made once (contract §2.11)."""
    for credential in world.credentials.where("account", caller.account.id):
        if credential.username == "lium" and credential.deleted_at is None:
            return credential
    password = world.dice.hex(24)
    return create_credential(world, caller, CredentialBody(docker_username="lium", docker_password=password))


def own_credential(world: World, caller: Caller, credential_id: str) -> Credential:
    credential = world.credentials.get(credential_id)
    if credential is None or credential.user_id != caller.account.id or credential.deleted_at is not None:
        raise not_found("Docker credential")
    return credential


def update_credential(world: World, credential: Credential, body: CredentialBody) -> Credential:
    return world.credentials.change(
        credential.id, username=body.docker_username, password=body.docker_password, updated_at=world.now
    )


def delete_credential(world: World, caller: Caller, credential: Credential, twist: Twist = PLAIN) -> None:
    """Raises Refusal 400 while a template refers to it (contract U8)."""
    for template in world.templates:
        if template.docker_credential_id == credential.id and template.deleted_at is None:
            raise Refusal(400, None, "Docker credential is used by a template")
    world.credentials.change(credential.id, deleted_at=world.now, listed_until=until(world, twist.linger_seconds))
    note_deleted(world, caller, "credential", credential.id, credential.username)


# -- ssh keys -----------------------------------------------------------------------------------------------------


def create_ssh_key(world: World, caller: Caller, body: SshKeyBody, twist: Twist = PLAIN) -> SshKey:
    return world.ssh_keys.put(
        SshKey(
            id=world.new_id(),
            account_id=caller.account.id,
            serial=world.next_serial(),
            name=body.name,
            public_key=body.public_key,
            created_at=world.now,
            hidden_until=until(world, twist.hide_seconds),
        )
    )


def own_ssh_key(world: World, caller: Caller, key_id: str) -> SshKey:
    key = world.ssh_keys.get(key_id)
    if key is None or key.account_id != caller.account.id or key.deleted_at is not None:
        raise not_found("SSH key")
    return key


def update_ssh_key(world: World, key: SshKey, body: SshKeyUpdate) -> SshKey:
    return world.ssh_keys.change(key.id, **body.model_dump(exclude_none=True))


def delete_ssh_key(world: World, key: SshKey, twist: Twist = PLAIN) -> None:
    world.ssh_keys.change(key.id, deleted_at=world.now, listed_until=until(world, twist.linger_seconds))
