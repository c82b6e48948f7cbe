"""A bucket without a snapshot in memory goes back to a checkpoint, on real RocksDBs."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from coordinator.core.keys.key_versions import END, UPSERT, Item, attach, begin
from coordinator.core.model.stream_records import BACKFILL, MAINTENANCE
from indexer_sim.bucket import checkpoints
from indexer_sim.bucket.checkpoints import KEPT
from indexer_sim.bucket.database import StorageError
from indexer_sim.bucket.snapshots import UNDO_BYTES, Timeline
from indexer_sim.bucket.storage import Storage
from tests.support.fed_bucket import DOCUMENTS, INDEX, SECOND, VBUCKETS, Feeder, a_rollback
from tests.support.fed_storage import BRANCH
from tests.support.sizes import counted, scanned

BOTH = frozenset({0, 1})


@pytest.fixture
def storage(tmp_path: Path) -> Iterator[Storage]:
    made = Storage(tmp_path, "indexer 1 of cluster demo")
    made.know("b", VBUCKETS)
    made.allocate("b", INDEX, BOTH, b"definition")
    yield made
    made.close()


@pytest.fixture
def fed(storage: Storage) -> Feeder:
    """A bucket with a snapshot, changes after it, a checkpoint of both, and more changes."""
    feeder, chance = Feeder(storage), Random(11)
    for _ in range(20):
        feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
    feeder.sync()
    feeder.then, feeder.there = list(feeder.seqnos), sorted(feeder.newest.values())
    for _ in range(5):
        feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
    feeder.stable(feeder.then)
    storage.make_checkpoint(feeder.bucket)
    for _ in range(9):
        feeder.mutate(chance.choice(DOCUMENTS), chance.randrange(6))
    return feeder


def restart(fed: Feeder) -> None:
    """Forget all that is in memory."""
    fed.bucket.stale = True
    fed.storage.reload(fed.bucket)


def go_back(fed: Feeder, left: dict[int, int] | None = None, number: int = 5) -> str:
    left = dict(enumerate(fed.then)) if left is None else left
    return fed.bucket.roll_back(a_rollback(left, number), fed.storage.earlier(fed.bucket))


def is_there(fed: Feeder) -> None:
    """The bucket stands exactly where its first snapshot was."""
    bucket = fed.bucket
    assert fed.read_all() == fed.there
    assert bucket.published.vector.seqnos.tolist() == fed.then
    assert counted(bucket) == scanned(bucket)
    assert bucket.published.recovering
    assert bucket.published.states[INDEX].complete


@pytest.mark.parametrize("again", [False, True])
def test_after_a_restart_a_bucket_goes_back_to_the_snapshot_of_a_checkpoint(
    fed: Feeder, again: bool
) -> None:
    """It can be scanned there, and stands there after another restart."""
    offsets, shards = dict(fed.bucket.offsets), dict(fed.bucket.shards)
    restart(fed)
    assert go_back(fed) == "back to timestamp 1, from a checkpoint"
    assert fed.held() == [1]
    assert [entry.number for entry in fed.bucket.timeline.available().values()] == [1]
    if again:
        restart(fed)
    is_there(fed)
    assert (fed.bucket.offsets, fed.bucket.shards) == (offsets, shards)
    assert fed.bucket.rolled_back == 5
    assert go_back(fed) == "", "it was done already"
    fed.seqnos, newest = list(fed.then), fed.bucket.tracker.progress[0].number
    begun = [begin(v, s, BRANCH, [0]) for v, s in enumerate(fed.seqnos)]
    fed.apply(MAINTENANCE, 9, *begun, number=newest + 1)
    assert not fed.bucket.published.recovering
    fed.mutate(b"d0", 5, connection=9, number=newest + 1)
    assert b"1\x905\x00d0" in fed.read_all()


def test_with_a_snapshot_in_memory_no_checkpoint_is_looked_at(fed: Feeder) -> None:
    def none() -> Iterator[Any]:
        raise AssertionError
        yield

    left = dict(enumerate(fed.then))
    assert fed.bucket.roll_back(a_rollback(left), none()) == "back to timestamp 1"
    is_there(fed)


def test_a_checkpoint_that_has_something_of_what_was_lost_is_not_used(fed: Feeder) -> None:
    restart(fed)
    assert go_back(fed, {0: fed.then[0] - 1}) == "back to 0"
    assert fed.read_all() == []


def test_of_several_checkpoints_the_newest_counts_that_has_nothing_of_what_was_lost(
    fed: Feeder,
) -> None:
    fed.sync()
    fed.stable()
    fed.storage.make_checkpoint(fed.bucket)
    restart(fed)
    assert go_back(fed) == "back to timestamp 1, from a checkpoint"
    is_there(fed)


def test_an_index_that_came_since_is_emptied_and_one_that_went_stays_away(fed: Feeder) -> None:
    fed.storage.allocate("b", SECOND, frozenset({0}), b"second")
    begun = [attach(v, s, BRANCH, 1) for v, s in enumerate(fed.seqnos)]
    items = [Item(UPSERT, v, 1, 0, 0, b"e%d" % v, b"\x90\x31\x00") for v in range(VBUCKETS)]
    ends = [Item(END, v, s) for v, s in enumerate(fed.seqnos)]
    backfill = [begin(v, 0, BRANCH, [0]) for v in range(VBUCKETS)]
    fed.apply(MAINTENANCE, 1, *begun, indexes=(INDEX, SECOND))
    fed.apply(BACKFILL, 8, *backfill, *items, *ends, indexes=(SECOND,))
    assert fed.bucket.published.states[SECOND].complete
    fed.storage.make_checkpoint(fed.bucket)
    fed.storage.allocate("b", 3, frozenset({1}), b"third")
    fed.storage.release(SECOND, frozenset({0}))
    restart(fed)
    assert go_back(fed) == "back to timestamp 1, from a checkpoint"
    is_there(fed)
    for _ in range(2):
        assert fed.storage.held == {INDEX: BOTH, 3: frozenset({1})}
        assert fed.bucket.shards.keys() == {INDEX, 3}
        assert not fed.bucket.published.states[3].complete
        assert SECOND not in fed.bucket.published.states
        restart(fed)


def test_a_slice_that_has_gone_since_does_not_come_back(fed: Feeder) -> None:
    fed.storage.release(INDEX, frozenset({1}))
    restart(fed)
    assert go_back(fed) == "back to timestamp 1, from a checkpoint"
    assert fed.storage.held == {INDEX: frozenset({0})}
    assert fed.read_all() == [entry for entry in fed.there if entry.startswith(b"0")]
    assert counted(fed.bucket) == scanned(fed.bucket)
    while not fed.bucket.back_index.is_swept:
        fed.bucket.sweep()
    restart(fed)
    assert fed.bucket.back_index.is_swept


@pytest.mark.parametrize("how", ["storage", "build"])
def test_an_index_that_began_anew_since_is_not_what_it_was(fed: Feeder, how: str) -> None:
    if how == "storage":
        fed.storage.allocate("b", INDEX, BOTH, b"definition")
        begun = [attach(v, s, BRANCH, 0) for v, s in enumerate(fed.seqnos)]
        backfill = [begin(v, 0, BRANCH, [0]) for v in range(VBUCKETS)]
        fed.apply(MAINTENANCE, 1, *begun)
        fed.apply(BACKFILL, 8, *backfill, *(Item(END, v, s) for v, s in enumerate(fed.seqnos)))
        assert fed.bucket.published.states[INDEX].complete
    else:
        fed.bucket.begin_builds({INDEX: 2})
    restart(fed)
    assert go_back(fed, {0: fed.then[0], 1: fed.then[1]}) in ("back to 0", NOTHING)
    assert fed.read_all() == []
    assert not fed.bucket.published.states[INDEX].complete


NOTHING = "nothing that was lost was held"


def test_what_a_rollback_has_rejected_is_never_used_again(fed: Feeder) -> None:
    """A later one may leave more, by number; but on another branch."""
    restart(fed)
    assert go_back(fed, {0: 1, 1: 1}) == "back to 0"
    fed.apply(MAINTENANCE, 9, *(begin(v, 0, BRANCH + 7, [0]) for v in range(VBUCKETS)), number=7)
    begun = [begin(v, 0, BRANCH + 7, [0]) for v in range(VBUCKETS)]
    fed.apply(BACKFILL, 10, *begun, *(Item(END, v, 0) for v in range(VBUCKETS)))
    fed.seqnos = [0] * VBUCKETS
    for value in range(60):
        fed.mutate(DOCUMENTS[value % 6], 1 + value % 5, connection=9, number=7)
    left = {vbucket: seqno + 2 for vbucket, seqno in enumerate(fed.then)}
    assert all(seqno > left[vbucket] for vbucket, seqno in enumerate(fed.seqnos))
    restart(fed)
    assert go_back(fed, left, number=12) == "back to 0"
    assert fed.read_all() == []


def test_a_checkpoint_of_which_not_all_can_be_undone_is_of_no_timestamp(storage: Storage) -> None:
    feeder = Feeder(storage)
    feeder.bucket.timeline = Timeline(undo_bytes_max=3 * (UNDO_BYTES + 60))
    feeder.mutate(b"d0", 1)
    feeder.sync()
    feeder.stable()
    feeder.then = list(feeder.seqnos)
    assert feeder.bucket.about().number == 1
    for value in range(2, 9):
        feeder.mutate(b"d0", value % 6)
    assert feeder.bucket.about().number == 0
    storage.make_checkpoint(feeder.bucket)
    restart(feeder)
    assert go_back(feeder) == "back to 0"


@pytest.mark.thorough
@pytest.mark.parametrize("step", ["before", "between"])
@pytest.mark.parametrize("again", ["loaded", "started"])
def test_whatever_ends_it_in_the_middle_it_is_done_in_the_end(
    fed: Feeder, monkeypatch: pytest.MonkeyPatch, step: str, again: str
) -> None:
    """Once the other database is ready, it takes the place by itself: nothing of now is lost."""
    fed.storage.allocate("b", 3, frozenset({1}), b"third")
    restart(fed)
    folder = fed.bucket.database.folder
    rename = Path.rename

    def refused(path: Path, to: Path) -> Path:
        if to.name == folder.name if step == "between" else to.name.startswith(f".{folder.name}"):
            raise OSError("no")
        return rename(path, to)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refused)
        with pytest.raises(StorageError):
            go_back(fed)
    assert folder.exists() == (step == "before")
    if again == "started":
        fed.storage.close()
        fed.storage = Storage(fed.storage.folder, "indexer 1 of cluster demo")
        fed.storage.know("b", VBUCKETS)
    else:
        restart(fed)
    said = "back to timestamp 1, from a checkpoint" if step == "before" else ""
    assert go_back(fed) == said
    is_there(fed)
    assert fed.storage.held == {INDEX: BOTH, 3: frozenset({1})}
    assert [path.name for path in folder.parent.iterdir()] == ["b"]
    fed.storage.close()


@pytest.mark.parametrize("how", ["lists", "tables"])
def test_a_damaged_checkpoint_is_passed_over_and_what_is_here_is_kept(
    fed: Feeder, how: str
) -> None:
    """Also where the damage shows only when the first document is looked up."""
    newest, *_ = fed.storage.checkpoints(fed.bucket).found()
    for path in (newest / "db").glob("MANIFEST-*" if how == "lists" else "*.sst"):
        raw = path.read_bytes()
        path.unlink()
        if how == "tables":
            path.write_bytes(b"\xff" * (len(raw) // 2) + raw[len(raw) // 2 :])
    restart(fed)
    epoch = fed.storage.epoch
    assert go_back(fed) == "back to 0"
    assert (fed.read_all(), fed.storage.epoch) == ([], epoch)
    assert [path.name for path in fed.bucket.database.folder.parent.iterdir()] == ["b"]


def test_for_want_of_room_it_is_tried_again(fed: Feeder, monkeypatch: pytest.MonkeyPatch) -> None:
    restart(fed)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space left")

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", full)
        with pytest.raises(StorageError):
            go_back(fed)
    restart(fed)
    assert go_back(fed) == "back to timestamp 1, from a checkpoint"
    is_there(fed)


def test_what_says_of_when_a_checkpoint_is_is_not_used_if_it_is_damaged(fed: Feeder) -> None:
    newest, *_ = fed.storage.checkpoints(fed.bucket).found()
    file = newest / "about"
    raw = file.read_bytes()
    for at in range(0, len(raw), 7):
        file.write_bytes(raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :])
        assert checkpoints.about(newest) is None
        file.write_bytes(raw[:at])
        assert checkpoints.about(newest) is None
    restart(fed)
    assert go_back(fed) == "back to 0"


def test_checkpoints_of_no_timestamp_do_not_push_out_the_newest_that_has_one(fed: Feeder) -> None:
    """After a restart there is no snapshot for a while, and a checkpoint each ten seconds."""
    restart(fed)
    for value in range(1, 2 * KEPT):
        fed.mutate(b"d0", value % 6)
        fed.storage.make_checkpoint(fed.bucket)
    assert len(fed.storage.checkpoints(fed.bucket).found()) == KEPT + 1
    assert go_back(fed) == "back to timestamp 1, from a checkpoint"
    is_there(fed)


def test_a_snapshot_that_is_made_while_nothing_is_written_gets_a_checkpoint(
    storage: Storage,
) -> None:
    feeder = Feeder(storage)
    feeder.mutate(b"d0", 1)
    feeder.sync()
    storage.make_checkpoint(feeder.bucket)
    feeder.stable()
    storage.make_checkpoint(feeder.bucket)
    newest, *_ = storage.checkpoints(feeder.bucket).found()
    found = checkpoints.about(newest)
    assert found is not None
    assert found.number == 1


def test_copies_that_nobody_needs_any_more_are_deleted(fed: Feeder) -> None:
    """What they link takes room on the disk."""
    folder = fed.bucket.database.folder
    left = checkpoints.draft_of(folder), checkpoints.ready_of(folder)
    left[0].mkdir()
    fed.storage.close()
    fed.storage = Storage(fed.storage.folder, "indexer 1 of cluster demo")
    assert not left[0].exists()
    for one in left:
        one.mkdir()
    fed.storage.release(INDEX, BOTH)
    assert not any(one.exists() for one in left)
    fed.storage.close()
