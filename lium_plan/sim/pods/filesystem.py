"""The file system of one container in namespaces: what is private, and what of the host it sees read-only.

Private and writable: everything but the system directories. Read-only from the host: /usr and its old names (/bin,
/lib …) and a few directories of /etc. Nothing else of the host is there: no home directory, no /var, no password
hashes, no machine id.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lium_plan.sim.pods import gpu, images
from lium_plan.sim.runtime import Container

_PRIVATE = {
    "proc": 0o555,
    "sys": 0o555,
    "dev": 0o755,
    "etc": 0o755,
    "root": 0o700,
    "home": 0o755,
    "tmp": 0o1777,
    "run": 0o755,
    "run/lock": 0o1777,
    "var": 0o755,
    "var/tmp": 0o1777,
    "var/log": 0o755,
    "var/lib": 0o755,
    "var/cache": 0o755,
    "mnt": 0o755,
    "opt": 0o755,
    "workspace": 0o755,
    "usr": 0o755,
}
_OLD_NAMES = ("bin", "sbin", "lib", "lib32", "lib64", "libx32")
_SYSTEM = frozenset({"", "usr", "proc", "sys", "dev", *_OLD_NAMES})
# Few on purpose: creating a file costs more than everything else in a container's start.
_ETC_COPIED = (
    "bash.bashrc",
    "ld.so.cache",
    "localtime",
    "login.defs",
    "nsswitch.conf",
    "os-release",
    "profile",
    "protocols",
    "services",
    "shells",
)
_ETC_READ_ONLY = ("alternatives", "pam.d", "pki", "ssl")
_PROGRAM_DIRECTORY = "/usr/local/sbin"
_MINIMAL_TOOLS = (
    "sh dash cat env tr wc xargs mkdir rmdir chmod chown kill sleep ls nohup mv rm cp ln touch echo printf test [ "
    "expr true false head tail cut sort uniq sed grep egrep fgrep find date dd df du id whoami hostname uname ps pwd "
    "basename dirname readlink realpath stat tee mktemp mkfifo setsid seq sync tar gzip gunzip zcat od md5sum "
    "sha256sum cmp diff awk which mount umount mountpoint nproc timeout tty stty yes base64 free uptime"
).split()


VOLUME_AT = "/mnt"


@dataclass(frozen=True, slots=True)
class Mounts:
    """What to mount where: (host directory, place in the container)."""

    read_only: tuple[tuple[str, str], ...]
    writable: tuple[tuple[str, str], ...]
    refused: str = ""
    """Why the local volume is not where the template wants it."""


@dataclass(frozen=True, slots=True)
class Places:
    """The host's directories for one container."""

    root: Path
    programs: Path
    shared: Path
    local: Path
    volume: Path | None


def host_has_room_for_programs() -> bool:
    """Whether there is a directory in everybody's PATH where the pod's own programs can be shown."""
    return os.path.isdir(_PROGRAM_DIRECTORY)


def populate(places: Places, container: Container, image: images.Image) -> Mounts:
    """Make the private part of a new container, and say what is to be mounted on it.

    Once PID 1 has run, the tree belongs to the pod, which may have put links anywhere: nothing is written then.
    """
    ready = places.root.parent / "ready"
    local_volume = _local_volume(container)
    if not ready.exists():
        _make_private(places, container, image, local_volume)
        ready.touch()
    writable = [] if local_volume is None else [(str(places.local), local_volume)]
    if places.volume is not None:
        places.volume.mkdir(mode=0o755, exist_ok=True)
        writable.append((str(places.volume), VOLUME_AT))
    read_only = [(str(source), target) for source, target in _system_mounts(places, image)]
    refused = ""
    if local_volume is None:
        refused = f"no local volume: {container.local_volume} is a system directory of the simulated image"
    return Mounts(read_only=tuple(read_only), writable=tuple(writable), refused=refused)


def _local_volume(container: Container) -> str | None:
    path = os.path.normpath("/" + container.local_volume.lstrip("/"))
    return None if path.split("/")[1] in _SYSTEM else path


def _make_private(places: Places, container: Container, image: images.Image, local_volume: str | None) -> None:
    for name, mode in _PRIVATE.items():
        path = places.root / name
        path.mkdir(parents=True, exist_ok=True)
        path.chmod(mode)
    places.local.mkdir(mode=0o755, exist_ok=True)
    if local_volume is not None:
        (places.root / local_volume[1:]).mkdir(parents=True, exist_ok=True)
        places.local.chmod(0o700 if local_volume == "/root" else 0o755)
    _write_programs(places, container)
    _make_system(places, image)
    _write_etc(places.root / "etc", container, image)
    _write_home(places, container, image, local_is_root=local_volume == "/root")


def _make_system(places: Places, image: images.Image) -> None:
    root = places.root
    if image.tools is images.Tools.MINIMAL:
        _minimal_programs(places.shared)
        for name in ("bin", "sbin", "local/sbin", *_library_directories()):
            (root / "usr" / name).mkdir(parents=True, exist_ok=True)
    for name in _OLD_NAMES:
        host, here = Path("/", name), root / name
        if host.is_symlink():
            if not here.is_symlink():
                here.symlink_to(os.readlink(host).lstrip("/"))
        elif host.is_dir():
            here.mkdir(exist_ok=True)
    for name in _shown_etc():
        (root / "etc" / name).mkdir(exist_ok=True)


def _shown_etc() -> tuple[str, ...]:
    return tuple(name for name in _ETC_READ_ONLY if Path("/etc", name).is_dir())


def _system_mounts(places: Places, image: images.Image) -> list[tuple[str | Path, str]]:
    minimal = image.tools is images.Tools.MINIMAL
    mounts: list[tuple[str | Path, str]] = [] if minimal else [("/usr", "/usr")]
    if minimal:
        mounts += [(f"/usr/{name}", f"/usr/{name}") for name in _library_directories()]
        mounts.append((places.shared / "minimal", "/usr/bin"))
    mounts.append((places.programs, _PROGRAM_DIRECTORY))
    for name in _OLD_NAMES:
        host = Path("/", name)
        if host.is_symlink() or not host.is_dir():
            continue
        if not minimal or name.startswith("lib"):
            mounts.append((host, f"/{name}"))
        elif name == "bin":
            mounts.append((places.shared / "minimal", "/bin"))
    return mounts + [(f"/etc/{name}", f"/etc/{name}") for name in _shown_etc()]


def _library_directories() -> tuple[str, ...]:
    names = sorted(path.name for path in Path("/usr").glob("lib*") if path.is_dir() and not path.is_symlink())
    return tuple(name for name in names if name != "libexec")


def _minimal_programs(shared: Path) -> None:
    """The programs of the minimal image: BusyBox where the host has it, copies of what it lacks."""
    directory = shared / "minimal"
    if directory.is_dir():
        return
    fresh = shared / "minimal.new"
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    busybox = shutil.which("busybox", path=images.SYSTEM_PATH)
    applets = frozenset[str]()
    if busybox:
        shutil.copy(busybox, fresh / "busybox")
        listed = subprocess.run([busybox, "--list"], stdout=subprocess.PIPE, text=True, check=True)
        applets = frozenset(listed.stdout.split())
    for name in _MINIMAL_TOOLS:
        if name in applets:
            (fresh / name).symlink_to("busybox")
        elif found := shutil.which(name, path=images.SYSTEM_PATH):
            shutil.copy(found, fresh / name)
    # `sh` of many hosts is bash; the point of the image is that there is none.
    if not busybox and (dash := shutil.which("dash", path=images.SYSTEM_PATH)):
        shutil.copy(dash, fresh / "sh")
    fresh.replace(directory)


def _write_programs(places: Places, container: Container) -> None:
    places.programs.mkdir(exist_ok=True)
    gpus = gpu.Gpus(
        pod_id=container.pod_id,
        name=container.gpu_name,
        count=container.gpu_count,
        memory_mib=container.gpu_memory_mib,
    )
    write_program(places.programs / "nvidia-smi", gpu.nvidia_smi(gpus))
    if not shutil.which("mountpoint", path=images.SYSTEM_PATH):
        write_program(places.programs / "mountpoint", gpu.mountpoint_from_mountinfo())


def write_program(path: Path, text: str) -> None:
    path.write_text(text, "utf-8")
    path.chmod(0o755)


def hostname(container: Container) -> str:
    """As Docker does: the first twelve characters of an id."""
    return container.pod_id.replace("-", "")[:12] or "pod"


def _write_etc(etc: Path, container: Container, image: images.Image) -> None:
    for name in _ETC_COPIED:
        source = Path("/etc", name)
        if source.is_file() and os.access(source, os.R_OK):
            shutil.copyfile(source, etc / name)
    shell = login_shell(image)
    users = [images.ROOT] + ([image.user] if image.user.uid else [])
    rows = [f"{user.name}:x:{user.uid}:{user.gid}:{user.name}:{user.home}:{shell}" for user in users]
    groups = [f"{user.name}:x:{user.gid}:" for user in users]
    name = hostname(container)
    files = {
        "group": [*groups, "tty:x:5:", "nogroup:x:65534:"],
        "hosts": ["127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost ip6-loopback", f"127.0.1.1\t{name}"],
        "hostname": [name],
        # A pod in the simulator has no network: an address without a server makes names fail at once.
        "resolv.conf": ["nameserver 127.0.0.1", "options timeout:1 attempts:1"],
        "environment": [f"{key}={value}" for key, value in container.environment.items() if "\n" not in value],
        "passwd": [*rows, "nobody:x:65534:65534:nobody:/nonexistent:/usr/sbin/nologin"],
    }
    for file, lines in files.items():
        (etc / file).write_text("".join(f"{line}\n" for line in lines), "utf-8")
    (etc / "mtab").symlink_to("/proc/self/mounts")


def login_shell(image: images.Image) -> str:
    """Root's shell: bash where image and host have it."""
    if image.tools is images.Tools.ORDINARY and os.path.exists("/bin/bash"):
        return "/bin/bash"
    return "/bin/sh"


def _write_home(places: Places, container: Container, image: images.Image, *, local_is_root: bool) -> None:
    write_authorized_keys(places.local if local_is_root else places.root / "root", container.public_keys)
    if image.user.uid:
        home = places.root / image.user.home.lstrip("/")
        if not home.is_dir():
            home.mkdir(parents=True)
            if os.geteuid() == 0:
                os.chown(home, image.user.uid, image.user.gid)


def write_authorized_keys(home: Path, public_keys: Sequence[str]) -> None:
    """As the platform does: missing keys are appended (contract §6.1). Nothing is written through links."""
    directory = home / ".ssh"
    if directory.is_symlink() or (directory / "authorized_keys").is_symlink():
        return
    directory.mkdir(mode=0o700, exist_ok=True)
    path = directory / "authorized_keys"
    present = path.read_text("utf-8", "replace").splitlines() if path.exists() else []
    missing = [key.strip() for key in public_keys if key.strip() not in present]
    with path.open("a", encoding="utf-8") as file:
        file.writelines(f"{key}\n" for key in missing)
    path.chmod(0o600)
