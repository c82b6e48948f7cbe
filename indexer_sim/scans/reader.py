"""What scans read: slices of an index, as they were at one moment.

A view is a moment of the database. It stays as it is whatever is applied. Made without a lock:
what a bucket has published is in any moment that is made later.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from coordinator.core.keys.collation import Bounds
from coordinator.core.model.vectors import Places, Vector
from indexer_sim.bucket.bucket import Bucket, Published
from indexer_sim.bucket.database import Moment, MomentLostError
from indexer_sim.bucket.entries import State, entries_prefix
from indexer_sim.bucket.snapshots import overlaid
from indexer_sim.bucket.storage import Storage
from indexer_sim.scans.api import ScanRefused, Unsettled, Wanted

CHUNK = 128
"""So many entries are read at once: a seek costs as much as a few."""

CHANGING = "what is held of the index is changing"


Heard = Callable[[str], tuple[int, ...]]
"""The offset behind the last record of each partition of `failover-log` that a bucket knows."""


class StorageReading:
    """The storage of an indexer, for scans; any thread may use it."""

    def __init__(self, storage: Storage, heard: Heard = lambda _: ()) -> None:
        """`heard` tells up to where in `failover-log` a bucket knows everything."""
        self._storage = storage
        self._heard = heard

    def view(
        self, index_id: int, slices: tuple[int, ...], *, shard: int, build: int, wanted: Wanted
    ) -> SlicesView:
        """Return what there is now. Does not wait. Raises ScanRefused."""
        bucket = self._storage.bucket_of(index_id)
        if bucket is None:
            raise ScanRefused("index_not_found", f"index {index_id} is not here")
        heard = self._heard(bucket.name)
        if any(offset < end for offset, end in zip(heard, wanted.failover_log, strict=False)):
            raise ScanRefused("timestamp_not_reached", "the histories of vbuckets are not read yet")
        remade, published = bucket.remade, bucket.published
        if remade % 2:
            # Before a lease is renewed: no page is read by that.
            raise Unsettled(CHANGING)
        _check(bucket, published, index_id, slices, shard, build, wanted)
        if wanted.timestamp is not None:
            view = _stable_view(bucket, index_id, published.states[index_id].build, wanted)
        else:
            _check_covered(published.vector, wanted.at_least)
            moment = bucket.database.moment()
            if moment is None:
                raise _recovering()
            view = SlicesView(moment, index_id)
        if lost := len(bucket.lost):
            # Looked up after the moment was made: what is lost is known before it is written.
            raise _rolling_back(index_id, lost)
        if remade != bucket.remade:
            # What was checked may not be what is read.
            raise Unsettled(CHANGING)
        return view


def _check(
    bucket: Bucket,
    published: Published,
    index_id: int,
    slices: tuple[int, ...],
    shard: int,
    build: int,
    wanted: Wanted,
) -> None:
    """Refuse what is not here, not whole, or lost. 0 stands for any shard or build."""
    if shard not in (0, bucket.shards.get(index_id)):
        raise ScanRefused("slice_not_here", f"the storage of index {index_id} is another one")
    missing = set(slices) - bucket.slices.get(index_id, frozenset())
    if missing:
        raise ScanRefused("slice_not_here", f"slices {sorted(missing)} are not here")
    state = published.states.get(index_id, State())
    is_behind = published.rollback < wanted.rollback or published.branched
    if is_behind or (published.recovering and not wanted.last_good):
        raise _rolling_back(index_id, len(published.branched) + len(published.gaps))
    if published.recovering and not state.complete:
        raise ScanRefused("index_rolling_back", f"no snapshot of index {index_id} is left")
    if not state.complete or build not in (0, state.build):
        raise ScanRefused("index_building", f"index {index_id} is not complete here")


def _check_covered(held: Vector, wanted: Places | None) -> None:
    """Refuse what would be older than is wanted."""
    lacking = None if wanted is None else held.lacking(wanted)
    if lacking is not None:
        raise ScanRefused("timestamp_not_reached", f"vbucket {lacking} is not that far yet")


def _stable_view(bucket: Bucket, index_id: int, build: int, wanted: Wanted) -> SlicesView:
    """Return an index at a stability timestamp, 0 for the newest, that has what is wanted."""
    number, places = wanted.timestamp or 0, wanted.at_least
    timeline = bucket.timeline
    revision = timeline.leases.revision
    available = timeline.available().items()
    kept = {n: s for n, s in available if s.builds.get(index_id) == build}
    found = kept.get(number or max(kept, default=0))
    if found is None:
        code = "timestamp_not_reached" if number > max(kept, default=0) else "timestamp_gone"
        text = f"there is no timestamp {number} here"
        if not kept:
            code, text = "no_stability_timestamp", "no stability timestamp was reached here yet"
        raise ScanRefused(code, text, {"held": sorted(kept)})
    if places is not None:
        _check_covered(found.vector, places)
        kept = {n: s for n, s in kept.items() if s.vector.lacking(places) is None}
    if not timeline.leases.renew(found, revision):
        raise Unsettled("the snapshots are changing")
    overlay = {piece: entries for (i, piece), entries in found.overlay.items() if i == index_id}
    return SlicesView(
        found.moment,
        index_id,
        number=found.number,
        digest=found.digest,
        held=tuple(sorted(kept)),
        overlay=overlay,
    )


def _rolling_back(index_id: int, vbuckets: int) -> ScanRefused:
    text = f"index {index_id} goes back to what the store still has"
    return ScanRefused("index_rolling_back", text, {"vbuckets": vbuckets})


def _recovering() -> ScanRefused:
    return ScanRefused("index_recovering", "the storage is being opened again")


class SlicesView:
    """Slices of an index at one moment. Used by one thread, and closed by it."""

    def __init__(
        self,
        moment: Moment,
        index_id: int,
        *,
        number: int = 0,
        digest: int = 0,
        held: tuple[int, ...] = (),
        overlay: Mapping[int, list[tuple[bytes, bool]]] | None = None,
    ) -> None:
        self.number = number
        self.hash = digest
        self.held = held
        self._moment: Moment | None = moment
        self._index_id = index_id
        self._overlay = overlay or {}

    def entries(self, piece: int, bounds: Bounds, *, backwards: bool) -> Iterator[bytes]:
        """Yield the entries of a slice: the encoded key, and the document's id behind it."""
        stored = self._stored(piece, bounds, backwards)
        changes = [change for change in self._overlay.get(piece, ()) if change[0] in bounds]
        if not changes:
            return stored
        return overlaid(stored, changes[::-1] if backwards else changes, backwards)

    def _stored(self, piece: int, bounds: Bounds, backwards: bool) -> Iterator[bytes]:
        prefix = entries_prefix(self._index_id, piece)
        begin, end = bounds.under(prefix)
        skip = len(prefix)
        while begin < end:
            if self._moment is None:
                raise ValueError("the view is closed")
            read = self._moment.keys_backwards if backwards else self._moment.keys
            try:
                keys = read(begin, end, CHUNK)
            except MomentLostError as error:
                raise _recovering() from error
            for key in keys:
                yield key[skip:]
            if len(keys) < CHUNK:
                return
            if backwards:
                end = keys[-1]
            else:
                begin = keys[-1] + b"\0"

    def close(self) -> None:
        """Give the moment back: it keeps files that could be deleted."""
        self._moment = None
