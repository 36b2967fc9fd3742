"""What programs on a pod print, what files are called, and pods with nothing left: none of it may surprise anybody."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from remote_looks import BOOT, TASK, bootstrap_of, failed, log_of, log_path, nothing_to_do, pod_of, seen_on, task_of

from tests.support.projects import Done, Project

Fleet = Callable[..., Project]
OUTPUT = b"\x1b]0;owned\x07\x1b[2J\x1b[31mred\x1b[0m\r\xff\xfe \x80\x00\xc3 \xe2\x80\xae over"
"""A title, a cleared screen, a colour, no UTF-8, a NUL, a change of direction; and no newline at the end."""


def harmless(done: Done) -> bool:
    return not any(char in done.out + done.err for char in "\x1b\x07\x00\x80\u202e\r")


def test_what_is_printed_drives_no_terminal_and_is_kept_byte_for_byte(fleet_of: Fleet) -> None:
    project = fleet_of(
        "      files: [{source: out, target: out}]\n"
        "      commands: ['head -c 10000000 /dev/zero | tr \"\\0\" x; echo; cat ~/out', 'cat ~/out; exit 125']\n"
    )
    (project.folder / "out").write_bytes(OUTPUT)
    done = project.apply(expect=3)
    assert harmless(done)
    assert "exit status 125 in command 2 of 2" in done.out, "not taken for a shell that could not be started"
    assert "\\x1b]0;owned\\x07\\x1b[2J" in done.out + done.err
    assert max(map(len, done.err.splitlines())) < 5000
    log = log_path(project, BOOT).read_bytes().partition(b"\n")[2]
    assert hashlib.sha256(log).digest() == hashlib.sha256(b"x" * 10_000_000 + b"\n" + OUTPUT * 2).digest()
    assert failed(project.apply("--json", expect=3), BOOT, "bootstrap-failed")
    assert bootstrap_of(project)["attributes"]["exit_code"] == 125


def test_every_exit_status_is_told_as_it_was(fleet_of: Fleet) -> None:
    codes = {"a": "exit 126", "b": "/no/such/program", "c": "kill -9 $$", "d": "exit 255", "e": "exit 125"}
    wanted = {"a": 126, "b": 127, "c": 137, "d": 255, "e": 125}
    lines = "".join(f"  {name}: {{fleet: x, commands: ['{text}', 'true']}}\n" for name, text in codes.items())
    project = fleet_of(tasks=lines)
    done = project.apply("--json", expect=3)
    for name, code in wanted.items():
        assert f"exit status {code}" in failed(done, f"task.{name}[0]", "task-failed")
        assert task_of(project, f"task.{name}[0]")["attributes"]["exit_code"] == code


def test_names_values_and_commands_arrive_as_written(fleet_of: Fleet) -> None:
    project = fleet_of(
        """\
      files: [{source: "it's here", target: "~/to \\"here\\"/it's"}]
      env: {Q: "a'b\\"c\\\\d$HOME`id`", NL: "\\none\\n\\ttwo\\n\\n"}
      commands:
        - cd ~; printf '%s|%s|' "$Q" "$NL" > values
        - |
          cat > closed <<'EOF'
          $Q 'quoted'
          EOF
        - |
          cat > open <<EOF
          $Q
        - echo after >> trace
        - exit ${{ member.index }}
""",
        tasks='  t:\n    fleet: x\n    files: [{source: "it\'s here", target: sent}]\n'
        "    commands: ['cd ~; cat sent/*t; ls sent | wc -l', \"cat <<X\\nunclosed\", 'echo after']\n",
    )
    names = [b"plain.txt", b" sp ace", b"quo'te\"s", b"new\nline", b"caf\xe9", b"-dash", b"$(id)"]
    folder = os.fsencode(project.folder / "it's here")
    os.mkdir(folder)
    for name in names:
        Path(os.fsdecode(folder + b"/" + name)).write_bytes(name)
    project.apply()
    there = 'cd ~/to*here*/it*; for f in * ; do [ "$f" = "$(cat -- "$f")" ] && echo same; done; stat -c %i -- *'
    same = seen_on(project, there)
    assert same.count("same") == len(names)
    assert seen_on(project, "cat ~/values") == "a'b\"c\\d$HOME`id`|\none\n\ttwo\n\n|"
    assert seen_on(project, "cat ~/closed ~/trace") == "$Q 'quoted'\nafter\n"
    assert seen_on(project, "head -1 ~/open") == "a'b\"c\\d$HOME`id`\n"
    assert log_of(project, TASK).split("\n")[1:3] == ["plain.txt8", "unclosed"]
    assert log_of(project, TASK).endswith("after\n")
    project.run("apply", "--auto-approve", "--replace", BOOT, expect=0)
    assert seen_on(project, there) == same, "not sent again, whatever they are called"
    nothing_to_do(project)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('env: {A: "a\\0b"}', "NUL"),
        ('commands: ["echo \\0"]', "NUL"),
        ("env: {PWD: x}", "not the shell's own"),
        ("env: {__lp_dir: x}", "not the shell's own"),
        ("files: [{source: lium.yaml, target: work/}]", "name the file on the pod"),
        ("files: [{source: lium.yaml, target: '~'}]", "name the file on the pod"),
    ],
)
def test_what_no_shell_can_carry_is_told_before_anything_is_rented(fleet_of: Fleet, line: str, said: str) -> None:
    found = fleet_of(f"      {line}\n").run("validate", "--json", expect=1).json["diagnostics"]
    assert len(found) == 1, found
    assert said in found[0]["message"]
    assert found[0]["line"] == 10


def test_a_pod_without_a_tmp_works(fleet_of: Fleet) -> None:
    project = fleet_of(
        "      env: {LONG: '" + "x" * 100_000 + "'}\n      commands: ['rm -rf /tmp; ln -s /no/such /tmp', 'echo ok']\n",
        tasks="  t: {fleet: x, commands: ['echo $(id -u)'], user: root}\n",
    )
    project.apply()
    project.run("apply", "--auto-approve", "--replace", BOOT, "--replace", "task.t", expect=0)
    assert log_of(project, TASK).split("\n")[1] == "0"


def test_an_unwritable_home_is_named(fleet_of: Fleet) -> None:
    project = fleet_of("      commands: ['rm -rf ~/.lium-plan; echo > ~/.lium-plan']\n")
    project.apply()
    project = fleet_of("      commands: ['echo again']\n", tasks="  t: {fleet: x, commands: ['true']}\n")
    message = failed(project.apply("--json", expect=3), BOOT, "bootstrap-failed")
    assert ".lium-plan" in message
    assert pod_of(project)["status"] == "bootstrap-failed"
    project = fleet_of(tasks="  t: {fleet: x, commands: ['true']}\n")
    assert ".lium-plan" in failed(project.apply("--json", expect=3), TASK, "task-start")
