"""Laws of failover logs and of the placement in vbuckets."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from projector_sim.kv.vbuckets import check_vbuckets, spread, vbucket_of
from projector_sim.protocol.failover import (
    BRANCHES_MAX,
    Branch,
    FailoverLog,
    branched,
    rollback_seqno,
    shared_seqno,
)
from tests.conftest import examples

LOG: FailoverLog = (Branch(3, 60), Branch(2, 40), Branch(1, 0))
HIGH = 80


@pytest.mark.parametrize(
    ("vbuuid", "start_seqno", "snapshot", "expected"),
    [
        (3, 80, None, None),
        (3, 81, None, 80),
        (3, 0, None, None),
        (9, 0, None, None),
        (9, 1, None, 0),
        (2, 60, None, None),
        (2, 61, None, 60),
        (1, 40, None, None),
        (1, 50, None, 40),
        # A snapshot that was read to its end, or not begun, is none.
        (1, 40, (10, 40), None),
        (1, 10, (10, 70), None),
        (1, 70, (10, 70), 40),
        # One that was read in part counts whole.
        (1, 20, (10, 40), None),
        (1, 20, (10, 41), 10),
        (1, 50, (45, 70), 40),
        (3, 70, (65, 80), None),
    ],
)
def test_a_stream_begins_where_the_histories_are_the_same(
    vbuuid: int, start_seqno: int, snapshot: tuple[int, int] | None, expected: int | None
) -> None:
    assert rollback_seqno(LOG, HIGH, vbuuid, start_seqno, snapshot) == expected


def test_a_start_outside_of_its_snapshot_is_refused() -> None:
    with pytest.raises(ValueError, match="not in the snapshot"):
        rollback_seqno(LOG, HIGH, 3, 70, (71, 80))


def test_a_branch_that_began_in_what_was_lost_shares_only_what_is_left() -> None:
    log = branched(LOG, 4, 50)
    assert log == (Branch(4, 50), Branch(3, 50), Branch(2, 40), Branch(1, 0))
    assert [shared_seqno(log, 55, vbuuid) for vbuuid in (4, 3, 2, 1, 9)] == [55, 50, 50, 40, None]


@examples(50)
@given(st.lists(st.integers(0, 100), max_size=40))
def test_a_log_is_newest_first_and_bounded_and_its_seqnos_never_ascend(losses: list[int]) -> None:
    log: FailoverLog = (Branch(1, 0),)
    for vbuuid, seqno in enumerate(losses, start=2):
        log = branched(log, vbuuid, seqno)
    assert log[0].vbuuid == 1 + len(losses)
    assert len(log) == min(BRANCHES_MAX, 1 + len(losses))
    assert [branch.vbuuid for branch in log] == sorted([b.vbuuid for b in log], reverse=True)
    assert [branch.seqno for branch in log] == sorted([b.seqno for b in log], reverse=True)


# The checksum of "123456789" is the well-known check value of CRC32, 0xCBF43926.
@pytest.mark.parametrize(("vbuckets", "expected"), [(1024, 0x3F4), (64, 0x34), (1, 0)])
def test_a_document_lies_where_the_clients_of_such_stores_look_for_it(
    vbuckets: int, expected: int
) -> None:
    assert vbucket_of(b"123456789", vbuckets) == expected


def test_documents_are_spread_evenly_over_the_vbuckets() -> None:
    counts = [0] * 64
    for number in range(64_000):
        counts[vbucket_of(b"user::%d" % number, 64)] += 1
    assert 800 < min(counts) <= max(counts) < 1200


@pytest.mark.parametrize("vbuckets", [0, -1, 3, 1000, 1 << 16])
def test_a_number_of_vbuckets_that_is_no_power_of_two_is_refused(vbuckets: int) -> None:
    with pytest.raises(ValueError, match="not a power of two"):
        check_vbuckets(vbuckets)


def test_the_nodes_own_shares_of_about_the_same_size() -> None:
    owners = spread(1024, [7, 8, 9])
    assert owners == sorted(owners)
    assert {owners.count(node) for node in (7, 8, 9)} == {341, 342}
    with pytest.raises(ValueError, match="no node"):
        spread(8, [])
