"""Laws of the log that the protocol rests on, on the simulator's broker and on a real one."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.core.model.records import MemberExpired, ReadBarrier
from coordinator.embedded.broker import Broker
from tests.integration.ports import KafkaBroker, Log, SimulatedBroker, event

pytestmark = pytest.mark.integration

KINDS = ["simulated", "kafka"]


def make(kind: str, request: pytest.FixtureRequest) -> Any:
    if kind == "simulated":
        return SimulatedBroker()
    broker: Broker = request.getfixturevalue("broker")
    made = KafkaBroker(broker.bootstrap_servers)
    request.addfinalizer(made.close)
    return made


@pytest.fixture(params=KINDS)
def log(request: pytest.FixtureRequest) -> Log:
    return make(request.param, request)


def fate(number: int) -> MemberExpired:
    """Return a record for a transaction, to be told from others."""
    return MemberExpired(1, number, "law", 0)


def barrier(number: int) -> ReadBarrier:
    return ReadBarrier(1, number)


def values(log: Log, topic: str) -> list[Any]:
    return [value for _, value in log.read(topic)]


def write(desk: Any, token: int, *numbers: int, name: str = "") -> tuple[int, ...]:
    """Begin a transaction with events, and return their offsets."""
    heard = desk.order(fx.WriteEvents(token, tuple(event(n, name) for n in numbers)))
    assert isinstance(heard, inp.Written), heard
    assert heard.token == token
    return heard.offsets


def conclude(desk: Any, token: int, *records: Any) -> Any:
    return desk.order(fx.Conclude(token, records))


# -- what is visible -----------------------------------------------------------------------------


def test_a_plain_record_is_visible_at_once_while_nothing_is_open(log: Log) -> None:
    log.open()
    log.append(barrier(1))
    assert values(log, "commit") == [barrier(1)]


def test_the_offsets_of_a_transaction_are_contiguous_and_markers_take_some(log: Log) -> None:
    desk = log.open()
    taken = []
    for token in (11, 12):
        taken.append(write(desk, token, 1, 2, 3))
        assert isinstance(conclude(desk, token, fate(token)), inp.Ended)
    for offsets in taken:
        assert all(after == before + 1 for before, after in pairwise(offsets))
    assert taken[1][0] > taken[0][-1] + 1
    log.until(lambda: [o for o, _ in log.read("statecontext")] == [*taken[0], *taken[1]])


def test_readers_stop_at_the_last_stable_offset(log: Log) -> None:
    desk = log.open()
    offsets = write(desk, 11, 1, 2)
    assert log.stable("statecontext") == offsets[0]
    assert log.read("statecontext") == []
    conclude(desk, 11, fate(1))
    log.until(lambda: len(log.read("statecontext")) == 2)
    assert log.stable("statecontext") > offsets[-1] + 1


def test_a_transaction_is_visible_on_all_its_topics(log: Log) -> None:
    desk = log.open()
    write(desk, 11, 1)
    desk.order(fx.WriteHistory((event(1),)))
    conclude(desk, 11, fate(1))
    for topic in ("statecontext", "history", "commit"):
        log.until(lambda topic=topic: len(log.read(topic)) == 1)  # type: ignore[misc]


def test_what_was_aborted_is_never_visible(log: Log) -> None:
    desk = log.open()
    offsets = write(desk, 11, 1)
    assert isinstance(desk.order(fx.Abandon(11)), inp.Ended)
    log.until(lambda: log.stable("statecontext") > offsets[-1] + 1)
    assert log.read("statecontext") == []
    later = write(desk, 12, 2)
    conclude(desk, 12, fate(2))
    log.until(lambda: [o for o, _ in log.read("statecontext")] == list(later))


def test_an_open_transaction_holds_back_plain_records_after_it(log: Log) -> None:
    log.append(barrier(1))
    log.hang(fate(1))
    log.append(barrier(2))
    assert values(log, "commit") == [barrier(1)]
    desk = log.open()
    log.until(lambda: values(log, "commit") == [barrier(1), barrier(2)])
    conclude(desk, 11, fate(2))
    log.until(lambda: values(log, "commit") == [barrier(1), barrier(2), fate(2)])


# -- fencing -------------------------------------------------------------------------------------


def test_a_second_producer_fences_the_first_and_aborts_what_it_had_open(log: Log) -> None:
    first = log.open()
    offsets = write(first, 11, 1)
    second = log.open()
    assert log.stable("statecontext") > offsets[-1] + 1
    assert isinstance(conclude(first, 11, fate(1)), inp.ProducerFailed)
    write(second, 21, 2)
    assert isinstance(conclude(second, 21, fate(2)), inp.Ended)
    log.until(lambda: values(log, "commit") == [fate(2)])
    assert [e.txn.seq for e in values(log, "statecontext")] == [2]


def test_a_fenced_producer_writes_nothing_more(log: Log) -> None:
    first = log.open()
    assert isinstance(conclude(first, 11, fate(1)), inp.Ended)
    second = log.open()
    assert isinstance(first.order(fx.WriteEvents(12, (event(1),))), inp.ProducerFailed)
    assert isinstance(conclude(first, 13, fate(3)), inp.ProducerFailed)
    assert isinstance(conclude(second, 21, fate(2)), inp.Ended)
    log.until(lambda: values(log, "commit") == [fate(1), fate(2)])
    assert log.read("statecontext") == []


def test_all_of_the_first_producer_stands_before_the_second_is_ready(log: Log) -> None:
    first = log.open()
    for number in range(3):
        conclude(first, 11 + number, fate(number))
    log.open()  # Returns when all is decided and marked.
    assert values(log, "commit") == [fate(0), fate(1), fate(2)]


# -- what the broker does by itself, slowly ------------------------------------------------------


@pytest.fixture(scope="module")
def slow(request: pytest.FixtureRequest) -> dict[str, tuple[Any, Any]]:
    """Hung transactions and superseded records, left to each broker all at once."""
    found: dict[str, tuple[Any, Any]] = {}
    for kind in KINDS:
        hung, compacted = make(kind, request), make(kind, request)
        hung.hang(fate(1), timeout_ms=1_000)
        hung.append(barrier(1))
        fill(compacted)
        found[kind] = (hung, compacted)
    return found


def fill(log: Any) -> None:
    """Write one key three times between two others."""
    desk = log.open()
    for token, name in ((11, "a"), (12, "k"), (13, "k"), (14, "k"), (15, "z")):
        write(desk, token, token, name=name)
        conclude(desk, token, fate(token))
    log.until(lambda: len(log.read("statecontext")) == 5)
    log.compact()


@pytest.mark.parametrize("kind", KINDS)
def test_the_broker_aborts_a_transaction_that_takes_too_long(
    slow: dict[str, tuple[Any, Any]], kind: str
) -> None:
    log = slow[kind][0]
    log.until(lambda: values(log, "commit") == [barrier(1)])


@pytest.mark.parametrize("kind", KINDS)
def test_compaction_keeps_the_last_record_of_a_key_where_it_stood(
    slow: dict[str, tuple[Any, Any]], kind: str
) -> None:
    log = slow[kind][1]
    log.until(lambda: 12 not in {e.txn.seq for e in values(log, "statecontext")})
    left = {e.txn.seq: offset for offset, e in log.read("statecontext")}
    assert set(left) == {11, 14, 15}
    assert left[11] < left[14] < left[15]
    assert left[14] - left[11] > 2, "offsets do not move when records before them go"
