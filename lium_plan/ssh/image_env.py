"""Running a user's commands on a pod as its image would run them.

An SSH session has root's bare environment and home; the image's own environment and working directory are
those of the container's PID 1 (contract §6.3). One command is started per run, and everything goes to it over
stdin as a POSIX shell script, so that no value shows in a process list. The pod needs only `sh`, `cat`,
`env`, `tr`, `mkdir`, `rm`, `mv` and `sleep`.

What the commands get: PID 1's environment with `env` over it; PID 1's working directory, or `cwd` seen from
there; one `sh -eu` for all of them in order; stdin from /dev/null, stdout and stderr as one stream. Where PID
1 is not the container's (a local simulator without namespaces says so in LIUM_SIM_CONFINED), or doesn't show
its environment, they get the session's own environment and the login directory, and a line says so. A
half-read environment is refused.

The commands end when their caller leaves: a watcher on the pod sees its stdin end and stops the session's
process group (OpenSSH ignores a client's signals for root). What must outlive the caller is `detached`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lium_plan.ssh.errors import BadScript
from lium_plan.ssh.posix import AS_USER, AS_USER_SOURCE, AT_HOME, BASE, GROUP, IMAGE_ENV, RECORDS, RUN_RECORDS
from lium_plan.ssh.protocol import Completed, OnOutput, Session, discard
from lium_plan.ssh.quoting import check_name, quote, quote_path

LAUNCHER_FAILED = 125
"""The status of a run whose commands never started; the output says why."""

ROOT = "root"
IMAGE_USER = "image"
"""For `user`: the user that PID 1 runs as."""

LAUNCH = "exec sh -s"
"""`exec`, so that the shell leads the session's process group and may stop it as a whole."""

_RESERVED = frozenset(
    ("IFS", "OPTIND", "PPID", "UID", "EUID", "SHELLOPTS", "BASHOPTS", "BASH_VERSINFO", "PWD", "OLDPWD", "_")
)

_RUN = r"""
# Waits for the caller to leave, which ends stdin, and then ends what runs. Where the shell leads no process group
# the group may be the server's own, and only the shell is told. As long as this waits, the run counts as going on.
__lp_watch() {
    exec >/dev/null 2>&1
    trap '' TERM
    while read -r __lp_line; do :; done <&3
    if [ "$__lp_group" = "$$" ]; then
        read -r __lp_own __lp_line </proc/self/stat
        kill -s TERM -- "-$$"
        __lp_left=25
        while [ "$__lp_left" -gt 0 ] && __lp_group_runs "$$" "$__lp_own"; do
            sleep 0.2 || { sleep 1; __lp_left=$((__lp_left - 4)); }
            __lp_left=$((__lp_left - 1))
        done
        kill -s KILL -- "-$$"
    else
        kill -s KILL "$$"
    fi
}

__lp_main() {
    exec 3<&0 2>&1
    __lp_begin || return 125
    [ -n "${__lp_self-}" ] || __lp_stat_of "$$"
    __lp_watch &
    __lp_watcher=$!
    ( exec 3<&- </dev/null; __lp_enter_image; __lp_commands )
    __lp_status=$?
    exec 2>/dev/null
    __lp_end "$__lp_status"
    kill -s KILL "$__lp_watcher"
    return "$__lp_status"
}
"""

_MARKERS = r"""
__lp_begin() {
    __lp_use_marks "$__lp_markers"
    [ -d "$__lp_dir" ] || mkdir -m 700 -p "$__lp_dir" || { __lp_say "$__lp_dir can't be made"; return 1; }
    if ! __lp_has_ended && __lp_goes_on; then
        __lp_say "an earlier run of the same (process $__lp_pid) still goes on"
        return 1
    fi
    [ ! -e "$__lp_marks.run" ] ||
        rm -f "$__lp_marks.run" "$__lp_marks.exit" "$__lp_marks.steps" "$__lp_marks.begun"
    __lp_name_self
    echo "$__lp_self" >"$__lp_marks.run" || return 1
    # So that the end can be written when the disk is full.
    echo '                                ' >"$__lp_marks.exit"
    __lp_done=0
    while [ "$__lp_done" -lt "$__lp_first" ]; do
        echo "$__lp_done as-before"
        __lp_done=$((__lp_done + 1))
    done >"$__lp_marks.steps" || return 1
}
__lp_begun() { : >"$__lp_marks.begun"; }
__lp_end() { echo "$1 ended" 1<>"$__lp_marks.exit"; }
"""

_NO_MARKERS = r"""
__lp_begin() { return 0; }
__lp_begun() { return 0; }
__lp_end() { return 0; }
"""

# After each command its number, and after all but the last whether the shell is as it was before the first: then what
# follows comes out the same in a fresh shell. By path, since every descriptor is the commands' own.
_STEP = r"""
__lp_step() {
    if [ "$2" = last ]; then
        echo "$1"
    elif [ "$3" = "$__lp_before" ]; then
        echo "$1 as-before"
    else
        echo "$1 changed"
    fi >>"$__lp_marks.steps" || :
}
"""

# What the shell is like, without what changes by itself. Read where the commands are: a function has arguments of its
# own, and shows in bash's variables. Kept in a variable, which no process list and no file shows. Options and the
# number of arguments stand outside, since busybox drops -e in a substitution.
_LOOK = r"""__lp_look='
set +o
set +eux
pwd
umask
command unset -v __lp_before __lp_script __lp_all __lp_old __lp_line _ LINENO RANDOM SRANDOM SECONDS HISTCMD
command unset -v EPOCHSECONDS EPOCHREALTIME BASHPID BASH_COMMAND BASH_SUBSHELL BASH_CMDS BASH_MONOSECONDS
set
export -p'
"""
_SHELL = '"$- $# $(eval "$__lp_look")"'


def join_commands(commands: Sequence[str], *, steps: bool, first_step: int = 0) -> str:
    """The commands as one script. With `steps` each is followed by a record of its end, numbered from `first_step`.

    Each is read by itself, so that a here-document or a quote that one leaves open never takes the others in.
    """
    several = len(commands) > 1
    parts = [_STEP] if steps else []
    if steps and several:
        parts.append(f"{_LOOK}{{ __lp_before={_SHELL} || :; }} 2>/dev/null\n")
    for index, command in enumerate(commands):
        last = index + 1 == len(commands)
        # `:`, since under `set -e` an `eval` that ends with `false && true` ends the shell, which that alone does not.
        # The empty line keeps a trailing backslash from reaching it.
        text = command if last and not steps else f"{command}\n\n:"
        parts.append(f"eval {quote(text, f'command {index + 1}')}\n")
        if steps:
            how = "last" if last else f"more {_SHELL}"
            parts.append(f"{{ __lp_step {first_step + index} {how}; }} 2>/dev/null\n")
    return "".join(parts)


def set_env_and_cwd(env: Mapping[str, str], cwd: str | None) -> str:
    """Shell source that puts `env` over the environment and changes to `cwd`. Raises `BadScript`."""
    lines = [f"export {check_env_name(name)}={quote(value, f'the value of {name}')}" for name, value in env.items()]
    if cwd is not None:
        path = quote_path(cwd)
        problem = f"__lp_say 'the working directory' {path} \"can't be entered\""
        lines.append(f"cd {path} 2>/dev/null || {{ {problem}; exit {LAUNCHER_FAILED}; }}")
    return "\n".join(lines)


def enter_and_run(script: str, *, env: Mapping[str, str], cwd: str | None, user: str) -> str:
    """Shell source of `__lp_commands`, to be called in a subshell after `__lp_enter_image`: it never returns there."""
    lines = [f"export {check_env_name(name)}={quote(value, f'the value of {name}')}" for name, value in env.items()]
    if cwd is not None:
        path = quote_path(cwd)
        lines.append(f"cd {path} || {{ __lp_say 'the working directory' {path} \"can't be entered\"; exit 125; }}")
    lines.append(f"__lp_script={quote(script, 'the script')}")
    if user == ROOT:
        lines.append('__lp_begun; set -eu; eval "$__lp_script"; exit')
    else:
        # Over a descriptor, since an argument may not exceed 128 KiB and shows in the process list.
        lines.append(f"__lp_path=$PATH\n__lp_exec_as {quote(user, 'the user')} {quote(AS_USER_SOURCE)} 8<<__LP_END")
        lines.append("$__lp_script\n__LP_END")
    body = "\n".join(lines)
    return f"__lp_commands() {{\n{body}\n}}\n"


def check_env_name(name: str) -> str:
    """`name`, if a shell lets it be set and exported. Raises `BadScript`."""
    if name in _RESERVED or name.startswith("__lp_"):
        raise BadScript(f"the environment variable {name} is the shell's own and can't be set")
    return check_name(name)


def run_script(
    commands: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None,
    user: str,
    markers: str | None,
    first_step: int = 0,
) -> bytes:
    """What `run_in_image` sends to `LAUNCH`. It ends with the only line that acts, so a torn one does nothing."""
    steps = markers is not None and user == ROOT  # the records are root's
    parts = [
        BASE,
        AT_HOME,
        IMAGE_ENV,
        GROUP,
        "" if markers is None else RECORDS + RUN_RECORDS,
        "" if user == ROOT else AS_USER,
        enter_and_run(join_commands(commands, steps=steps, first_step=first_step), env=env, cwd=cwd, user=user),
        "" if markers is None else f"__lp_markers={quote_path(markers)} __lp_first={first_step}\n",
        _NO_MARKERS if markers is None else _MARKERS,
        _RUN,
        "__lp_main; exit $?\n",
    ]
    return "".join(parts).encode("utf-8", "surrogateescape")


async def run_in_image(
    session: Session,
    commands: Sequence[str],
    *,
    env: Mapping[str, str],
    cwd: str | None = None,
    user: str = ROOT,
    markers: str | None = None,
    first_step: int = 0,
    on_output: OnOutput = discard,
    timeout_s: float,
) -> Completed:
    """Run `commands` in one `sh -eu` as the image would, on one channel, and return its status.

    `user` is `root`, `image` or a user of the image. With `markers` (a path, relative to the login directory) the pod
    records what has finished in files whose names begin with it, for `markers.read_markers` (another user's commands
    as a whole); a run that still goes on there is not started again. `first_step` is the number of the first of
    `commands` there, when those before it had finished in an earlier run. `LAUNCHER_FAILED` means that no command
    started. Never repeats anything. Raises `BadScript` for what no shell can carry, and what `Session.run` raises.
    """
    script = run_script(commands, env=env, cwd=cwd, user=user, markers=markers, first_step=first_step)
    return await session.run(
        LAUNCH, stdin=script, keep_stdin_open=True, leaves_jobs=True, on_output=on_output, timeout_s=timeout_s
    )
