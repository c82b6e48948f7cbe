"""Leases of snapshots: who reads keeps, who does not, does not, and there are few."""

from __future__ import annotations

from typing import NamedTuple

from indexer_sim.bucket.leases import Leases


class Snapshot(NamedTuple):
    number: int


class Given:
    def __init__(self, leases_max: int = 3) -> None:
        self.now_s = 0.0
        self.leases: Leases[Snapshot] = Leases(10, leases_max, lambda: self.now_s)

    def read(self, *numbers: int) -> None:
        for number in numbers:
            known = self.leases.held().get(number)
            found = known if known is not None else Snapshot(number)
            assert self.leases.renew(found, self.leases.revision)
            self.now_s += 1


def test_a_lease_ends_when_nobody_has_read_for_long_enough() -> None:
    given = Given()
    given.read(1)
    given.now_s = 9.9
    assert given.leases.held() == {1: Snapshot(1)}
    given.read(1)
    given.now_s = 19.8
    assert given.leases.held() == {1: Snapshot(1)}
    given.now_s = 19.9
    assert given.leases.held() == {}


def test_who_pages_keeps_a_snapshot_whatever_is_read_once() -> None:
    given = Given()
    given.read(1, 1)
    for number in range(2, 9):
        given.read(number)
    assert given.leases.held().keys() == {1, 7, 8}


def test_where_all_are_paged_a_new_one_finds_no_room() -> None:
    given = Given(leases_max=2)
    given.read(1, 1, 2, 2, 3, 3)
    assert given.leases.held().keys() == {1, 2}
    given.now_s = 11.5
    given.read(3)
    assert given.leases.held().keys() == {2, 3}, "the first has ended"


def test_what_came_after_a_snapshot_can_be_forgotten() -> None:
    given = Given()
    given.read(1, 2, 3)
    revision, third = given.leases.revision, given.leases.held()[3]
    given.leases.forget_above(2)
    assert given.leases.held().keys() == {1, 2}
    assert not given.leases.renew(third, revision), "it was found before"
    assert given.leases.held().keys() == {1, 2}


def test_what_was_found_before_snapshots_were_revised_is_not_leased() -> None:
    given = Given()
    given.read(1)
    revision, found = given.leases.revision, given.leases.held()[1]
    given.leases.revise(lambda snapshot: snapshot)
    assert not given.leases.renew(found, revision)


def test_pages_of_another_snapshot_with_the_same_number_do_not_count() -> None:
    """It was made again, when one more index had become whole: nobody pages through that one."""
    given = Given(leases_max=2)
    for made in (Snapshot(1), Snapshot(1)):
        assert given.leases.renew(made, given.leases.revision)
    given.now_s += 1
    given.read(2, 2, 3)
    assert given.leases.held().keys() == {2, 3}
