"""The first contact with Kafka: an error says what is wrong, instead of a wait for ever."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import closing

from confluent_kafka import KafkaError, KafkaException

from coordinator.client.errors import CoordinatorError, error_of
from coordinator.kafka.errors import LoginRefusals, explain, may_pass
from coordinator.kafka.readers import consumer

CONTACT_S = 10.0
PAUSE_S = 0.1


def await_topics(
    bootstrap_servers: str, topics: Sequence[str], contact_s: float, stopping: threading.Event
) -> None:
    """Return when a broker knows the topics, or `stopping` is set.

    CoordinatorError `unreachable`: none answers within `contact_s`; `topics_missing`: one does, and
    does not know them.
    """
    until_s = time.monotonic() + contact_s
    refusals = LoginRefusals()
    with closing(consumer(bootstrap_servers, "contact", error_cb=refusals)) as reader:
        while not stopping.is_set():
            left_s = max(until_s - time.monotonic(), PAUSE_S)
            try:
                known = reader.list_topics(timeout=left_s).topics
            except KafkaException as error:
                if not may_pass(error) or time.monotonic() >= until_s:
                    reader.poll(0)
                    raise fault_of(error, bootstrap_servers, refusals) from None
                stopping.wait(PAUSE_S)
                continue
            missing = [name for name in topics if name not in known]
            if not missing:
                return
            text = f"{bootstrap_servers} has no topics {', '.join(missing)}: is the prefix right?"
            raise error_of("topics_missing", text, {"topics": missing})


def fault_of(
    error: KafkaException, bootstrap_servers: str, refusals: LoginRefusals | None = None
) -> CoordinatorError:
    """Return what to raise for an error of Kafka: `unreachable`, or `kafka_error`."""
    refusal = explain(error, bootstrap_servers, refusals)
    details = {"bootstrap_servers": bootstrap_servers}
    if refusal.code == "kafka_unavailable" or error.args[0].code() == KafkaError._TIMED_OUT:
        return error_of("unreachable", refusal.message, details)
    return error_of("kafka_error", refusal.message, details)
