"""One scan over the slices of an index: fetch pages from their indexers, merge, fetch more.

A slice is read at its master copy, or at a replica if that indexer is not alive or does not answer.
An indexer whose heartbeats stay away for a moment is asked, too, where there is no other: it, or
this node, may have been slow.

Pages that an indexer has sent before it failed stay valid: the next one continues after them. A
scan at a stability timestamp reads all pages at the same one: the newest that all indexers have.

The node's loop is not held up: pages are bounded, and large ones are decoded and merged in a
thread.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar

import orjson

from coordinator.core.keys.collation import Bounds
from coordinator.core.keys.scan_pages import ENTRIES_MAX, MEDIA_TYPE, Page, PageError, unpack
from coordinator.core.keys.scans import Gathering, Part
from coordinator.core.model.entities import Index
from coordinator.http.calls import Calls, Silent

GRACE_S = 0.25
"""So much longer than it may take, an indexer is waited for."""

PATIENCE_MIN_S = 0.25
PATIENCE_S = 1.0
"""So long a host may take, if there are others, to read a page where it has nothing to wait for."""

PAUSE_S = 0.02
RENEW_S = 8.0
"""An indexer keeps a snapshot for 30 s after it was read last (`indexer_sim/bucket/leases.py`): all
that have more of a scan are asked again after so long."""

SHARE_MIN = 64
READ_AHEAD = 32_768
"""So many entries are asked of all parts together where all of them will be wanted."""

ROWS_BYTES_MAX = 4 * 1024 * 1024
ASIDE_BYTES = 64 * 1024
"""From this size on, bytes are dealt with in a thread."""

T = TypeVar("T")


class ScanFailed(Exception):
    """A scan cannot be answered; `code` is stable. `is_gone`: somebody has released it."""

    def __init__(
        self,
        code: str,
        message: str,
        details: dict[str, Any] | None = None,
        *,
        is_gone: bool = False,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}
        self.is_gone = is_gone


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is scanned, and how. `holders` have copies of the slices of `index`: it itself, and the
    parts of it that were moved; those that come first are asked first.

    `consistency` is passed to the indexers: "any", or an object with `at_least` (positions), with
    `consistent` (the number of a stability timestamp, 0 for the newest), or with both: the newest
    timestamp that covers the positions. `deadline` is in seconds of the monotonic clock. Who has
    not done the `rollback` of this number does not answer; nor does who still recovers from it,
    unless the `last_good` snapshot is wanted. Who has not read `failover_log` up to these offsets
    waits until he has. `reads_on`: what follows on the first `limit` entries will be wanted, too.
    """

    index: Index
    holders: tuple[Index, ...]
    slices: tuple[int, ...]
    bounds: Bounds
    after: bytes | None
    descending: bool
    limit: int
    consistency: Any
    deadline: float
    rollback: int = 0
    last_good: bool = False
    failover_log: tuple[int, ...] = ()
    reads_on: bool = False


class ScanResult(NamedTuple):
    """Entries, whether there are more, and the stability timestamp they were read at (0: none)."""

    entries: list[bytes]
    more: bool
    counted: int
    number: int
    hash: int


class Copy(NamedTuple):
    """A copy of slices: who has it, and as what, the place of that in `Asked.holders`."""

    holder: int
    indexer: int


class Refusal(NamedTuple):
    """Why a host did not answer; `is_late`: it was not waited for, because there were others."""

    code: str
    message: str
    is_late: bool = False


PREFERRED = (
    "timestamp_gone",
    "timestamp_not_reached",
    "no_stability_timestamp",
    "index_building",
    "index_rolling_back",
    "index_recovering",
)
"""If no host of a slice answers, the first of these that one gave tells most."""


PASSING = ("timestamp_not_reached", "no_stability_timestamp")
"""What an indexer says that was not given time enough."""

RELEASED = ("index_not_found", "slice_not_here")
"""So an indexer says that it has given the storage up, or has yet to make it."""


@dataclass(slots=True, kw_only=True)
class Scatter:
    """The state of one scan. `address` tells where an indexer can be asked, None: nowhere;
    `is_heard` whether it was heard lately."""

    calls: Calls
    asked: Asked
    address: Callable[[int], str | None]
    is_heard: Callable[[int], bool]
    number: int = 0
    hash: int = 0
    gathering: Gathering = field(init=False)
    _copies: dict[Part, Copy] = field(default_factory=dict)
    _failed: dict[int, dict[Copy, Refusal]] = field(default_factory=dict)
    _of_slices: Mapping[int, list[Copy]] = field(init=False)
    _asked_s: dict[Part, float] = field(default_factory=dict)
    _dropped: bool = False
    """Whether entries were released that the last answer had no room for."""

    def __post_init__(self) -> None:
        self.gathering = Gathering(self.asked.limit, self.asked.descending)
        self._of_slices = {
            piece.number: [
                Copy(place, host)
                for place, holder in enumerate(self.asked.holders)
                for host in holder.slices[at].serving
            ]
            for at, piece in enumerate(self.asked.index.slices)
        }
        if self._is_consistent:
            self.number = self.asked.consistency["consistent"]

    @property
    def _is_consistent(self) -> bool:
        return isinstance(self.asked.consistency, dict) and "consistent" in self.asked.consistency

    async def rows(self) -> ScanResult:
        """Return the first entries of the scan; after `go_on`, those that follow. Raises
        ScanFailed."""
        gathering, pages = self.gathering, []
        if gathering.parts:
            gathering.released = []
        else:
            pages = await self._begin(self._group(self.asked.slices), count=False)
        while True:
            for part, page in pages:
                gathering.add(part, page.entries, page.more)
            missing = await self._missing()
            if not missing or sum(map(len, gathering.released)) >= ROWS_BYTES_MAX:
                break
            pages = await self._fetch_all(missing, count=False)
        kept = _bounded(gathering.released)
        self._dropped = len(kept) < len(gathering.released)
        more = self._dropped or gathering.more
        return ScanResult(kept, more, len(kept), self.number, self.hash)

    def go_on(self, asked: Asked) -> bool:
        """Let `rows` return what follows on what it has returned, up to a deadline of its own. What
        has come of some parts and had to wait for others need not be fetched again.

        False: another scan has to, as copies have moved or are of another history, as not all that
        was there had room, or as some indexer was not asked for so long that it might give up the
        snapshot that is read.
        """
        is_same = _source(asked) == _source(self.asked)
        since_s = time.monotonic() - RENEW_S
        asked_s = [self._asked_s[part] for part in self.gathering.parts if part.more]
        is_kept = not self.number or min(asked_s, default=since_s) >= since_s
        goes_on = is_same and is_kept and not self._dropped
        if goes_on:
            self.asked = asked
            self._failed.clear()
        return goes_on

    async def count(self) -> ScanResult:
        """Return how many entries there are. Raises ScanFailed."""
        groups = self._group(self.asked.slices)
        pages = await self._begin([(c, (n,)) for c, numbers in groups for n in numbers], count=True)
        counted = 0
        while pages:
            counted += sum(page.counted for _, page in pages)
            for part, page in pages:
                part.after = page.entries[-1] if page.entries else part.after
            going_on = [part for part, page in pages if page.more]
            pages = await self._fetch_all(going_on, count=True)
        return ScanResult([], False, counted, self.number, self.hash)

    # -- the first pages ---------------------------------------------------------------------

    async def _begin(
        self, groups: Sequence[tuple[Copy, tuple[int, ...]]], *, count: bool
    ) -> list[tuple[Part, Page]]:
        """Fetch the first page of every part: at one stability timestamp, if that is asked.

        Bounds that are the wrong way round may be of no slice: then there are none.
        """
        if not groups:
            return []
        parts = [Part(numbers, self.asked.after) for _, numbers in groups]
        self.gathering.parts.extend(parts)
        self._assign(parts, groups)
        pages = await self._fetch_all(parts, count=count)
        while self._is_consistent and (odd := self._disagreeing(pages)):
            if not self.number:
                if time.monotonic() + PAUSE_S > self.asked.deadline:
                    raise ScanFailed(
                        "no_stability_timestamp", "no stability timestamp is held by all indexers"
                    )
                await asyncio.sleep(PAUSE_S)
            kept = [pair for pair in pages if pair[0] not in odd]
            pages = kept + await self._fetch_all(odd, count=count)
        self.hash = pages[0][1].hash
        return pages

    def _disagreeing(self, pages: list[tuple[Part, Page]]) -> list[Part]:
        """Choose the newest timestamp that all parts hold; return the parts at another one."""
        if not self.number:
            numbers = {page.number for _, page in pages}
            if len(numbers) == 1:
                self.number = numbers.pop()
            else:
                common = set.intersection(*({*page.held, page.number} for _, page in pages))
                self.number = max(common, default=0)
        return [part for part, page in pages if page.number != self.number]

    # -- asking ------------------------------------------------------------------------------

    async def _missing(self) -> list[Part]:
        waiting = sum(len(part.waiting) for part in self.gathering.parts)
        return await aside(waiting * 40, self.gathering.missing)

    async def _fetch_all(self, parts: Iterable[Part], *, count: bool) -> list[tuple[Part, Page]]:
        found = await asyncio.gather(*(self._fetch(part, count) for part in parts))
        return [pair for pairs in found for pair in pairs]

    async def _fetch(self, part: Part, count: bool) -> list[tuple[Part, Page]]:
        """Return the next page of a part; if its host fails, those of the parts that follow it."""
        copy = self._copies[part]
        self._asked_s[part] = time.monotonic()
        answer = await self._ask(copy, part, count)
        if isinstance(answer, Page):
            return [(part, answer)]
        for piece in part.slices:
            self._failed.setdefault(piece, {})[copy] = answer
        groups = self._group(part.slices)
        parts = self.gathering.split(part, [pieces for _, pieces in groups])
        self._assign(parts, groups)
        return await self._fetch_all(parts, count=count)

    async def _ask(self, copy: Copy, part: Part, count: bool) -> Page | Refusal:
        url = self.address(copy.indexer)
        if url is None:
            return Refusal("unreachable", "not alive")
        patience_s = self._patience_s(part)
        body = self._body(copy, part, count, patience_s)
        is_heard = self.is_heard(copy.indexer)
        is_last = is_heard and any(len(self._candidates(piece)) == 1 for piece in part.slices)
        where, timeout_s = f"{url}/v1/slices/scan", patience_s + GRACE_S
        try:
            answer = await self.calls.post(where, body, timeout_s, is_last=is_last)
        except Silent as silent:
            text = str(silent) if is_heard else f"not alive: {silent}"
            return Refusal("unreachable", text, silent.is_late and not is_last)
        raw = answer.content
        if answer.status != 200 or answer.media_type != MEDIA_TYPE:
            refusal = _refusal(answer.status, raw)
            return refusal._replace(is_late=refusal.code in PASSING and not is_last)
        try:
            return await aside(len(raw), lambda: unpack(raw))
        except PageError as error:
            return Refusal("bad_response", str(error))

    def _body(self, copy: Copy, part: Part, count: bool, patience_s: float) -> bytes:
        asked, holder = self.asked, self.asked.holders[copy.holder]
        limit = min(self._size(), ENTRIES_MAX)
        body = {
            "indexer": copy.indexer,
            "index": str(holder.id),
            "shard": holder.shard_on(copy.indexer),
            "build": holder.build,
            "slices": part.slices,
            "begin": asked.bounds.begin.hex(),
            "end": asked.bounds.end.hex(),
            "after": None if part.after is None else part.after.hex(),
            "order": "desc" if asked.descending else "asc",
            "limit": limit,
            "count": count,
            "consistency": self._consistency(),
            "timeout_ms": int(patience_s * 1000),
            "rollback": str(asked.rollback),
            "last_good": asked.last_good,
            "failover_log": asked.failover_log,
        }
        return orjson.dumps(body)

    def _consistency(self) -> Any:
        """Return what is asked of indexers: once all agree on a timestamp, that one."""
        if not self.number:
            return self.asked.consistency
        settled = {"consistent": self.number}
        return settled if self.hash else {**self.asked.consistency, **settled}

    def _size(self) -> int:
        """Return how many entries to ask of each part: with a few more than its share, most scans
        need no second page. What is read on for is kept for the next one."""
        parts = max(1, len(self.gathering.parts))
        left = self.asked.limit - len(self.gathering.released)
        share = max(left * 5 // (4 * parts), SHARE_MIN)
        return max(share, READ_AHEAD // parts) if self.asked.reads_on else min(left, share)

    def _patience_s(self, part: Part) -> float:
        """Return how long to wait for a host, in seconds: a share of the time that is left."""
        left_s = self.asked.deadline - time.monotonic()
        if left_s <= 0:
            raise ScanFailed("timeout", "the scan did not finish within timeout_ms")
        others = min(len(self._candidates(piece)) for piece in part.slices) - 1
        share_s = left_s / (others + 1)
        if others and self.asked.consistency == "any":
            share_s = min(share_s, PATIENCE_S)
        return max(share_s, PATIENCE_MIN_S)

    # -- hosts -------------------------------------------------------------------------------

    def _candidates(self, number: int) -> list[Copy]:
        """Return the copies of a slice that can be asked for, the master of a holder first.

        If all others have failed, those of indexers that were not heard lately.
        """
        failed = self._failed.get(number, {})
        left = [
            copy
            for copy in self._of_slices[number]
            if copy not in failed and self.address(copy.indexer) is not None
        ]
        return [copy for copy in left if self.is_heard(copy.indexer)] or left

    def _group(self, numbers: Iterable[int]) -> list[tuple[Copy, tuple[int, ...]]]:
        """Return which slices to ask of which copy. Raises ScanFailed: nobody has one."""
        groups: dict[Copy, list[int]] = {}
        for number in numbers:
            candidates = self._candidates(number) or self._late(number)
            if not candidates:
                raise self._nobody(number)
            groups.setdefault(candidates[0], []).append(number)
        return [(copy, tuple(pieces)) for copy, pieces in groups.items()]

    def _late(self, number: int) -> list[Copy]:
        """Return the copies that were not waited for, now that nobody else is left to ask."""
        if time.monotonic() >= self.asked.deadline:
            return []
        failed = self._failed.get(number, {})
        for copy in [copy for copy, reason in failed.items() if reason.is_late]:
            del failed[copy]
        return self._candidates(number)

    def _assign(self, parts: list[Part], groups: Sequence[tuple[Copy, tuple[int, ...]]]) -> None:
        self._copies.update(zip(parts, (copy for copy, _ in groups), strict=True))

    def _nobody(self, number: int) -> ScanFailed:
        """Return why a slice cannot be scanned."""
        failed = self._failed.get(number, {})
        silent = Refusal("unreachable", "not alive")
        reasons = {copy: failed.get(copy, silent) for copy in self._of_slices[number]}
        details = {
            "slice": number,
            "indexers": {str(copy.indexer): r.message or r.code for copy, r in reasons.items()},
        }
        # An indexer that gives the storage up may say until then that it opens it again.
        is_gone = any(reason.code in RELEASED for reason in reasons.values())
        for code in PREFERRED:
            for reason in reasons.values():
                if reason.code == code:
                    return ScanFailed(code, reason.message, details, is_gone=is_gone)
        text = f"no indexer answers for slice {number}"
        return ScanFailed("slice_unavailable", text, details, is_gone=is_gone)


def _source(asked: Asked) -> tuple[Any, ...]:
    """Return what is to be read, and where it lies."""
    return asked.index, asked.holders, asked.slices, asked.bounds, asked.rollback, asked.limit


def _bounded(entries: list[bytes]) -> list[bytes]:
    """Return as many of the first entries as an answer has room for."""
    ends = accumulate(map(len, entries))
    return entries[: next((n for n, end in enumerate(ends, 1) if end > ROWS_BYTES_MAX), None)]


def _refusal(status: int, content: bytes) -> Refusal:
    try:
        error = orjson.loads(content)["error"]
        return Refusal(str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return Refusal("bad_response", f"status {status}")


_thread = ThreadPoolExecutor(1, "scan")
"""One: each more would make the loop of the node wait as long again for the interpreter."""


async def aside(size: int, work: Callable[[], T]) -> T:
    """Do work on so many bytes: in a thread, if there are many."""
    if size < ASIDE_BYTES:
        return work()
    return await asyncio.get_running_loop().run_in_executor(_thread, work)
