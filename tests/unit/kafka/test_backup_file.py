"""The file of a backup: whatever happens to it, it is refused, or it is as it was written."""

from __future__ import annotations

import io
import random
import tracemalloc
from dataclasses import replace
from itertools import pairwise

import pytest

from coordinator import codec
from coordinator.backup import container
from coordinator.backup.container import END, HEAD, MAGIC, NUMBER, SUM, Writer, read_frames
from coordinator.backup.contents import STATE, BackupWriter, Manifest, read_backup, read_changes
from coordinator.backup.errors import BackupError
from coordinator.client.request_ids import uuid7
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.model import digest as digests
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas
from tests.support.changes import ONE, THREE, TWO, a_transaction, flat, written

MANY = [a_transaction(10 + n, 20 + 3 * n, written(f"k{n % 5}", f'"{n}"')) for n in range(40)]
EVENTS = flat(ONE, TWO, THREE, *MANY)
SAMPLES = 600


def folded(events: list[Event]) -> StateContext:
    return states.evolve(states.EMPTY, ((event.mutation, event.cas) for event in events))


def a_backup(
    events: list[Event] = EVENTS,
    *,
    before: list[Event] | None = None,
    says: StateContext | None = None,
    authority_of: StateContext | None = None,
    torn: list[Event] | None = None,
) -> bytes:
    """Return a file of these changes after those before; `says`: the state that it says it is.

    `authority_of`: the state that its Authority names; `torn`: changes that lead to nothing.
    """
    base = folded(before or [])
    state = says or folded([*(before or []), *events])
    digest = digests.text(state.digest)
    manifest = Manifest(
        cluster="c",
        cluster_id="id",
        cas=state.cas,
        digest=digest,
        history_after=base.cas,
        made_at_ms=1,
        version="1",
    )
    authority = AuthorityState(
        cluster_id="id",
        cas_base=1,
        roster=(1, 2, 3),
        minimum=2,
        log_capacity=10,
        request_window_ms=5,
        last_cas=(authority_of or state).cas,
        digest=(authority_of or state).digest,
    )
    file = io.BytesIO()
    writer = BackupWriter(file, manifest, authority)
    writer.base(base)
    for event in [*events, *(torn or [])]:
        writer.change(codec.encode(event))
    writer.end(folded([*(before or []), *events]))
    return file.getvalue()


WHOLE = a_backup()


def boundaries(data: bytes) -> list[int]:
    """Return where each frame begins, and where the last one ends."""
    at = len(MAGIC) + NUMBER.size
    found = [0, at]
    while at < len(data):
        _, length = HEAD.unpack_from(data, at)
        at += HEAD.size + length + SUM.size
        found.append(at)
    return found


def code_of(data: bytes) -> str:
    with pytest.raises(BackupError) as caught:
        read_backup(io.BytesIO(data))
    return caught.value.code


def test_a_backup_is_read_as_it_was_written() -> None:
    found = read_backup(io.BytesIO(WHOLE))
    assert found.state == folded(EVENTS)
    assert (found.base, found.changes, found.size) == (states.EMPTY, len(EVENTS), len(WHOLE))
    changes = [*read_changes(io.BytesIO(WHOLE))]
    assert [change.event for change in changes] == EVENTS
    assert [change.raw for change in changes] == [codec.encode(event) for event in EVENTS]


def test_a_backup_of_a_part_of_the_history_has_the_state_before_it() -> None:
    before, after = flat(ONE, TWO), flat(THREE, *MANY)
    found = read_backup(io.BytesIO(a_backup(after, before=before)))
    assert (found.base, found.state) == (folded(before), folded(EVENTS))
    assert found.changes == len(after)


def test_a_state_without_a_change_is_no_backup() -> None:
    """Only a change says what came before it: the past of the new cluster would be empty."""
    assert code_of(a_backup([], before=flat(ONE, TWO))) == "backup_damaged"


def test_what_is_repeated_from_before_the_newest_request_is_too_old() -> None:
    """Also where the clock of its client was ahead of the master's."""
    ahead_ms = EVENTS[-1].mutation.at_ms + 200_000
    mutation = replace(EVENTS[-1].mutation, request=uuid7(ahead_ms, 1))
    found = read_backup(
        io.BytesIO(a_backup([*EVENTS[:-1], replace(EVENTS[-1], mutation=mutation)]))
    )
    assert found.newest_ms == ahead_ms


def test_an_empty_cluster_has_a_backup() -> None:
    assert read_backup(io.BytesIO(a_backup([]))).state == states.EMPTY


def test_a_flipped_bit_is_refused_wherever_it_is() -> None:
    chance = random.Random(1)
    ends = boundaries(WHOLE)
    near = {at + step for at in ends for step in range(-6, 7) if 0 <= at + step < len(WHOLE)}
    for at in sorted(near | set(chance.sample(range(len(WHOLE)), SAMPLES))):
        data = bytearray(WHOLE)
        data[at] ^= 1 << chance.randrange(8)
        assert code_of(bytes(data)) in ("backup_damaged", "not_a_backup", "backup_version"), at


def test_a_file_that_ends_early_is_refused_wherever_it_ends() -> None:
    chance = random.Random(2)
    ends = boundaries(WHOLE)
    assert ends[-1] == len(WHOLE)
    near = {at + step for at in ends for step in (-1, 0, 1) if 0 <= at + step < len(WHOLE)}
    for at in sorted(near | set(chance.sample(range(len(WHOLE)), SAMPLES // 4))):
        assert code_of(WHOLE[:at]) in ("backup_damaged", "not_a_backup"), at


def test_a_frame_that_is_left_out_doubled_or_moved_is_refused() -> None:
    ends = boundaries(WHOLE)[1:]
    frames = [WHOLE[a:b] for a, b in pairwise(ends)]
    head = WHOLE[: ends[0]]
    for number in range(len(frames) - 1):
        left_out = [*frames[:number], *frames[number + 1 :]]
        doubled = [*frames[: number + 1], *frames[number:]]
        moved = [*frames[:number], frames[number + 1], frames[number], *frames[number + 2 :]]
        for wrong in (left_out, doubled, moved):
            assert code_of(head + b"".join(wrong)) == "backup_damaged"
    assert code_of(WHOLE + b"\0") == "backup_damaged"


def test_what_is_no_backup_or_one_of_another_format_is_told_apart() -> None:
    assert code_of(b"") == "not_a_backup"
    assert code_of(b"SQLite format 3\0" * 100) == "not_a_backup"
    newer = MAGIC + NUMBER.pack(container.VERSION + 1) + WHOLE[len(MAGIC) + NUMBER.size :]
    assert code_of(newer) == "backup_version"


@pytest.mark.parametrize("length", [container.FRAME_BYTES_MAX + 1, 2**31, 2**32 - 1])
def test_no_room_is_made_for_a_length_that_no_frame_has(length: int) -> None:
    begin = boundaries(WHOLE)[1]
    data = WHOLE[:begin] + HEAD.pack(1, length) + WHOLE[begin + HEAD.size :]
    tracemalloc.start()
    try:
        assert code_of(data) == "backup_damaged"
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < container.FRAME_BYTES_MAX


def test_a_file_whose_checksums_are_right_must_have_the_state_that_it_says() -> None:
    assert code_of(a_backup(says=folded(flat(ONE)))) == "backup_damaged"
    torn = [*flat(ONE), *TWO[:1]]
    assert code_of(a_backup(torn)) == "backup_damaged", "a transaction is not whole"
    assert code_of(a_backup(flat(ONE), torn=[TWO[0]])) == "backup_damaged", "the last is not whole"
    other = folded([*EVENTS[:-1], replace(EVENTS[-1], cas=Cas(EVENTS[-1].cas + 1))])
    for authority_of in (folded(flat(ONE)), other):
        assert code_of(a_backup(authority_of=authority_of)) == "backup_damaged"
    file = io.BytesIO()
    writer = Writer(file)
    writer.frame(1, b"{}")
    writer.end()
    assert code_of(file.getvalue()) == "backup_damaged"


def test_a_file_whose_checksums_are_right_must_have_a_cas_that_can_be() -> None:
    file, made = io.BytesIO(), io.BytesIO(WHOLE)
    writer = Writer(file)
    for kind, payload in read_frames(made):
        if kind == STATE:
            chunk = codec.decode(payload)
            first = replace(chunk.entries[0], cas=-1)
            payload = codec.encode(replace(chunk, entries=(first, *chunk.entries[1:])))
        writer.frame(kind, payload)
    writer.end()
    with pytest.raises(BackupError) as refused:
        read_backup(file)
    assert refused.value.code == "backup_damaged"


def test_frames_are_any_bytes_and_the_end_is_not_among_them() -> None:
    file = io.BytesIO()
    writer = Writer(file)
    for payload in (b"", b"\0" * 1_000, MAGIC):
        writer.frame(7, payload)
    writer.end()
    file.seek(0)
    found = [*read_frames(file)]
    assert found == [(7, b""), (7, b"\0" * 1_000), (7, MAGIC)]
    assert END not in {frame.kind for frame in found}
    assert writer.size == len(file.getvalue())
