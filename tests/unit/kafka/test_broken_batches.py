"""Where a batch ends that can only be asked for as a whole."""

from __future__ import annotations

import pytest

from coordinator.kafka.broken_batches import BrokenBatch, first_behind


@pytest.mark.parametrize("begin", [0, 7])
@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 100, 4_097])
@pytest.mark.parametrize("more", [0, 1, 50_000])
def test_the_first_offset_behind_is_found_in_few_steps(begin: int, count: int, more: int) -> None:
    asked: list[int] = []

    def is_behind(offset: int) -> bool:
        asked.append(offset)
        return offset >= begin + count

    assert first_behind(is_behind, begin, begin + count + more) == begin + count
    assert len(asked) <= 2 * count.bit_length() + 1
    assert len(set(asked)) == len(asked)


def test_who_is_told_of_a_batch_hears_where_it_was() -> None:
    told = BrokenBatch("orders", 3, 4, 10, "too large")
    assert (told.topic(), told.partition(), told.offset()) == ("orders", 3, 9)
    assert b"the offsets 4 to 9 cannot be unpacked: too large" in told.value()
    assert told.error() is None
    assert told.key() is None
