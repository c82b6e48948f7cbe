"""Records that do something to who decodes them: each is a dead letter, and reading goes on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator import codec
from coordinator.core.model.entities import INIT, Bucket, Slice
from coordinator.core.model.records import DeadLetter
from coordinator.core.model.stream_records import CatchUpRequested, StabilityTimestamp
from coordinator.kafka.topics import (
    DEAD_LETTER,
    HEARTBEAT,
    HW,
    MUTATIONS,
    STABILITY,
    STATECONTEXT,
    STREAM_REQUEST,
    topic_name,
)
from tests.integration.indexer_bench import Bench
from tests.integration.indexer_process import Cluster, Listener
from tests.integration.indexing import entry
from tests.integration.poison import nested
from tests.integration.projectors import (
    BUCKET,
    VBUCKETS,
    Beats,
    Items,
    ProjectorProcess,
    State,
    Store,
    an_index,
)

pytestmark = pytest.mark.integration


POISON = (b"garbage", b"", nested(400), nested(3_000))


def the_dead_letter(dead_letters: Listener, topic: str, value: bytes) -> DeadLetter:
    found: DeadLetter = dead_letters.hears(
        f"a dead letter of {topic}", lambda r: r.topic == topic and r.value == value
    )
    return found


@pytest.mark.parametrize("topic", [MUTATIONS, STABILITY, STATECONTEXT])
def test_an_indexer_goes_on_after_what_nobody_can_read(
    bench: Bench,
    topic: str,
) -> None:
    stream = bench.build({0: ("a", "Paris")})
    values = list(POISON)
    if topic == STABILITY:
        values.append(codec.encode(StabilityTimestamp(BUCKET, 1, b"short", b"vectors", 0)))
    with bench.cluster.listen(DEAD_LETTER) as dead_letters:
        offsets = [bench.cluster.write_raw(topic, value, b"index/1") for value in values]
        name = topic_name(bench.cluster.name, topic)
        found = [the_dead_letter(dead_letters, name, value).offset for value in values]
        assert sorted(found) == offsets
    stream.put(11, {1: ("b", "Rome")})
    stream.sync(11)
    bench.watermarks.reach(11)
    assert bench.scans().entries() == {entry("a", "Paris"), entry("b", "Rome")}
    for value in POISON:
        bench.cluster.write_raw(HEARTBEAT, value, b"1")
    bench.state.write(an_index(2, INIT, 0, slices=(Slice(0, 1),)))
    bench.acks.answer(2, "allocated")
    assert bench.process.process.poll() is None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    made = Store(tmp_path / "kv")
    made.call("PUT", f"/v1/buckets/{BUCKET}", {"vbuckets": VBUCKETS, "nodes": [0]})
    yield made
    made.close()


def test_a_projector_goes_on_after_what_nobody_can_read(
    cluster: Cluster,
    store: Store,
    tmp_path: Path,
) -> None:
    state, index = State(cluster), an_index(1)
    process = ProjectorProcess(cluster, store.url, 0, tmp_path / "projector")
    try:
        with Beats(cluster) as beats, Items(cluster) as items:
            state.write(Bucket(BUCKET, VBUCKETS), index)
            state.renew([beats.waits(0, under=0)])
            items.built(index)
            request = CatchUpRequested(1, 1, BUCKET, (0, 1), bytes(16), bytes(16), 0)
            cluster.write_raw(STREAM_REQUEST, codec.encode(replace(request, vbuuids=b"short")))
            with cluster.listen(DEAD_LETTER) as dead_letters:
                for topic in (STATECONTEXT, HW, STREAM_REQUEST):
                    for value in POISON:
                        cluster.write_raw(topic, value, b"index/1")
                        the_dead_letter(dead_letters, topic_name(cluster.name, topic), value)
            store.load([("d1", {"city": "Rome"})])
            items.agree(index, store)
        assert process.process.poll() is None
        assert "Traceback" not in process.said
    finally:
        process.kill()
