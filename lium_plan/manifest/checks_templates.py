"""Checks of templates and volumes: what the server would refuse, drop silently, or get wrong (contract §2.9, §2.10)."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lium_plan.kinds.template.spec import DROPPED_ENVIRONMENT
from lium_plan.manifest.checks import Findings
from lium_plan.manifest.checks_ignored import check_ignored
from lium_plan.manifest.schema import DROPPED_MOUNTS, REFUSED_CHARACTERS, REFUSED_WORDS
from lium_plan.manifest.tree import Path

if TYPE_CHECKING:
    from lium_plan.kinds.template.block import TemplateBlock

_DOCKER_HUB = ("docker.io", "index.docker.io", "registry-1.docker.io", "registry.hub.docker.com")


def check_volumes(findings: Findings) -> None:
    for name, volume in findings.blocks("volumes"):
        path: Path = ("volumes", name)
        _check_foreign(findings, path, volume.id, set(volume.model_fields_set) - {"id"})
        check_ignored(findings, path, volume)


def check_templates(findings: Findings) -> None:
    for name, template in findings.blocks("templates"):
        path: Path = ("templates", name)
        written = set(template.model_fields_set) - {"id"}
        if template.id is None and template.image is None:
            message = "a template needs an `image`, or the `id` of somebody else's"
            findings.error(path, "missing-key", message, key=True)
        if _check_foreign(findings, path, template.id, written):
            continue
        check_ignored(findings, path, template)
        _check_registry(findings, path, template)
        _check_environment(findings, path, template)
        _check_start(findings, path, template)
        mount = template.local_volume
        if mount is not None and any(mount == place or mount.startswith(place + "/") for place in DROPPED_MOUNTS):
            message = f"local_volume {mount}: the server drops paths with {', '.join(DROPPED_MOUNTS)}"
            findings.error((*path, "local_volume"), "bad-value", message, hint="use /root or /workspace")


def _check_foreign(findings: Findings, path: Path, identity: str | None, written: set[str]) -> bool:
    """Somebody else's things are used as they are. Whether this is one."""
    if identity is not None and written:
        message = f"`id` names somebody else's, which isn't managed here: {', '.join(sorted(written))} can't be set"
        findings.error((*path, "id"), "bad-combination", message)
    return identity is not None


def registry_of(image: str) -> str | None:
    """The registry's host in an image reference; None for Docker Hub."""
    first, slash, _ = image.partition("/")
    is_host = bool(slash) and ("." in first or ":" in first or first == "localhost")
    return first if is_host and first not in _DOCKER_HUB else None


def _check_registry(findings: Findings, path: Path, template: TemplateBlock) -> None:
    registry = registry_of(template.image or "")
    if template.registry_auth is not None and registry is not None:
        message = f"registry_auth for {registry}: only logins to Docker Hub are known to work"
        findings.warn((*path, "registry_auth"), "registry", message)


def _check_environment(findings: Findings, path: Path, template: TemplateBlock) -> None:
    for key, text in template.env.items():
        at = (*path, "env", key)
        if key in DROPPED_ENVIRONMENT:
            message = f"the server drops {key} from a template's environment"
            findings.warn(at, "env-dropped", message, key=True, hint="set it in the bootstrap's or the task's `env:`")
        elif text.known and not text.reveal():
            findings.warn(at, "env-dropped", f"the server drops {key}, as it is empty", key=True)


def _check_start(findings: Findings, path: Path, template: TemplateBlock) -> None:
    if template.command is not None:
        fault = command_fault(template.command)
        if fault is not None:
            hint = "quote it for a shell: entrypoint /bin/sh, command -c '…'"
            findings.error((*path, "command"), "command-refused", fault, hint=hint)
    if template.entrypoint is not None and len(template.entrypoint.split()) > 1:
        message = "entrypoint: one word only, the server drops the others; its arguments go into `command`"
        findings.error((*path, "entrypoint"), "command-refused", message)


def command_fault(command: str) -> str | None:
    """Why the server would refuse a start command; None when it wouldn't (contract §2.9.3, §15.8)."""
    quote = ""
    outside: list[str] = []
    escaped = False
    for char in command:
        if escaped:
            escaped = False
            outside.append("_")
        elif quote:
            quote = "" if char == quote else quote
        elif char == "\\":
            escaped = True
        elif char in "'\"":
            quote = char
            outside.append("_")
        elif char in REFUSED_CHARACTERS:
            what = "a line break" if char in "\n\r" else f"'{char}'"
            return f"command: the platform refuses shell syntax outside of quotes: {what}"
        else:
            outside.append(char)
    if quote or escaped:
        return "command: a quote is not closed" if quote else "command: nothing follows the last backslash"
    word = next((word for word in "".join(outside).split() if word in REFUSED_WORDS), None)
    return f"command: the platform refuses the word '{word}' outside of quotes" if word else None
