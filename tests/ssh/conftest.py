from __future__ import annotations

import getpass
import os
import shutil
import tempfile
from collections.abc import Iterator
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


@pytest.fixture(params=SHELLS)
def shell(request: pytest.FixtureRequest) -> Iterator[Shell]:
    """Each kind of `sh` that an image may have, with that kind's tools alone in PATH; other users may use it."""
    with tempfile.TemporaryDirectory(prefix="lium-plan-shell-") as directory:
        Path(directory).chmod(0o755)
        yield make_shell(request.param, Path(directory))
