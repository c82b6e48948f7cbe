"""How a delivery reads the changes that it has to write, without a broker."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

from coordinator.core.history.feed import Feed
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.types import Cas
from coordinator.node.deliveries import Deliveries
from coordinator.node.history import Page
from tests.support.views import a_state_of

STATE = a_state_of(50)
MANY = 64
"""More than there are threads for whatever is done beside the loop."""


class SlowHistory:
    """A history of which a page is read only when it is let go."""

    def __init__(self) -> None:
        self.let_go = threading.Event()
        self.pages = 0

    def page(self, *asked: Any) -> Page:
        assert self.let_go.wait(30)
        self.pages += 1
        return Page((), None)


@asynccontextmanager
async def reading(history: SlowHistory) -> AsyncIterator[list[asyncio.Task[Any]]]:
    """Have many deliveries begin far behind."""
    deliveries = Deliveries(
        "",
        "none",
        node=SimpleNamespace(state=STATE),  # type: ignore[arg-type]
        changes=Feed(),
        history=history,  # type: ignore[arg-type]
        book=SimpleNamespace(),  # type: ignore[arg-type]
    )

    async def first() -> tuple[Any, Cas]:
        return await anext(deliveries._changes_above(Cas(1), Predicate()))

    begun = [asyncio.create_task(first()) for _ in range(MANY)]
    await asyncio.sleep(0)
    try:
        yield begun
    finally:
        history.let_go.set()
        await asyncio.wait(begun)


def test_deliveries_that_read_the_past_leave_threads_to_the_node() -> None:
    async def story(history: SlowHistory) -> None:
        async with reading(history):
            async with asyncio.timeout(5):
                assert await asyncio.to_thread(lambda: "done") == "done"

    asyncio.run(story(SlowHistory()))


def test_each_of_them_gets_its_turn() -> None:
    async def story(history: SlowHistory) -> None:
        async with reading(history) as begun:
            history.let_go.set()
            assert [*await asyncio.gather(*begun)] == [((), Cas(50))] * MANY
        assert history.pages == MANY

    asyncio.run(story(SlowHistory()))
