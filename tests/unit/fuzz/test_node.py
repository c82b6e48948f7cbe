"""A node lives on, whatever stands on the topics that it reads, and can be looked at all the time.

Records are well formed, and say anything: what cannot be decoded is tried in
`test_fuzz_decoders.py`. A node may end in order, as where the log contradicts itself; it may not
stumble.
"""

from __future__ import annotations

import json
from typing import Any, get_args

import pytest
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.consensus import inputs
from coordinator.core.model import records
from coordinator.core.model.commands import CreateIndex, PutSetting, Request
from coordinator.core.model.stream_records import (
    ConsolidatedStability,
    FailoverLog,
    HwHeartbeat,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
)
from coordinator.core.timestamps import board as boards
from coordinator.http import rollback_views, timestamp_views, views
from coordinator.http.shared import watermarks
from coordinator.kafka.agents import _commit_read, _timestamps_read
from coordinator.kafka.topics import ACKS, COMMIT, HEARTBEAT, HW, RESTART, STABILITY
from schemas.registry import SchemaError
from tests.support.fuzzing import holds
from tests.support.hostile import NAMED, SCHEMAS, _of
from tests.support.lone_node import LoneNode

pytestmark = pytest.mark.fuzz

assert NAMED

BELONGING: dict[str, tuple[Any, ...]] = {
    COMMIT: get_args(records.CommitRecord),
    ACKS: get_args(records.AckRecord),
    HEARTBEAT: get_args(records.Heartbeat),
    HW: (HwHeartbeat, FailoverLog),
    STABILITY: (StabilityTimestamp, ConsolidatedStability),
    RESTART: (RestartTimestamp, RollbackEnquiry),
}
FED = {ACKS: inputs.AcksRead, HEARTBEAT: inputs.BeatsRead, HW: inputs.StreamsRead}

Event = tuple[str, Any]


def _records_of(topic: str) -> st.SearchStrategy[Event]:
    names = [kind.__name__ for kind in BELONGING[topic] if kind.__name__ in SCHEMAS]
    return st.tuples(st.just(topic), st.sampled_from(names).flatmap(_of))


EVENTS = st.one_of(
    *map(_records_of, BELONGING),
    st.tuples(st.just("time"), st.sampled_from([50, 300, 2_000])),
)
HISTORIES = st.lists(EVENTS, min_size=1, max_size=12)


def _busy() -> LoneNode:
    """Return a master with an index, a setting and an indexer, and somebody who waits."""
    one = LoneNode(serves=True).start().run(2_000)
    for token, command in enumerate(
        (CreateIndex(name="i", bucket="b", expressions=("a",)), PutSetting("k", "1")), 1
    ):
        deadline_ms = one.mono_ms + 60_000
        one.feed(inputs.Requested(Request(command=command, token=token, deadline_ms=deadline_ms)))
    one.run(300)
    one.feed(inputs.ReadRequested(9, one.mono_ms + 60_000, False, 10**9))
    assert one.node.master is not None
    return one


def _lives(history: list[Event]) -> None:
    one = _busy()
    for offset, (topic, given) in enumerate(history):
        if topic == "time":
            one.run(given)
        elif topic == COMMIT:
            one.feed(_commit_read(one.written_by_others(), given))
        elif topic in (STABILITY, RESTART):
            one.feed(_timestamps_read(topic, get_args(boards.Record), offset, given))
        else:
            try:
                record = codec.decode(given)
            except SchemaError:
                continue
            one.feed(FED[topic]((record,)))
        if one.halted is not None:
            assert one.halted.code
            return
    _shown(one)


def _shown(one: LoneNode) -> None:
    """Look at all that the API shows."""
    node = one.node
    shown: list[Any] = [views.members(node), views.indexers(node), views.projectors(node)]
    shown += [views.transactions(node.authority, 100), views.topology(node.state)]
    shown += [views.state(1, node.authority, node.state)]
    shown += [views.indexes(node.state, None, None, node.peers.progress.all())]
    shown += [rollback_views.rollbacks(node.state, watermarks(node))]
    heard = list(node.peers.watermarks.values())
    for bucket in node.timestamps:
        known = boards.of(node.timestamps, bucket)
        peer = node.peers.application_of(bucket)
        beat = peer.beat if peer else None
        row = timestamp_views.Row(bucket, 64, known, node.state.stream(bucket), heard, beat)
        shown.append(timestamp_views.stabilities(1, [row], 0))
        shown.append(timestamp_views.restart(bucket, known, 100, 0))
        if known.stability:
            shown.append(timestamp_views.stability(known.stability.record, 0))
    json.dumps(shown)


def test_no_record_on_any_topic_makes_a_node_stumble() -> None:
    holds(_lives, HISTORIES, portion=20)


def test_the_node_of_this_test_is_one_that_serves() -> None:
    one = _busy()
    assert one.node.state.index_named("b", "i") is not None
    assert one.node.why_not_ready == ""
    _shown(one)
