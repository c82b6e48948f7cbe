"""The queue of commands: their order, and what they weigh."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.leader.command_queue import CommandQueue
from coordinator.core.model.commands import PutSetting, Request, weight


def request(number: int, size: int = 0, **more: int) -> Request:
    return Request(command=PutSetting(f"k{number}", "x" * size), id=str(number), **more)


@given(st.lists(st.integers(0, 50), max_size=20), st.data())
def test_a_queue_knows_what_it_weighs(sizes: list[int], data: st.DataObject) -> None:
    queue = CommandQueue()
    for number, size in enumerate(sizes):
        if data.draw(st.booleans()):
            queue.append(request(number, size))
        else:
            queue.push_front([request(number, size), request(number, 1)])
        if queue and data.draw(st.booleans()):
            queue.pop()
        assert queue.size_bytes == sum(map(weight, queue))


def test_commands_that_come_back_keep_their_order_in_front_of_all_others() -> None:
    queue = CommandQueue()
    queue.append(request(3))
    queue.push_front([request(1), request(2)])
    assert [queue.pop().id for _ in range(3)] == ["1", "2", "3"]


def test_only_those_whose_callers_wait_no_longer_are_taken_out() -> None:
    queue = CommandQueue()
    queue.append(request(1, token=1, deadline_ms=10))
    queue.append(request(2, token=0, deadline_ms=0))
    queue.append(request(3, token=3, deadline_ms=11))
    assert [late.id for late in queue.take_late(10)] == ["1"]
    assert [left.id for left in queue] == ["2", "3"]
    assert queue.size_bytes == sum(map(weight, queue))
