"""Secrets never leave a `Mask`, wherever the stream is cut and however programs write them (case H1)."""

from __future__ import annotations

import base64
import json
import os
import shlex
import time
import urllib.parse
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.kinds.logs import LogFile
from lium_plan.kinds.masking import MASK, Mask

SECRET = "hf_s3cr3t/To+ken=ä"
KEY = "-----BEGIN KEY-----\nb3BlbnNzaC1rZXktdjEAAAAA\nQmFzZTY0Q2FuYXJ5\n-----END KEY-----\n"
AT = datetime(2026, 11, 29, tzinfo=UTC)


def through(mask: Mask, data: bytes, sizes: list[int]) -> bytes:
    out, at = b"", 0
    for size in sizes:
        out += mask.feed(data[at : at + size])
        at += size
    return out + mask.feed(data[at:]) + mask.flush()


@given(
    before=st.binary(max_size=40),
    after=st.binary(max_size=40),
    sizes=st.lists(st.integers(0, 9), max_size=40),
    secret=st.sampled_from([SECRET, KEY, "aaaa", "abababab", "\u20ac12345"]),
)
def test_h1_a_secret_never_gets_through_however_the_stream_is_cut(
    before: bytes, after: bytes, sizes: list[int], secret: str
) -> None:
    raw = secret.encode()
    out = through(Mask([secret]), before + raw + after, sizes)
    assert raw not in out
    if raw not in before + raw[:-1] and raw not in raw[1:] + after:
        assert MASK in out


@given(data=st.binary(max_size=200), sizes=st.lists(st.integers(0, 50), max_size=10))
def test_everything_else_comes_through_as_it_was(data: bytes, sizes: list[int]) -> None:
    if b"never-there" not in data:
        assert through(Mask(["never-there"]), data, sizes) == data
    assert through(Mask([]), data, sizes) == data


@given(cut=st.integers(0, 60))
def test_the_longer_of_two_secrets_with_one_beginning_is_hidden_whole(cut: int) -> None:
    data = b"x token-and-its-end token-and y"
    assert through(Mask(["token-and", "token-and-its-end"]), data, [cut]) == b"x *** *** y"


@pytest.mark.parametrize(
    "written",
    [
        SECRET.encode(),
        json.dumps(SECRET).encode(),
        json.dumps(SECRET, ensure_ascii=False).encode(),
        urllib.parse.quote(SECRET, safe="").encode(),
        urllib.parse.quote_plus(SECRET).encode(),
        f"https://user:{urllib.parse.quote(SECRET, safe='')}@host/".encode(),
        shlex.quote("it's " + SECRET).encode(),
        SECRET.encode().hex().encode(),
        *(base64.b64encode(b"x" * count + SECRET.encode() + b"y" * count) for count in range(4)),
        base64.urlsafe_b64encode(b"user:" + SECRET.encode() + b":rest"),
        base64.b64encode(f"Authorization: Bearer {SECRET}\n".encode()),
    ],
)
def test_h1_encodings_of_a_secret_are_hidden_too(written: bytes) -> None:
    out = through(Mask([SECRET]), b"<" + written + b">", [7, 1, 1, 5])
    assert MASK in out
    for length in range(len(written) - 8):
        piece = written[length : length + 12]
        # A dozen characters in a row that hold nothing but the secret can't be left of it.
        assert piece not in out or piece not in base64.b64encode(SECRET.encode()) + SECRET.encode().hex().encode()


def test_h1_lines_of_a_secret_are_hidden_one_by_one() -> None:
    assert through(Mask([KEY]), b"> b3BlbnNzaC1rZXktdjEAAAAA <", []) == b"> *** <"


def test_short_values_are_left_alone() -> None:
    assert through(Mask(["a", "123", ""]), b"a 123 abc", []) == b"a 123 abc"


def test_a_big_stream_is_masked_fast() -> None:
    mask = Mask([KEY * 3, SECRET, *(f"token-{number}-abcdef" for number in range(20))])
    chunk = (b"epoch 12 loss 0.123 token hf_s3 " * 1024)[:32768]
    started = time.process_time()
    for _ in range(320):  # 10 MiB
        mask.feed(chunk)
    assert time.process_time() - started < 4


# --- log files -----------------------------------------------------------------------------------------------


def log(path: Path, source: str | None = None, *, going_on: bool = False) -> LogFile:
    return LogFile(path, secrets=["canary-1"], title="t", at=AT, source=source, going_on=going_on)


def test_a_log_is_private_masked_and_gone_on_with_where_it_stopped(tmp_path: Path) -> None:
    path = tmp_path / "logs" / "task.t[0].log"
    with pytest.raises(KeyboardInterrupt), log(path, "pod dir-1") as first:
        first.write(b"one\ncanary-1\ncana")
        raise KeyboardInterrupt
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert path.read_bytes().endswith(b"one\n***\n")
    with log(path, "pod dir-1") as again:
        assert again.offset == len(b"one\ncanary-1\n")
        again.write(b"canary-1 two\n")
        assert again.last_lines(2) == "***\n*** two"
    assert path.read_bytes() == b"--- 2026-11-29T00:00:00Z t\none\n***\n*** two\n"


@pytest.mark.parametrize(
    "mark",
    [
        b"[" * 100_000,
        b"[]",
        b'{"source": "pod dir-1", "pod_bytes": 1e999, "log_bytes": 0}',
        b'{"source": "pod dir-1", "pod_bytes": 0, "log_bytes": -1}',
        b"\xff",
    ],
    ids=["deep", "a list", "infinite", "negative", "no text"],
)
def test_junk_in_a_place_mark_is_no_mark(tmp_path: Path, mark: bytes) -> None:
    path = tmp_path / "x.log"
    with log(path, "pod dir-1") as first:
        first.write(b"one\n")
    (tmp_path / "x.log.at").write_bytes(mark)
    with log(path, "pod dir-1") as again:
        assert again.offset == 0


@pytest.mark.parametrize("name", ["x.log", "x.log.at"])
def test_a_pipe_in_the_place_of_a_log_is_never_waited_for(tmp_path: Path, name: str) -> None:
    os.mkfifo(tmp_path / name)
    with pytest.raises(OSError), log(tmp_path / "x.log", "pod dir-1", going_on=True) as file:
        file.write(b"one\n")


def test_what_was_written_after_the_place_mark_is_read_again_and_not_doubled(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    with log(path, "pod dir-1") as first:
        first.write(b"one\n")
    with path.open("ab") as file:
        file.write(b"two, but killed before it was marked\n")
    with log(path, "pod dir-1") as again:
        again.write(b"two\n")
    assert path.read_text().splitlines()[1:] == ["one", "two"]


def test_another_attempt_begins_a_new_log_and_keeps_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    for attempt in ("dir-1", "dir-2", "dir-3"):
        with log(path, attempt) as file:
            assert file.offset == 0
            file.write(attempt.encode() + b" no newline")
    assert path.read_text().endswith("dir-3 no newline")
    assert path.with_name("x.log.1").read_text().endswith("dir-2 no newline")
    with log(path, going_on=True) as file:
        file.say("a word of ours")
    assert path.read_text().splitlines()[1:] == [
        "dir-3 no newline",
        "--- 2026-11-29T00:00:00Z t",
        "--- a word of ours",
    ]
