"""Watching a log that is written by hand: with aborted transactions, strangers' records, copies."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from coordinator import codec
from coordinator.client.errors import CoordinatorError, UnavailableError
from coordinator.client.kafka_watch import AsyncKafkaWatch, BadRecord, KafkaWatch
from coordinator.core.catalog import state as states
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.history import shown
from coordinator.core.history.changes import fold, transactions
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, Offset, TxnId
from coordinator.embedded.broker import Broker
from coordinator.kafka import history_tail
from coordinator.kafka.history_tail import HistoryTail
from coordinator.kafka.log_reader import LogReader, Read
from coordinator.kafka.topics import HISTORY, SNAPSHOTS, delete_records
from tests.integration.written_log import WrittenLog
from tests.support.changes import deleted, written
from tests.support.ports import reserve_port

pytestmark = pytest.mark.integration

Told = dict[str, Any]


@pytest.fixture
def log(broker: Broker) -> WrittenLog:
    return WrittenLog(broker.bootstrap_servers)


@pytest.fixture
def bad() -> list[BadRecord]:
    return []


@pytest.fixture
def watch(log: WrittenLog, bad: list[BadRecord]) -> Iterator[KafkaWatch]:
    with KafkaWatch(log.servers, log.name, on_bad=bad.append) as made:
        yield made


def some(log: WrittenLog, count: int) -> None:
    """Commit transactions of several changes, and abort others between them."""
    for number in range(count):
        name = f"k{number % 3}"
        log.commit(written(name, str(number)), written("all", str(number)), deleted(name))
        log.abort(written(name, "-1"), written("never", "0"))
        log.commit(written(name, f"[{number}]"))


def oracle(log: WrittenLog, after: int = 0) -> list[Told]:
    """Return what must be told: folded from what was committed, from nothing."""
    state, found = states.EMPTY, []
    for transaction in transactions(log.committed):
        state, changes = fold(state, transaction)
        found += [json.loads(shown.change(change)) for change in changes]
    return [one for one in found if one["cas"] > after]


def next_changes(watching: Iterator[Told], count: int) -> list[Told]:
    """Return the next changes that a watch tells of."""
    found: list[Told] = []
    while len(found) < count:
        event = next(watching)
        if event.pop("type") == "change":
            found.append(event)
    return found


def test_only_what_was_committed_is_told_in_order_each_once_with_the_value_before_it(
    log: WrittenLog, watch: KafkaWatch
) -> None:
    some(log, 4)
    with closing(watch.watch(0)) as watching:
        assert next_changes(watching, 16) == oracle(log)
        some(log, 4)
        assert next_changes(watching, 16) == oracle(log)[16:]


def test_who_resumes_anywhere_also_inside_a_transaction_is_told_the_rest(
    log: WrittenLog, watch: KafkaWatch
) -> None:
    some(log, 3)
    for event in log.committed[:-1]:
        expected = oracle(log, event.cas)
        with closing(watch.watch(event.cas)) as watching:
            assert next_changes(watching, len(expected)) == expected


def test_from_now_on_it_begins_with_a_bookmark_and_knows_what_was_before(
    log: WrittenLog, watch: KafkaWatch
) -> None:
    some(log, 2)
    with closing(watch.watch()) as watching:
        assert next(watching) == {"type": "bookmark", "cas": log.state.cas}
        log.commit(deleted("k1"))
        [told] = next_changes(watching, 1)
    assert (told["dropped"], told["before"]) == (True, [1])
    assert told == oracle(log)[-1]


def test_an_empty_cluster_is_watched_from_its_first_change_on(
    log: WrittenLog, watch: KafkaWatch
) -> None:
    with closing(watch.watch("snapshot")) as watching:
        assert next(watching) == {"type": "snapshot_end", "cas": 0}
        log.commit(written("a", "1"))
        assert next_changes(watching, 1) == oracle(log)


def test_where_the_beginning_is_gone_it_begins_at_the_newest_copy_that_is_whole(
    log: WrittenLog, watch: KafkaWatch
) -> None:
    some(log, 2)
    copied = log.state
    log.copy(copied, 1)
    place = log.publish(HISTORY, b"behind the copy")
    some(log, 2)
    [chunk] = chunks(2, log.state)
    for broken in (replace(chunk, digest=1), replace(chunk, is_last=False)):
        log.publish(SNAPSHOTS, codec.encode(broken))
    log.commit(written("a", "1"))
    delete_records(log.servers, log.topic(HISTORY), Offset(place - 2))
    after = [event.cas for event in log.committed if event.cas >= copied.cas]
    for cas in after[:-1]:
        expected = oracle(log, cas)
        with closing(watch.watch(cas)) as watching:
            assert next_changes(watching, len(expected)) == expected
    for cas in (1, copied.cas - 1):
        with pytest.raises(CoordinatorError) as caught:
            next(watch.watch(cas))
        assert (caught.value.code, caught.value.details) == ("compacted", {"oldest": copied.cas})


def test_without_a_copy_what_is_gone_is_said_to_be_compacted_and_now_goes_on(
    log: WrittenLog, watch: KafkaWatch
) -> None:
    some(log, 3)
    log.commit(written("a", "1"))
    delete_records(log.servers, log.topic(HISTORY), 5)
    with pytest.raises(CoordinatorError) as caught:
        next(watch.watch(log.committed[0].cas))
    assert (caught.value.code, caught.value.details) == (
        *("compacted", {"oldest": log.committed[3].cas}),
    )
    with closing(watch.watch(log.state.cas)) as watching:
        assert next(watching) == {"type": "bookmark", "cas": log.state.cas}
        log.commit(written("a", "2"))
        assert next_changes(watching, 1) == oracle(log)[-1:]
    with closing(watch.watch("snapshot")) as watching:
        entities = {}
        while (event := next(watching))["type"] == "snapshot":
            entities[event["key"]] = event["cas"]
    assert entities == {key: held.cas for key, held in log.state.entities.items()}


def test_a_history_that_was_restored_in_part_has_nothing_of_what_came_before(
    log: WrittenLog,
) -> None:
    """Whoever resumes there would miss changes, and be told wrong values before the others."""
    base = states.evolve(states.EMPTY, [(written("k1", "5"), Cas(5))])
    restored = WrittenLog(log.servers, base)
    some(restored, 2)
    first = restored.committed[0].cas
    with KafkaWatch(restored.servers, restored.name) as watch:
        for cas in (0, 4):
            with pytest.raises(CoordinatorError) as caught:
                next_changes(watch.watch(cas), 1)
            assert (caught.value.code, caught.value.details) == ("compacted", {"oldest": first})
        for cas in (5, first - 1, first):
            with closing(watch.watch(cas)) as watching:
                [told] = next_changes(watching, 1)
            assert told["cas"] == first + (cas == first)


def test_what_leaves_the_topic_while_a_watch_begins_is_said_to_be_compacted(
    log: WrittenLog, watch: KafkaWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    some(log, 2)
    follow = HistoryTail.follow

    def cut_first(tail: HistoryTail, *given: Any) -> Any:
        delete_records(log.servers, log.topic(HISTORY), 5)
        return follow(tail, *given)

    monkeypatch.setattr(HistoryTail, "follow", cut_first)
    with pytest.raises(CoordinatorError) as caught:
        next_changes(watch.watch(0), 1)
    oldest = log.committed[3].cas
    assert (caught.value.code, caught.value.details) == ("compacted", {"oldest": oldest})


def test_what_is_known_already_may_leave_the_topic_while_a_watch_begins(
    log: WrittenLog, watch: KafkaWatch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A place in the log is found but roughly: the first records there may be known."""
    some(log, 2)
    log.copy(log.state, 1)
    begin = log.state.cas
    some(log, 1)
    follow, cuts = LogReader.follow, [5]

    def cut_first(reader: LogReader, offset: Offset, stopping: threading.Event) -> Iterator[Read]:
        if cuts:
            delete_records(log.servers, log.topic(HISTORY), cuts.pop())
            yield Read([], offset, False)
        yield from follow(reader, offset, stopping)

    monkeypatch.setattr(LogReader, "follow", cut_first)
    with closing(watch.watch(begin)) as watching:
        assert next_changes(watching, 4) == oracle(log, begin)


def test_what_statecontext_shows_late_is_told_however_late(
    log: WrittenLog, watch: KafkaWatch, bad: list[BadRecord], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker that writes the markers of a transaction may die between two of them."""
    monkeypatch.setattr(history_tail, "END_WAIT_S", 0.3)
    log.commit(written("a", "1"))
    with closing(watch.watch(0)) as watching:
        assert next_changes(watching, 1) == oracle(log)
        go_on = log.hold_back()
        log.commit(written("a", "2"))
        never = Event(written("a", "666"), TxnId(9, 9), 0, 1, Cas(2**50))
        place = log.publish(HISTORY, codec.encode(never))
        log.commit(written("a", "3"))

        def end() -> None:
            go_on()
            log.commit(written("a", "4"))

        threading.Timer(2.0, end).start()
        found = next_changes(watching, 1)
        while found[-1]["value"] != 4:
            found += next_changes(watching, 1)
    assert found == oracle(log)[1:]
    assert [one.offset for one in bad] == [place]


def test_records_of_strangers_are_passed_over_and_told_with_their_places(
    log: WrittenLog, watch: KafkaWatch, bad: list[BadRecord]
) -> None:
    log.commit(written("a", "1"))
    never = Event(written("a", "666"), TxnId(9, 9), 0, 1, Cas(2**50))
    torn = Event(written("a", "666"), TxnId(9, 8), 1, 2, log.state.cas)
    with closing(watch.watch(0)) as watching:
        assert next_changes(watching, 1) == oracle(log)
        places = [
            log.publish(HISTORY, b"garbage"),
            log.publish(HISTORY, codec.encode(never)),
            log.publish(HISTORY, codec.encode(written_alone())),
        ]
        log.publish(HISTORY, codec.encode(torn))  # Its CAS was there already: it says nothing new.
        log.commit(written("a", "2"))
        assert next_changes(watching, 1) == oracle(log)[1:]
    assert [(one.topic, one.partition, one.offset) for one in bad] == [
        (log.topic(HISTORY), 0, place) for place in places
    ]
    assert f"no master has committed CAS {2**50}" in bad[1].reason


def written_alone() -> Any:
    return written("a", "1").entity


def test_what_on_bad_raises_ends_the_watch(log: WrittenLog) -> None:
    place = log.publish(HISTORY, b"garbage")

    def refuse(record: BadRecord) -> None:
        raise RuntimeError(f"{record.topic}-{record.partition} at {record.offset}")

    with (
        KafkaWatch(log.servers, log.name, on_bad=refuse) as strict,
        pytest.raises(RuntimeError, match=f"history-0 at {place}"),
    ):
        next_changes(strict.watch(0), 1)


def test_topics_that_are_not_there_and_a_broker_that_is_silent_are_errors_at_the_beginning(
    log: WrittenLog,
) -> None:
    with KafkaWatch(log.servers, "nowhere") as elsewhere, pytest.raises(CoordinatorError) as caught:
        next(elsewhere.watch())
    assert caught.value.code == "topics_missing"
    assert "nowhere.history" in caught.value.details["topics"]
    with (
        KafkaWatch(f"127.0.0.1:{reserve_port()}", log.name, first_contact_s=0.5) as silent,
        pytest.raises(UnavailableError) as unreachable,
    ):
        next(silent.watch())
    assert unreachable.value.code == "unreachable"


@pytest.mark.parametrize(
    ("after", "filters", "said"),
    [
        ("x", {}, "'x' is no CAS"),
        (-1, {}, "'-1' is no CAS"),
        (2**60, {}, "is no CAS"),
        ("now", {"kind": "cats"}, "'cats' does not exist: one of index"),
        ("now", {"state": ["ready", "asleep"]}, "'asleep' does not exist"),
        ("now", {"indexer": "x"}, "'x' is no number of an indexer"),
        ("now", {"colour": "red"}, "no filter 'colour': one of kind"),
        ("now", {"kind": ["index", "members"]}, "only nodes tell of members"),
    ],
)
def test_a_watch_of_what_cannot_be_is_refused_at_once(
    after: int | str, filters: dict[str, Any], said: str
) -> None:
    with KafkaWatch("127.0.0.1:1") as watch, pytest.raises(CoordinatorError) as caught:
        watch.watch(after, **filters)
    assert caught.value.code == "invalid_request"
    assert said in caught.value.message


def test_closing_ends_a_watch_that_another_thread_waits_in(log: WrittenLog) -> None:
    told: list[Told] = []
    begun = threading.Event()

    def follow(watch: KafkaWatch) -> None:
        for event in watch.watch():
            told.append(event)
            begun.set()

    with KafkaWatch(log.servers, log.name) as watch:
        abandoned = watch.watch()
        assert next(abandoned)["type"] == "bookmark"
        waiting = threading.Thread(target=follow, args=(watch,))
        waiting.start()
        assert begun.wait(20)
    waiting.join(20)
    assert not waiting.is_alive()
    assert [event["type"] for event in told] == ["bookmark"]
    assert list(abandoned) == []


WATCHED = """
import sys, time
from pathlib import Path
from coordinator.client.kafka_watch import KafkaWatch

def name_of(task):
    try:
        return (task / "comm").read_text()
    except OSError:  # It has ended meanwhile.
        return ""

def threads_of_clients():
    tasks = list(Path("/proc/self/task").iterdir())
    return [task for task in tasks if name_of(task).startswith("rdk:")]

with KafkaWatch(*sys.argv[1:]) as watch:
    watching = watch.watch()
    assert next(watching)["type"] == "bookmark"
    assert threads_of_clients()
end = time.monotonic() + 20
while threads_of_clients() and time.monotonic() < end:
    time.sleep(0.05)
print(len(threads_of_clients()))
"""
"""Watches, closes, and prints how many threads of Kafka's clients are left."""


def test_a_watch_that_is_closed_leaves_no_thread(log: WrittenLog) -> None:
    """In a process of its own: here the clients of other tests start threads when they like."""
    program = [sys.executable, "-c", WATCHED, log.servers, log.name]
    done = subprocess.run(program, capture_output=True, text=True, timeout=60)
    assert done.stdout == "0\n", done.stderr


def test_an_async_watch_tells_the_same_and_ends_when_its_task_is_cancelled(
    log: WrittenLog,
) -> None:
    some(log, 2)
    found: list[Told] = []

    async def follow(watch: AsyncKafkaWatch, enough: asyncio.Event) -> None:
        async for event in watch.watch(0):
            if event.pop("type") == "change":
                found.append(event)
            if len(found) == 8:
                enough.set()

    async def scenario() -> None:
        enough = asyncio.Event()
        async with AsyncKafkaWatch(log.servers, log.name) as watch:
            task = asyncio.create_task(follow(watch, enough))
            await asyncio.wait_for(enough.wait(), 20)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(scenario())
    assert found == oracle(log)
    assert [t.name for t in threading.enumerate() if t.name.startswith("kafka-watch")] == []


@pytest.mark.matrix
def test_a_watch_goes_on_after_its_broker_has_died_and_come_back(tmp_path: Path) -> None:
    with Broker(tmp_path / "kafka") as own:
        log = WrittenLog(own.bootstrap_servers)
        some(log, 2)
        with KafkaWatch(log.servers, log.name) as watch, closing(watch.watch(0)) as watching:
            found = next_changes(watching, 8)
            own.kill()
            resumed = in_thread(lambda: next_changes(watching, 8))
            own.start()
            some(log, 2)
            found += resumed()
    assert found == oracle(log)


def in_thread(work: Callable[[], list[Told]]) -> Callable[[], list[Told]]:
    """Begin some work in a thread; return what waits for its result."""
    results: list[list[Told]] = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()

    def result() -> list[Told]:
        thread.join(60)
        assert results, "the work has not ended"
        return results[0]

    return result
