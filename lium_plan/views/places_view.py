"""Places of pods in the languages of other tools: OpenSSH's command line and config, Ansible, mpirun. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence

from lium_plan.answers import Place


def ssh_options(place: Place) -> tuple[str, ...]:
    """`NAME=VALUE` each, for `ssh -o`: this key and this host key, whatever the user's own files say.

    A pod that nobody has logged in to yet is trusted on first use, as everywhere here (contract §7.3).
    """
    return (
        "IdentitiesOnly=yes",
        f"UserKnownHostsFile={_option_path(str(place.known_hosts))}",
        "GlobalKnownHostsFile=/dev/null",
        f"StrictHostKeyChecking={'yes' if place.pinned else 'accept-new'}",
    )


def ssh_command(place: Place, command: Sequence[str] = ()) -> tuple[str, ...]:
    """The arguments of the system's `ssh`; it joins the words of `command` with spaces, for the pod's shell."""
    identity = f"IdentityFile={_option_path(str(place.key_path))}"  # `-i` takes no path with a %
    options = tuple(part for option in (identity, *ssh_options(place)) for part in ("-o", option))
    login = ("-p", str(place.port), *options, f"{place.user}@{place.host}")
    return ("ssh", *login, *(("--", *command) if command else ()))


def ssh_command_text(place: Place, command: Sequence[str] = ()) -> str:
    return shlex.join(ssh_command(place, command))


def aliases(places: Iterable[Place]) -> dict[str, str]:
    """Address -> the name of a host for other tools: `trainers-0`, or `trainers.0` where that would mean two."""
    places = tuple(places)
    short = [f"{place.fleet}-{place.member}" for place in places]
    return {
        place.address: name if short.count(name) == 1 else f"{place.fleet}.{place.member}"
        for place, name in zip(places, short, strict=True)
    }


def ssh_config(places: Iterable[Place]) -> str:
    """For `Include` in ~/.ssh/config: a host for each pod, by its short name and by its address."""
    places = tuple(places)
    names = aliases(places)
    lines = ["# Written by `lium-plan ssh-config`. Write it anew after each apply: pods come and go."]
    for place in places:
        lines += [
            "",
            f"Host {names[place.address]} {place.address}",
            f"    HostName {place.host}",
            f"    Port {place.port}",
            f"    User {place.user}",
            f"    IdentityFile {_option_path(str(place.key_path))}",
            *(f"    {name} {value}" for name, _, value in (option.partition("=") for option in ssh_options(place))),
        ]
    return "\n".join(lines) + "\n"


def _option_path(path: str) -> str:
    """OpenSSH expands %-tokens in these, and takes what is in quotes as one word."""
    escaped = path.replace("%", "%%")
    return f'"{escaped}"' if re.search(r"\s", escaped) else escaped


# --- Ansible -------------------------------------------------------------------------------------------------


def inventory_json(places: Iterable[Place]) -> dict[str, object]:
    """Ansible's inventory from a script: groups by fleet, variables under `_meta`."""
    places = tuple(places)
    names = aliases(places)
    groups = _groups(places)
    return {
        "_meta": {"hostvars": {names[place.address]: _host_variables(place) for place in places}},
        "all": {"children": [*groups, "ungrouped"]},
        **{group: {"hosts": [names[place.address] for place in members]} for group, members in groups.items()},
    }


def inventory_yaml(places: Iterable[Place]) -> str:
    """Ansible's inventory as YAML; values are JSON's, which YAML understands as they are."""
    places = tuple(places)
    names = aliases(places)
    lines = ["all:", "  children:" if places else "  children: {}"]
    for group, members in _groups(places).items():
        lines += [f"    {group}:", "      hosts:"]
        for place in members:
            lines.append(f"        {names[place.address]}:")
            lines += [f"          {key}: {json.dumps(value)}" for key, value in _host_variables(place).items()]
    return "\n".join(lines) + "\n"


def _groups(places: Iterable[Place]) -> dict[str, list[Place]]:
    """By fleet. A group's name is an identifier: `my-fleet` becomes `my_fleet`."""
    groups: dict[str, list[Place]] = {}
    for place in places:
        groups.setdefault(place.fleet.replace("-", "_"), []).append(place)
    return groups


def _host_variables(place: Place) -> dict[str, object]:
    options = " ".join(f"-o {shlex.quote(option)}" for option in ssh_options(place))
    return {
        "ansible_host": place.host,
        "ansible_port": place.port,
        "ansible_user": place.user,
        "ansible_ssh_private_key_file": str(place.key_path),
        "ansible_ssh_common_args": options,
        "lium_address": place.address,
        "lium_pod_id": place.pod_id,
        "lium_gpu": place.gpu,
        "lium_gpu_count": place.gpu_count,
    }


# --- MPI -----------------------------------------------------------------------------------------------------


def hostfile(places: Iterable[Place], names: dict[str, str]) -> str:
    """`HOST slots=GPUS` a line, as mpirun and DeepSpeed read it; the hosts are those of `ssh-config`."""
    return "".join(f"{names[place.address]} slots={max(place.gpu_count, 1)}\n" for place in places)
