"""Setting up 1, 8 and 32 hosts over SSH: a script of 1 KB sent, run, and its result checked.

Ours beside a bare asyncssh script that does the same in one command a host, pyinfra, and Ansible (pipelining, as many
forks as hosts), each a process of its own, in turn, against the same sshd processes of this machine.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.measure import Sample, median, run_once, table
from bench.venvs import client_bin
from lium_plan.ssh.keys import make_key, public_key_line

PYINFRA, ANSIBLE = "pyinfra==3.10.0", "ansible-core"
COUNTS = (1, 8, 32)
ROUNDS = 9
EVERY = {"pyinfra 3.10": 3, "ansible": 4}
"""The others take part in every round: they are compared closely. Ansible with several hosts takes half a minute, and
one run of it will do to tell the magnitude."""
USER = "nobody-lium-bench"
HERE = Path(__file__).parent / "ssh_peers"
Commands = Mapping[str, tuple[str | Path, ...]]


def main() -> None:
    if not Path("/usr/sbin/sshd").exists() or os.geteuid() != 0:
        print("needs root and OpenSSH's server: skipped")
        return
    pyinfra = client_bin("pyinfra-3.10.0", PYINFRA)
    ansible = client_bin("ansible-core", ANSIBLE)
    head = ("hosts", "wall s", "cpu s", "peak MiB", "× bare asyncssh")
    with (
        tempfile.TemporaryDirectory(prefix="lium-plan-bench-") as folder,
        a_user(Path(folder)) as home,
        hosts(Path(folder), max(COUNTS)) as ports,
    ):
        for count in COUNTS:
            commands = commands_for(Path(folder), ports[:count], pyinfra, ansible)
            found: dict[str, list[Sample]] = {name: [] for name in commands}
            for number in range(ROUNDS + 1):
                for name, command in commands.items():
                    if takes_part(name, number, count):
                        sample = one(Path(folder), home, command)
                        if number:
                            found[name].append(sample)
            print(table(head, tuple(rows_for(count, found))), flush=True)


def takes_part(name: str, number: int, count: int) -> bool:
    """Round 0 warms the caches, and is not counted."""
    every = EVERY.get(name, 1)
    if name == "ansible" and count > 1:
        return number == 1
    return number % every == 1 % every


def rows_for(count: int, found: Mapping[str, list[Sample]]) -> Iterator[tuple[str, ...]]:
    """The ratio is the median of those within a round: what else the machine does comes and goes."""
    bare = found["bare asyncssh"]
    for name, samples in found.items():
        numbers = [median(samples, what) for what in ("wall_s", "cpu_s", "peak_mib")]
        beside = bare if len(samples) == len(bare) else [Sample(median(bare, "wall_s"), 0, 0, 0)] * len(samples)
        ratio = statistics.median(one.wall_s / other.wall_s for one, other in zip(samples, beside, strict=True))
        yield (f"{count:>2}  {name}", f"{numbers[0]:.2f}", f"{numbers[1]:.2f}", f"{numbers[2]:.0f}", f"{ratio:.2f}")


def one(folder: Path, home: Path, command: tuple[str | Path, ...]) -> Sample:
    """One run on clean hosts; fails when the result is not there afterwards."""
    for name in ("work", ".lium-plan"):
        shutil.rmtree(home / name, ignore_errors=True)
    env = {"PATH": os.environ["PATH"], "HOME": str(folder), "LANG": "C.UTF-8", "PYTHONPATH": str(HERE.parents[1])}
    env |= {"ANSIBLE_CONFIG": str(folder / "ansible.cfg"), "ANSIBLE_LOCAL_TEMP": str(folder / "ansible")}
    sample = run_once(command, env=env, cwd=folder)
    end_masters(folder)
    assert sample.status == 0, (command, sample)
    return sample


def end_masters(folder: Path) -> None:
    """Ansible leaves OpenSSH's masters behind for a minute; they are known by the path of their sockets."""
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if str(folder / ".ansible" / "cp").encode() in entry.read_bytes():
                os.kill(int(entry.parent.name), signal.SIGTERM)


def commands_for(folder: Path, ports: list[int], pyinfra: Path, ansible: Path) -> Commands:
    """Each is given the same hosts; what it needs to know lies in files."""
    key = folder / "key"
    plan = folder / f"hosts-{len(ports)}.json"
    script = folder / "script.sh"
    script.write_text(
        "set -eu\nmkdir -p ~/work\n"
        + "# padding\n" * 93
        + 'echo "done on $1" > ~/work/result-$1\ncat ~/work/result-$1\n'
    )
    plan.write_text(json.dumps({"ports": ports, "key": str(key), "user": USER, "script": str(script)}))
    inventory = folder / f"inventory-{len(ports)}.py"
    options = {
        "ssh_hostname": "127.0.0.1",
        "ssh_user": USER,
        "ssh_key": str(key),
        "ssh_strict_host_key_checking": "off",
    }
    inventory.write_text(f"hosts = {[(f'h{port}', {**options, 'ssh_port': port}) for port in ports]!r}\n")
    playbook_hosts = folder / f"inventory-{len(ports)}.ini"
    playbook_hosts.write_text(
        "".join(
            f"h{port} ansible_host=127.0.0.1 ansible_port={port} ansible_user={USER} "
            f"ansible_ssh_private_key_file={key} ansible_python_interpreter=/usr/bin/python3\n"
            for port in ports
        )
    )
    (folder / "ansible.cfg").write_text(
        f"[defaults]\nhost_key_checking=False\nforks={len(ports)}\ngathering=explicit\n[ssh_connection]\npipelining=True\n"
    )
    return {
        "bare asyncssh": (sys.executable, HERE / "bare.py", plan),
        "ours": (sys.executable, HERE / "ours.py", plan),
        "pyinfra 3.10": (pyinfra / "pyinfra", "-y", "--parallel", str(len(ports)), inventory, HERE / "deploy.py"),
        "ansible": (ansible / "ansible-playbook", "-i", playbook_hosts, "-e", f"script={script}", HERE / "play.yaml"),
    }


# --- hosts ---------------------------------------------------------------------------------------------------


@contextmanager
def a_user(folder: Path) -> Iterator[Path]:
    """A user with an empty home and /bin/sh: a slow profile would be all that is measured. Gives its home."""
    home = folder / "home"
    home.mkdir()
    folder.chmod(0o755)
    # A password that is none, but not `!`: sshd takes that for a locked account.
    options = ("--no-create-home", "--home-dir", str(home), "--shell", "/bin/sh", "--password", "*")
    subprocess.run(["useradd", *options, USER], check=True)
    try:
        found = pwd.getpwnam(USER)
        os.chown(home, found.pw_uid, found.pw_gid)
        make_key(folder / "key")
        yield home
    finally:
        # By force: sessions that are just ending still count as logged in.
        subprocess.run(["userdel", "--force", USER], check=True, stderr=subprocess.DEVNULL)


@contextmanager
def hosts(folder: Path, count: int) -> Iterator[list[int]]:
    """So many sshd processes on ports of their own, all of one user and one home."""
    Path("/run/sshd").mkdir(exist_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / "host_key")], check=True)
    keys = folder / "authorized_keys"
    keys.write_text(public_key_line(folder / "key") + "\n")
    keys.chmod(0o644)
    ports: list[int] = []
    daemons = []
    try:
        for _ in range(count):
            with socket.socket() as probe:
                probe.bind(("127.0.0.1", 0))
                ports.append(probe.getsockname()[1])
            config = folder / f"sshd-{ports[-1]}"
            config.write_text(
                f"ListenAddress 127.0.0.1:{ports[-1]}\nHostKey {folder / 'host_key'}\nAuthorizedKeysFile {keys}\n"
                "PidFile none\nStrictModes no\nUsePAM no\nPasswordAuthentication no\nSubsystem sftp internal-sftp\n"
                "MaxStartups 200\nMaxSessions 100\n"
            )
            command = ["/usr/sbin/sshd", "-D", "-e", "-f", str(config)]
            daemons.append(subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL))
        for port in ports:
            _await(port)
        yield ports
    finally:
        for daemon in daemons:
            daemon.terminate()
        for daemon in daemons:
            daemon.wait(10)


def _await(port: int) -> None:
    for _ in range(200):
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.05)
    raise RuntimeError(f"no sshd on port {port}")


if __name__ == "__main__":
    main()
