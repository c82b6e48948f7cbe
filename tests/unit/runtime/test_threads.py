"""A thread that the process needs does not end unheard."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from coordinator.runtime.threads import ThreadEndedError, Threads


class Odd(BaseException):
    """What nobody has thought of."""


def raising(error: BaseException) -> Callable[[], None]:
    def work() -> None:
        raise error

    return work


@pytest.mark.parametrize(
    "error", [ValueError("x"), RecursionError("x"), SystemExit(0), GeneratorExit(), Odd("x")]
)
@pytest.mark.parametrize("told_to_end", [False, True])
def test_whatever_a_thread_dies_of_the_process_is_told_to_stop(
    error: BaseException, told_to_end: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    stopped, told = threading.Event(), threading.Event()
    if told_to_end:
        told.set()
    threads = Threads(stopped.set)
    threads.start("reader", raising(error), told).join()
    assert stopped.is_set()
    with pytest.raises(ThreadEndedError, match=f"reader has ended: {type(error).__name__}"):
        threads.check()
    assert "Traceback" in capsys.readouterr().err


def test_a_thread_whose_work_comes_to_an_end_too_early_is_missed() -> None:
    stopped = threading.Event()
    threads = Threads(stopped.set)
    threads.start("reader", lambda: None, threading.Event()).join()
    assert stopped.is_set()
    with pytest.raises(ThreadEndedError, match="its work came to an end"):
        threads.check()


def test_a_thread_that_was_told_to_end_may() -> None:
    stopped, told = threading.Event(), threading.Event()
    threads = Threads(stopped.set)
    thread = threads.start("reader", lambda: told.wait(10), told)
    told.set()
    thread.join()
    threads.check()
    assert not stopped.is_set()
