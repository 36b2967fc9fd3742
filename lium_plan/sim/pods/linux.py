"""The Linux system calls that Python 3.11 lacks, and nothing that decides how to use them.

Used by the launcher's forked children, so it imports the standard library alone. Every function raises OSError
with the kernel's reason; on another system or an unknown processor they raise OSError(ENOSYS).
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import socket
import struct
import sys

CLONE_PARENT = 0x00008000
CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWIPC = 0x08000000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

MS_RDONLY = 0x1
MS_NOSUID = 0x2
MS_NODEV = 0x4
MS_NOEXEC = 0x8
MS_REMOUNT = 0x20
MS_BIND = 0x1000
MS_REC = 0x4000
MS_PRIVATE = 0x40000
MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_CAPBSET_DROP = 24
_PR_SET_NO_NEW_PRIVS = 38

_AT_FDCWD = -100
_AT_RECURSIVE = 0x8000
_MOUNT_ATTR_RDONLY = 0x1

_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_RULE_PATH_BENEATH = 1

_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_IFF_UP = 0x1

# The same everywhere since the kernel unified its tables; the two older ones differ by processor.
_MOUNT_SETATTR = 442
_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_BY_MACHINE = {"x86_64": (56, 155), "aarch64": (220, 41)}

# PyDLL keeps the interpreter lock: a raw clone must not return into a child whose lock nobody holds.
_libc = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def supported() -> bool:
    """Whether the calls of this module exist on this kind of machine."""
    return sys.platform == "linux" and platform.machine() in _BY_MACHINE


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _machine_calls() -> tuple[int, int]:
    if not supported():
        raise OSError(errno.ENOSYS, f"no table of system calls for {sys.platform}/{platform.machine()}")
    return _BY_MACHINE[platform.machine()]


def unshare(flags: int) -> None:
    _checked(_libc.unshare(ctypes.c_int(flags)), "unshare")


def setns(fd: int, flags: int) -> None:
    """Join namespaces: of one kind by its own fd, or of several kinds by a process's pidfd (Linux 5.8)."""
    _checked(_libc.setns(ctypes.c_int(fd), ctypes.c_int(flags)), "setns")


def fork_as_sibling() -> int:
    """Fork a child whose parent is *our* parent, in the pid namespace chosen before; 0 in the child.

    The caller can then exit, and whoever forked the caller reaps the child. Nothing of Python's own fork handling
    runs, so only a single-threaded process may use it, and the child should soon execute something.
    """
    clone, _ = _machine_calls()
    zero = ctypes.c_long(0)
    # 17 is SIGCHLD on both processors.
    return _checked(
        _libc.syscall(ctypes.c_long(clone), ctypes.c_long(CLONE_PARENT | 17), zero, zero, zero, zero), "clone"
    )


def mount(source: str, target: str, *, kind: str = "", flags: int = 0, options: str = "") -> None:
    result = _libc.mount(
        os.fsencode(source),
        os.fsencode(target),
        os.fsencode(kind) if kind else None,
        ctypes.c_ulong(flags),
        os.fsencode(options) if options else None,
    )
    _checked(result, f"mount {kind or source} on {target}")


def make_read_only(target: str) -> None:
    """Make a mount and everything mounted below it read-only (Linux 5.12)."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    result = _libc.syscall(
        ctypes.c_long(_MOUNT_SETATTR),
        ctypes.c_long(_AT_FDCWD),
        os.fsencode(target),
        ctypes.c_long(_AT_RECURSIVE),
        attributes,
        ctypes.c_long(len(attributes)),
    )
    _checked(result, f"mount_setattr read-only on {target}")


def swap_root(new_root: str) -> None:
    """Make a mounted directory the root of this mount namespace and let go of the old one."""
    _, pivot_root = _machine_calls()
    os.chdir(new_root)
    _checked(_libc.syscall(ctypes.c_long(pivot_root), b".", b"."), f"pivot_root to {new_root}")
    _checked(_libc.umount2(b".", ctypes.c_int(MNT_DETACH)), "umount of the old root")
    os.chdir("/")


def _prctl(option: int, value: int) -> int:
    zero = ctypes.c_ulong(0)
    return int(_libc.prctl(ctypes.c_int(option), ctypes.c_ulong(value), zero, zero, zero))


def die_with_parent(signal_number: int) -> None:
    _checked(_prctl(_PR_SET_PDEATHSIG, signal_number), "prctl(PR_SET_PDEATHSIG)")


def keep_only_capabilities(kept: frozenset[int]) -> None:
    """Give up, for every program executed from now on, the capabilities that are not listed."""
    for capability in range(64):
        if capability in kept:
            continue
        if _prctl(_PR_CAPBSET_DROP, capability) < 0:
            if ctypes.get_errno() == errno.EINVAL:  # beyond the last one this kernel knows
                return
            _checked(-1, "prctl(PR_CAPBSET_DROP)")


def bring_loopback_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh14x", b"lo", 0)
        _, flags = struct.unpack("16sh14x", fcntl.ioctl(control, _SIOCGIFFLAGS, request))
        fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh14x", b"lo", flags | _IFF_UP))


def landlock_version() -> int:
    """The version of the kernel's Landlock; 0 where there is none."""
    if not supported():
        return 0
    flags = ctypes.c_long(_LANDLOCK_CREATE_RULESET_VERSION)
    return max(0, int(_libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), None, ctypes.c_long(0), flags)))


def landlock_writes(directories: tuple[str, ...], devices: tuple[str, ...]) -> None:
    """Let this process and its children write below `directories` (and to `devices`) and nowhere else, for good.

    Reading stays as it was. Raises OSError where the kernel has no Landlock.
    """
    version = landlock_version()
    if version == 0:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock")
    write_file, truncate, refer = 1 << 1, 1 << 14, 1 << 13
    changes = write_file | sum(1 << bit for bit in range(4, 13))
    changes |= refer if version >= 2 else 0
    changes |= truncate if version >= 3 else 0
    ruleset = struct.pack("=Q", changes)
    fd = _checked(
        _libc.syscall(ctypes.c_long(_LANDLOCK_CREATE), ruleset, ctypes.c_long(len(ruleset)), ctypes.c_long(0)),
        "landlock_create_ruleset",
    )
    try:
        for directory in directories:
            _landlock_allow(fd, directory, changes)
        for device in devices:
            if os.path.exists(device):
                one_file = changes & (write_file | truncate)
                _landlock_allow(fd, device, changes if os.path.isdir(device) else one_file)
        _checked(_prctl(_PR_SET_NO_NEW_PRIVS, 1), "prctl(PR_SET_NO_NEW_PRIVS)")
        _checked(
            _libc.syscall(ctypes.c_long(_LANDLOCK_RESTRICT), ctypes.c_long(fd), ctypes.c_long(0)),
            "landlock_restrict_self",
        )
    finally:
        os.close(fd)


def _landlock_allow(ruleset_fd: int, path: str, rights: int) -> None:
    path_fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        rule = struct.pack("=Qi", rights, path_fd)
        result = _libc.syscall(
            ctypes.c_long(_LANDLOCK_ADD),
            ctypes.c_long(ruleset_fd),
            ctypes.c_long(_LANDLOCK_RULE_PATH_BENEATH),
            rule,
            ctypes.c_long(0),
        )
        _checked(result, f"landlock_add_rule for {path}")
    finally:
        os.close(path_fd)
