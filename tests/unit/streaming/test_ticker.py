"""Who of two applications is the newer one: told from the ticks, whatever their clocks show."""

from __future__ import annotations

import threading
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, KafkaException

from coordinator.core.model.records import TimestampsHeartbeat
from coordinator.core.model.stream_records import NOT_SAID, Tick
from coordinator.kafka.state_follower import RENEW_S, StatusLog
from coordinator.runtime.threads import Threads
from streaming.timestamps import ticker as tickers
from streaming.timestamps.ticker import RECENT_MS, Ticker, later_writer

A, B = 7, 8
NOW_MS, HOUR_MS = 1_790_000_000_000, 3_600_000


def both(ahead_ms: int = 0, *, said: bool = True) -> list[tuple[int, Tick]]:
    """Return the ticks of A, and of B, which begins after five of them and is `ahead_ms`."""
    ticks = []
    for n in range(20):
        ticks.append(Tick(NOW_MS + 250 * n, A, 250 * n if said else NOT_SAID))
        if n >= 5:
            elapsed_ms = 250 * (n - 5) if said else NOT_SAID
            ticks.append(Tick(NOW_MS + 250 * n + ahead_ms, B, elapsed_ms))
    return list(enumerate(ticks, 100))


@pytest.mark.parametrize("said", [True, False])
@pytest.mark.parametrize("ahead_ms", [-HOUR_MS, 0, HOUR_MS])
def test_of_two_just_the_older_one_finds_another(ahead_ms: int, said: bool) -> None:
    """It ticks still: the newer one must not take it for one that came later, or both end."""
    ticks = both(ahead_ms, said=said)
    first_of_b = next(offset for offset, tick in ticks if tick.writer == B)
    assert later_writer(ticks, A, 100) == B
    assert later_writer(ticks, B, first_of_b) is None


def test_who_began_long_ago_is_no_newer_one_where_its_first_tick_is_not_seen() -> None:
    ticks = [(o, replace(t, elapsed_ms=t.elapsed_ms + HOUR_MS)) for o, t in both()]
    seen = [(o, t) for o, t in ticks if o > 115]
    younger = [(o, replace(t, elapsed_ms=t.elapsed_ms - HOUR_MS)) for o, t in seen if t.writer == B]
    mixed = sorted([*((o, t) for o, t in seen if t.writer == A), *younger])
    assert later_writer(mixed, A, 10) == B
    assert later_writer(mixed, B, 10) is None


def test_who_has_gone_is_not_there() -> None:
    ticks = both()
    end = ticks[-1][0]
    silent = RECENT_MS // 250 + 1
    later = [(end + n, Tick(NOW_MS, A, 250 * (20 + n))) for n in range(1, silent + 1)]
    assert later_writer([*ticks, *later[:-2]], A, 100) == B
    assert later_writer([*ticks, *later], A, 100) is None


def test_who_does_not_know_where_it_began_finds_nobody() -> None:
    assert later_writer(both(), A, -1) is None


def make_ticker(period_ms: int = 0) -> tuple[Ticker, list[str], threading.Event]:
    """Return a ticker without a broker, whose heartbeat fails if `wrong` has something to say."""
    wrong: list[str] = []
    ended = threading.Event()

    def beat() -> TimestampsHeartbeat:
        if wrong:
            raise RuntimeError(wrong[0])
        return TimestampsHeartbeat(incarnation=1, pid=1, batch=0, at_ms=0)

    ticker = Ticker(
        *("127.0.0.1:1", "c", A, period_ms, lambda: NOW_MS, lambda: 0, beat),
        StatusLog("timestamps"),
        Threads(ended.set),
    )
    return ticker, wrong, ended


def test_ticks_that_kafka_refuses_are_told_of_once(capsys: pytest.CaptureFixture[str]) -> None:
    """Without ticks nothing becomes due: no timestamp is told any more."""
    ticker, _, _ = make_ticker()
    refused = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    for _ in range(3):
        ticker._delivered(refused, None)
    assert capsys.readouterr().err.count("[ticks_refused]") == 1
    ticker._delivered(None, SimpleNamespace(offset=lambda: 7))
    assert "ticks: well again" in capsys.readouterr().err


def test_a_ticker_that_ends_is_told_of() -> None:
    """The application would go on, and tell no timestamp any more."""
    ticker, wrong, ended = make_ticker(period_ms=1)
    wrong.append("whatever it is")
    ticker.switch(True)
    assert ended.wait(60)
    ticker.stop()


def test_a_producer_of_which_nothing_arrives_is_made_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    ticker, _, _ = make_ticker()
    now_s = time.monotonic()
    monkeypatch.setattr(tickers.time, "monotonic", lambda: now_s)
    first = ticker._producer
    ticker._tick()
    ticker.switch(True)
    now_s += RENEW_S - 0.1
    ticker._renew_if_stuck()
    assert ticker._producer is first
    ticker._delivered(None, SimpleNamespace(offset=lambda: 7))
    now_s += 0.2
    ticker._renew_if_stuck()
    assert ticker._producer is first, "a tick has arrived"
    now_s += RENEW_S
    ticker._renew_if_stuck()
    second = ticker._producer
    assert second is not first
    assert not len(first), "what it had is gone"
    ticker._renew_if_stuck()
    assert ticker._producer is second, "it is given as long"


def test_a_client_that_knows_no_topic_ends_no_ticker_and_is_told_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """So it is right after a broker's start."""

    class Refusing:
        def produce(self, *_: object, **__: object) -> None:
            raise KafkaException(KafkaError(KafkaError._UNKNOWN_TOPIC))

        def poll(self, _: float) -> None:
            pass

    ticker, _, _ = make_ticker()
    monkeypatch.setattr(ticker, "_producer", Refusing())
    for _ in range(3):
        ticker._tick()
    assert capsys.readouterr().err.count("[ticks_refused]") == 1
