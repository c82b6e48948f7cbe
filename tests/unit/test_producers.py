"""Which of the client's complaints leave it open whether something that was sent still arrives."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from coordinator.kafka.producers import never_connected

TRANSPORT = KafkaError._TRANSPORT


@pytest.mark.parametrize(
    ("code", "text", "harmless"),
    [
        (
            TRANSPORT,
            "k:1/2: Connect to k:1 failed: refused (after 0ms in state CONNECT)",
            True,
        ),
        (TRANSPORT, "k:1/2: Disconnected (after 5ms in state UP)", False),
        (TRANSPORT, "k:1/2: Receive failed: Connection reset by peer", False),
        (TRANSPORT, "", False),
        (KafkaError._ALL_BROKERS_DOWN, "3/3 brokers are down (in state CONNECT)", False),
        (KafkaError._TIMED_OUT, "1 request(s) timed out", False),
    ],
)
def test_only_a_connection_that_never_was_leaves_nothing_in_doubt(
    code: int, text: str, harmless: bool
) -> None:
    assert never_connected(KafkaError(code, text)) is harmless
