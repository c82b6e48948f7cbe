"""The past: how long the state of any moment takes, and a diff of two, as history grows."""

from __future__ import annotations

import random
import statistics
import tempfile
import time
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from confluent_kafka import Producer

from benchmarks.fold import mutations
from coordinator import codec
from coordinator.core.catalog.state import EMPTY, StateContext, evolve
from coordinator.core.history.changes import differences
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas, TxnId
from coordinator.kafka.history_log import HistoryLog
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.topics import HISTORY, ensure_topics, topic_name
from coordinator.node.history import History, StillReadingError

SIZES = (100_000, 1_000_000)
KEYS = 1_000
ASKED = 40
SEED = 14


def history(bootstrap_servers: str) -> list[dict[str, Any]]:
    """Ask for random moments in histories of several lengths."""
    return [_of(bootstrap_servers, size) for size in SIZES]


def _of(servers: str, size: int) -> dict[str, Any]:
    cluster = f"bench{uuid.uuid4().hex[:8]}"
    ensure_topics(servers, cluster, durable=False)
    newest = _write(servers, cluster, size)
    topic = topic_name(cluster, HISTORY)
    bare_s = _took_s(lambda: sum(1 for _ in read_to_end(servers, topic, "bench")))
    with tempfile.TemporaryDirectory() as folder:
        past = History(partial(HistoryLog, servers, cluster), Path(folder))
        try:
            first_s = _took_s(lambda: _asked_until_told(past, Cas(size - 1), newest))
            chance = random.Random(SEED)
            moments = [Cas(chance.randrange(1, size)) for _ in range(ASKED)]
            states = [_took_s(lambda at=at: past.state_at(at, newest)) for at in moments]
            pairs = [
                (Cas(chance.randrange(1, size)), Cas(chance.randrange(1, size))) for _ in moments
            ]
            diffs = [_took_s(lambda pair=pair: _diff(past, pair, newest)) for pair in pairs]
            copies = sum(path.stat().st_size for path in Path(folder).iterdir())
        finally:
            past.close()
    return {
        "events": size,
        "entities": len(newest.entities),
        "bare_read_s": round(bare_s, 2),
        "first_question_s": round(first_s, 2),
        "first_question_ratio_to_bare_read": round(first_s / bare_s, 2),
        "state_at_s": _percentiles(states),
        "diff_s": _percentiles(diffs),
        "bytes_of_copies_per_event": round(copies / size, 1),
    }


def _write(servers: str, cluster: str, size: int) -> StateContext:
    """Write a history of single changes, and return the state that it leads to."""
    producer = Producer({"bootstrap.servers": servers, "linger.ms": 20, "enable.idempotence": True})
    topic = topic_name(cluster, HISTORY)
    state = EMPTY
    portion = 50_000
    for begin in range(0, size, portion):
        made = mutations(min(portion, size - begin), KEYS)
        numbered = [(mutation, Cas(begin + n + 1)) for n, mutation in enumerate(made)]
        for mutation, cas in numbered:
            event = Event(mutation, TxnId(1, cas), 0, 1, cas)
            producer.produce(topic, codec.encode(event), mutation.key, partition=0)
            if cas % 5_000 == 0:
                producer.flush(60)
        state = evolve(state, numbered)
    assert producer.flush(60) == 0
    log = HistoryLog(servers, cluster)
    try:
        assert log.cas_at(2**53, newest=Cas(size)) == size
    finally:
        log.close()
    return state


def _asked_until_told(past: History, cas: Cas, newest: StateContext) -> StateContext:
    """Ask as a client does: an answer that more is still to be read is asked again."""
    while True:
        try:
            return past.state_at(cas, newest)
        except StillReadingError:
            continue


def _diff(past: History, pair: tuple[Cas, Cas], newest: StateContext) -> int:
    return len(differences(past.state_at(pair[0], newest), past.state_at(pair[1], newest)))


def _took_s(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _percentiles(seen: list[float]) -> dict[str, float]:
    return {"p50": round(statistics.median(seen), 3), "max": round(max(seen), 3)}
