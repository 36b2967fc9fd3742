"""Reading the connect command that Lium gives for a pod. Pure; it is parsed, never executed."""

from __future__ import annotations

import ipaddress
import re

from lium_plan.ssh.errors import BadConnectCommand
from lium_plan.ssh.protocol import Coordinates

_MAX_TEXT = 512
_MAX_HOST = 253
_DEFAULT_PORT = 22
_USER = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,31}", re.ASCII)
_LABEL = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?", re.ASCII)
_PORT = re.compile(r"[1-9][0-9]{0,4}", re.ASCII)


def parse_connect_command(text: str) -> Coordinates:
    """`ssh USER@HOST [-p PORT]` or `ssh [-p PORT] USER@HOST`, and nothing else (contract §7.1).

    HOST is a DNS name or an IP address, an IPv6 one bare or in brackets, without a zone. Raises `BadConnectCommand`.
    """
    if len(text) > _MAX_TEXT:
        raise BadConnectCommand(text[:60] + "…", f"it is longer than {_MAX_TEXT} characters")
    tokens = re.split(r"[ \t]+", text.strip(" \t"))
    if tokens[0] != "ssh":
        raise BadConnectCommand(text, "it does not begin with `ssh`")
    login: str | None = None
    port: int | None = None
    rest = iter(tokens[1:])
    for token in rest:
        if token == "-p":
            if port is not None:
                raise BadConnectCommand(text, "it has two ports")
            port = _port(text, next(rest, ""))
        elif token.startswith("-"):
            raise BadConnectCommand(text, f"the option {token!r} is not allowed")
        elif login is None:
            login = token
        else:
            raise BadConnectCommand(text, f"{token!r} after the address is not allowed")
    if login is None:
        raise BadConnectCommand(text, "it names no address")
    user, at, host = login.partition("@")
    if not at:
        raise BadConnectCommand(text, "it names no user")
    if not _USER.fullmatch(user):
        raise BadConnectCommand(text, f"{user!r} is no user name")
    return Coordinates(user, _host(text, host), _DEFAULT_PORT if port is None else port)


def _port(text: str, token: str) -> int:
    if not _PORT.fullmatch(token) or int(token) > 65535:
        raise BadConnectCommand(text, f"{token!r} is no port from 1 to 65535")
    return int(token)


def _host(text: str, host: str) -> str:
    bare = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if len(bare) <= _MAX_HOST and "%" not in bare:
        try:
            return str(ipaddress.ip_address(bare))
        except ValueError:
            labels = bare.removesuffix(".").split(".")
            # A name whose last label is a number is an address written wrongly (`1.2.3`, `999.1.1.1`).
            if bare == host and all(map(_LABEL.fullmatch, labels)) and not labels[-1].isdigit():
                return bare
    raise BadConnectCommand(text, f"{host!r} is no host name or IP address")
