"""A process beside a node that reads the expressions of definitions.

It is `python -m coordinator.language.examiner`. Reading SQL is slow Python. In a thread of the node
it would hold the interpreter, and the node's loop would wait for it; here it takes what it takes.
The process is started when it is first needed, answers one definition at a time over a pipe, and
ends when the node's end of the pipe does, however the node ended.

The process says when it is ready, and when it has a definition. A message is its length, four
bytes, and that much JSON: a definition one way, and back either its normal form or an objection.
"""

from __future__ import annotations

import json
import os
import select
import signal
import struct
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, BinaryIO

from coordinator.language.ddl_commands import Definition, examine_here

PROCESSOR_S = 2.5
"""So much processor time one definition may take: ten times what the largest takes. The kernel ends
the process that takes more, whatever it does."""

PATIENCE_S = 10.0
"""So long one definition may take, also where others have the processor."""

ATTEMPTS_MAX = 3
"""So often a definition is tried when the process dies, or is killed, over it. One that took too
much processor time is not tried again: that was no accident."""

START_S = 30.0
"""So long the process may take until it reads definitions, on a machine that has much to do."""

FRAMES_MAX = 700
"""Whoever compiles an index later has 1,000 calls in each other, less those that led there. What
is accepted here got by on fewer."""

NICENESS = 5
"""The node's own loop goes first where both want a core."""

HARMLESS = Definition(("a",), "a > 1")
"""If this one cannot be examined either, it is not the definition's fault."""

MESSAGE_BYTES_MAX = 4 * 1024 * 1024
LENGTH = struct.Struct(">I")
READY, TAKEN = b"+", b"?"


class ExaminingError(Exception):
    """Definitions cannot be examined now, and not because of this one."""

    code = "unavailable"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Examiner:
    """The process, from the node's side. Threads may share it: one is served after the other."""

    def __init__(self, argv: tuple[str, ...] = (), patience_s: float = PATIENCE_S) -> None:
        self._argv = argv or (sys.executable, "-m", "coordinator.language.examiner")
        self._patience_s = patience_s
        self._serving = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._is_asked = False
        """Whether the process that is asked has the question: what ends it then, is due to that."""
        self._closed = False

    def examine(self, definition: Definition) -> Definition | str:
        """Return the definition in normal form, or what is wrong with it. Blocks.

        A definition over which the process dies again and again, while it lives on over another, is
        one that nobody should read: that is an objection, too. ExaminingError: nothing can be
        examined now, or it is closed.
        """
        with self._serving:
            for _ in range(ATTEMPTS_MAX):
                try:
                    return self._examined(definition)
                except (OSError, ValueError) as error:
                    if self._kill() == -signal.SIGVTALRM and self._is_asked:
                        return "its expressions take too long to read: use shorter or fewer ones"
                    last = error
            try:
                self._examined(HARMLESS)
            except (OSError, ValueError) as error:
                self._kill()
                raise ExaminingError(f"definitions cannot be examined: {error}") from error
        return f"its expressions cannot be examined: {last}"

    def close(self) -> None:
        """End the process; what is being asked fails."""
        self._closed = True
        if (process := self._process) is not None:
            process.kill()  # Who waits for its answer sees the end of the pipe, and lets go.
        with self._serving:
            self._kill()

    @property
    def pid(self) -> int:
        """Return the process's id; 0 while there is none."""
        process = self._process
        return 0 if process is None else process.pid

    def _examined(self, definition: Definition) -> Definition | str:
        return _result(self._ask(json.dumps(definition).encode()))

    def _ask(self, question: bytes) -> bytes:
        """Return the answer to a message. Raises OSError, ValueError."""
        self._is_asked = False
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        answers = process.stdout.fileno()
        if not self._ready:
            self._read(answers, len(READY), time.monotonic() + START_S)
            self._ready = True
        deadline_s = time.monotonic() + self._patience_s
        self._write(process.stdin.fileno(), LENGTH.pack(len(question)) + question, deadline_s)
        self._is_asked = self._read(answers, len(TAKEN), deadline_s) == TAKEN
        answer = self._read(answers, LENGTH.size, deadline_s)
        (size,) = LENGTH.unpack(answer)
        if size > MESSAGE_BYTES_MAX:
            raise ValueError(f"an answer of {size} bytes")
        return self._read(answers, size, deadline_s)

    def _write(self, pipe: int, message: bytes, deadline_s: float) -> None:
        """Write a message to a pipe. Raises OSError: it is not taken, or not in time."""
        left = memoryview(message)
        while left:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([], [pipe], [], left_s)[1]:
                raise TimeoutError("not taken in time")
            left = left[os.write(pipe, left) :]

    def _read(self, pipe: int, size: int, deadline_s: float) -> bytes:
        """Return so many bytes of a pipe. Raises OSError: it ended, or they came too late."""
        found = b""
        while len(found) < size:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0 or not select.select([pipe], [], [], left_s)[0]:
                raise TimeoutError("no answer in time")
            piece = os.read(pipe, size - len(found))
            if not piece:
                raise ConnectionError("the process has ended")
            found += piece
        return found

    def _running(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise ConnectionError("the node is stopping")
        if self._process is None:
            try:
                self._process = subprocess.Popen(
                    self._argv,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    bufsize=0,
                    start_new_session=True,
                )
                assert self._process.stdin is not None
                os.set_blocking(self._process.stdin.fileno(), False)
            except OSError as error:
                raise ConnectionError(f"no process can be started: {error}") from error
            if self._closed:  # Meanwhile: who closes it has not seen this process.
                raise ConnectionError("the node is stopping")
        return self._process

    def _kill(self) -> int:
        """End the process; return its exit code, negative for a signal, 0 if there is none."""
        process, self._process, self._ready = self._process, None, False
        if process is None:
            return 0
        process.kill()
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()
        return process.wait()


def _result(answer: bytes) -> Definition | str:
    """Return what an answer says. Raises ValueError: nothing that is known."""
    found = json.loads(answer)
    if isinstance(found, str):
        return found
    expressions, where = found
    return Definition(tuple(map(str, expressions)), where)


# -- the process ---------------------------------------------------------------------------------


def main() -> None:
    """Answer definitions until the pipe ends."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    with suppress(OSError):
        os.nice(NICENESS)
    sys.setrecursionlimit(FRAMES_MAX)
    questions, answers = sys.stdin.buffer, sys.stdout.buffer
    examine_here(HARMLESS)  # What that imports is no part of the first question.
    answers.write(READY)
    answers.flush()
    while (question := _message(questions)) is not None:
        answers.write(TAKEN)
        answers.flush()
        signal.setitimer(signal.ITIMER_VIRTUAL, PROCESSOR_S)  # Then it ends.
        expressions, where = json.loads(question)
        found: Any = examine_here(Definition(tuple(expressions), where))
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        answer = json.dumps(found).encode()
        answers.write(LENGTH.pack(len(answer)) + answer)
        answers.flush()


def _message(pipe: BinaryIO) -> bytes | None:
    """Return the next message; None where the pipe ends."""
    head = pipe.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    body = pipe.read(size)
    return body if len(body) == size else None


if __name__ == "__main__":
    main()
