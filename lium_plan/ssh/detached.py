"""Commands that outlive their caller: started once, judged by their exit-code file, stopped as a group.

A directory on the pod is the command's identity: `claim` (a directory, made once: a second start finds it and
does nothing), `run` (the runner's pid, start and boot), `group` (the same of the commands' process group),
`script`, `log`, and at the end `exit`. The runner, in a session of its own, waits for the commands, writes
`exit` and enforces the longest duration, also when nobody is connected. A pid alone proves nothing: PID 1 of
a pod often reaps nothing (contract §15.11), and after a restart it is another process's. Nor does the end of
the commands' shell: what it started may handle TERM, or ignore it. `group` is there for as long as
anything of theirs may live.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from lium_plan.ssh.errors import SshError
from lium_plan.ssh.image_env import LAUNCH, ROOT, join_commands, set_env_and_cwd
from lium_plan.ssh.posix import AS_USER, AS_USER_SOURCE, AT_HOME, BASE, GROUP, IMAGE_ENV, RECORDS
from lium_plan.ssh.protocol import OnOutput, Session
from lium_plan.ssh.quoting import quote, quote_path
from lium_plan.ssh.reports import MARK, ask

STOP_GRACE_S = 10
"""From TERM to KILL."""


class TaskState(StrEnum):
    NEVER_STARTED = "never-started"
    RUNNING = "running"
    """Its runner lives, or, where that was killed, anything of its commands."""
    EXITED = "exited"
    LOST = "lost"
    """Started, no longer running, and no exit code: the pod was restarted, or the runner killed."""


class Ending(StrEnum):
    """How an exited command came to its end."""

    BY_ITSELF = "by-itself"
    TIMED_OUT = "timed-out"
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class DetachedCommand:
    """What to run; `env`, `cwd` and `user` as in `image_env.run_in_image`."""

    commands: Sequence[str]
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str = ROOT
    max_duration_s: float | None = None
    grace_s: float = STOP_GRACE_S
    """From TERM to KILL when the longest duration is over."""


@dataclass(frozen=True, slots=True)
class Probe:
    state: TaskState
    exit_status: int | None = None
    ending: Ending = Ending.BY_ITSELF
    log_bytes: int = 0


# Arguments: directory, longest duration in seconds or nothing, user, `setsid` or nothing, 1 if confined, _INNER,
# AS_USER_SOURCE.
_RUNNER = r"""
__lp_dir=$1 __lp_max=$2 __lp_as=$3 __lp_setsid=$4 __lp_confined=$5 __lp_inner=$6
__lp_path=$PATH
PATH=$PATH:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
mkdir "$__lp_dir/claim" 2>/dev/null || { echo lium-plan:already; exit 0; }
__lp_reserve exit && __lp_record_self run || exit 125
echo lium-plan:started
exec </dev/null >>"$__lp_dir/log" 2>/dev/null

__lp_guard() {
    exec 2>/dev/null
    trap 'kill "$__lp_sleep"; exit' TERM
    sleep "$__lp_max" &
    __lp_sleep=$!
    wait "$__lp_sleep"
    [ -e "$__lp_dir/exit" ] && exit
    : >"$__lp_dir/timed-out"
    __lp_end
}

__lp_guarded=''
if [ -n "$__lp_max" ]; then
    __lp_guard &
    __lp_guarded=$!
fi
( exec 2>&1; exec $__lp_setsid sh -c "$__lp_inner" sh "$__lp_dir" "$__lp_as" "$__lp_confined" "$__lp_path" "$7" )
__lp_status=$?
__lp_how=by-itself
[ ! -e "$__lp_dir/timed-out" ] || __lp_how=timed-out
[ ! -e "$__lp_dir/stopped" ] || __lp_how=stopped
if [ "$__lp_how" = timed-out ]; then
    wait "$__lp_guarded"
elif [ -n "$__lp_guarded" ]; then
    kill "$__lp_guarded" 2>/dev/null
fi
[ "$__lp_how" = by-itself ] || __lp_await_end
# A group's number is given out again once nobody is in it.
__lp_lives || [ "$__lp_leads" != 1 ] || rm -f "$__lp_dir/group"
__lp_record exit "$__lp_status $__lp_how"
exit 0
"""

# Arguments: directory, user, 1 if confined, the commands' PATH, AS_USER_SOURCE.
_INNER = r"""
__lp_dir=$1 __lp_as=$2 __lp_confined=$3 __lp_path=$4
__lp_record_self group || exit 125
exec 8<"$__lp_dir/script"
if [ "$__lp_as" != root ]; then __lp_exec_as "$__lp_as" "$5"; fi
__lp_script=$(cat <&8)
exec 8<&-
PATH=$__lp_path
set -eu
shift 5
eval "$__lp_script"
"""

_ENDING = r"""
# Waits until a command succeeds, at most so many fifths of a second.
__lp_wait() {
    __lp_left=$1
    shift
    until "$@"; do
        [ "$__lp_left" -gt 0 ] || return 1
        sleep 0.2 2>/dev/null || { sleep 1; __lp_left=$((__lp_left - 4)); }
        __lp_left=$((__lp_left - 1))
    done
}

# Whether anything of the commands lives: of their process group, or, where there is no setsid, of what has been seen
# below their shell. The shell itself may have ended.
__lp_lives() {
    read -r __lp_pid __lp_since __lp_on __lp_leads 2>/dev/null <"$__lp_dir/group" || return 1
    __lp_this_boot
    [ "$__lp_on" = "$__lp_boot" ] || return 1
    if [ "$__lp_leads" != 1 ]; then
        __lp_seen_live
    elif __lp_stat_of "$__lp_pid" && [ "$__lp_start" != "$__lp_since" ]; then
        return 1  # nobody is left: the number has been given out again
    else
        __lp_group_runs "$__lp_pid"
    fi
}

# Keeps what lives of $__lp_seen (PID:START), with all that is below it by now.
__lp_seen=''
__lp_seen_live() {
    __lp_now=''
    for __lp_one in ${__lp_seen:-$__lp_pid:$__lp_since}; do
        case "$__lp_now " in *" $__lp_one "*) continue ;; esac
        ! __lp_alive "${__lp_one%:*}" "${__lp_one#*:}" "$__lp_on" ||
            __lp_now="$__lp_now $(echo $(__lp_below "${__lp_one%:*}"))"
    done
    __lp_seen=$__lp_now
    [ -n "$__lp_seen" ]
}
__lp_below() {
    __lp_stat_of "$1"
    echo "$1:${__lp_start:--}"
    for __lp_entry in /proc/[0-9]*; do
        __lp_stat_of "${__lp_entry#/proc/}" || continue
        [ "$__lp_parent" != "$1" ] || ( __lp_below "${__lp_entry#/proc/}" )
    done
}

# To what `__lp_lives` has just found.
__lp_signal() {
    if [ "$__lp_leads" = 1 ]; then
        kill -s "$1" -- "-$__lp_pid"
    else
        for __lp_one in $__lp_seen; do kill -s "$1" "${__lp_one%:*}"; done
    fi 2>/dev/null
}

# Ends all that lives of the commands; fails where it can't.
__lp_end() {
    __lp_wait 25 __lp_has_begun_or_ended
    ! __lp_lives || __lp_signal TERM
    __lp_await_end
}
__lp_has_begun_or_ended() {
    [ -e "$__lp_dir/group" ] || [ -e "$__lp_dir/exit" ] ||
        { [ -e "$__lp_dir/run" ] && ! __lp_recorded_alive "$__lp_dir/run"; }
}
__lp_await_end() { __lp_wait "$__lp_grace" __lp_is_gone || __lp_wait 25 __lp_is_killed; }
__lp_is_gone() { ! __lp_lives; }
__lp_is_killed() { __lp_is_gone || { __lp_signal KILL; return 1; }; }

__lp_runs() { __lp_recorded_alive "$__lp_dir/run" || __lp_lives; }
"""

_START = r"""
mkdir -m 700 -p "$__lp_dir" || { __lp_say "$__lp_dir can't be made"; exit 125; }
[ ! -d "$__lp_dir/claim" ] || { echo lium-plan:already; exit 0; }
( umask 077; printf '%s\n' "$__lp_script" >"$__lp_dir/.script.$$" ) &&
    mv -f "$__lp_dir/.script.$$" "$__lp_dir/script" || { __lp_say "$__lp_dir can't be written"; exit 125; }
# Found now: the commands' own PATH may lead nowhere.
__lp_sh=$(command -v sh)
__lp_setsid=$(command -v setsid) && "$__lp_setsid" true 2>/dev/null || __lp_setsid=''
# The answer is complete when the runner has let go of its output: it is then recorded and on its own.
__lp_answer=$(
    exec 2>&1 </dev/null
    __lp_enter_image
    __lp_set_up
    trap '' HUP
    $__lp_setsid "$__lp_sh" -c "$__lp_runner" sh \
        "$__lp_dir" "$__lp_max" "$__lp_as" "$__lp_setsid" "${__lp_confined-}" "$__lp_inner" "$__lp_source" &
)
__lp_status=$?
echo "$__lp_answer"
exit "$__lp_status"
"""

_PROBE = r"""
__lp_exited() {
    [ -e "$__lp_dir/exit" ] || return 1
    read -r __lp_status __lp_how <"$__lp_dir/exit"
    echo "lium-plan:exited $__lp_status $__lp_how"
}
if __lp_exited; then :
elif [ ! -d "$__lp_dir/claim" ]; then echo lium-plan:never-started
elif __lp_wait 5 test -e "$__lp_dir/run"; __lp_runs; then echo lium-plan:running
elif __lp_exited; then :
else echo lium-plan:lost
fi
[ ! -e "$__lp_dir/log" ] || echo "lium-plan:log $(wc -c <"$__lp_dir/log")"
exit 0
"""

# Who makes the directory first decides.
_FORESTALL = r"""
mkdir -m 700 -p "$__lp_dir" || exit 125
if mkdir "$__lp_dir/claim" 2>/dev/null; then echo lium-plan:forestalled; else echo lium-plan:already; fi
exit 0
"""

# What can't be ended still runs, whatever is written about it.
_STOP = r"""
if [ -d "$__lp_dir/claim" ]; then
    [ -e "$__lp_dir/exit" ] || : >"$__lp_dir/stopped"
    __lp_end || { echo lium-plan:running; exit 0; }
    ! __lp_recorded_alive "$__lp_dir/run" || __lp_wait 25 test -e "$__lp_dir/exit"
fi
"""

# Copies what has been written until the commands have ended; whether they have is asked before each copy.
_FOLLOW = r"""
echo lium-plan:log
exec 3<&0
{ cat <&3; kill -s KILL "$$"; } >/dev/null 2>&1 &
__lp_watcher=$!
while :; do
    __lp_ended=1
    [ -e "$__lp_dir/exit" ] || ! __lp_runs || __lp_ended=0
    if [ -e "$__lp_dir/log" ]; then
        __lp_size=$(wc -c <"$__lp_dir/log")
        if [ "$__lp_size" -gt "$__lp_offset" ]; then
            tail -c "+$((__lp_offset + 1))" "$__lp_dir/log" | head -c "$((__lp_size - __lp_offset))"
            __lp_offset=$__lp_size
        fi
    fi
    [ "$__lp_ended$__lp_once" = 00 ] || break
    sleep 0.5 2>/dev/null || sleep 1
done
exec 2>/dev/null
kill -s KILL "$__lp_watcher"
exit 0
"""


_LOG_BEGINS = f"{MARK}log\n".encode()


def start_script(command: DetachedCommand, task_dir: str) -> str:
    """Shell source that starts `command`, for `LAUNCH`'s stdin. Raises `BadScript`."""
    longest = "" if command.max_duration_s is None else str(max(1, math.ceil(command.max_duration_s)))
    values = {
        "__lp_script": join_commands(command.commands, steps=False),
        "__lp_max": longest,
        "__lp_as": command.user,
        "__lp_runner": BASE + GROUP + RECORDS + _ending(command.grace_s) + _RUNNER,
        "__lp_inner": BASE + RECORDS + AS_USER + _INNER,
        "__lp_source": AS_USER_SOURCE,
    }
    assignments = "".join(f"{name}={quote(value, 'a command')}\n" for name, value in values.items())
    set_up = f"__lp_set_up() {{\n:\n{set_env_and_cwd(command.env, command.cwd)}\n}}\n"
    begin = f"__lp_main() {{\n__lp_use_dir {quote_path(task_dir)}\n{_START}}}\n__lp_main\n"
    return BASE + AT_HOME + IMAGE_ENV + assignments + set_up + begin


async def start(session: Session, command: DetachedCommand, task_dir: str, *, timeout_s: float) -> bool:
    """Start `command` under `task_dir` (relative to the login directory); False when it had been started before.

    May be sent again after a lost answer: only one start takes effect. Raises `BadScript`, and `SshError` when the
    pod can't start it (an unreadable environment, no such working directory).
    """
    answer = await ask(session, start_script(command, task_dir), timeout_s=timeout_s)
    if "started" in answer:
        return True
    if "already" in answer:
        return False
    raise SshError(f"the command under {task_dir} did not start, and the pod's shell doesn't say why")


async def probe(session: Session, task_dir: str, *, timeout_s: float) -> Probe:
    """What has become of the command started under `task_dir`."""
    return _probe(await ask(session, _about(task_dir) + _PROBE, timeout_s=timeout_s))


async def forestall(session: Session, task_dir: str, *, timeout_s: float) -> bool:
    """Call off a start whose answer was never seen: True when it had not happened, and now never will.

    A start that is still on its way then finds its directory taken.
    """
    return "forestalled" in await ask(session, _about(task_dir) + _FORESTALL, timeout_s=timeout_s)


async def stop(session: Session, task_dir: str, *, grace_s: float = STOP_GRACE_S, timeout_s: float) -> Probe:
    """End the command and all that it left in its group: TERM, KILL after `grace_s`; then what `probe` says.

    `RUNNING` when something of it can't be ended. Give it `grace_s` + 15 s at least. Stopping what never started, or
    has ended and left nothing behind, changes nothing.
    """
    return _probe(await ask(session, _about(task_dir, grace_s) + _STOP + _PROBE, timeout_s=timeout_s))


async def follow_log(
    session: Session,
    task_dir: str,
    *,
    offset_bytes: int = 0,
    once: bool = False,
    on_output: OnOutput,
    timeout_s: float,
) -> int:
    """Stream the log from `offset_bytes` until the command has ended or is lost; returns the offset reached.

    With `once` only what is there now. After a lost connection go on from where the output stopped. Raises what
    `Session.run` raises.
    """
    reached = offset_bytes
    before: bytearray | None = bytearray()  # what the login shell's profile may print first is not the log

    def count(chunk: bytes) -> None:
        nonlocal reached, before
        if before is not None:
            before += chunk
            _, found, chunk = bytes(before).partition(_LOG_BEGINS)
            if not found:
                return
            before = None
        if chunk:
            on_output(chunk)
            reached += len(chunk)

    body = (
        f"{_about(task_dir)}__lp_offset={offset_bytes} __lp_once={int(once)}\n__lp_main() {{\n{_FOLLOW}}}\n__lp_main\n"
    )
    done = await session.run(LAUNCH, stdin=body.encode(), keep_stdin_open=True, on_output=count, timeout_s=timeout_s)
    if done.exit_status != 0:
        raise SshError(f"the log under {task_dir} can't be read: status {done.exit_status}")
    return reached


def _ending(grace_s: float) -> str:
    return f"__lp_grace={math.ceil(grace_s * 5)}\n{_ENDING}"


def _about(task_dir: str, grace_s: float = STOP_GRACE_S) -> str:
    return f"{BASE}{AT_HOME}{GROUP}{RECORDS}{_ending(grace_s)}__lp_use_dir {quote_path(task_dir)}\n"


def _probe(answer: Sequence[str]) -> Probe:
    if not answer:
        raise SshError("the pod's shell did not say how the command is")
    state, status, ending, log_bytes = TaskState.NEVER_STARTED, None, Ending.BY_ITSELF, 0
    for line in answer:
        word, *rest = line.split()
        if word == "log":
            log_bytes = int(rest[0])
        else:
            state = TaskState(word)
            if state is TaskState.EXITED:
                status, ending = int(rest[0]), Ending(rest[1])
    return Probe(state, status, ending, log_bytes)
