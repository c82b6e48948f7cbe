"""The pause between Kafka transactions is learnt: longer after a stall, shorter after successes."""

from __future__ import annotations

from coordinator.kafka.commit_pacing import STALL_S, Pacing


def test_nothing_waits_before_the_first_commit() -> None:
    assert Pacing().wait_s(5.0) == 0.0


def test_a_begin_waits_for_the_rest_of_the_pause_and_no_longer() -> None:
    pacing = Pacing(pause_s=0.004)
    pacing.committed(10.0)
    assert abs(pacing.wait_s(10.001) - 0.003) < 1e-9
    assert pacing.wait_s(10.1) == 0.0


def test_stalls_lengthen_the_pause_up_to_its_bound() -> None:
    pacing = Pacing()
    for _ in range(50):
        pacing.began(STALL_S)
    assert pacing.pause_s == pacing.longest_s


def test_successes_shorten_the_pause_down_to_its_bound() -> None:
    pacing = Pacing()
    for _ in range(5_000):
        pacing.began(0.002)
    assert pacing.pause_s == pacing.shortest_s
