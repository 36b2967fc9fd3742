"""Settings: where the server, the key, the SSH key and the state are, and where each of these was found.

Owns the order in which places are asked: flags, then environment, then `~/.lium/config.ini`, as the official client
reads them (contract §1.1). Refuses what would send a key in the clear or would pretend to encrypt a state.
Never shows a key.
"""

from __future__ import annotations

import configparser
import ipaddress
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from lium_plan.addresses import NAME
from lium_plan.diagnostics import Diagnostic, ExitCode, Failure, error

DEFAULT_BASE_URL = "https://lium.io/api"
DEFAULT_STATE = "state"
SSH_KEY_NAMES = ("id_ed25519", "id_rsa", "id_ecdsa")
VARIABLE_PREFIX = "LIUM_PLAN_VAR_"
_KEY_VARIABLES = ("LIUM_API_API_KEY", "LIUM_API_KEY")
_ENCRYPTION_VARIABLES = ("LIUM_PLAN_STATE_KEY_FILE", "LIUM_PLAN_STATE_KEY", "LIUM_PLAN_STATE_KEY_CMD")


@dataclass(frozen=True, slots=True)
class Flags:
    """What was given on the command line; None: not given."""

    stack: str | None = None
    state: str | None = None
    sim: bool = False
    parallelism: int | None = None


@dataclass(frozen=True, slots=True)
class Settings:
    """Everything a run needs to know beside the manifest. `provenance` says in words where each value came from."""

    base_url: str
    """Without a trailing slash, e.g. `https://lium.io/api`."""
    workspace: str | None
    ssh_key_path: Path | None
    """The private key; None when none was found."""
    stack: str
    state_dir: Path
    parallelism: int
    """At most this many actions at once; 0: no limit but the server's."""
    sim: bool
    """The server is the local Lium of `state_dir`; key and base URL of elsewhere are ignored."""
    api_key: str | None = field(default=None, repr=False)
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)
    """What `env.NAME` and `LIUM_PLAN_VAR_*` are read from."""
    provenance: Mapping[str, str] = field(default_factory=dict, compare=False)

    def require_key(self) -> str:
        """The API key. Raises `Failure` (exit 1) naming the ways to give one."""
        if self.api_key:
            return self.api_key
        why = self.provenance.get("api_key", "none was found")
        raise Failure(
            ExitCode.ERROR,
            (
                error(
                    "no-api-key",
                    f"an API key is needed: {why}",
                    hint="set LIUM_API_KEY, or write `[api]` with `api_key = sk_…` into ~/.lium/config.ini; "
                    "or try it without an account: --sim",
                ),
            ),
        )

    def require_ssh_key(self) -> Path:
        """The private key's path. Raises `Failure` (exit 1) naming the ways to give one."""
        if self.ssh_key_path is not None:
            return self.ssh_key_path
        raise Failure(
            ExitCode.ERROR,
            (
                error(
                    "no-ssh-key",
                    f"an SSH key is needed: none of {', '.join(SSH_KEY_NAMES)} is in ~/.ssh",
                    hint="make one (`ssh-keygen -t ed25519`), or set LIUM_SSH_KEY_PATH",
                ),
            ),
        )

    def described(self) -> Mapping[str, str]:
        """Each setting with its source, for people: of the key only whether there is one."""
        values = {
            "base URL": (self.base_url, "base_url"),
            "API key": ("set" if self.api_key else "none", "api_key"),
            "SSH key": (str(self.ssh_key_path or "none"), "ssh_key_path"),
            "stack": (self.stack, "stack"),
            "state": (str(self.state_dir), "state"),
            "parallelism": (str(self.parallelism), "parallelism"),
        }
        return {name: f"{value} ({self.provenance.get(key, '?')})" for name, (value, key) in values.items()}

    def simulated(self, *, base_url: str, api_key: str, ssh_key_path: Path) -> Settings:
        """These settings with a running local Lium in place of the server."""
        sources = {"base_url": "the local Lium (--sim)", "api_key": "the local Lium (--sim)"}
        if ssh_key_path != self.ssh_key_path:
            sources["ssh_key_path"] = "made for the local Lium (--sim)"
        return replace(
            self,
            base_url=base_url,
            api_key=api_key,
            ssh_key_path=ssh_key_path,
            workspace=None,
            provenance={**self.provenance, **sources},
        )


def resolve(flags: Flags, environ: Mapping[str, str], home: Path) -> Settings:
    """Settings from flags, then environment, then `home/.lium/config.ini`. Raises `Failure` listing every fault: 64
    when a flag is one of them, else 1.

    A missing key is no fault here: commands that need one ask with `require_key`.
    """
    problems: list[Diagnostic] = []
    config = _read_config(home / ".lium" / "config.ini", problems)
    sources: dict[str, str] = {}
    for name in _ENCRYPTION_VARIABLES:
        if environ.get(name):
            problems.append(
                error(
                    "encryption-unsupported",
                    f"{name} asks for an encrypted state, which this version cannot write",
                    hint=f"unset {name}, or keep the state on an encrypted disk",
                )
            )
    base_url, sources["base_url"] = _base_url(flags, environ, problems)
    workspace = environ.get("LIUM_WORKSPACE") or None
    api_key, sources["api_key"] = _api_key(flags, environ, config)
    ssh_key_path, sources["ssh_key_path"] = _ssh_key(environ, config, home)
    asked, sources["stack"] = _first((flags.stack, "--stack"), (environ.get("LIUM_PLAN_STACK"), "LIUM_PLAN_STACK"))
    stack = asked or "default"
    if not re.fullmatch(NAME, stack):
        problems.append(error("bad-stack", f"'{stack}' ({sources['stack']}) is no stack's name: expected {NAME}"))
    state_dir, sources["state"] = _state_dir(flags, environ, problems)
    parallelism, sources["parallelism"] = _parallelism(flags, environ, problems)
    if problems:
        written = {"bad-stack": sources["stack"], "bad-state-url": sources["state"]}
        usage = any(written.get(item.code, "").startswith("--") for item in problems)
        raise Failure(ExitCode.USAGE if usage else ExitCode.ERROR, problems)
    return Settings(
        base_url=base_url,
        workspace=None if flags.sim else workspace,
        ssh_key_path=ssh_key_path,
        stack=stack,
        state_dir=state_dir,
        parallelism=parallelism,
        sim=flags.sim,
        api_key=api_key,
        environ=dict(environ),
        provenance=sources,
    )


def is_loopback(host: str) -> bool:
    """Whether a URL's host part can only be this machine."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _first(*candidates: tuple[str | None, str]) -> tuple[str | None, str]:
    """The first value that is there, with its source; `default` when none is."""
    return next(((value, source) for value, source in candidates if value), (None, "default"))


def _read_config(path: Path, problems: list[Diagnostic]) -> configparser.ConfigParser:
    # No interpolation: a key may hold a percent sign.
    config = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        config.read_string(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        pass
    except (OSError, UnicodeDecodeError) as fault:
        reason = fault.strerror if isinstance(fault, OSError) else "it is no UTF-8 text"
        problems.append(error("config-unreadable", f"cannot read {path}: {reason}"))
    except configparser.Error as fault:
        # The parser's own message quotes the line, which may be the key.
        line = getattr(fault, "lineno", None)
        where = f"{path}:{line}" if line else str(path)
        problems.append(
            error("config-invalid", f"{where}: not an INI file", hint="write `[api]`, then `api_key = sk_…`")
        )
    return config


def _base_url(flags: Flags, environ: Mapping[str, str], problems: list[Diagnostic]) -> tuple[str, str]:
    if flags.sim:
        return "", "the local Lium (--sim), not started yet"
    found, source = _first((environ.get("LIUM_BASE_URL"), "LIUM_BASE_URL"))
    url = (found or DEFAULT_BASE_URL).strip().rstrip("/")
    parts = _split(url)
    if parts is None:
        # Not shown: a user and a password may be in it, and where they end can't be told.
        problems.append(error("bad-base-url", "LIUM_BASE_URL is no URL", hint=f"e.g. {DEFAULT_BASE_URL}"))
        return url, source
    shown = f"{parts.scheme}://{parts.hostname or ''}"
    if parts.scheme not in ("http", "https") or not parts.hostname:
        problems.append(
            error("bad-base-url", f"LIUM_BASE_URL ({shown}) is no http(s) URL", hint=f"e.g. {DEFAULT_BASE_URL}")
        )
    elif parts.username or parts.password or parts.query or parts.fragment:
        problems.append(
            error(
                "bad-base-url", "LIUM_BASE_URL has a user, a query or a fragment in it", hint=f"e.g. {DEFAULT_BASE_URL}"
            )
        )
    elif parts.scheme == "http" and not is_loopback(parts.hostname):
        problems.append(
            error(
                "insecure-base-url",
                f"LIUM_BASE_URL ({shown}) would send the API key over plain http to another machine",
                hint="use https; plain http is for loopback only",
            )
        )
    return url, source


def _split(url: str) -> SplitResult | None:
    """None for what is no URL: brackets without an address in them, ports beyond 65535."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # read only when it is asked for
    except ValueError:
        return None
    return parts


def _api_key(flags: Flags, environ: Mapping[str, str], config: configparser.ConfigParser) -> tuple[str | None, str]:
    if flags.sim:
        return None, "the local Lium (--sim), not started yet"
    workspace = environ.get("LIUM_WORKSPACE")
    if workspace:
        # A workspace asked for by name is served by its own key only: any other would bill another account.
        section = f"workspace.{workspace.lower()}"
        key = config.get(section, "api_key", fallback="").strip()
        where = f"[{section}] api_key in ~/.lium/config.ini"
        return (key, where) if key else (None, f"LIUM_WORKSPACE is {workspace}, and there is no {where}")
    active = config.get("workspaces", "active", fallback="").strip()
    candidates = [(environ.get(name, "").strip(), name) for name in _KEY_VARIABLES]
    if active:
        section = f"workspace.{active.lower()}"
        candidates.append((config.get(section, "api_key", fallback="").strip(), f"[{section}] in ~/.lium/config.ini"))
    candidates.append((config.get("api", "api_key", fallback="").strip(), "[api] api_key in ~/.lium/config.ini"))
    found, source = _first(*candidates)
    return (found, source) if found else (None, "neither LIUM_API_KEY nor ~/.lium/config.ini has one")


def _ssh_key(environ: Mapping[str, str], config: configparser.ConfigParser, home: Path) -> tuple[Path | None, str]:
    given, source = _first(
        (environ.get("LIUM_SSH_KEY_PATH"), "LIUM_SSH_KEY_PATH"),
        (config.get("ssh", "key_path", fallback="").strip(), "[ssh] key_path in ~/.lium/config.ini"),
    )
    if given:
        path = home / given[2:] if given.startswith("~/") else Path(given)
        # `.pub` is a common slip: the private key is the one to name.
        return (path.with_suffix("") if path.suffix == ".pub" else path), source
    for name in SSH_KEY_NAMES:
        path = home / ".ssh" / name
        if path.is_file():
            return path, f"~/.ssh/{name}"
    return None, "none found in ~/.ssh"


def _state_dir(flags: Flags, environ: Mapping[str, str], problems: list[Diagnostic]) -> tuple[Path, str]:
    given, source = _first((flags.state, "--state"), (environ.get("LIUM_PLAN_STATE"), "LIUM_PLAN_STATE"))
    if not given:
        return Path(DEFAULT_STATE), source
    scheme, colon, rest = given.partition(":")
    if scheme == "file" and colon and rest:
        return Path(rest), source
    problems.append(
        error(
            "bad-state-url", f"'{given}' ({source}) is no place for a state", hint="write file:DIR, e.g. file:./state"
        )
    )
    return Path(DEFAULT_STATE), source


def _parallelism(flags: Flags, environ: Mapping[str, str], problems: list[Diagnostic]) -> tuple[int, str]:
    if flags.parallelism is not None:
        return flags.parallelism, "--parallelism"
    given = environ.get("LIUM_PLAN_PARALLELISM", "").strip()
    if not given:
        return 0, "default"
    if not given.isascii() or not given.isdigit():
        problems.append(
            error("bad-parallelism", f"LIUM_PLAN_PARALLELISM is '{given}': expected a whole number, 0 or more")
        )
        return 0, "default"
    return int(given), "LIUM_PLAN_PARALLELISM"
