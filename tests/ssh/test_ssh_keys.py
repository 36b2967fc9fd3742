from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from pathlib import Path

import asyncssh
import pytest
from ssh_servers import asyncssh_server, session_on

from lium_plan.ssh.errors import KeyUnusable
from lium_plan.ssh.keys import inspect_key, make_key, public_key_line, require_usable
from lium_plan.ssh.pins import PinStore


def test_a_made_key_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "id"
    public = make_key(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert public == public_key_line(path)
    assert path.with_name("id.pub").read_text().strip() == public
    with pytest.raises(FileExistsError):
        make_key(path)
    assert public_key_line(path) == public


@pytest.mark.parametrize(
    ("algorithm", "form"),
    [
        ("ssh-ed25519", "openssh"),
        ("ssh-rsa", "openssh"),
        ("ssh-rsa", "pkcs1-pem"),
        ("ecdsa-sha2-nistp256", "pkcs8-pem"),
    ],
)
@pytest.mark.parametrize("beside", [True, False])
def test_public_key_line(tmp_path: Path, algorithm: str, form: str, beside: bool) -> None:
    key = asyncssh.generate_private_key(algorithm)
    path = tmp_path / "id"
    path.write_bytes(key.export_private_key(form))
    expected = " ".join(key.export_public_key().decode().split()[:2])
    if beside:
        path.with_name("id.pub").write_text(expected + " me@here\n")
    assert public_key_line(path) == expected


def test_the_private_key_is_believed_rather_than_the_file_beside_it(tmp_path: Path) -> None:
    expected = make_key(tmp_path / "id")
    (tmp_path / "id.pub").write_text("ssh-ed25519 AAAAother\n")
    assert public_key_line(tmp_path / "id") == expected


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (None, "no such file"),
        ("ssh-ed25519 AAAA me\n", "public key"),
        ("hello\n", "no private key"),
        ("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n", "damaged"),
    ],
)
def test_an_unusable_key_is_named_with_its_reason(tmp_path: Path, content: str | None, reason: str) -> None:
    path = tmp_path / "id"
    if content is not None:
        path.write_text(content)
    with pytest.raises(KeyUnusable, match=reason) as caught:
        public_key_line(path)
    assert str(path) in str(caught.value)


needs_keygen = pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="ssh-keygen is not installed")


def _keygen(*arguments: str) -> None:
    subprocess.run(["ssh-keygen", "-q", *arguments], check=True, stdin=subprocess.DEVNULL)


def _protect(path: Path) -> None:
    make_key(path)
    _keygen("-p", "-P", "", "-N", "secret", "-f", str(path))


@needs_keygen
def test_a_protected_key_shows_its_public_half(tmp_path: Path) -> None:
    _protect(tmp_path / "id")
    expected = (tmp_path / "id.pub").read_text().strip()
    (tmp_path / "id.pub").unlink()
    assert inspect_key(tmp_path / "id").encrypted
    assert public_key_line(tmp_path / "id") == expected


@needs_keygen
@pytest.mark.parametrize("agent", ["", "/nowhere/agent"])
def test_a_protected_key_without_an_agent_says_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, agent: str
) -> None:
    _protect(tmp_path / "id")
    monkeypatch.setenv("SSH_AUTH_SOCK", agent)

    async def scenario() -> None:
        async with asyncssh_server(tmp_path, tmp_path / "id") as server:
            with pytest.raises(KeyUnusable, match=r"passphrase.*agent.*ssh-add"):
                await server.open()
        with pytest.raises(KeyUnusable, match=r"passphrase.*agent.*ssh-add") as caught:
            await require_usable(tmp_path / "id")
        assert "Errno" not in str(caught.value)

    asyncio.run(scenario())


@needs_keygen
def test_an_agents_key_logs_in(tmp_path: Path, key_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    socket = tmp_path / "agent"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    with subprocess.Popen(["ssh-agent", "-D", "-a", str(socket)], stdout=subprocess.PIPE) as agent:
        try:
            assert agent.stdout is not None
            agent.stdout.readline()  # it listens now
            make_key(tmp_path / "id")
            for path in (key_path, tmp_path / "id"):
                subprocess.run(["ssh-add", "-q", str(path)], check=True)
            _keygen("-p", "-P", "", "-N", "secret", "-f", str(tmp_path / "id"))

            async def scenario() -> int:
                await require_usable(tmp_path / "id")
                async with asyncssh_server(tmp_path, tmp_path / "id") as server, session_on(server) as session:
                    return (await session.run("exit 5", timeout_s=5)).exit_status

            assert asyncio.run(scenario()) == 5
        finally:
            agent.terminate()


def test_pins_are_private_and_forgotten_one_by_one(tmp_path: Path) -> None:
    store = PinStore(tmp_path / "known_hosts")
    store.pin("pod-1").save("ssh-ed25519 AAAA")
    store.pin("pod-2").save("ssh-ed25519 BBBB")
    assert (tmp_path / "known_hosts").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "known_hosts" / "pod-1").stat().st_mode & 0o777 == 0o600
    assert sorted(path.name for path in (tmp_path / "known_hosts").iterdir()) == ["pod-1", "pod-2"]
    store.forget_pin("pod-1")
    store.forget_pin("pod-1")
    assert store.pin("pod-1").load() == ()
    assert store.pin("pod-2").load() == ("ssh-ed25519 BBBB",)


def test_a_pin_written_by_openssh_is_understood(tmp_path: Path) -> None:
    pin = PinStore(tmp_path).pin("pod-1")
    (tmp_path / "pod-1").write_text("# note\n\n|1|abc=|def= ssh-ed25519 AAAA comment\n[h]:22 ssh-rsa BBBB\n")
    assert pin.load() == ("ssh-ed25519 AAAA", "ssh-rsa BBBB")


@pytest.mark.parametrize("pod_id", ["", "..", "a/b", ".hidden", "a\n", "a" * 200])
def test_a_pod_id_that_is_no_file_name_is_refused(tmp_path: Path, pod_id: str) -> None:
    with pytest.raises(ValueError, match="no pod id"):
        PinStore(tmp_path).pin(pod_id)


def test_nothing_but_connecting_loads_asyncssh() -> None:
    names = "banner connector coordinates detached errors image_env keys markers pins posix protocol quoting transfer"
    imports = "; ".join(f"import lium_plan.ssh.{name}" for name in names.split())
    code = f"import sys; {imports}; sys.exit('asyncssh' in sys.modules or 'cryptography' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
