"""Threads of the event loop that nobody waits for: a name server that is away answers a look-up after half a minute."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from threading import Thread
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
MOST_THREADS = 32


class Unawaited(ThreadPoolExecutor):
    """For `set_default_executor`: it is shut down at once, and what still runs in it keeps no process from ending.

    Of the pool that it is by its type it uses nothing: the threads of that one are joined when the interpreter ends.
    """

    def __init__(self) -> None:
        super().__init__(1)  # starts no thread
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._started = 0

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def call() -> None:
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(fn(*args, **kwargs))
                except BaseException as failure:
                    future.set_exception(failure)

        self._calls.put(call)
        if self._started < MOST_THREADS:
            self._started += 1
            Thread(target=self._work, name=f"unawaited-{self._started}", daemon=True).start()
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        for _ in range(self._started):
            self._calls.put(None)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            call()
