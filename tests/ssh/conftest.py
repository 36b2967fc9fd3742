from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from ssh_servers import Server, openssh_server
from ssh_shells import SHELLS, Shell, make_shell

from lium_plan.ssh.keys import make_key


@pytest.fixture(scope="session")
def key_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("key") / "id_ed25519"
    make_key(path)
    return path


@pytest.fixture(scope="session")
def openssh(tmp_path_factory: pytest.TempPathFactory, key_path: Path) -> Iterator[Server]:
    if not Path("/usr/sbin/sshd").exists() or shutil.which("ssh-keygen") is None:
        pytest.skip("OpenSSH's server is not installed")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)
    with openssh_server(tmp_path_factory.mktemp("sshd"), key_path, getpass.getuser()) as server:
        yield server


@pytest.fixture(scope="session")
def shells() -> Iterator[Callable[[str], Shell]]:
    with tempfile.TemporaryDirectory(prefix="lium-plan-shells-") as directory:
        Path(directory).chmod(0o755)  # other users run commands too
        made: dict[str, Shell] = {}

        def get(name: str) -> Shell:
            if name not in made:
                made[name] = make_shell(name, Path(directory))
            return made[name]

        yield get


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest, shells: Callable[[str], Shell]) -> Iterator[Shell]:
    """Each kind of `sh` that an image may have, with that kind's tools alone in PATH, and an empty home."""
    with tempfile.TemporaryDirectory(prefix="lium-plan-home-") as home:
        Path(home).chmod(0o755)
        yield replace(shells(request.param), home=Path(home))


@pytest.fixture
def dash(shells: Callable[[str], Shell], tmp_path: Path) -> Shell:
    """One shell, for what doesn't depend on its kind."""
    home = tmp_path / "home"
    home.mkdir()
    return replace(shells("dash"), home=home)
