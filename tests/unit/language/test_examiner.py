"""The process that examines definitions: a real one. It may die, hang or be asked by anybody."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psutil
import pytest

from coordinator.core.catalog.ddl import EXPRESSION_LENGTH_MAX
from coordinator.language.ddl_commands import DEFINITION_TOKENS_MAX, Definition, examine_here
from coordinator.language.examiner import Examiner, ExaminingError

pytestmark = pytest.mark.thorough

DEADLINE_S = 20.0

DEFINITIONS = [
    Definition(("a",)),
    Definition(("lower(a)", "b desc"), "c is not null and d > 1"),
    Definition(("`ü`", "'\u2028'")),
    Definition(("a",), "b = 'x'"),
    Definition(("ELSE",)),
    Definition(("a", "(")),
    Definition(("a",), "SUM(b)"),
    Definition(("a",), "'\ud800'"),
    Definition(("(" * 5_000 + "a" + ")" * 5_000,)),
    Definition(tuple("+".join(["a"] * 1_000) for _ in range(3))),
    Definition(("x" * EXPRESSION_LENGTH_MAX,) * 32),
]


@pytest.fixture(scope="module")
def examiner() -> Iterator[Examiner]:
    made = Examiner()
    yield made
    made.close()


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda d: str(d)[:50])
def test_it_answers_as_if_it_were_here(examiner: Examiner, definition: Definition) -> None:
    assert examiner.examine(definition) == examine_here(definition)


def test_what_all_expressions_have_together_is_bounded() -> None:
    few = Definition(("+".join(["a"] * 1_000),) * 2, "a")
    assert isinstance(examine_here(few), Definition)
    many = Definition(("+".join(["a"] * 1_000),) * 3)
    assert f"more than {DEFINITION_TOKENS_MAX} tokens" in str(examine_here(many))


def test_a_process_that_was_killed_is_replaced(examiner: Examiner) -> None:
    assert examiner.examine(Definition(("a",))) == Definition(("a",))
    killed = examiner.pid
    os.kill(killed, signal.SIGKILL)
    assert examiner.examine(Definition(("b",))) == Definition(("b",))
    assert examiner.pid not in (0, killed)


def test_threads_that_share_it_each_get_their_own_answer(examiner: Examiner) -> None:
    definitions = [Definition((f"a{number}",)) for number in range(40)]
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(examiner.examine, definitions)) == definitions


def script(folder: Path, body: str, then: str = "definition") -> tuple[str, ...]:
    """Return the command of a process that does something else with definitions, and answers
    `then`; what it did before is `before`."""
    file = folder / "odd.py"
    file.write_text(
        "import os, sys, time\n"
        "from coordinator.language import examiner\n"
        "before = examiner.examine_here\n"
        "def examine(definition):\n"
        f"    {body}\n"
        f"    return {then}\n"
        "examiner.examine_here = examine\n"
        "examiner.main()\n"
    )
    return (sys.executable, str(file))


@pytest.mark.parametrize(
    "body",
    [
        pytest.param("'kill' in definition.expressions and os._exit(1)", id="dies"),
        pytest.param("'kill' in definition.expressions and os.write(1, b'x' * 100)", id="babbles"),
        pytest.param(
            "'kill' in definition.expressions and time.sleep(60)",
            id="hangs",
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_a_definition_that_nobody_survives_is_refused_and_others_are_not(
    tmp_path: Path, body: str
) -> None:
    odd = Examiner(script(tmp_path, body), patience_s=4.0)
    try:
        assert odd.examine(Definition(("a",))) == Definition(("a",))
        assert "cannot be examined" in str(odd.examine(Definition(("kill",))))
        assert odd.examine(Definition(("b",))) == Definition(("b",))
    finally:
        odd.close()


def test_a_definition_that_takes_too_long_to_read_is_tried_once(tmp_path: Path) -> None:
    """The others wait for it: for what it may take of the processor, and no longer."""
    tried = tmp_path / "tried"
    body = (
        f"'spin' in definition.expressions and open({str(tried)!r}, 'a').write('x')\n"
        "    examiner.PROCESSOR_S = 0.3\n"
        "    while 'spin' in definition.expressions:\n"
        "        pass"
    )
    odd = Examiner(script(tmp_path, body))
    try:
        assert odd.examine(Definition(("a",))) == Definition(("a",))
        assert "too long" in str(odd.examine(Definition(("spin",))))
        assert tried.read_text() == "x"
        assert odd.examine(Definition(("b",))) == Definition(("b",))
    finally:
        odd.close()


def test_that_the_process_was_ended_before_it_was_asked_is_no_objection(examiner: Examiner) -> None:
    assert examiner.examine(Definition(("a",))) == Definition(("a",))
    ended = examiner.pid
    os.kill(ended, signal.SIGVTALRM)
    _until(lambda: psutil.Process(ended).status() == psutil.STATUS_ZOMBIE)
    assert examiner.examine(Definition(("b",))) == Definition(("b",))


def test_nothing_is_imported_at_the_cost_of_the_first_definition(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    body = f"open({str(seen)!r}, 'a').write(f'{{len(sys.modules)}} ')"
    odd = Examiner(script(tmp_path, body, then="before(definition)"))
    try:
        for name in "ab":
            assert odd.examine(Definition((f"lower({name})",), "c = 1 AND d LIKE 'x%'"))
        before_ready, first, second = seen.read_text().split()
        assert before_ready < first == second
    finally:
        odd.close()


def test_who_closes_it_while_the_process_starts_waits_for_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made, begun, go_on = Examiner(), threading.Event(), threading.Event()
    start = subprocess.Popen

    def slow(*arguments: Any, **more: Any) -> Any:
        begun.set()
        assert go_on.wait(DEADLINE_S)
        return start([sys.executable, "-c", "import time; time.sleep(60)"], **more)

    monkeypatch.setattr(subprocess, "Popen", slow)
    with ThreadPoolExecutor(2) as threads:
        asking = threads.submit(made.examine, Definition(("a",)))
        assert begun.wait(DEADLINE_S)
        closing = threads.submit(made.close)
        _until(lambda: made._closed)
        go_on.set()
        closing.result(DEADLINE_S / 2)
        with pytest.raises(ExaminingError):
            asking.result(DEADLINE_S / 2)
    assert made.pid == 0


def test_what_one_definition_took_is_not_held_against_the_next(tmp_path: Path) -> None:
    body = "for _ in range(3_000_000): pass"
    slow = Examiner(script(tmp_path, f"examiner.PROCESSOR_S = 0.8\n    {body}"))
    try:
        for number in range(10):
            definition = Definition((f"a{number}",))
            assert slow.examine(definition) == definition
    finally:
        slow.close()


@pytest.mark.parametrize("argv", [("/nowhere/python",), (sys.executable, "-c", "pass")])
def test_that_nothing_can_be_examined_is_no_objection_to_the_definition(
    argv: tuple[str, ...],
) -> None:
    with pytest.raises(ExaminingError):
        Examiner(argv).examine(Definition(("a",)))


def test_a_stop_does_not_wait_for_what_is_being_examined(tmp_path: Path) -> None:
    slow = Examiner(script(tmp_path, "time.sleep(60)"), patience_s=60.0)
    failed: list[Exception] = []

    def ask() -> None:
        try:
            slow.examine(Definition(("a",)))
        except ExaminingError as error:
            failed.append(error)

    asking = threading.Thread(target=ask)
    asking.start()
    _until(lambda: slow.pid)
    began = time.monotonic()
    slow.close()
    asking.join(DEADLINE_S)
    assert len(failed) == 1
    assert time.monotonic() - began < DEADLINE_S / 2
    assert slow.pid == 0


def test_it_ends_with_whoever_started_it() -> None:
    """However that one ended: nobody tells it, the pipe just ends."""
    code = (
        "import os, signal\n"
        "from coordinator.language.examiner import Examiner\n"
        "from coordinator.language.ddl_commands import Definition\n"
        "one = Examiner()\n"
        "one.examine(Definition(('a',)))\n"
        "print(one.pid, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    with os.popen(f'{sys.executable} -c "{code}"') as output:
        pid = int(output.read())
    _until(lambda: not psutil.pid_exists(pid))


def _until(condition: object) -> None:
    assert callable(condition)
    end_s = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end_s
        time.sleep(0.01)
