"""What hangs, and how Kafka's coordinator has decided."""

from __future__ import annotations

import struct

import pytest

from coordinator.kafka.hanging_transactions import (
    Entry,
    Hanging,
    State,
    Writer,
    decision,
    entries_in,
    partition_of,
)

P, E = 6, 43
PLACE = ("c.commit", 0)
HANGING = Hanging(*PLACE, 1, Writer(P, E, 0, 0, 0, 2_878))
BEGUN = Entry(P, E, State.ONGOING, frozenset({PLACE}))
COMMIT, ABORT = State.PREPARE_COMMIT, State.PREPARE_ABORT


def said(state: State, *places: tuple[str, int], epoch: int = E, producer: int = P) -> Entry:
    return Entry(producer, epoch, state, frozenset(places))


@pytest.mark.parametrize(
    ("entries", "committed"),
    [
        ([BEGUN, said(COMMIT, PLACE), said(State.COMPLETE_COMMIT)], True),
        ([BEGUN, said(ABORT, PLACE), said(State.COMPLETE_ABORT)], False),
        # Those that did not write there say nothing of it.
        ([said(ABORT, PLACE), said(COMMIT, ("c.history", 0)), said(COMMIT)], False),
        ([said(COMMIT, PLACE), said(ABORT, ("c.commit", 1)), said(ABORT)], True),
        # Nor does an earlier one.
        ([said(COMMIT, PLACE), said(ABORT, PLACE)], False),
        # The producer was fenced, or the end has raised its epoch.
        ([BEGUN, said(ABORT, PLACE, epoch=E + 1)], False),
        ([BEGUN, said(COMMIT, PLACE, epoch=E + 1)], True),
        # Other epochs and producers do not count.
        ([said(ABORT, PLACE), said(COMMIT, PLACE, epoch=E + 2)], False),
        ([said(COMMIT, PLACE), said(ABORT, PLACE, epoch=E - 1)], True),
        ([said(COMMIT, PLACE, producer=P + 1)], None),
        # Nobody says that it wrote there: all of the epoch must have gone the same way.
        ([said(COMMIT), said(COMMIT)], True),
        ([said(ABORT)], False),
        ([said(COMMIT), said(ABORT)], None),
        ([said(COMMIT), said(ABORT, epoch=E + 1)], True),
        # Nobody knows.
        ([], None),
        ([BEGUN], None),
        ([said(State.COMPLETE_COMMIT)], None),
    ],
)
def test_the_coordinators_log_tells_what_became_of_a_transaction(
    entries: list[Entry], committed: bool | None
) -> None:
    assert decision(entries, HANGING) is committed


@pytest.mark.parametrize(
    ("writer", "hangs"),
    [
        (Writer(P, E, 0, 0, 0, 2_878), True),
        (Writer(P, E, 0, 0, 0, 0), True),
        (Writer(P, E, 0, 0, 0, -1), False),
        (Writer(P, E + 1, 0, 0, 0, 2_878), False),
        (Writer(P, E + 2, 0, 0, 0, 2_878), False),
        (Writer(P + 1, E, 0, 0, 0, 2_878), False),
    ],
)
def test_only_an_open_transaction_of_an_earlier_epoch_hangs(writer: Writer, hangs: bool) -> None:
    """One of a later epoch is that of another node, which has claimed since."""
    assert writer.hangs(P, E + 1) is hangs


def test_a_record_of_the_coordinators_log_is_read_in_all_its_versions() -> None:
    key = struct.pack(">hh", 0, 3) + b"c.m"
    first = struct.pack(">ih", 1, 8) + b"c.commit" + struct.pack(">iii", 2, 0, 3)
    since = b"\2\x09c.commit\3" + struct.pack(">ii", 0, 3) + b"\0"
    wanted = Entry(P, E, State.PREPARE_COMMIT, frozenset({("c.commit", 0), ("c.commit", 3)}))
    for version, listed in ((0, first), (1, since)):
        value = struct.pack(">hqhib", version, P, E, 20_000, 2) + listed + b"\1" * 20
        assert [*entries_in(key, value, "c.m")] == [wanted]
        assert not [*entries_in(key, value, "c.master")]
    for version, none in (
        (0, struct.pack(">i", -1)),
        (0, struct.pack(">i", 0)),
        (1, b"\0"),
        (1, b"\1"),
    ):
        value = struct.pack(">hqhib", version, P, E, 20_000, 0) + none + b"\1" * 20
        assert [*entries_in(key, value, "c.m")] == [Entry(P, E, State.EMPTY)]
    assert not [*entries_in(key, struct.pack(">hqhib", 1, P, E, 20_000, 99) + b"\0", "c.m")]
    assert not [*entries_in(key, None, "c.m")]
    assert not [*entries_in(key, b"\0\1", "c.m")]
    assert not [*entries_in(None, b"", "c.m")]


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("abc", 96_354 % 50),
        ("polygenelubricants", 0),
        ("", 0),
        ("t3637de41.master", 11),
        ("größe.master", 47),
    ],
)
def test_a_transactional_id_has_the_partition_that_java_gives_it(name: str, partition: int) -> None:
    """Java's hash of the second one is the smallest integer."""
    assert partition_of(name, 50) == partition
    assert partition_of(name, 1) == 0
