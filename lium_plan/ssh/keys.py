"""The user's key pair: its public half for a rent, its kind and protection, and making one where there is
none.

The public half is read from the private key itself where the format shows it, since a `.pub` file beside it
may be another key's; that needs no cryptography, so planning doesn't load any.
"""

from __future__ import annotations

import base64
import binascii
import os
from dataclasses import dataclass, field
from pathlib import Path

from lium_plan.ssh.errors import KeyUnusable

_OPENSSH_MAGIC = b"openssh-key-v1\0"
_OPENSSH_BEGIN = "-----BEGIN OPENSSH PRIVATE KEY-----"
_KEY_HINT = "give the path of an ed25519, RSA or ECDSA private key"


@dataclass(frozen=True, slots=True)
class KeyFile:
    """A private key's file, looked at without opening it."""

    path: Path
    encrypted: bool
    public: str | None
    """`algorithm base64` (no comment) when the file or the `.pub` beside it tells."""
    text: str = field(default="", repr=False)
    """The whole file."""


def inspect_key(path: Path) -> KeyFile:
    """Raises `KeyUnusable` when the file can't be read or is no private key."""
    try:
        text = path.expanduser().read_text(encoding="ascii", errors="replace")
    except OSError as error:
        hint = (
            "make one with `ssh-keygen -t ed25519`, or name another"
            if isinstance(error, FileNotFoundError)
            else _KEY_HINT
        )
        raise KeyUnusable(str(path), (error.strerror or str(error)).lower(), hint=hint) from None
    except (RuntimeError, ValueError):  # no such user's home; a NUL byte
        raise KeyUnusable(str(path), "it is no path", hint=_KEY_HINT) from None
    if _OPENSSH_BEGIN in text:
        return _openssh(path, text)
    if "-----BEGIN " not in text or "PRIVATE KEY-----" not in text:
        reason = "it is a public key" if text.startswith(("ssh-", "ecdsa-")) else "it is no private key"
        raise KeyUnusable(str(path), reason, hint=_KEY_HINT)
    return KeyFile(path, "ENCRYPTED" in text, _beside(path), text)


def public_key_line(path: Path) -> str:
    """The public key of the private key at `path`, as one OpenSSH line (contract §2.4.1 `user_public_key`).

    Raises `KeyUnusable`.
    """
    key = inspect_key(path)
    if key.public is not None:
        return key.public
    if key.encrypted:
        hint = f"write its public key to {path}.pub (`ssh-keygen -y -f {path}`)"
        raise KeyUnusable(str(path), "it is protected by a passphrase and shows no public key", hint=hint)
    from lium_plan.ssh.wire import read_public_key

    return read_public_key(key)


async def require_usable(path: Path) -> None:
    """Raises `KeyUnusable` for a key that nobody could log in with: also one whose passphrase no agent knows."""
    public_key_line(path)
    key = inspect_key(path)
    if key.encrypted:
        from lium_plan.ssh.wire import load_key

        (await load_key(key)).close()


def make_key(path: Path) -> str:
    """Make an ed25519 key pair at `path` (0600) and `path`.pub, for use without a passphrase; returns the public line.

    Raises `FileExistsError` rather than touch an existing key.
    """
    from lium_plan.ssh.wire import generate_key

    private, public = generate_key()
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(private)
    path.with_name(path.name + ".pub").write_text(public + "\n", encoding="ascii")
    return public


def _openssh(path: Path, text: str) -> KeyFile:
    body = text.split(_OPENSSH_BEGIN, 1)[1].split("-----END", 1)[0]
    try:
        data = base64.b64decode("".join(body.split()), validate=True)
        if not data.startswith(_OPENSSH_MAGIC):
            raise ValueError
        cipher, rest = _string(data[len(_OPENSSH_MAGIC) :])
        _kdf, rest = _string(rest)
        _options, rest = _string(rest)
        blob, _ = _string(rest[4:])
        algorithm, _ = _string(blob)
        public = f"{algorithm.decode('ascii')} {base64.b64encode(blob).decode('ascii')}"
    except (ValueError, binascii.Error):
        raise KeyUnusable(str(path), "the file is damaged", hint=_KEY_HINT) from None
    return KeyFile(path, cipher != b"none", public, text)


def _string(data: bytes) -> tuple[bytes, bytes]:
    """The SSH string at the start of `data`, and what follows it."""
    end = 4 + int.from_bytes(data[:4], "big")
    if len(data) < end or end < 4 or len(data) < 4:
        raise ValueError
    return data[4:end], data[end:]


def _beside(path: Path) -> str | None:
    try:
        fields = Path(f"{path.expanduser()}.pub").read_text(encoding="utf-8", errors="replace").split()
    except OSError:
        return None
    return f"{fields[0]} {fields[1]}" if len(fields) >= 2 and fields[0].startswith(("ssh-", "ecdsa-")) else None
