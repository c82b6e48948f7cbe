"""What a record is to its connection: here already, the next, or one behind a hole."""

from __future__ import annotations

from typing import Any

import pytest

from coordinator.core.model.stream_records import (
    CATCHUP,
    MAINTENANCE,
    NOT_SAID,
    ConnectionRead,
    KeyVersions,
)
from indexer_sim.bucket import chains
from indexer_sim.bucket.chains import AFTER_A_HOLE, NEWEST_KEPT, NEXT, READ_BEFORE, Chain, Chains


def record(ordinal: int, previous: int, **fields: Any) -> KeyVersions:
    """Return a record without items: of connection 1 of projector 0, unless said otherwise."""
    known: dict[str, Any] = {"kind": MAINTENANCE, "projector": 0, "connection": 1, "number": 1}
    known |= {"bucket": "b", "indexes": (), "builds": (), "items": b"", "at_ms": 0}
    return KeyVersions(ordinal=ordinal, previous=previous, **(known | fields))


@pytest.mark.parametrize(
    ("ordinal", "previous", "place"),
    [
        (4, 3, NEXT),
        (9, 3, NEXT),
        (3, 2, READ_BEFORE),
        (1, 0, READ_BEFORE),
        (5, 4, AFTER_A_HOLE),
        (9, 0, AFTER_A_HOLE),
        (1, NOT_SAID, NEXT),
    ],
)
def test_the_ordinals_tell_what_a_record_is(ordinal: int, previous: int, place: str) -> None:
    chain = Chains()
    chain.follow(record(3, 0), 0)
    assert chain.follow(record(ordinal, previous), 0) == place


def test_the_first_record_of_a_connection_is_the_next_and_any_other_is_behind_a_hole() -> None:
    assert Chains().follow(record(3, 0), 0) == NEXT
    assert Chains().follow(record(3, 2), 0) == AFTER_A_HOLE


def test_partitions_and_connections_are_counted_each_for_itself() -> None:
    chain = Chains()
    chain.follow(record(3, 0), 0)
    assert chain.follow(record(3, 0), 1) == NEXT
    assert chain.follow(record(3, 0, projector=1), 0) == NEXT
    assert chain.follow(record(3, 0, connection=2, kind=CATCHUP), 0) == NEXT


def test_the_newest_maintenance_connections_of_a_projector_supersede_the_others() -> None:
    chain = Chains()
    chain.follow(record(4, 0, projector=1), 0)
    for number in range(1, NEWEST_KEPT + 1):
        chain.follow(record(3, 0, connection=number, number=number), 0)
    assert chain.follow(record(4, 3, connection=1, number=1), 0) == NEXT
    chain.dirty.clear()
    chain.follow(record(1, 0, connection=9, number=9), 0)
    assert set(chain.by_key) == {(0, (1, 1)), *((0, (0, c)) for c in (2, 3, 4, 9))}
    assert chain.dirty == {(0, (0, 1)), (0, (0, 9))}, "what is gone is written, too"


def test_one_that_owns_a_vbucket_is_not_superseded() -> None:
    """A projector may have several: a newer one brings what the older one had lost."""
    chain = Chains()
    for number in range(1, NEWEST_KEPT + 3):
        chain.follow(record(3, 0, connection=number, number=number), 0, lambda: {(0, 1)})
    assert chain.follow(record(4, 3), 0) == NEXT
    assert set(chain.by_key) == {(0, (0, c)) for c in (1, 3, 4, 5, 6)}


def test_a_connection_that_ends_supersedes_nobody() -> None:
    chain = Chains()
    chain.follow(record(3, 0), 0)
    chain.follow(record(1, 0, connection=9, kind=CATCHUP, number=7), 0)
    assert chain.follow(record(4, 3), 0) == NEXT


def test_a_lost_partition_begins_anew() -> None:
    chain = Chains()
    for partition in (0, 1):
        chain.follow(record(3, 0), partition)
    chain.forget(0)
    assert chain.follow(record(4, 3), 0) == AFTER_A_HOLE
    assert chain.follow(record(4, 3), 1) == NEXT


def test_only_maintenance_connections_are_told_of_in_each_partition_there_is() -> None:
    chain = Chains()
    chain.follow(record(3, 0), 0)
    chain.follow(record(8, 0), 2)
    chain.follow(record(5, 0, connection=9, kind=CATCHUP), 0)
    assert chain.read(2) == (ConnectionRead(0, 1, (3, 0)),)


def test_what_was_written_is_taken_up_again() -> None:
    chain, again = Chains(), Chains()
    chain.follow(record(3, 0), 1)
    for (partition, connection), held in chain.by_key.items():
        again.load(partition, connection, Chain(*held))
    assert again.follow(record(3, 0), 1) == READ_BEFORE
    assert again.read(2) == chain.read(2)
    assert not again.dirty - {(1, (0, 1))}


def test_who_was_silent_for_longest_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "CHAINS_MAX", 2)
    chain = Chains()
    for connection in (1, 2, 1, 3):
        chain.follow(record(5, NOT_SAID, connection=connection, kind=CATCHUP), 0)
    assert set(chain.by_key) == {(0, (0, 1)), (0, (0, 3))}


def test_what_is_superseded_is_counted_in_each_partition_for_itself() -> None:
    chain = Chains()
    for number in range(1, NEWEST_KEPT + 1):
        for partition in (0, 1):
            chain.follow(record(3, 0, connection=number, number=number), partition)
    assert len(chain.by_key) == 2 * NEWEST_KEPT
    chain.follow(record(3, 0, connection=9, number=9), 0)
    assert {connection for (p, (_, connection)) in chain.by_key if p == 0} == {2, 3, 4, 9}
    assert {connection for (p, (_, connection)) in chain.by_key if p == 1} == {1, 2, 3, 4}
