"""Templates (contract §2.9)."""

from __future__ import annotations

from dataclasses import replace

from lium_plan.sim import images, lifecycle
from lium_plan.sim.accounts import Caller
from lium_plan.sim.bodies import RentOptions, TemplateBody, TemplateUpdate
from lium_plan.sim.listing import note_created, note_deleted, shown, until
from lium_plan.sim.refusal import Refusal, not_found
from lium_plan.sim.rows import PodStatus, Template
from lium_plan.sim.twist import PLAIN, Twist
from lium_plan.sim.world import World


def visible_template(world: World, caller: Caller, template_id: str) -> Template | None:
    template = world.templates.get(template_id)
    if template is None or template.deleted_at is not None:
        return None
    mine = template.user_id in (None, caller.account.id)
    return template if mine or not template.is_private else None


def visible_templates(world: World, caller: Caller | None) -> list[Template]:
    owner = None if caller is None else caller.account.id
    return [
        row
        for row in shown(world, world.templates)
        if row.user_id is None or row.user_id == owner or (not row.is_private and not row.is_temporary)
    ]


def create_template(world: World, caller: Caller, body: TemplateBody, twist: Twist = PLAIN) -> Template:
    """Raises Refusal 422 (startup command, unknown credential). The limiter was asked before (contract §1.6)."""
    images.check_startup_command(body.startup_commands)
    credential_id = _credential_id(world, caller, body.docker_credential_id)
    image = _image(body)
    template = Template(
        id=world.new_id(),
        user_id=caller.account.id,
        serial=world.next_serial(),
        name=body.name,
        description=body.description or body.name,
        docker_image=image.repository,
        docker_image_tag=image.tag,
        docker_image_digest=image.digest,
        docker_image_size=body.docker_image_size,
        category=body.category,
        volumes=tuple(body.volumes),
        environment=dict(body.environment),
        entrypoint=body.entrypoint if isinstance(body.entrypoint, str) else "",
        internal_ports=tuple(body.internal_ports),
        is_private=body.is_private,
        one_time_template=body.one_time_template,
        is_temporary=body.is_temporary,
        container_start_immediately=body.container_start_immediately,
        startup_commands=body.startup_commands,
        readme=body.readme or body.name,
        docker_credential_id=credential_id,
        status="CREATED",
        supports_volume_encryption=body.supports_volume_encryption,
        supports_docker=body.supports_docker,
        created_at=world.now,
        updated_at=world.now,
        hidden_until=until(world, twist.hide_seconds),
    )
    if world.settings.normalise_templates:
        template = normalised(template)
    world.templates.put(template)
    note_created(world, caller, "template", template.id, template.name)
    return template


def _image(body: TemplateBody | TemplateUpdate) -> images.ImageName:
    """With an empty tag, or none, the whole reference is in the image field (contract §2.9.3)."""
    if body.docker_image_tag and "docker_image_tag" in body.model_fields_set:
        return images.ImageName(body.docker_image, body.docker_image_tag, body.docker_image_digest)
    whole = images.split_reference(body.docker_image)
    digest = body.docker_image_digest or whole.digest
    return images.ImageName(whole.repository, whole.tag or ("" if digest else "latest"), digest)


def normalised(template: Template) -> Template:
    """What was sent, in the server's own spelling: ports sorted, reserved environment gone, trimmed text."""
    environment = {
        name: value
        for name, value in sorted((template.environment or {}).items())
        if value and name not in images.RESERVED_ENVIRONMENT
    }
    return replace(
        template,
        docker_image=template.docker_image.removeprefix("docker.io/").removeprefix("library/"),
        internal_ports=tuple(sorted({22, *template.internal_ports})),
        environment=environment,
        volumes=template.volumes or ("/root",),
        startup_commands=" ".join((template.startup_commands or "").split()),
        entrypoint=(template.entrypoint or "").strip() or None,
        docker_image_digest=template.docker_image_digest,
        description=(template.description or "").strip(),
    )


def _credential_id(world: World, caller: Caller, given: object) -> str | None:
    if given is None:
        return None
    credential = world.credentials.get(str(given))
    if credential is None or credential.user_id != caller.account.id or credential.deleted_at is not None:
        raise not_found("Docker credential")
    return credential.id


def template_for_dockerfile(world: World, caller: Caller, options: RentOptions) -> Template:
    """The hidden template that a rent with a Dockerfile makes; it goes with its pod."""
    base = images.from_dockerfile(options.dockerfile_content or "")
    body = TemplateBody(
        name=f"dockerfile-{options.pod_name}",
        docker_image=base.repository,
        docker_image_tag=base.tag or "latest",
        docker_image_digest=base.digest,
        volumes=["/root"],
        startup_commands="sleep infinity",
        one_time_template=True,
        is_temporary=True,
    )
    return create_template(world, caller, body)


def own_template(world: World, caller: Caller, template_id: str) -> Template:
    """Raises Refusal 404 when it can't be seen, 403 when it isn't the account's."""
    template = visible_template(world, caller, template_id)
    if template is None:
        raise not_found("Template")
    if template.user_id != caller.account.id:
        raise Refusal(403, "forbidden", "You can only change your own templates")
    return template


def update_template(world: World, caller: Caller, template: Template, body: TemplateUpdate) -> Template:
    """Reboots every pod that uses it (contract §2.9.5)."""
    images.check_startup_command(body.startup_commands)
    image = _image(body)
    updated = replace(
        template,
        name=body.name,
        docker_image=image.repository,
        docker_image_tag=image.tag,
        docker_image_digest=image.digest,
        internal_ports=tuple(body.internal_ports),
        startup_commands=body.startup_commands,
        entrypoint=body.entrypoint,
        environment=dict(body.environment),
        volumes=tuple(body.volumes),
        category=body.category,
        is_private=body.is_private,
        one_time_template=bool(body.one_time_template),
        container_start_immediately=body.container_start_immediately,
        description=body.description or body.name,
        readme=body.readme or body.name,
        docker_image_size=body.docker_image_size,
        docker_credential_id=_credential_id(world, caller, body.docker_credential_id),
        supports_docker=body.supports_docker,
        supports_volume_encryption=body.supports_volume_encryption,
        status="UPDATED",
        updated_at=world.now,
    )
    world.templates.put(updated)
    for pod in world.pods.where("template", template.id):
        if pod.status is PodStatus.RUNNING:
            lifecycle.reboot(world, pod, key_id=caller.key.id, why="template was edited")
    return updated


def delete_template(world: World, caller: Caller, template: Template, twist: Twist = PLAIN) -> None:
    """Raises Refusal 400 while any pod row refers to it, DELETING ones too (contract §2.9.6)."""
    if world.pods.where("template", template.id):
        raise Refusal(400, "template_in_use", "Template is used by a pod")
    world.templates.change(template.id, deleted_at=world.now, listed_until=until(world, twist.linger_seconds))
    note_deleted(world, caller, "template", template.id, template.name)
