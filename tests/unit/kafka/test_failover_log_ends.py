"""Who waits for which question, and for how long: Kafka answers when the test says so."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException

from coordinator.kafka import failover_log_ends
from coordinator.kafka.failover_log_ends import Ends, FailoverLogEnds
from coordinator.kafka.topics import STREAM_PARTITIONS

Question = list["Future[Any]"]
LONG_S = 30.0

pytestmark = pytest.mark.usefixtures("patience")


class Kafka:
    """A client whose questions wait to be answered."""

    def __init__(self) -> None:
        self.questions: list[Question] = []
        self.fails = False

    def list_offsets(self, places: dict[Any, Any], **_: Any) -> dict[Any, Future[Any]]:
        if self.fails:
            raise KafkaException(KafkaError(KafkaError._FAIL))
        asked: dict[Any, Future[Any]] = {place: Future() for place in places}
        self.questions.append([*asked.values()])
        return asked

    def answer(self, offset: int, but: int = -1, silent: int = -1) -> None:
        """Answer the last question; the leader of one partition refuses, or that of one is silent,
        and the client says so by an offset that there is not."""
        for partition, one in enumerate(self.questions[-1]):
            if partition == but:
                one.set_exception(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
            else:
                said = OFFSET_INVALID if partition == silent else offset
                one.set_result(SimpleNamespace(offset=said))


class Place:
    """What is tested, and its Kafka."""

    def __init__(self) -> None:
        self.kafka = Kafka()
        self.ends = FailoverLogEnds("127.0.0.1:1", "unit")
        self.made = 0
        self.ends._admin_client = self._client  # type: ignore[method-assign]

    def _client(self) -> Any:
        """Return the client that is kept, or a new one."""
        if self.ends._admin is None:
            self.made += 1
            self.ends._admin = self.kafka  # type: ignore[assignment]
        return self.ends._admin

    async def scan(self, within_s: float = LONG_S) -> asyncio.Task[Ends | None]:
        """Return what a scan asks, which is under way."""
        task = asyncio.ensure_future(self.ends.now(within_s))
        await asyncio.sleep(0)
        return task


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> Callable[[float], None]:
    """Set for how long a question is waited for; it is long until then."""

    def wait(wait_s: float) -> None:
        monkeypatch.setattr(failover_log_ends, "WAIT_S", wait_s)

    wait(LONG_S)
    return wait


def told(offset: int) -> Ends:
    return (offset,) * STREAM_PARTITIONS


def test_who_comes_while_a_question_is_under_way_gets_the_answer_to_the_next_one() -> None:
    async def run() -> None:
        place = Place()
        first = await place.scan()
        later = [await place.scan() for _ in range(3)]
        place.kafka.answer(1)
        assert await first == told(1)
        assert not any(one.done() for one in later)
        assert len(place.kafka.questions) == 2
        place.kafka.answer(2)
        assert [await one for one in later] == [told(2)] * 3

    asyncio.run(run())


def test_a_question_that_is_late_keeps_nobody_who_comes_after_that(
    patience: Callable[[float], None],
) -> None:
    async def run() -> None:
        patience(0.02)
        place = Place()
        assert await place.ends.now(LONG_S) is None
        late = await place.scan()
        assert late.done()
        assert late.result() is None
        assert len(place.kafka.questions) == 1
        place.kafka.answer(3)
        await asyncio.sleep(0)
        after = await place.scan()
        place.kafka.answer(4)
        assert await after == told(4)

    asyncio.run(run())


def test_nobody_waits_for_longer_than_his_scan_may_take() -> None:
    async def run() -> None:
        place = Place()
        first = await place.scan(within_s=0.02)
        waits = await place.scan()
        hurries = await place.scan(within_s=0.02)
        assert await first is None
        assert await hurries is None
        place.kafka.answer(1)
        while len(place.kafka.questions) < 2:
            await asyncio.sleep(0)
        place.kafka.answer(2)
        assert await waits == told(2)

    asyncio.run(run())


def test_a_refusal_is_forgotten_with_the_next_question() -> None:
    async def run() -> None:
        place = Place()
        first = await place.scan()
        for one in place.kafka.questions[-1]:
            one.set_exception(KafkaException(KafkaError(KafkaError._TRANSPORT)))
        assert await first is None
        later = [await place.scan() for _ in range(3)]
        place.kafka.answer(5)
        assert await later[0] == told(5)
        place.kafka.answer(6)
        assert [await one for one in later[1:]] == [told(6)] * 2

    asyncio.run(run())


def test_what_one_partition_does_not_say_is_known_of_the_others() -> None:
    async def run() -> None:
        place = Place()
        scan = await place.scan()
        place.kafka.answer(7, but=1)
        assert await scan == (7, 0, 7, 7)

    asyncio.run(run())


@pytest.mark.parametrize("how", ["but", "silent"])
def test_a_client_that_was_not_answered_by_all_is_replaced(how: str) -> None:
    """It would ask the leader that it knows again and again, also where that one hangs."""

    async def run() -> None:
        place = Place()
        for number, expected in enumerate([(7, 0, 7, 7), (8, 0, 8, 8)], 1):
            scan = await place.scan()
            place.kafka.answer(6 + number, **{how: 1})
            assert await scan == expected
            assert place.made == number
        for _ in range(2):
            scan = await place.scan()
            place.kafka.answer(9)
            assert await scan == told(9)
            assert place.made == 3

    asyncio.run(run())


def test_where_nobody_answers_nothing_is_known() -> None:
    async def run() -> None:
        place = Place()
        scan = await place.scan()
        place.kafka.answer(OFFSET_INVALID)
        assert await scan is None

    asyncio.run(run())


def test_a_client_that_fails_once_is_asked_again() -> None:
    async def run() -> None:
        place = Place()
        first = await place.scan()
        waits = await place.scan()
        place.kafka.fails = True
        place.kafka.answer(1)
        assert await first == told(1)
        assert await waits is None
        assert await place.ends.now(LONG_S) is None
        place.kafka.fails = False
        later = await place.scan()
        place.kafka.answer(2)
        assert await later == told(2)

    asyncio.run(run())


@pytest.mark.parametrize("count", [1, 20])
def test_an_answer_that_came_while_the_loop_stood_still_came_in_time(
    patience: Callable[[float], None], count: int
) -> None:
    async def run() -> None:
        patience(0.05)
        place = Place()
        scans = [await place.scan() for _ in range(count)]
        place.kafka.answer(1)
        time.sleep(0.1)  # The loop stands still; who waits for the next question has it asked now.
        assert await scans[0] == told(1)
        if count > 1:
            place.kafka.answer(2)
            assert [await one for one in scans[1:]] == [told(2)] * (count - 1)

    asyncio.run(run())
