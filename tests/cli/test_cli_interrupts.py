"""Signals: the first, the second, before and after there is something to save; and questions."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from terminals import Terminal

from lium_plan.cli.session import Session
from lium_plan.interrupts import SIGNALS, Interrupt


@pytest.mark.parametrize("number", SIGNALS)
def test_first_and_second_signal(number: signal.Signals) -> None:
    async def run() -> tuple[bool, bool, bool, bool]:
        interrupt = Interrupt()
        with interrupt.listening(lambda: pytest.fail("armed: must not be cancelled")):
            interrupt.arm()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(interrupt.first.wait(), 10)
            early = interrupt.second.is_set()
            os.kill(os.getpid(), number)
            await asyncio.wait_for(interrupt.second.wait(), 10)
        return interrupt.first.is_set(), early, interrupt.second.is_set(), interrupt.count == 2

    assert asyncio.run(run()) == (True, False, True, True)


def test_before_there_is_something_to_save_a_signal_ends_the_work() -> None:
    async def run() -> int:
        interrupt = Interrupt()
        task = asyncio.current_task()
        assert task is not None
        with interrupt.listening(task.cancel):
            os.kill(os.getpid(), signal.SIGTERM)
            with pytest.raises(asyncio.CancelledError):
                await asyncio.Event().wait()
        task.uncancel()
        return interrupt.count

    assert asyncio.run(run()) == 1


def test_handlers_are_given_back() -> None:
    before = [signal.getsignal(number) for number in SIGNALS]

    async def run() -> None:
        with Interrupt().listening(lambda: None):
            pass

    asyncio.run(run())
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_what_was_ignored_stays_ignored() -> None:
    code = """
import asyncio, os, signal
from lium_plan.interrupts import Interrupt
signal.signal(signal.SIGHUP, signal.SIG_IGN)
async def run():
    interrupt = Interrupt()
    with interrupt.listening(lambda: None):
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.sleep(0)
        print(interrupt.count)
asyncio.run(run())
"""
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=True)
    assert done.stdout == "0\n"


IMPATIENT = """
import atexit, os, signal, sys
from lium_plan.cli.session import Session
from lium_plan.interrupts import SIGNALS
def again():
    for number in SIGNALS:
        os.kill(os.getpid(), number)
async def work(interrupt):
    if {armed}:
        interrupt.arm()
    again()
    await interrupt.{until}.wait()
    again()
atexit.register(again)
try:
    Session().run(work)
except KeyboardInterrupt:
    again()
again()
print("told")
sys.exit(7)
"""


@pytest.mark.parametrize(("armed", "until"), [(True, "first"), (True, "second"), (False, "first")])
def test_any_number_of_signals_takes_neither_the_exit_code_nor_the_last_words(armed: bool, until: str) -> None:
    code = IMPATIENT.format(armed=armed, until=until)
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (7, "told\n", "")


# A question inside a running event loop that has taken the signals over, as in apply.
ASKER = """
import sys
from lium_plan.cli.perform import ask
from lium_plan.cli.session import Session
session = Session()
async def work(interrupt):
    return ask(session, "Do it? ")
try:
    print("answer", repr(session.run(work)))
except KeyboardInterrupt:
    print("interrupted")
    sys.exit(7)
"""


@pytest.mark.parametrize(("typed", "answer"), [("yes\n", "'yes'"), (" no \n", "'no'"), ("\x04", "''")])
def test_answers(tmp_path: Path, typed: str, answer: str) -> None:
    with Terminal((sys.executable, "-c", ASKER), env=os.environ, cwd=tmp_path) as terminal:
        terminal.wait_for("Do it? ")
        terminal.type(typed)
        assert terminal.end() == 0
        assert f"answer {answer}" in terminal.shown


@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_ends_a_question_at_once(tmp_path: Path, number: signal.Signals) -> None:
    with Terminal((sys.executable, "-c", ASKER), env=os.environ, cwd=tmp_path) as terminal:
        terminal.wait_for("Do it? ")
        terminal.process.send_signal(number)
        assert terminal.end() == 7
        assert "interrupted" in terminal.shown


# A name server that does not answer: the look-up of the event loop sits in a thread.
LOOKING_UP = """
import asyncio, atexit, os, signal, socket, sys, threading
from lium_plan.cli.session import Session
asked = threading.Event()
def getaddrinfo(*args, **options):
    asked.set()
    threading.Event().wait()
socket.getaddrinfo = getaddrinfo
async def work(interrupt):
    looking = asyncio.ensure_future(asyncio.get_running_loop().getaddrinfo("lium.io", 443))
    while not asked.is_set():
        await asyncio.sleep(0.01)
    if {armed}:
        interrupt.arm()
    os.kill(os.getpid(), signal.SIGINT)
    await (interrupt.first.wait() if {armed} else looking)
    looking.cancel()
atexit.register(print, "at exit")
try:
    Session().run(work)
    print("saved")
except KeyboardInterrupt:
    print("interrupted")
sys.exit(7)
"""


@pytest.mark.parametrize(("armed", "said"), [(True, "saved"), (False, "interrupted")])
def test_a_look_up_that_hangs_keeps_no_command_from_ending(armed: bool, said: str) -> None:
    code = LOOKING_UP.format(armed=armed)
    done = subprocess.run((sys.executable, "-c", code), capture_output=True, text=True, check=False, timeout=30)
    assert (done.returncode, done.stdout, done.stderr) == (7, f"{said}\nat exit\n", "")


def test_what_a_thread_does_for_the_loop_is_waited_for_while_it_runs() -> None:
    def fails() -> None:
        raise OSError("no such name")

    async def work(interrupt: Interrupt) -> tuple[list[int], str]:
        with pytest.raises(OSError) as raised:
            await asyncio.to_thread(fails)
        many = [asyncio.to_thread(lambda number=number: 2 * number) for number in range(100)]  # type: ignore[misc]
        return await asyncio.gather(*many), str(raised.value)

    assert Session().run(work) == ([2 * number for number in range(100)], "no such name")
