"""Files checked and written by one command: a script on its stdin, and on its output which ones are seen to.

An SFTP session costs the machine a process, and ten round trips. Whatever the script leaves out (a directory in the
way, a full disk, a shell without a `printf` of its own, a simulator that confines files) is left to SFTP, which knows
the reason. Pure: text only.
"""

from __future__ import annotations

import asyncio
import posixpath
import re
from collections.abc import Mapping, Sequence

from lium_plan.ssh.protocol import FileToSend
from lium_plan.ssh.quoting import quote, quote_path

MOST_BYTES = 1 << 16
"""For all contents together: an octal escape takes four bytes, and a shell reads them one by one."""

_ANSWER = re.compile(rb"^lium-plan:put((?: \d+)*) end$", re.MULTILINE)
_PLAIN = frozenset(range(0x20, 0x7F)) - frozenset(b"'%\\") | frozenset(b"\n\t")
_ESCAPES = {byte: f"\\{byte:03o}" for byte in range(256) if byte not in _PLAIN}

# SFTP's relative paths begin in the user's home as /etc/passwd has it, wherever a profile went or HOME leads. A printf
# that is a program would show the contents in the process list. Nothing changes the shell but names of ours.
_FUNCTIONS = r"""
__lp_look_around() {
    __lp_home=. __lp_writes=0
    [ "${LIUM_SIM_CONFINED-}" != 1 ] || return 0
    case ${USER-} in *[!A-Za-z0-9._-]*) return 1 ;; esac
    eval "__lp_home=~${USER-}"
    [ -d "$__lp_home" ] || return 1
    PATH=/dev/null/none printf '' || return 0
    __lp_umask=''
    while read -r __lp_key __lp_umask; do
        [ "$__lp_key" != Umask: ] || break
    done </proc/self/status
    [ -n "$__lp_umask" ] || __lp_umask=$(umask)
    __lp_writes=1
}
__lp_same() {
    [ -f "$2" ] && __lp_sum=$(sha256sum <"$2") && [ "${__lp_sum%% *}" = "$3" ] && chmod "$4" "$2" &&
        __lp_there="$__lp_there $1"
}
__lp_write() {
    [ "$__lp_writes" = 1 ] && [ ! -d "$3" ] || return 1
    umask 077
    printf "$5" >"$2"
    __lp_status=$?
    umask "$__lp_umask"
    if [ "$__lp_status" = 0 ] && chmod "$4" "$2" && mv -f "$2" "$3"; then
        __lp_there="$__lp_there $1"
    else
        rm -f "$2"
    fi
}
__lp_there=''
__lp_put() {
__lp_look_around || return 0
set --
"""
_LAST = r"""
}
__lp_put 2>/dev/null
unset -f __lp_put
echo "lium-plan:put$__lp_there end"
"""


def chosen(files: Sequence[FileToSend]) -> dict[int, bytes]:
    """The contents that a command may carry, by the files' indices. A local file that can't be read is left out."""
    left = MOST_BYTES
    contents: dict[int, bytes] = {}
    for index, file in enumerate(files):
        try:
            if isinstance(file.source, bytes):
                content = file.source
            elif file.source.stat().st_size <= left:
                content = file.source.read_bytes()
            else:
                continue
        except OSError:
            continue
        if len(content) <= left:
            left -= len(content)
            contents[index] = content
    return contents


def put_script(files: Sequence[FileToSend], contents: Mapping[int, bytes], token: str) -> bytes:
    """What checks the files that have a digest, and writes those that have their content in `contents`.

    All of it is one function, called by what follows it: a torn script does nothing. Empty when there is nothing to do.
    """
    directories: dict[str, None] = {}
    steps: list[str] = []
    for index, file in enumerate(files):
        ways = []
        target = _path(file.target)
        if file.sha256 is not None:
            ways.append(f"__lp_same {index} {target} {quote(file.sha256)} {file.mode:o}")
        if index in contents:
            if directory := posixpath.dirname(file.target):
                directories[_path(directory)] = None
            temporary = _path(temporary_name(file.target, f"{token}{index}"))
            ways.append(f"__lp_write {index} {temporary} {target} {file.mode:o} '{_printed(contents[index])}'")
        if ways:
            steps.append(" || ".join(ways))
    if not steps:
        return b""
    missing = [f'[ -d {path} ] || set -- "$@" {path}' for path in directories]
    make = '[ "$__lp_writes" = 0 ] || [ "$#" = 0 ] || mkdir -p "$@"'
    text = _FUNCTIONS + "\n".join((*missing, make, *steps)) + _LAST
    return text.encode("utf-8", "surrogateescape")


class PutAnswer:
    """What the script says, in chunks cut anywhere; a login shell's profile may print what it likes around it."""

    def __init__(self) -> None:
        self.complete = asyncio.Event()
        self.seen_to: frozenset[int] = frozenset()
        """The indices of the files that are there now."""
        self._seen = bytearray()

    def take(self, chunk: bytes) -> None:
        self._seen += chunk
        if found := _ANSWER.search(self._seen):
            self.seen_to = frozenset(map(int, found[1].split()))
            self.complete.set()


def temporary_name(target: str, token: str) -> str:
    """The name beside `target` under which a file is written."""
    directory, name = posixpath.split(target)
    return posixpath.join(directory, f".{name[:200]}.{token}")


def _path(path: str) -> str:
    return quote_path(path) if path.startswith("/") else f'"$__lp_home"/{quote(path)}'


def _printed(content: bytes) -> str:
    """`content` as a format of printf, for single quotes. A leading dash would be taken for an option."""
    text = content.decode("latin-1").translate(_ESCAPES)
    return f"\\055{text[1:]}" if text.startswith("-") else text
