"""The storage of an indexer: one RocksDB a bucket, slices as key prefixes; one for its position.

This module uses no Kafka and decides nothing. One thread, the control loop, opens, allocates and
releases. Another applies mutations to the buckets (`bucket` says what holds then). Others read.

A damaged bucket is restored from its newest checkpoint that is intact, and so goes back to it. If
there is none, it starts as if it had never been there. Layout of the folder: `meta/` (identity,
position, index states), `buckets/<name>/`, `checkpoints/<name>/<number>/`, `reserve`.
A damaged `meta` is put aside with all else. `entries` has the keys in a bucket.
"""

from __future__ import annotations

import errno
import shutil
import struct
from collections.abc import Generator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from rocksdict import WriteBatch

from coordinator.runtime.files import make_durably
from indexer_sim.bucket.allocation import NONE, Slices
from indexer_sim.bucket.bucket import Bucket, Earlier
from indexer_sim.bucket.checkpoints import Checkpoints, about, copied, copy, draft_of, ready_of
from indexer_sim.bucket.database import WRITE_BUFFER_BYTES, Database, StorageError, refusal
from indexer_sim.bucket.names import bucket_name, folder_name
from indexer_sim.bucket.reserve import Reserve

META, BUCKETS, TRASH, RESERVE = "meta", "buckets", "trash", "reserve"
DAMAGED = "damaged"
"""Here lies what the folder had when its `meta` could not be read: nobody knows whose it is."""

CHECKPOINTS = "checkpoints"

IDENTITY, POSITION, CAS_BASE = b"identity/", b"position", b"cas-base"
INDEX, VBUCKETS, ROLLBACK = b"index/", b"vbuckets/", b"rollback/"
REBALANCE = b"rebalance"
NUMBER = struct.Struct(">Q")
WHOLE = struct.Struct(">q")
PLACE = struct.Struct(">qq")

PASSING = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM})
"""For want of what comes back, the same may be done later."""

RESERVE_BYTES = 2 * WRITE_BUFFER_BYTES
NOWHERE: Mapping[int, int] = {}


class Storage:
    """An indexer's folder.

    Large because it has one method for each thing that can happen to a slice, an index and a
    bucket.
    """

    def __init__(self, folder: Path, identity: str) -> None:
        """Open the folder, or make it and bind it to `identity`. Raises StorageError."""
        self.folder = folder
        self._meta = Database(folder / META)
        self._buckets: dict[str, Bucket] = {}
        self._vbuckets: dict[str, int] = {}
        self._unsaved: set[str] = set()
        self._unsaved_entities: dict[bytes, bytes] = {}
        self.recovered: list[str] = []
        """What was damaged, and what it was made from, for the operator."""
        self.epoch = 0
        """Another one after a bucket has gone back: what was read before is void then."""
        self._reserve = Reserve(folder / RESERVE, RESERVE_BYTES)
        try:
            self._open(identity)
        except StorageError as error:
            self.close()
            if error.code == "damaged":
                self._put_aside()
            # Another process may use this folder, and its reserve: only a full disk is a reason.
            elif not (self._reserve.is_needed() and self._reserve.give_up()):
                raise
            self._open(identity)
        self._reserve.allocate()

    def _put_aside(self) -> None:
        """Put everything aside, and begin with nothing: the others have it, and the source."""
        self._buckets.clear()
        self._vbuckets.clear()
        aside = self.folder / DAMAGED
        try:
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir()
            for name in (META, BUCKETS, CHECKPOINTS):
                if (self.folder / name).exists():
                    (self.folder / name).rename(aside / name)
            make_durably(aside)
        except OSError as error:
            raise refusal(error, aside) from error
        self.recovered.append(
            f"all buckets anew, as {META} is damaged: what was there is in {aside}"
        )

    def _open(self, identity: str) -> None:
        self._meta.opened()
        self.bind("indexer", identity)
        shutil.rmtree(self.folder / TRASH, ignore_errors=True)
        for left in (self.folder / BUCKETS).glob(draft_of(Path("*")).name):
            shutil.rmtree(left, ignore_errors=True)
        for ready in (self.folder / BUCKETS).glob(ready_of(Path("*")).name):
            self._put_in_place(ready.with_name(ready.name[1 : -len(ready.suffix)]))
        for key, value in self._meta.scan(VBUCKETS):
            self._vbuckets[key[len(VBUCKETS) :].decode()] = NUMBER.unpack(value)[0]
        paths = {*(self.folder / BUCKETS).glob("[!.]*")}
        paths |= {self.folder / BUCKETS / p.name for p in (self.folder / CHECKPOINTS).glob("*")}
        for path in sorted(paths):
            name = bucket_name(path.name)
            bucket = self._buckets[name] = Bucket(name, path, self._vbuckets.get(name, 0))
            self.reload(bucket)

    def close(self) -> None:
        for bucket in self.buckets():
            bucket.database.close()
        self._meta.close()

    def bind(self, what: str, identity: str) -> None:
        """Bind the folder to `identity`, or refuse one that is bound to another."""
        key = IDENTITY + what.encode()
        held = self._meta.get(key)
        if held is None:
            if what == "indexer" and any((self.folder / BUCKETS).glob("*")):
                raise StorageError(
                    "folder_mismatch",
                    f"{self.folder} holds buckets, but not whose they are: use another folder",
                )
            batch = WriteBatch(raw_mode=True)
            batch.put(key, identity.encode())
            self._meta.write(batch, sync=True)
        elif held.decode() != identity:
            raise StorageError(
                "folder_mismatch",
                f"{self.folder} belongs to {held.decode()}, not to {identity}: use another folder",
            )

    # -- slices ------------------------------------------------------------------------------

    @property
    def held(self) -> dict[int, Slices]:
        """The slices that are allocated, by index."""
        return {
            index_id: numbers
            for bucket in self.buckets()
            for index_id, numbers in bucket.slices.items()
        }

    @property
    def shards(self) -> dict[int, int]:
        """The shard of each index: a number that no other life of its storage had."""
        return {i: shard for bucket in self.buckets() for i, shard in bucket.shards.items()}

    def bucket_of(self, index_id: int) -> Bucket | None:
        """Return the bucket in which an index is held, None if it is not. For any thread."""
        return next((bucket for bucket in self.buckets() if index_id in bucket.slices), None)

    @property
    def builds(self) -> dict[int, int]:
        """The build of each index, 0 for none yet."""
        return {
            index_id: state.build
            for bucket in self.buckets()
            for index_id, state in bucket.published.states.items()
        }

    def buckets(self) -> list[Bucket]:
        """Return the buckets of which anything is held. For any thread."""
        return list(self._buckets.values())

    def bucket(self, name: str) -> Bucket | None:
        """Return a bucket of which something is held. For any thread."""
        return self._buckets.get(name)

    def reload(self, bucket: Bucket) -> None:
        """Find out what a bucket holds, from a checkpoint if it is damaged. Raises StorageError.

        One that holds nothing is deleted: it was only begun. But while anything is held it has
        checkpoints, and these go first; so an empty one with checkpoints has lost what it held.
        """
        with bucket.lock:
            try:
                if not (bucket.stale or bucket.damaged):
                    return
                if ready_of(bucket.database.folder).exists():
                    bucket.database.close()
                    self._put_in_place(bucket.database.folder)
                    bucket.damaged = False
                if not bucket.damaged:
                    bucket.load()
                    if bucket.slices:
                        _know(bucket, self.checkpoints(bucket).found())
                        return
            except StorageError as error:
                if error.code != "damaged":
                    raise
                bucket.damaged = True
            self._recover(bucket)

    def _recover(self, bucket: Bucket) -> None:
        """Make a bucket from its newest checkpoint that can be read; else delete it."""
        self.epoch += 1
        checkpoints = self.checkpoints(bucket).found()
        is_lost = bucket.damaged or bool(checkpoints)
        bucket.damaged = True
        for checkpoint in checkpoints:
            bucket.database.close()
            try:
                self._throw_away(bucket.database.folder)
                copy(checkpoint, bucket.database.folder)
                bucket.load()
            except (OSError, StorageError):
                continue
            if bucket.slices:
                _know(bucket, [checkpoint])
                self.recovered.append(f"{bucket.name} from checkpoint {int(checkpoint.name)}")
                return
        if is_lost:
            self.recovered.append(f"{bucket.name} anew, as no checkpoint of it can be read")
        self._discard(bucket)

    def make_checkpoint(self, bucket: Bucket) -> None:
        """Make a checkpoint of a bucket, if anything has changed. Raises StorageError.

        It is for the newest stability snapshot, if there is one. A disk that takes none has to
        do with fewer.
        """
        about = bucket.about()
        changed = bucket.database.latest(), about.number
        if changed == bucket.checkpointed:
            return
        places = self.checkpoints(bucket)
        try:
            places.make(bucket.database.opened(), about)
        except Exception as error:
            places.prune(1)
            raise refusal(error, bucket.database.folder) from error
        bucket.checkpointed = changed
        bucket.last_persistence = about.vector.digest()

    def checkpoints(self, bucket: Bucket) -> Checkpoints:
        """Return where the checkpoints of a bucket are."""
        return Checkpoints(self.folder / CHECKPOINTS / folder_name(bucket.name))

    def earlier(self, bucket: Bucket) -> Generator[Earlier, None, None]:
        """Yield a bucket as its checkpoints have it, the newest first: each until the next one."""
        for checkpoint in self.checkpoints(bucket).found():
            if (said := about(checkpoint)) is None:
                continue
            then = Bucket(bucket.name, draft_of(bucket.database.folder), bucket.vbuckets)
            opened = partial(_open_copy, checkpoint, bucket.database.folder, then)
            try:
                yield Earlier(said, opened, partial(self._replace, bucket, then))
            finally:
                then.database.close()
                shutil.rmtree(then.database.folder, ignore_errors=True)

    def _replace(self, bucket: Bucket, by: Bucket) -> None:
        """Put a bucket's database in the place of another. Raises StorageError.

        Once it is ready, whoever opens the bucket next does the rest.
        """
        folder = bucket.database.folder
        by.database.close()
        bucket.database.close()
        try:
            by.database.folder.rename(ready_of(folder))
            make_durably(ready_of(folder))
        except OSError as error:
            raise refusal(error, folder) from error
        self._put_in_place(folder)
        bucket.checkpointed = (0, 0)

    def _put_in_place(self, folder: Path) -> None:
        """Have a database that is ready take the place of another. Raises StorageError."""
        try:
            self._throw_away(folder)
            ready_of(folder).rename(folder)
            make_durably(folder)
        except OSError as error:
            raise refusal(error, folder) from error

    def know(self, bucket: str, vbuckets: int) -> None:
        """Note how many vbuckets a bucket has; saved with the position behind it."""
        if self._vbuckets.get(bucket) != vbuckets:
            self._vbuckets[bucket] = vbuckets
            self._unsaved.add(bucket)
            if place := self._buckets.get(bucket):
                place.know(vbuckets)

    def tend(self) -> bool:
        """Open again what failed, where that can be; tell whether `held` may have changed."""
        self._reserve.allocate()
        stale = [b for b in self.buckets() if b.stale or b.damaged]
        for bucket in stale:
            with suppress(StorageError), bucket.lock:
                self.reload(bucket)
        return bool(stale)

    def size_bytes(self) -> int:
        """Look up the bytes that each bucket takes, and return the sum."""
        for bucket in self.buckets():
            bucket.size_bytes = bucket.database.size_bytes()
        return sum(bucket.size_bytes for bucket in self.buckets())

    def allocate(
        self,
        bucket: str,
        index_id: int,
        slices: Slices,
        definition: bytes,
        offsets: Mapping[int, int] = NOWHERE,
    ) -> None:
        """Make storage for slices, durably: all or none. Raises StorageError.

        `offsets` are where the partitions of `mutations` end now: a new bucket begins there.
        """
        place = self._buckets.get(bucket)
        if place is None:
            folder = self.folder / BUCKETS / folder_name(bucket)
            place = Bucket(bucket, folder, self._vbuckets.get(bucket, 0))
        try:
            with place.lock:
                if place.stale:
                    place.load()
                place.allocate(index_id, slices, definition, offsets)
        except StorageError:
            if bucket not in self._buckets:
                with suppress(StorageError):
                    self._discard(place)
            raise
        self._buckets[bucket] = place

    def release(self, index_id: int, slices: Slices) -> None:
        """Delete slices; the last ones take the bucket's folder along. Raises StorageError.

        Must succeed on a full disk, or nothing would ever make room: it may use the reserve.
        """
        try:
            self._release(index_id, slices)
        except StorageError:
            # What a checkpoint links, deleting does not give back.
            for bucket in self.buckets():
                self.checkpoints(bucket).discard()
            if not self._reserve.give_up():
                raise
            self._release(index_id, slices)

    def _release(self, index_id: int, slices: Slices) -> None:
        for bucket in self.buckets():
            with bucket.lock:
                if bucket.stale:
                    bucket.load()
                here = bucket.slices.get(index_id, NONE) & slices
                if bucket.slices == {index_id: here}:
                    self._discard(bucket)
                elif here:
                    bucket.release(index_id, here)

    def _discard(self, bucket: Bucket) -> None:
        """Delete a bucket's folder. Moved away first, so that no half of it is ever opened."""
        bucket.database.close()
        try:
            self.checkpoints(bucket).discard()
            self._throw_away(bucket.database.folder)
            for left in (draft_of(bucket.database.folder), ready_of(bucket.database.folder)):
                shutil.rmtree(left, ignore_errors=True)
        except OSError as error:
            raise refusal(error, bucket.database.folder) from error
        self._buckets.pop(bucket.name, None)

    def _throw_away(self, folder: Path) -> None:
        trash = self.folder / TRASH
        shutil.rmtree(trash, ignore_errors=True)
        if folder.exists():
            folder.rename(trash)
            shutil.rmtree(trash, ignore_errors=True)

    # -- position ----------------------------------------------------------------------------

    def position(self) -> tuple[int, int] | None:
        """Return the first offset that was not applied yet, and when it was saved (wall, ms)."""
        held = self._meta.get(POSITION)
        return None if held is None else PLACE.unpack(held)

    def cas_base(self) -> int | None:
        """Return the base of all CAS, or None while it is not known."""
        held = self._meta.get(CAS_BASE)
        return None if held is None else WHOLE.unpack(held)[0]

    def save_cas_base(self, base: int) -> None:
        """Save the base of all CAS. Raises StorageError."""
        batch = WriteBatch(raw_mode=True)
        batch.put(CAS_BASE, WHOLE.pack(base))
        self._meta.write(batch, sync=False)

    def rollbacks(self) -> list[bytes]:
        """Return the last rollback of each bucket, as it was saved."""
        return [value for _, value in self._meta.scan(ROLLBACK)]

    def know_rollback(self, bucket: str, value: bytes) -> None:
        """Note the last rollback of a bucket; saved with the position behind it."""
        self._unsaved_entities[ROLLBACK + bucket.encode()] = value

    def rebalance(self) -> bytes:
        """Return the setting `rebalance`, as it was saved; empty: there was none."""
        return self._meta.get(REBALANCE) or b""

    def know_rebalance(self, value: bytes) -> None:
        """Note the setting `rebalance`, empty for none; saved with the position behind it."""
        self._unsaved_entities[REBALANCE] = value

    def indexes(self) -> dict[int, bytes]:
        """Return the index states as they were at `position`."""
        return {NUMBER.unpack(key[len(INDEX) :])[0]: value for key, value in self._meta.scan(INDEX)}

    def save(self, position: int, changes: Mapping[int, bytes | None], at_ms: int) -> None:
        """Save a position, and with it the states that were read before it: all as one.

        Synced if there are changes. Raises StorageError.
        """
        batch = WriteBatch(raw_mode=True)
        for index_id, state in changes.items():
            if state is None:
                batch.delete(INDEX + NUMBER.pack(index_id))
            else:
                batch.put(INDEX + NUMBER.pack(index_id), state)
        for bucket in self._unsaved:
            batch.put(VBUCKETS + bucket.encode(), NUMBER.pack(self._vbuckets[bucket]))
        for key, value in self._unsaved_entities.items():
            batch.put(key, value)
        batch.put(POSITION, PLACE.pack(position, at_ms))
        self._meta.write(batch, sync=bool(changes or self._unsaved_entities))
        self._unsaved.clear()
        self._unsaved_entities.clear()


def _open_copy(checkpoint: Path, target: Path, then: Bucket) -> Bucket:
    """Copy a checkpoint beside `target`, and return the bucket that is there. Raises StorageError:
    `damaged` if that cannot be done, and will not be later."""
    try:
        copied(checkpoint, target)
    except OSError as error:
        if error.errno in PASSING:
            raise StorageError("refused", f"{checkpoint.name}: {error.strerror}") from error
        raise StorageError("damaged", f"{checkpoint.name}: {error.strerror}") from error
    then.load()
    return then


def _know(bucket: Bucket, checkpoints: Sequence[Path]) -> None:
    """Note of what there is a checkpoint: after a restart nobody has made one yet."""
    found = (about(checkpoint) for checkpoint in checkpoints)
    newest = next((one for one in found if one is not None), None)
    bucket.last_persistence = newest.vector.digest() if newest is not None else 0
