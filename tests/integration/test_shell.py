"""What the shell of a node has to get over, on a real broker: foreign and oversized input."""

from __future__ import annotations

from collections.abc import Callable

from coordinator import codec
from coordinator.core.records import DeadLetter
from tests.integration.cluster import Cluster, wait_until

Make = Callable[..., Cluster]


def test_records_on_a_topic_where_they_do_not_belong_stop_no_node(make_cluster: Make) -> None:
    cluster = make_cluster(nodes=1, indexers=0).start()
    foreign = codec.encode(DeadLetter("x", 0, 0, "", b"", 0))
    for topic in ("commit", "heartbeat", "acks"):
        cluster.publish(topic, foreign)
    letters = wait_until(lambda: [x.topic for x in cluster.records("dead-letter")][1:], "letters")
    assert "acks" in letters or "heartbeat" in letters
    assert cluster.put("after", 1).status_code == 200
    cluster.nodes[1].stop()
    cluster.nodes[1].start()
    assert cluster.put("again", 1).status_code == 200
