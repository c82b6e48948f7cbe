"""Changes as they happen, as server-sent events: from now, from a CAS, or after a snapshot.

A watcher first gets the changes that it missed from the history, then follows the node's feed. Once
it has taken everything it rests, and is sent what is new together with all others that rest
(`coordinator.http.chorus`); the more there are, the less often, and the more at once. A watcher
that reads too slowly gets `lagged` and is disconnected; no other watcher waits for it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from typing import Annotated, Any

from confluent_kafka import KafkaException
from fastapi import Depends, FastAPI, Header, Query
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.history import shown
from coordinator.core.history.changes import Change
from coordinator.core.history.following import BOOKMARK_S, BOOKMARK_SOON_S
from coordinator.core.history.lines import Published, Subscription
from coordinator.core.history.predicates import (
    Begin,
    Predicate,
    PredicateError,
    Selector,
    begin_of,
)
from coordinator.core.model.types import Cas
from coordinator.http.aside import HISTORY, WATCHERS
from coordinator.http.chorus import Chorus
from coordinator.http.errors import ApiError
from coordinator.http.extras import EXTRAS, Extras, Place
from coordinator.http.frames import event, frame
from coordinator.http.predicates import checked, predicate_of
from coordinator.http.server import SEND, sent_at_once
from coordinator.http.shared import Consistency
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.node.history import CompactedError, Page, StillReadingError
from coordinator.node.shell import Shell

LIMIT, PORTIONS = 256, 4
"""So many changes are sent at once, and so many times in a round."""

PAGE = 500
SNAPSHOT_PORTION, PORTION_BYTES = 100, 256 * 1024
"""So many entities, and little more than so many bytes, are made into events at once: meanwhile the
loop does nothing else, and each watcher that is slow to take them holds its own."""

PACE_S, PACE_MIN_S, PACE_MAX_S = 0.00005, 0.001, 0.05
"""A task of a watcher sends something again after so long for each watcher; of few at once."""

LATE_FACTOR, LATE_FROM, LATE_PACE_S, LATE_MAX_S = 2, 10, 0.004, 0.25
"""If its turn came late, so many times as much later, up to so long for each change that it was
sent beyond the first ones."""

ALIKE_MAX, ALIKE_BYTES_MAX = 16, 64 * 1024
"""So many portions of changes, and so large, are kept for others who take the same."""

RETRY_S = 0.1
STUCK_S = 30.0
"""So long a client may take nothing at all. It is looked at four times in that."""

EVENTS: dict[str, Any] = {
    "description": "Events, until the client leaves",
    "content": {
        "text/event-stream": {
            "schema": {
                "type": "object",
                "required": ["event", "data"],
                "properties": {name: {"type": "string"} for name in ("event", "id", "data")},
            }
        }
    },
}
"""What the OpenAPI document says of the stream: each of its events, whose data is JSON."""

log = logging.getLogger("coordinator")
Settle = Callable[[Consistency, int], Awaitable[None]]


def add_watch(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the route; `settle` waits until this node may answer a read."""
    turn, extras, chorus = asyncio.Lock(), Extras(lambda: shell.node), Chorus()

    @app.get("/v1/watch", response_class=Described, responses={200: EVENTS})
    async def watch(
        predicate: Annotated[Predicate, Depends(predicate_of)],
        after: Annotated[str, Query(max_length=32)] = "now",
        last_event_id: Annotated[str | None, Header(max_length=32)] = None,
    ) -> Response:
        """Watch changes as server-sent events, in order of CAS.

        `after`: `now`, `snapshot` (every entity that exists, then the changes), or a CAS. A client
        that reconnects sends the last id as `Last-Event-ID`. Filters are those of the history;
        `kind` may also be `stability` or `members`.
        """
        begin = _begin(last_event_id if last_event_id else after)
        besides = checked(predicate, sorted(EXTRAS)).kinds & EXTRAS
        wanted = replace(predicate, kinds=predicate.kinds - EXTRAS)
        is_apart = bool(besides) and besides == predicate.kinds
        watched = Watched(begin, None if is_apart else wanted, besides, wanted.buckets)
        if isinstance(begin, int):
            await settle("local", begin)
        if not shell.node.is_following:
            raise ApiError("not_ready", f"this node has not caught up: {shell.node.why_not_ready}")
        return EventStream(shell, watched, turn, extras, chorus)


def _begin(text: str) -> Begin:
    """Return the CAS that a text says, or one of the two words. Raises ApiError."""
    try:
        return begin_of(text)
    except PredicateError as error:
        raise ApiError("invalid_request", str(error)) from None


@dataclass(frozen=True, slots=True)
class Watched:
    """What a watcher wants: from where on, which changes (None: no change at all), what else, and
    of which buckets (empty: all)."""

    begin: Begin
    predicate: Selector | None
    extras: frozenset[str]
    buckets: frozenset[str]


class Described(Response):
    """What the OpenAPI document says of the answer."""

    media_type = "text/event-stream"


class EventStream(Response):
    """An answer that goes on until the client leaves, the node ends, or the watcher has lagged.

    Large because one place knows what was sent: snapshot, past, what is new, bookmarks and an end.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        shell: Shell,
        watched: Watched,
        turn: asyncio.Lock,
        extras: Extras | None = None,
        chorus: Chorus | None = None,
    ) -> None:
        """The holder of `turn` sends one portion of a snapshot: one watcher at a time.

        `extras` tells of what is watched besides changes, if anything is. While the watcher rests,
        the `chorus` sends it what is new.
        """
        super().__init__(headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._shell = shell
        self._watched = watched
        self._turn = turn
        self._wake = asyncio.Event()
        self._is_gone = False
        self._sending_since_s: float | None = None
        """None: nothing is being sent."""

        self._has_caught_up = False
        """Whether it was sent something of the history, which may end within a transaction."""

        self._has_ended = False
        """Whether it was sent the last event that it ever will be."""

        self._subscription: Subscription | None = None
        self._extras = extras
        self._place: Place | None = None
        self._chorus = chorus
        self._send: Send | None = None
        self._rests = False
        """Whether the task sleeps until there is something new."""

        self._has_sung = False
        """Whether it was sent something since then."""

        self._found: Sequence[Published] = ()
        """What was taken while it rested, and could not be sent at once."""

        self._told_s, self._pause_s = 0.0, BOOKMARK_S
        """When it was sent something last, and how long after that it is sent a bookmark."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with WATCHERS.one():
            leaving = asyncio.create_task(self._await_leaving(receive))
            try:
                await send(
                    {"type": "http.response.start", "status": 200, "headers": self.raw_headers}
                )
                async with self._patience():
                    # What is between knows that the answer has begun: the rest goes past it.
                    self._send = scope.get(SEND, send)
                    await self._send_all(self._send)
            finally:
                leaving.cancel()
                if self._extras is not None and self._place is not None:
                    self._extras.leave(self._place)
                if self._subscription is not None:
                    self._shell.changes.unsubscribe(self._subscription)
                if self._chorus is not None:
                    self._chorus.forget(self)
                self._send, self._found = None, ()

    async def _await_leaving(self, receive: Receive) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        self._is_gone = True
        self._wake.set()

    async def _send_all(self, send: Send) -> None:
        """Send what there is until the client is gone, or the stream ends."""
        async for chunk in self._chunks():
            if not await self._sent(send, chunk):
                return
        self._sending_since_s = asyncio.get_running_loop().time()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _sent(self, send: Send, chunk: bytes) -> bool:
        """Send a chunk; False: the client is gone."""
        if not self._is_gone:
            self._sending_since_s = asyncio.get_running_loop().time()
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
            self._sending_since_s = None
        return not self._is_gone

    @asynccontextmanager
    async def _patience(self) -> AsyncIterator[None]:
        """End what is within where the client takes nothing. A timer for each chunk would cost as
        much as to send it."""
        loop = asyncio.get_running_loop()
        looking: asyncio.TimerHandle

        def look() -> None:
            nonlocal looking
            since_s = self._sending_since_s
            if since_s is not None and loop.time() - since_s >= STUCK_S:
                patience.reschedule(loop.time())
            else:
                looking = loop.call_later(STUCK_S / 4, look)

        try:
            async with asyncio.timeout(None) as patience:
                looking = loop.call_later(STUCK_S / 4, look)
                try:
                    yield
                finally:
                    looking.cancel()
        except TimeoutError:
            if not patience.expired():
                raise
            log.info("a watcher took nothing for %g s", STUCK_S)

    # -- what is sent ------------------------------------------------------------------------

    async def _chunks(self) -> AsyncIterator[bytes]:
        begin = self._watched.begin
        if begin == "snapshot":
            state = self._shell.node.state
            async for chunk in self._snapshot(state):
                yield chunk
            after = state.cas
        elif isinstance(begin, int):
            after = begin
        else:
            after = self._shell.node.state.cas
            yield frame("bookmark", {"cas": after}, after)
        try:
            async for chunk in self._missed(after):
                yield chunk
        except CompactedError as error:
            yield frame("compacted", {"oldest": error.oldest})
            return
        except (KafkaException, ArchiveError) as error:
            log.warning("a watcher is ended: history cannot be read: %s", error)
            return
        async for chunk in self._live():
            yield chunk

    async def _snapshot(self, state: StateContext) -> AsyncIterator[bytes]:
        """Yield every entity that fits, and the CAS at which they are.

        In each turn of the loop one watcher gets one portion. Otherwise many watchers that begin
        at the same time would block the node.
        """
        predicate = self._watched.predicate
        held = state.entities.items() if predicate is not None else ()
        portions = _portions(held, predicate or NOTHING)
        while True:
            async with self._turn:
                chunk = next(portions, None)
                await asyncio.sleep(0)
            if chunk is None:
                break
            if chunk:
                yield chunk
        yield frame("snapshot_end", {"cas": state.cas}, state.cas)

    async def _missed(self, after: Cas) -> AsyncIterator[bytes]:
        """Yield from the history what the feed no longer has, then subscribe to the feed.

        Raises CompactedError, KafkaException, ArchiveError.
        """
        predicate = self._watched.predicate or NOTHING
        while not self._is_gone:
            async with self._turn:
                newest = self._shell.node.state
                self._subscription = self._shell.changes.subscribe(
                    after, predicate, self._is_called, newest.cas
                )
                await asyncio.sleep(0)
            if self._subscription is not None:
                return
            read = partial(self._read_past, after, predicate, newest)
            try:
                page = await HISTORY.run(read)
            except (ApiError, StillReadingError):
                await asyncio.sleep(RETRY_S)
                continue
            self._has_caught_up = True
            async for chunk in self._frames(_changes_of(page)):
                yield chunk
            if self._has_ended:
                return
            after = newest.cas if page.next is None else page.next

    def _read_past(self, after: Cas, predicate: Selector, newest: StateContext) -> Page:
        """Return the next page of what a watcher missed."""
        return self._shell.history.missed(after, predicate, PAGE, newest)

    async def _live(self) -> AsyncIterator[bytes]:
        """Yield new changes, in batches, and a bookmark if there are none for a while."""
        subscription, loop = self._subscription, asyncio.get_running_loop()
        if subscription is None:
            return
        changes, extras = self._shell.changes, self._extras
        if extras is not None and self._watched.extras:
            watched = self._watched
            self._place = extras.join(watched.extras, watched.buckets, self._wake.set)
        self._told_s, late_s = loop.time(), 0.0
        self._pause_s = BOOKMARK_SOON_S if self._has_caught_up else BOOKMARK_S
        while not self._is_gone:
            self._wake.clear()
            found = self._found or subscription.take(LIMIT, changes.newest)
            self._found = ()
            if found:
                if chunk := self._alike(found):
                    yield chunk
                    if subscription.following is not None:
                        await asyncio.sleep(0)
                else:
                    async for chunk in self._frames(found):
                        yield chunk
                    if self._has_ended:
                        return
                self._pause_s = BOOKMARK_SOON_S
            elif subscription.has_lagged:
                yield frame("lagged", {"cas": subscription.position})
                return
            elif changes.is_closed:
                return
            elif extras is not None and self._place and (extra := extras.news(self._place)):
                yield extra
                continue  # It is no bookmark, and puts none off.
            elif loop.time() - self._told_s >= self._pause_s:
                if self._shell.node.state.cas > changes.newest:
                    # The node found a newer state, and nobody told the feed how it came about.
                    yield frame("lagged", {"cas": subscription.position})
                    return
                yield frame("bookmark", {"cas": subscription.position}, subscription.position)
                self._pause_s = BOOKMARK_S
            else:
                await self._rest()
                continue
            self._told_s = loop.time()
            if self._chorus is not None or not found or subscription.following is not None:
                continue
            if pace_s := pace_of(len(changes), len(found), late_s):
                await asyncio.sleep(pace_s)
                late_s = max(0.0, loop.time() - self._told_s - pace_s)

    async def _rest(self) -> None:
        """Sleep until there is something to do that no round does."""
        loop = asyncio.get_running_loop()
        self._rests, self._has_sung = True, False
        try:
            while not self._wake.is_set():
                # Who has sung meanwhile, the chorus wakes for the bookmark behind that.
                pause_s = BOOKMARK_S if self._has_sung else self._pause_s
                left_s = self._told_s + pause_s - loop.time()
                if left_s <= 0:
                    return
                await self._sleep(left_s)
        finally:
            self._rests = False

    def _is_called(self) -> None:
        """There is something new to take."""
        if self._rests and self._chorus is not None:
            self._chorus.call(self)
        else:
            self._wake.set()

    def wake(self) -> None:
        self._wake.set()

    def sing(self) -> int:
        """Send what is new, if that needs no waiting; otherwise its own task does."""
        subscription, sent = self._subscription, 0
        for _ in range(PORTIONS):
            if not self._rests or self._found or self._send is None or subscription is None:
                break
            self._found = found = subscription.take(LIMIT, self._shell.changes.newest)
            chunk = self._alike(found) if found else b""
            if not chunk or not sent_at_once(self._send, chunk):
                break
            self._found, sent, self._has_sung = (), sent + len(found), True
            self._told_s, self._pause_s = asyncio.get_running_loop().time(), BOOKMARK_SOON_S
            if subscription.following is None:
                return sent
        self._wake.set()
        return sent

    async def _frames(self, found: Iterable[Published]) -> AsyncIterator[bytes]:
        """Yield the events of changes, a portion at a time: what a watcher does not take, it alone
        holds, while the changes are shared by all."""
        for portion in portions_of(found):
            yield self._shown(portion)
            if self._has_ended:
                return
            await asyncio.sleep(0)

    def _alike(self, found: Sequence[Published]) -> bytes:
        """Return the events of a few changes, made once for all who take them; b"": too many."""
        line = self._subscription.line if self._subscription is not None else None
        if line is None:
            return b""
        which = found[0].cas, found[-1].cas
        made = line.frames.get(which)
        if made is None:
            made = self._shown(found) if _is_small(found) else b""
            if len(line) > 1 and len(line.frames) < ALIKE_MAX:
                line.frames[which] = made
        return made

    def _shown(self, found: Iterable[Published]) -> bytes:
        """Return the events of changes that fit."""
        return b"".join(map(framed, found))

    async def _sleep(self, seconds: float) -> None:
        """Wait until there is something to look at."""
        try:
            async with asyncio.timeout(max(0.0, seconds)):
                await self._wake.wait()
        except TimeoutError:
            pass


def _is_small(found: Iterable[Published]) -> bool:
    """Tell whether the events of changes are few bytes; no more of them is made than needed."""
    return all(size <= ALIKE_BYTES_MAX for size in accumulate(map(size_of, found)))


def pace_of(watchers: int, changes: int, late_s: float) -> float:
    """Return how many seconds pass until a watcher is sent something again, which was just sent so
    many changes, and whose turn came so late."""
    if watchers * PACE_S < PACE_MIN_S:
        return 0.0
    extra_s = min(LATE_MAX_S, LATE_FACTOR * late_s, LATE_PACE_S * max(0, changes - LATE_FROM))
    return min(PACE_MAX_S, watchers * PACE_S) + extra_s


NOTHING: Selector = Predicate(keys=frozenset({""}))
"""No key is empty."""


# -- frames --------------------------------------------------------------------------------------


def _portions(entities: Iterable[tuple[str, Versioned]], predicate: Selector) -> Iterator[bytes]:
    """Yield the events of the entities that fit, portion by portion; one may have none."""
    held = iter(entities)
    left = True
    while left:
        found: list[bytes] = []
        size = looked = 0
        while looked < SNAPSHOT_PORTION and size < PORTION_BYTES:
            one = next(held, None)
            if one is None:
                left = False
                break
            looked += 1
            if predicate.fits_held(*one):
                text = shown.entity(*one).encode("utf-8", "backslashreplace")
                found.append(event("snapshot", text))
                size += len(found[-1])
        yield b"".join(found)


def _changes_of(page: Page) -> Iterator[Published]:
    """Yield the changes of a page with their events."""
    for change, text in zip(page.changes, page.texts, strict=True):
        yield Published(change, change_frame(change, text))


def portions_of(changes: Iterable[Published]) -> Iterator[list[Published]]:
    """Yield changes in lists whose events have little more than PORTION_BYTES together."""
    found: list[Published] = []
    size = 0
    for published in changes:
        found.append(published)
        size += size_of(published)
        if size >= PORTION_BYTES:
            yield found
            found, size = [], 0
    if found:
        yield found


def change_frame(change: Change, text: bytes) -> bytes:
    """Return a change, whose JSON is `text`, as an event with its CAS as id."""
    return event("change", text, change.event.cas)


def size_of(published: Published) -> int:
    """Return how long the event of a change is."""
    return len(framed(published))


def framed(published: Published) -> bytes:
    """Return the event of a change: made once for all watchers."""
    if not published.frame:
        text = shown.as_bytes(published.change)
        published.frame = change_frame(published.change, text)
    return published.frame
