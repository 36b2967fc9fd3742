"""What the launcher's forked children do between fork and exec: make a container, join one, or stay confined.

Runs in the launcher process, never in the simulator's, and imports the standard library and `linux` alone. Each
function gets a plain mapping (it came as JSON), raises OSError with the kernel's reason, and leaves the process
ready to execute a program.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import socket
import struct
import sys
import termios
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from lium_plan.sim.pods import linux

Spec = Mapping[str, Any]

# What Docker leaves to a container's root, and SYS_PTRACE so that root can read another user's /proc/1/environ.
# Above all SYS_ADMIN is missing: with it a pod could make its read-only mounts of the host writable.
_KEPT_CAPABILITIES = frozenset({0, 1, 3, 4, 5, 6, 7, 8, 10, 13, 18, 19, 27, 29, 31})

_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWNET | linux.CLONE_NEWUTS | linux.CLONE_NEWIPC
_MAPPED_IDS = 65536
_DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
_DEVICE_LINKS = {
    "ptmx": "pts/ptmx",
    "fd": "/proc/self/fd",
    "stdin": "/proc/self/fd/0",
    "stdout": "/proc/self/fd/1",
    "stderr": "/proc/self/fd/2",
}
# Parts of /proc through which the host's root could change the host.
_PROC_SETTINGS = ("sys", "sysrq-trigger", "irq", "bus", "fs")


def unshare_container() -> None:
    """Enter a new user namespace in which we are root, and new namespaces of the other kinds."""
    own_uid, own_gid = os.geteuid(), os.getegid()
    if own_uid == 0:
        _map_many_ids()
    else:
        linux.unshare(linux.CLONE_NEWUSER)
        _map_one_id(inner=(0, 0), outer=(own_uid, own_gid))
    linux.unshare(_NAMESPACES)


def _map_one_id(*, inner: tuple[int, int], outer: tuple[int, int]) -> None:
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/uid_map", f"{inner[0]} {outer[0]} 1")
    _write("/proc/self/gid_map", f"{inner[1]} {outer[1]} 1")


def _map_many_ids() -> None:
    """Root may map many ids, but only from the parent namespace: a helper that stayed there writes the maps."""
    ready_read, ready_write = os.pipe()
    done_read, done_write = os.pipe()
    target = os.getpid()
    helper = os.fork()
    if helper == 0:
        status = 1
        try:
            os.close(ready_write)
            os.read(ready_read, 1)
            for name in ("uid_map", "gid_map"):
                _write(f"/proc/{target}/{name}", f"0 0 {_MAPPED_IDS}")
            os.write(done_write, b"1")
            status = 0
        finally:
            os._exit(status)
    os.close(done_write)
    linux.unshare(linux.CLONE_NEWUSER)
    os.write(ready_write, b"1")
    mapped = os.read(done_read, 1)
    os.waitpid(helper, 0)
    for fd in (ready_read, ready_write, done_read):
        os.close(fd)
    if not mapped:
        raise PermissionError("the user namespace's id map could not be written")


def build_root(spec: Spec) -> None:
    """In the new namespaces, as their PID 1: assemble the file system that `spec` describes and make it the root."""
    root: str = spec["root"]
    linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
    linux.mount(root, root, flags=linux.MS_BIND | linux.MS_REC)
    for source, target in spec["read_only"]:
        linux.mount(source, root + target, flags=linux.MS_BIND | linux.MS_REC)
        linux.make_read_only(root + target)
    for source, target in spec["writable"]:
        if target == spec["volume_at"]:
            _show_as_s3fs(root + target)
        linux.mount(source, root + target, flags=linux.MS_BIND | linux.MS_REC)
    _build_dev(root + "/dev", gpu_count=spec["gpu_count"])
    safe = linux.MS_NOSUID | linux.MS_NODEV | linux.MS_NOEXEC
    linux.mount("proc", root + "/proc", kind="proc", flags=safe)
    # Some hosts forbid a new sysfs; nothing here depends on it.
    with contextlib.suppress(OSError):
        linux.mount("sysfs", root + "/sys", kind="sysfs", flags=safe | linux.MS_RDONLY)
    linux.bring_loopback_up()
    _write_if_present("/proc/sys/net/ipv4/ip_unprivileged_port_start", "0")
    socket.sethostname(spec["hostname"])
    linux.swap_root(root)
    for name in _PROC_SETTINGS:
        path = f"/proc/{name}"
        if os.path.exists(path):
            linux.mount(path, path, flags=linux.MS_BIND | linux.MS_REC)
            linux.make_read_only(path)


def _show_as_s3fs(target: str) -> None:
    """Put an empty mount of the type that clients look for below the volume's directory (contract §14).

    Nobody serves it and nobody reaches it: the directory is mounted over it. Where FUSE is not to be had the volume is
    a mount all the same, of the host's own type.
    """
    with contextlib.suppress(OSError):
        device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
        try:
            options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
            linux.mount("s3fs", target, kind="fuse.s3fs", flags=linux.MS_NOSUID | linux.MS_NODEV, options=options)
        finally:
            os.close(device)


def _build_dev(dev: str, *, gpu_count: int) -> None:
    linux.mount("tmpfs", dev, kind="tmpfs", flags=linux.MS_NOSUID, options="mode=755,size=65536k")
    for name in _DEVICES:
        with open(f"{dev}/{name}", "wb"):
            pass
        linux.mount(f"/dev/{name}", f"{dev}/{name}", flags=linux.MS_BIND)
    for name, target in _DEVICE_LINKS.items():
        os.symlink(target, f"{dev}/{name}")
    # A character device under the right name is all that can be had, and all that counting needs.
    for name in ("nvidiactl", "nvidia-uvm", *(f"nvidia{index}" for index in range(gpu_count))):
        os.symlink("null", f"{dev}/{name}")
    os.mkdir(f"{dev}/pts")
    options = "newinstance,ptmxmode=0666,mode=0620"
    linux.mount("devpts", f"{dev}/pts", kind="devpts", flags=linux.MS_NOSUID | linux.MS_NOEXEC, options=options)
    os.mkdir(f"{dev}/shm")
    os.chmod(f"{dev}/shm", 0o1777)
    linux.mount("tmpfs", f"{dev}/shm", kind="tmpfs", flags=linux.MS_NOSUID | linux.MS_NODEV, options="mode=1777")


def become(uid: int, gid: int) -> None:
    """Give up root for PID 1. Where only one id is mapped, a nested user namespace shows it under the new number."""
    if uid != 0:
        if _is_mapped(uid):
            os.setgroups([])
            os.setgid(gid)
            os.setuid(uid)
        else:
            linux.unshare(linux.CLONE_NEWUSER)
            _map_one_id(inner=(uid, gid), outer=(0, 0))
    linux.keep_only_capabilities(_KEPT_CAPABILITIES) if uid == 0 else None
    # Last: a change of user clears it.
    linux.die_with_parent(signal.SIGKILL)


def _is_mapped(uid: int) -> bool:
    # Not open(): after the root was swapped Python can't load a codec it has not used before.
    fd = os.open("/proc/self/uid_map", os.O_RDONLY | os.O_CLOEXEC)
    try:
        ranges = [tuple(map(int, line.split())) for line in os.read(fd, 4096).splitlines()]
    finally:
        os.close(fd)
    return any(first <= uid < first + count for first, _, count in ranges)


def join_container(user_fd: int, process_fd: int) -> None:
    """Enter a container's namespaces; the pid namespace takes hold with the next fork."""
    linux.setns(user_fd, linux.CLONE_NEWUSER)
    linux.setns(process_fd, _NAMESPACES)


def as_container_root() -> None:
    """In a session's process, after the fork that entered the pid namespace."""
    os.umask(0o022)
    with contextlib.suppress(PermissionError):  # a namespace with one mapped id has no other groups to give up
        os.setgroups([0])
    os.setgid(0)
    os.setuid(0)
    linux.keep_only_capabilities(_KEPT_CAPABILITIES)


def network_socket(family: int) -> socket.socket:
    """A TCP socket of the namespace joined before; it stays there wherever the descriptor goes."""
    return socket.socket(family, socket.SOCK_STREAM)


def stay_confined(spec: Spec) -> None:
    """Without namespaces: forbid writing outside the pod's directories where the kernel can enforce that."""
    os.umask(0o022)
    if spec["fenced"]:
        linux.landlock_writes(tuple(spec["writable"]), tuple(spec["devices"]))
    if spec["dies_with_launcher"] and sys.platform == "linux":
        linux.die_with_parent(signal.SIGKILL)


def execute(spec: Spec, report: Callable[[str], None]) -> None:
    """Replace this process by the spec's program. Says what is wrong through `report` when that fails."""
    for name in ("SIGPIPE", "SIGXFSZ", "SIGINT", "SIGHUP", "SIGTERM", "SIGQUIT", "SIGCHLD"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    for directory in spec["directories"]:
        try:
            os.chdir(directory)
        except OSError:
            continue
        break
    environment: dict[str, str] = spec["environment"]
    arguments: Sequence[str] = spec["arguments"]
    program = _find(spec.get("program") or arguments[0], environment)
    try:
        os.execve(program, list(arguments), environment)
    except OSError as error:
        fallback: Sequence[str] = spec.get("fallback") or ()
        if fallback and isinstance(error, FileNotFoundError | NotADirectoryError):
            instead = " ".join(fallback)
            text = f"[simulator] the simulated image has no {arguments[0]}; it runs {instead} instead\n"
            os.write(1, text.encode("utf-8", "surrogateescape"))
            os.execve(_find(fallback[0], environment), list(fallback), environment)
        report(f"exec {arguments[0]}: {os.strerror(error.errno or 0)}")


def _find(program: str, environment: Mapping[str, str]) -> str:
    if "/" in program:
        return program
    for directory in environment.get("PATH", os.defpath).split(":"):
        path = os.path.join(directory or ".", program)
        if os.path.isfile(path) and os.access(path, os.X_OK):
            return path
    return program


def attach(descriptors: Sequence[int]) -> None:
    """Make the three descriptors this process's standard streams."""
    # Above 2 first, so that no dup2 overwrites one that is still needed.
    moved = [os.dup(fd) if fd < 3 else fd for fd in descriptors]
    for target, fd in enumerate(moved):
        os.dup2(fd, target, inheritable=True)


def attach_terminal(size: Sequence[int]) -> int:
    """Open a pseudo-terminal of this mount namespace, make it our controlling one; the master's descriptor.

    `size` is rows, columns, width and height in pixels.
    """
    master, slave = os.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("4H", *size))
    fcntl.ioctl(slave, termios.TIOCSCTTY, 0)
    attach((slave, slave, slave))
    return master


def _write(path: str, text: str) -> None:
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode("ascii"))
    finally:
        os.close(fd)


def _write_if_present(path: str, text: str) -> None:
    with contextlib.suppress(OSError):  # an older kernel has no such setting, and low ports then stay root's
        _write(path, text)
