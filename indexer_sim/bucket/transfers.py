"""What one indexer gives another of the slices that it holds: everything as it is at one moment.

A *transfer* is a moment of the bucket's database. All mutations up to where the asker's streams
began are in it, and none beyond the vector `applied`. It is read page by page, in the order of the
documents, from the back-index. Nobody but indexers asks.

A page tells each document's entry, as the back-index has it (`entries.pack_back`): the seqno goes
along, and who takes it compares it with what he has.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass
from typing import Any

import msgspec

from coordinator.core.catalog.ddl import SLICES_MAX
from coordinator.core.model.vectors import Vector
from indexer_sim.bucket.allocation import NONE
from indexer_sim.bucket.back_index import BEGIN, END
from indexer_sim.bucket.bucket import Bucket
from indexer_sim.bucket.database import MomentLostError
from indexer_sim.bucket.entries import BACK, cut_down, entry_of
from indexer_sim.bucket.leases import Leases
from indexer_sim.bucket.storage import Storage

DOCUMENTS_MAX, LOOKED_AT_MAX = 1_024, 4_096
"""So many documents has a page, and for one so many are looked at: scans wait for either."""

AT_ONCE = 64
"""So many records are read at once."""

PAGE_BYTES_MAX = 1024 * 1024
"""A page ends with the record with which so much was read for it."""

LEASE_S, TRANSFERS_MAX = 60.0, 16
"""So long after its last page a transfer is kept, and so many are."""

NUMBER_BITS = 62


class TransferRefused(Exception):
    """A page is not given; with `is_passing`, it may be later."""

    def __init__(self, code: str, message: str, *, is_passing: bool = False) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.is_passing = is_passing


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """A question for a page: of the slices of an index, after a document.

    `number` 0 begins a transfer that has what is `at_least`: vbuuids and seqnos, one of each
    vbucket. `shard` and `build` are those of the origin. A page has `limit` documents at most.
    """

    indexer: int
    index: int
    slices: tuple[int, ...]
    shard: int
    build: int
    number: int = 0
    after: bytes | None = None
    limit: int = DOCUMENTS_MAX
    at_least: tuple[bytes, bytes] = (b"", b"")


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """A page: documents with their entries, ascending; `more` follow after `after`. So many were
    `looked_at` for it.

    The first page has no documents: it says how many `entries` the slices have, and beyond which
    vector, vbuuids and seqnos, nothing was `applied`.
    """

    number: int
    documents: tuple[tuple[bytes, bytes], ...] = ()
    more: bool = True
    after: bytes | None = None
    looked_at: int = 0
    entries: int = 0
    applied: tuple[bytes, bytes] = (b"", b"")


_ask, _given = msgspec.json.Decoder(Ask), msgspec.msgpack.Decoder(Given)


def ask_bytes(ask: Ask) -> bytes:
    """Return a question as JSON: bytes are base64."""
    return msgspec.json.encode(ask)


def given_bytes(given: Given) -> bytes:
    """Return a page as MessagePack."""
    return msgspec.msgpack.encode(given)


def read_ask(raw: bytes) -> Ask:
    """Return the question that these bytes are. Raises TransferRefused."""
    try:
        return _ask.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise TransferRefused("invalid_request", f"no question for a page: {error}") from error


def read_given(raw: bytes) -> Given:
    """Return the page that these bytes are. ValueError: they are none."""
    try:
        return _given.decode(raw)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ValueError(f"no page: {error}") from error


@dataclass(frozen=True, slots=True)
class Transfer:
    """Slices of an index at one moment."""

    number: int
    index: int
    life: int
    slices: frozenset[int]
    moment: Any
    """`database.Moment`."""

    def page(self, after: bytes | None, limit: int) -> Given:
        """Return the page after a document, None for the first. Raises `MomentLostError`."""
        limit = min(max(limit, 1), DOCUMENTS_MAX)
        found: list[tuple[bytes, bytes]] = []
        last, size, looked_at, more = after, 0, 0, True
        while more and len(found) < limit and looked_at < LOOKED_AT_MAX and size < PAGE_BYTES_MAX:
            begin = BEGIN if last is None else BACK + last + b"\0"
            records = self.moment.some(begin, END, AT_ONCE)
            more = len(records) == AT_ONCE
            for at, (key, raw) in enumerate(records, 1):
                last = key[len(BACK) :]
                size += len(key) + len(raw)
                looked_at += 1
                entry = entry_of(raw, self.life)
                kept = None if entry is None else cut_down(entry, self.slices)
                if kept is not None:
                    found.append((last, kept))
                if len(found) == limit or size >= PAGE_BYTES_MAX:
                    more = more or at < len(records)
                    break
        return Given(
            number=self.number,
            documents=tuple(found),
            more=more,
            after=last,
            looked_at=looked_at,
        )


class Giving:
    """Answers what other indexers ask of the storage of this one. Any thread may use it."""

    def __init__(self, storage: Storage, indexer: int) -> None:
        self._storage = storage
        self._indexer = indexer
        self._begun: Leases[Transfer] = Leases(LEASE_S, TRANSFERS_MAX)

    def answer(self, ask: Ask) -> Given:
        """Return a page. Does not wait. Raises TransferRefused."""
        if ask.indexer != self._indexer:
            raise TransferRefused("wrong_indexer", f"this is indexer {self._indexer}")
        if not ask.number:
            return self._begin(ask)
        begun = self._begun.held().get(ask.number)
        if begun is None or not self._begun.renew(begun, self._begun.revision):
            raise TransferRefused("transfer_gone", f"there is no transfer {ask.number} here")
        try:
            page = begun.page(ask.after, ask.limit)
        except MomentLostError as error:
            raise TransferRefused("transfer_gone", "the storage was opened again") from error
        if not page.more:
            self._begun.give_back(ask.number)
        return page

    def expire(self) -> None:
        """Give back what nobody has asked for any more."""
        self._begun.expire()

    def _begin(self, ask: Ask) -> Given:
        bucket = self._storage.bucket_of(ask.index)
        if bucket is None:
            raise TransferRefused("index_not_found", f"index {ask.index} is not here")
        if len(self._begun.held()) >= TRANSFERS_MAX:
            text = f"{TRANSFERS_MAX} transfers are under way here"
            raise TransferRefused("overloaded", text, is_passing=True)
        with bucket.lock:
            check(bucket, ask)
            transfer = Transfer(
                1 + secrets.randbits(NUMBER_BITS),
                ask.index,
                bucket.back_index.lives[ask.index],
                frozenset(ask.slices),
                bucket.database.moment(),
            )
            applied = bucket.tracker.applied()
            sizes = dict(bucket.sizes.all())
        if transfer.moment is None:
            raise TransferRefused("recovering", "the storage is being opened", is_passing=True)
        self._begun.renew(transfer, self._begun.revision)
        wanted = transfer.slices
        entries = sum(s.entries for (i, n), s in sizes.items() if i == ask.index and n in wanted)
        return Given(number=transfer.number, entries=entries, applied=applied.to_bytes())


def check(bucket: Bucket, ask: Ask) -> None:
    """Refuse what is not here, not complete, or not that far yet. Raises TransferRefused."""
    if bucket.shards.get(ask.index) != ask.shard:
        raise TransferRefused("slice_not_here", f"index {ask.index} has another storage here")
    if len(ask.slices) > SLICES_MAX:
        raise TransferRefused("invalid_request", f"at most {SLICES_MAX} slices")
    slices = frozenset(ask.slices)
    if slices - bucket.slices.get(ask.index, NONE):
        raise TransferRefused("slice_not_here", "not all of the slices are here")
    state = bucket.published.states.get(ask.index)
    if state is None or state.build != ask.build:
        raise TransferRefused("slice_not_here", f"index {ask.index} is of another build here")
    is_behind = bucket.stale or bucket.published.recovering or bucket.lost
    if is_behind or bucket.tracker.branched() or not state.complete:
        raise TransferRefused("recovering", "what is here is not whole", is_passing=True)
    try:
        wanted = Vector.from_bytes(*ask.at_least)
    except ValueError as error:
        raise TransferRefused("invalid_request", f"no vector: {error}") from error
    if len(wanted) != bucket.vbuckets:
        raise TransferRefused("invalid_request", f"the bucket has {bucket.vbuckets} vbuckets")
    if not bucket.tracker.vector().covers(wanted):
        raise TransferRefused("not_reached", "what is here is not that far yet", is_passing=True)
