"""What hangs, and how Kafka's coordinator has decided."""

from __future__ import annotations

import struct

import pytest

from coordinator.kafka.hanging_transactions import (
    Entry,
    State,
    Writer,
    decision,
    entries_in,
    partition_of,
)

P, E = 6, 43
BEGUN = Entry(P, E, State.ONGOING)
NEXT = Entry(P, E + 2, State.EMPTY)


def said(state: State, *, epoch: int = E) -> Entry:
    return Entry(P, epoch, state)


@pytest.mark.parametrize(
    ("entries", "committed"),
    [
        ([BEGUN, said(State.PREPARE_COMMIT), said(State.COMPLETE_COMMIT), NEXT], True),
        ([BEGUN, said(State.PREPARE_ABORT), said(State.COMPLETE_ABORT), NEXT], False),
        # An earlier one of the same epoch says nothing of the last one.
        ([BEGUN, said(State.COMPLETE_COMMIT), BEGUN, BEGUN, said(State.PREPARE_ABORT)], False),
        ([BEGUN, said(State.COMPLETE_ABORT), BEGUN, BEGUN, said(State.PREPARE_COMMIT)], True),
        # The producer was fenced, or the end has raised its epoch.
        ([BEGUN, said(State.PREPARE_EPOCH_FENCE, epoch=E + 1)], False),
        ([BEGUN, said(State.PREPARE_COMMIT, epoch=E + 1)], True),
        # Later epochs do not count, where the end is known.
        ([BEGUN, said(State.PREPARE_ABORT), said(State.PREPARE_COMMIT, epoch=E + 2)], False),
        # Nobody knows.
        ([], None),
        ([BEGUN], None),
        ([NEXT], None),
        ([Entry(P + 1, E, State.ONGOING), said(State.COMPLETE_COMMIT)], None),
    ],
)
def test_the_coordinators_log_tells_what_became_of_the_last_transaction(
    entries: list[Entry], committed: bool | None
) -> None:
    assert decision(entries, P, E) is committed


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
    for version, rest in ((0, b"\0" * 20), (1, b"\1" * 30)):
        value = struct.pack(">hqhib", version, P, E, 20_000, 2) + rest
        assert [*entries_in(key, value, "c.m")] == [Entry(P, E, State.PREPARE_COMMIT)]
        assert not [*entries_in(key, value, "c.master")]
    assert not [*entries_in(key, None, "c.m")]
    assert not [*entries_in(key, b"\0\1", "c.m")]
    assert not [*entries_in(None, b"", "c.m")]


@pytest.mark.parametrize(
    ("name", "partition"),
    [
        ("abc", 96_354 % 50),
        ("polygenelubricants", 0),
        ("", 0),
        ("t3637de41.master", 37),
        ("größe.master", 1),
    ],
)
def test_a_transactional_id_has_the_partition_that_java_gives_it(name: str, partition: int) -> None:
    """Java's hash of the second one is the smallest integer."""
    assert partition_of(name, 50) == partition
    assert partition_of(name, 1) == 0
