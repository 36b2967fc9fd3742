"""Lines that are redrawn in place, on a terminal that knows no more than it must."""

from __future__ import annotations

import re

from lium_plan.cli.redrawing import Redrawn

PIECES = re.compile(r"\x1b\[(?P<private>\??)(?P<number>[0-9]*)(?P<word>[A-Za-z])|(?P<char>[\s\S])")


class Screen:
    """Rows of a terminal, with a cursor; it takes what `Redrawn` writes and refuses all else."""

    def __init__(self, columns: int) -> None:
        self.columns = columns
        self.rows: list[str] = [""]
        self.row = self.column = 0
        self.breaks = self.cursor = True

    def write(self, text: str) -> None:
        for piece in PIECES.finditer(text):
            if piece["char"] is not None:
                self._put(piece["char"])
            elif piece["private"]:
                on = {"h": True, "l": False}[piece["word"]]
                self.breaks, self.cursor = (on, self.cursor) if piece["number"] == "7" else (self.breaks, on)
            elif piece["word"] == "A":
                self.row = max(0, self.row - int(piece["number"]))
            elif piece["word"] == "K":
                self.rows[self.row] = self.rows[self.row][: self.column]
            else:
                assert piece["word"] == "J"
                self.rows[self.row :] = [self.rows[self.row][: self.column]]

    def _put(self, char: str) -> None:
        if char == "\r":
            self.column = 0
        elif char == "\n":
            self.row, self.column = self.row + 1, 0
            self.rows += [""] * (self.row + 1 - len(self.rows))
        else:
            if self.column == self.columns and self.breaks:
                self._put("\n")
            self.column = min(self.column, self.columns - 1)
            row = self.rows[self.row].ljust(self.column)
            self.rows[self.row] = row[: self.column] + char + row[self.column + 1 :]
            self.column += 1

    @property
    def shown(self) -> list[str]:
        return [row.rstrip() for row in self.rows]


def test_lines_are_drawn_in_place_of_those_before() -> None:
    screen = Screen(20)
    live = Redrawn(screen.write)
    screen.write("before\n")
    live.draw(["one", "two", "three"])
    assert screen.shown == ["before", "one", "two", "three"]
    live.draw(["1", "2"])
    assert screen.shown == ["before", "1", "2"]
    assert (screen.row, screen.column) == (1, 0), "where the terminal keeps it, however it breaks lines"
    live.above("said\nand more\n")
    assert screen.shown == ["before", "said", "and more", "1", "2"]
    live.close()
    screen.write("after\n")
    assert [row for row in screen.shown if row] == ["before", "said", "and more", "after"]
    assert (screen.breaks, screen.cursor) == (True, True)


def test_an_echo_of_ctrl_c_leaves_nothing_behind() -> None:
    screen = Screen(5)
    live = Redrawn(screen.write)
    live.draw(["12345", "abcde"])
    screen.write("^C")
    live.draw(["12345", "abcde"])
    assert screen.shown == ["12345", "abcde"]


def test_a_terminal_that_is_narrower_than_known_breaks_no_line() -> None:
    screen = Screen(4)
    live = Redrawn(screen.write)
    for _ in range(3):
        live.draw(["123456789", "abcdefghi"])
    assert len(screen.shown) == 2
    live.above("a text that is broken")
    assert len(screen.shown) == 6 + 2


def test_nothing_drawn_is_nothing_to_take_away() -> None:
    screen = Screen(10)
    Redrawn(screen.write).close()
    assert screen.shown == [""]
