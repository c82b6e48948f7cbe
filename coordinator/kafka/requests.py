"""Kafka's requests that no client for Python has, for aiokafka's connection to send.

Each is written down in one version, which all supported brokers know. Nothing here decides what to
ask or what an answer means. Source: the message definitions of Apache Kafka.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from aiokafka.protocol.api import Request, RequestStruct, Response
from aiokafka.protocol.types import (
    Array,
    Boolean,
    CompactArray,
    CompactString,
    Int16,
    Int32,
    Int64,
    Schema,
    String,
    TaggedFields,
)

NAME = ("name", CompactString("utf-8"))
TAGS = ("tags", TaggedFields)


def listed(*fields: tuple[str, Any]) -> CompactArray:
    """Return a list of such entries, each with the tags that all have in a flexible version."""
    return CompactArray(*fields, TAGS)


def by_topic(partitions: CompactArray) -> CompactArray:
    """Return a list of topics, each with such a list of partitions."""
    return listed(NAME, ("partitions", partitions))


class EpochEndsAnswer(Response):  # type: ignore[misc]
    """Where epochs end."""

    API_KEY = 23
    API_VERSION = 3
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("error_code", Int16),
                        ("partition", Int32),
                        ("leader_epoch", Int32),
                        ("end_offset", Int64),
                    ),
                ),
            ),
        ),
    )


class EpochEndsStruct(RequestStruct):  # type: ignore[misc]
    """Asks the leader of partitions for it."""

    API_KEY = 23
    API_VERSION = 3
    RESPONSE_TYPE = EpochEndsAnswer
    SCHEMA = Schema(
        ("replica_id", Int32),
        (
            "topics",
            Array(
                ("topic", String("utf-8")),
                (
                    "partitions",
                    Array(
                        ("partition", Int32),
                        ("current_leader_epoch", Int32),
                        ("leader_epoch", Int32),
                    ),
                ),
            ),
        ),
    )


class EpochEndsRequest(Request[EpochEndsStruct]):  # type: ignore[misc]
    """Asks where epochs end (`OffsetForLeaderEpoch`): as a consumer (-1), whatever the leader's own
    epoch is (-1).
    """

    API_KEY = 23

    def __init__(self, topic: str, epochs: Mapping[int, int]) -> None:
        self._topics = [(topic, [(p, -1, epoch) for p, epoch in sorted(epochs.items())])]

    def build(self, request_struct_class: type[EpochEndsStruct]) -> EpochEndsStruct:
        return request_struct_class(-1, self._topics)


class DescribeProducersAnswer(Response):  # type: ignore[misc]
    """Who writes to partitions, and since when a transaction is open there."""

    API_KEY = 61
    API_VERSION = 0
    SCHEMA = Schema(
        ("throttle_time_ms", Int32),
        (
            "topics",
            by_topic(
                listed(
                    ("partition", Int32),
                    ("error_code", Int16),
                    ("error_message", CompactString("utf-8")),
                    (
                        "active",
                        listed(
                            ("producer", Int64),
                            ("epoch", Int32),
                            ("last_sequence", Int32),
                            ("last_timestamp", Int64),
                            ("coordinator_epoch", Int32),
                            ("transaction_begins", Int64),
                        ),
                    ),
                )
            ),
        ),
        TAGS,
    )


class DescribeProducersStruct(RequestStruct):  # type: ignore[misc]
    """Asks the leader of partitions."""

    API_KEY = 61
    API_VERSION = 0
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = DescribeProducersAnswer
    SCHEMA = Schema(("topics", by_topic(CompactArray(Int32))), TAGS)


class DescribeProducersRequest(Request[DescribeProducersStruct]):  # type: ignore[misc]
    """Asks who writes to partitions, by topic."""

    API_KEY = 61

    def __init__(self, partitions: Mapping[str, Sequence[int]]) -> None:
        self._topics: list[Any] = [(topic, [*numbers], {}) for topic, numbers in partitions.items()]

    def build(self, request_struct_class: type[DescribeProducersStruct]) -> DescribeProducersStruct:
        return request_struct_class(self._topics, {})


class WriteTxnMarkersAnswer(Response):  # type: ignore[misc]
    """What became of each marker."""

    API_KEY = 27
    API_VERSION = 1
    SCHEMA = Schema(
        (
            "markers",
            listed(
                ("producer", Int64),
                ("topics", by_topic(listed(("partition", Int32), ("error_code", Int16)))),
            ),
        ),
        TAGS,
    )


class WriteTxnMarkersStruct(RequestStruct):  # type: ignore[misc]
    """Asks the leader of partitions to write markers."""

    API_KEY = 27
    API_VERSION = 1
    FLEXIBLE_VERSION = True
    RESPONSE_TYPE = WriteTxnMarkersAnswer
    SCHEMA = Schema(
        (
            "markers",
            listed(
                ("producer", Int64),
                ("epoch", Int16),
                ("committed", Boolean),
                ("topics", by_topic(CompactArray(Int32))),
                ("coordinator_epoch", Int32),
            ),
        ),
        TAGS,
    )


class WriteTxnMarkersRequest(Request[WriteTxnMarkersStruct]):  # type: ignore[misc]
    """Ends the transaction of a producer's epoch on one partition."""

    API_KEY = 27

    def __init__(
        self,
        topic: str,
        partition: int,
        producer: int,
        epoch: int,
        coordinator_epoch: int,
        *,
        committed: bool,
    ) -> None:
        topics: list[Any] = [(topic, [partition], {})]
        self._marker: tuple[Any, ...] = (producer, epoch, committed, topics, coordinator_epoch, {})

    def build(self, request_struct_class: type[WriteTxnMarkersStruct]) -> WriteTxnMarkersStruct:
        return request_struct_class([self._marker], {})
