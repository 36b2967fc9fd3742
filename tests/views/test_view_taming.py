"""A log on a terminal: colours yes, orders no, wherever the stream is cut."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lium_plan.views.taming import Tame

PIECES = st.sampled_from(
    [
        b"\x1b",
        b"[",
        b"31",
        b";",
        b"m",
        b"K",
        b"H",
        b"]0;x",
        b"\x07",
        b"\xc2",
        b"\x9b",
        b"\xc3\xa4",
        b"\n",
        b"a",
        b"\x00",
    ]
)


def tamed(*chunks: bytes) -> bytes:
    tame = Tame()
    return b"".join(map(tame.feed, chunks)) + tame.flush()


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (b"\x1b[1;31mred\x1b[0m \t 50%\r\x1b[K100%\x08\n", b"\x1b[1;31mred\x1b[0m \t 50%\r\x1b[K100%\x08\n"),
        ("ä€ \U0001f600".encode(), "ä€ \U0001f600".encode()),
        (b"\x1b]0;owned\x07", b"\\x1b]0;owned\\x07"),
        (b"\x1b[2J\x1b[6n\x1bc", b"\\x1b[2J\\x1b[6n\\x1bc"),
        (b"\x1b]52;c;ZXZpbA==\x1b\\", b"\\x1b]52;c;ZXZpbA==\\x1b\\"),
        ("\x9b2J".encode(), b"\\x9b2J"),
        (b"\x00\x7f\xff", b"\\x00\\x7f\xff"),
        (b"\x1b[" + b"1" * 50 + b"m", b"\\x1b[" + b"1" * 50 + b"m"),
    ],
)
def test_colours_are_obeyed_and_everything_else_is_shown(written: bytes, shown: bytes) -> None:
    assert tamed(written) == shown


@given(st.lists(PIECES, max_size=30), st.lists(st.integers(0, 60), max_size=8))
def test_where_the_stream_is_cut_makes_no_difference(pieces: list[bytes], cuts: list[int]) -> None:
    whole = b"".join(pieces)
    places = [0, *sorted(min(cut, len(whole)) for cut in cuts), len(whole)]
    assert tamed(*(whole[begin:end] for begin, end in pairwise(places))) == tamed(whole)
