"""The POSIX shell functions that our scripts on a pod are made of. Text only: nothing is run here.

They must work in dash, busybox's ash and bash, with no tool beyond those named in `image_env`. Every name of
ours begins with `__lp_`; a user's commands see them, and nothing breaks if they don't look.
"""

from __future__ import annotations

# NUL separates the variables in /proc/1/environ and no shell variable can hold one:
# it becomes a newline, and a newline inside a value a control character that the data doesn't use otherwise.
BASE = r"""
__lp_nl='
'
__lp_say() { echo "lium-plan: $*" >&2; }

# Sets __lp_state, __lp_parent, __lp_group and __lp_start (ticks since boot) of a process.
__lp_stat_of() {
    __lp_state='' __lp_parent='' __lp_group='' __lp_start=''
    read -r __lp_stat 2>/dev/null <"/proc/$1/stat" || return 1
    set -- ${__lp_stat##*) }
    [ "$#" -gt 19 ] || return 1
    __lp_state=$1 __lp_parent=$2 __lp_group=$3
    shift 19
    __lp_start=$1
}

# Sets __lp_boot to what a restart of the machine or of the container changes.
__lp_this_boot() {
    read -r __lp_boot 2>/dev/null </proc/sys/kernel/random/boot_id || __lp_boot=unknown
    __lp_stat_of 1
    __lp_boot=$__lp_boot:$__lp_start
}

# Whether the process with this pid, start and boot still runs. PID 1 may reap nothing, so a zombie has ended.
__lp_alive() {
    __lp_this_boot
    [ "$3" = "$__lp_boot" ] || return 1
    if __lp_stat_of "$1"; then
        [ "${__lp_start:--}" = "$2" ] && [ "$__lp_state" != Z ] && [ "$__lp_state" != X ]
    else
        [ ! -r /proc/self/stat ] && kill -0 "$1" 2>/dev/null
    fi
}

# Sets __lp_dir, relative to the directory that the session began in.
__lp_use_dir() {
    case $1 in /*) __lp_dir=$1 ;; *) __lp_dir=$PWD/$1 ;; esac
}
"""

# A login shell's profile may have gone elsewhere; SFTP's relative paths begin at home, and so do ours.
AT_HOME = """
[ -z "${HOME-}" ] || cd "$HOME" 2>/dev/null || :
"""

IMAGE_ENV = r"""
__lp_unusable() {
    case $1 in
        '' | [0-9]* | *[!A-Za-z0-9_]* | __lp_* | IFS | OPTIND | PPID | PWD | OLDPWD | _ ) return 0 ;;
        UID | EUID | GROUPS | DIRSTACK | FUNCNAME | SHELLOPTS | BASHOPTS | BASH_VERSINFO | BASH_ARG* ) return 0 ;;
    esac
    return 1
}

__lp_read_environ() {
    { LC_ALL=C tr '\n\000' "$1"'\n' </proc/1/environ && echo .; } 2>/dev/null
}

# Sets __lp_all to one variable a line, ended by a line ".", and __lp_mark to what stands for a newline.
__lp_load_environ() {
    __lp_mark='@1@' __lp_all=''
    [ ! -r /proc/1/environ ] || __lp_all=$(__lp_read_environ '\001')
    case $__lp_all in
        '') __lp_why="/proc/1/environ can't be read"; return 1 ;;
        .) __lp_why="PID 1 shows no environment"; return 1 ;;
        *"$__lp_nl".) ;;
        *) __lp_say "only a part of the image's environment could be read from /proc/1/environ"; exit 125 ;;
    esac
    case $__lp_all in *"$__lp_mark"*) ;; *) return 0 ;; esac
    __lp_other=$(__lp_read_environ '\002')
    [ "$__lp_all" != "$__lp_other" ] || { __lp_mark=$__lp_nl; return 0; }
    case $__lp_other in *"$__lp_mark"*) ;; *) return 0 ;; esac
    case $__lp_all in *'@2@'*)
        __lp_say "the image's environment holds newlines and both of the bytes 1 and 2, which can't be told apart"
        exit 125 ;;
    esac
    __lp_all=$__lp_other __lp_mark='@2@'
}

__lp_clear_env() {
    __lp_old=$(env)
    while IFS= read -r __lp_line; do
        __lp_name=${__lp_line%%=*}
        [ "$__lp_name" = PATH ] || __lp_unusable "$__lp_name" || unset -v "$__lp_name"
    done <<__LP_END
$__lp_old
__LP_END
}

__lp_set_env() {
    while IFS= read -r __lp_line; do
        __lp_name=${__lp_line%%=*}
        case $__lp_line in *=*) ;; *) continue ;; esac
        __lp_unusable "$__lp_name" && continue
        while :; do
            case $__lp_line in
                *"$__lp_mark"*) __lp_line=${__lp_line%%"$__lp_mark"*}$__lp_nl${__lp_line#*"$__lp_mark"} ;;
                *) break ;;
            esac
        done
        export "$__lp_line"
    done 2>/dev/null <<__LP_END
$__lp_all
__LP_END
}

# The image's environment and working directory, or the session's with a word about it.
__lp_enter_image() {
    __lp_login=$PWD
    unset -v CDPATH ENV BASH_ENV
    [ "${LIUM_SIM_CONFINED-}" != 1 ] || { __lp_confined=1; return 0; }
    if __lp_load_environ; then
        __lp_clear_env
        __lp_set_env
        [ -n "${HOME-}" ] || export HOME="$__lp_login"
    else
        __lp_say "$__lp_why: using the session's own environment"
    fi
    unset -v CDPATH
    cd -P /proc/1/cwd 2>/dev/null ||
        __lp_say "PID 1's working directory can't be entered: using $__lp_login"
}
""".replace("@1@", "\x01").replace("@2@", "\x02")

AS_USER = r"""
# Sets __lp_uid, __lp_gid and __lp_user for `image` (PID 1's user), a name, UID or UID:GID.
__lp_find_user() {
    __lp_uid='' __lp_gid='' __lp_user=$1
    if [ "$1" = image ]; then
        while read -r __lp_key __lp_id __lp_rest; do
            case $__lp_key in Uid:) __lp_uid=$__lp_id ;; Gid:) __lp_gid=$__lp_id ;; esac
        done 2>/dev/null </proc/1/status
    fi
    while IFS=: read -r __lp_name __lp_x __lp_id __lp_group __lp_gecos __lp_home __lp_x; do
        if [ "$__lp_name" = "$1" ] || [ "$__lp_id" = "${__lp_uid:-${1%%:*}}" ]; then
            __lp_user=$__lp_name __lp_uid=$__lp_id __lp_gid=${__lp_gid:-$__lp_group}
            [ "$1" = image ] || export HOME="$__lp_home" USER="$__lp_name" LOGNAME="$__lp_name"
            break
        fi
    done 2>/dev/null </etc/passwd
    case $1 in
        *[!0-9:]*) ;;
        *:*) __lp_uid=${1%%:*} __lp_gid=${1#*:} ;;
        *) __lp_uid=$1 __lp_gid=${__lp_gid:-$1} ;;
    esac
    [ -n "$__lp_uid" ] && [ -n "$__lp_gid" ]
}

# Becomes user $1 and runs the shell source $2, which finds the script on descriptor 8 and its PATH in __lp_path.
__lp_exec_as() {
    export __lp_path
    if [ "${__lp_confined-}" = 1 ]; then
        __lp_say "no containers here: running as the session's own user instead of $1"
        exec sh -c "$2"
    fi
    __lp_find_user "$1" || { __lp_say "the image has no user $1"; exit 125; }
    [ "$__lp_uid" != 0 ] || exec sh -c "$2"
    if setpriv --reuid "$__lp_uid" --regid "$__lp_gid" --clear-groups true 2>/dev/null; then
        exec setpriv --reuid "$__lp_uid" --regid "$__lp_gid" --clear-groups sh -c "$2"
    elif chroot --userspec="$__lp_uid:$__lp_gid" --groups="$__lp_gid" --skip-chdir / true 2>/dev/null; then
        exec chroot --userspec="$__lp_uid:$__lp_gid" --groups="$__lp_gid" --skip-chdir / sh -c "$2"
    elif su -m -s /bin/sh "$__lp_user" --session-command true 2>/dev/null; then
        # util-linux's `-c` begins a session of its own, which no signal to ours reaches.
        exec su -m -s /bin/sh "$__lp_user" --session-command "$2"
    elif su -m -s /bin/sh "$__lp_user" -c true 2>/dev/null; then
        exec su -m -s /bin/sh "$__lp_user" -c "$2"
    fi
    __lp_say "the image has no setpriv, chroot or su that can run commands as $__lp_user ($__lp_uid)"
    exit 125
}
"""

RECORDS = r"""
# Files in $__lp_dir appear whole or not at all. One that was reserved can be written when the disk is full: only its
# first line counts.
__lp_record() {
    if [ -f "$__lp_dir/.$1.reserved" ]; then
        echo "$2" 1<>"$__lp_dir/.$1.reserved" && mv -f "$__lp_dir/.$1.reserved" "$__lp_dir/$1"
    else
        echo "$2" >"$__lp_dir/.$1.$$" && mv -f "$__lp_dir/.$1.$$" "$__lp_dir/$1"
    fi
}
__lp_reserve() {
    echo '                                ' >"$__lp_dir/.$1.reserved"
}

# Sets __lp_self to what __lp_recorded_alive knows this process by.
__lp_name_self() {
    __lp_this_boot
    __lp_leads=0
    __lp_stat_of "$$" && [ "$__lp_group" = "$$" ] && __lp_leads=1
    __lp_self="$$ ${__lp_start:--} $__lp_boot $__lp_leads"
}
__lp_record_self() {
    __lp_name_self
    __lp_record "$1" "$__lp_self"
}

# Whether the process named in the file $1 still runs; sets __lp_pid and __lp_leads.
__lp_recorded_alive() {
    read -r __lp_pid __lp_since __lp_on __lp_leads 2>/dev/null <"$1" || return 1
    __lp_alive "$__lp_pid" "$__lp_since" "$__lp_on"
}
"""

GROUP = r"""
# Whether a process of group $1 other than process $2 still runs. A zombie has ended.
__lp_group_runs() {
    kill -0 "-$1" 2>/dev/null || return 1  # busybox fails for `--`, dash for `-s 0` without it
    for __lp_entry in /proc/[0-9]*; do
        __lp_entry=${__lp_entry#/proc/}
        [ "$__lp_entry" != "${2-}" ] && __lp_stat_of "$__lp_entry" && [ "$__lp_group" = "$1" ] || continue
        case $__lp_state in Z | X) ;; *) return 0 ;; esac
    done
    return 1
}
"""

RUN_RECORDS = r"""
# What a run leaves whose caller waits for it: files whose names begin with $__lp_marks, of all runs in one directory,
# which the first of them makes. Written in place: one without its last word is not there yet.
__lp_use_marks() {
    __lp_use_dir "$1"
    __lp_marks=$__lp_dir
    __lp_dir=${__lp_dir%/*}
}
__lp_has_begun() { read -r __lp_pid __lp_since __lp_on __lp_leads 2>/dev/null <"$__lp_marks.run"; }
__lp_has_ended() {
    __lp_code='' __lp_word=''
    read -r __lp_code __lp_word 2>/dev/null <"$__lp_marks.exit" && [ "$__lp_word" = ended ]
}
# Whether its commands still run: its shell, or what that has left of its process group without an end of its own.
__lp_goes_on() {
    __lp_recorded_alive "$__lp_marks.run" && return 0
    # Another process with the shell's pid is only there when nothing of its group is.
    [ "${__lp_leads-}" = 1 ] && [ "$__lp_on" = "$__lp_boot" ] && [ "${__lp_start:-$__lp_since}" = "$__lp_since" ] &&
        __lp_group_runs "$__lp_pid"
}
"""

AS_USER_SOURCE = """
__lp_script=$(cat <&8)
exec 8<&-
PATH=$__lp_path
unset -v __lp_path
set -eu
eval "$__lp_script"
"""
