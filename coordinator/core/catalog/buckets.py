"""Decisions about buckets whose documents are in a Kafka topic.

Pure, like `ddl`, of which this is a part. The partitions of the topic are the vbuckets; their
number is fixed for as long as the bucket is there. A bucket of the key-value store is nobody's to
add: the first index of it makes it.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from urllib.parse import urlsplit

from coordinator.core.catalog.decisions import (
    Accepted,
    Change,
    Circumstances,
    Decision,
    Unchanged,
    accepted,
    clash,
)
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.model.commands import (
    AddBucket,
    Outcome,
    ReadTopicAgain,
    RemoveBucket,
    Request,
    refused,
)
from coordinator.core.model.entities import (
    DOCUMENT_FORMATS,
    Bucket,
    Index,
    rollback_key,
    stream_key,
)
from coordinator.core.model.names import KAFKA_TOPIC, NAME_RULE, is_name

PARTITIONS_MAX = 1_024
TOPIC_BUCKETS_MAX = 256
REGISTRY_LENGTH_MAX = 1_024
HOST_LENGTH_MAX = 253
URL = re.compile(r"[A-Za-z0-9\-._~:/?#\[\]@!$&'()*+,;=%]+")
"""What a URL may consist of."""

INDEXES_NAMED = 5


def is_of_topic(held: Versioned | None) -> bool:
    """Tell whether this is a bucket whose documents are in a Kafka topic."""
    return held is not None and isinstance(held.entity, Bucket) and bool(held.entity.topic)


def may_change(state: StateContext, name: str) -> bool:
    """Tell whether a bucket may come or go beside a CREATE INDEX on it."""
    held = state.bucket(name)
    return held is None or is_of_topic(held)


def topic_buckets(state: StateContext) -> list[Versioned]:
    """Return the buckets whose documents are in Kafka topics, in the order of their names."""
    return sorted(filter(is_of_topic, state.of_kind("bucket")), key=lambda held: held.entity.key)


def describe_bucket(bucket: Bucket) -> dict[str, Any]:
    """Return a bucket as clients see it; one of the store has no source."""
    shown: dict[str, Any] = {"name": bucket.name, "vbuckets": bucket.vbuckets}
    if bucket.topic:
        shown["source"] = {
            "topic": bucket.topic,
            "format": bucket.format,
            "registry": bucket.registry or None,
            "reading": bucket.reading,
        }
    return shown


def needs_registry(format_name: str) -> bool:
    """Tell whether documents of this format are of schemas that a registry has."""
    return format_name in ("avro", "debezium-avro")


def _add_bucket(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, AddBucket)
    if problem := _invalid_bucket(command):
        return Unchanged(refused("invalid_request", problem))
    held = state.bucket(command.name)
    if held is not None:
        text = f"bucket {command.name} exists"
        return Unchanged(refused("bucket_exists", text, cas=held.cas))
    if command.name in given.vbuckets:
        text = f"the key-value store has a bucket {command.name}"
        return Unchanged(refused("bucket_exists", text))
    if other := clash(request, None):
        return Unchanged(other)
    if sum(1 for _ in topic_buckets(state)) >= TOPIC_BUCKETS_MAX:
        text = f"there are {TOPIC_BUCKETS_MAX} buckets of topics already"
        return Unchanged(refused("too_many_buckets", text))
    bucket = Bucket(
        command.name,
        command.partitions,
        command.topic,
        command.format,
        command.registry,
        read_from_ms=given.wall_ms,
    )
    change = Change("BucketAdded", bucket.key, bucket)
    return accepted(request, (change,), {"bucket": describe_bucket(bucket)})


def _invalid_bucket(command: AddBucket) -> str:
    """Say what is wrong with a bucket, or return an empty text."""
    if not is_name(command.name):
        return f"bucket name {command.name[:40]!r}: {NAME_RULE}"
    if not KAFKA_TOPIC.fullmatch(command.topic):
        return f"topic {command.topic[:40]!r}: that is no name that Kafka takes"
    if command.format not in DOCUMENT_FORMATS:
        return f"format {command.format[:40]!r}: one of {', '.join(DOCUMENT_FORMATS)}"
    if not 1 <= command.partitions <= PARTITIONS_MAX:
        text = f"topic {command.topic} has {command.partitions} partitions"
        return f"{text}: a bucket has 1 to {PARTITIONS_MAX}"
    if needs_registry(command.format) and not command.registry:
        return f"format {command.format} needs the URL of a schema registry"
    if command.registry and not needs_registry(command.format):
        return f"format {command.format} has no schema registry"
    return _invalid_registry(command.registry) if command.registry else ""


def _invalid_registry(url: str) -> str:
    """Say what is wrong with the URL of a registry. A state that all can read has no passwords."""
    if len(url) > REGISTRY_LENGTH_MAX:
        return f"a registry's URL has at most {REGISTRY_LENGTH_MAX} characters"
    try:
        found = urlsplit(url)
        port = found.port
    except ValueError:
        return f"registry {url[:40]!r}: that is no URL"
    if not URL.fullmatch(url) or port == 0 or len(found.hostname or "") > HOST_LENGTH_MAX:
        return f"registry {url[:40]!r}: that is no URL"
    if found.query or found.fragment:
        return "a registry's URL has no query and no fragment"
    if found.scheme not in ("http", "https") or not found.hostname:
        return f"registry {url[:40]!r}: a URL that begins with http:// or https://"
    if "@" in found.netloc:
        return "a registry's URL is for all to read: it has no user and no password in it"
    return ""


def _remove_bucket(state: StateContext, request: Request, given: Circumstances) -> Decision:
    command = request.command
    assert isinstance(command, RemoveBucket)
    held = state.bucket(command.name)
    if held is None or not isinstance(held.entity, Bucket):
        text = f"there is no bucket {command.name[:128]!r}"
        return Unchanged(refused("bucket_not_found", text))
    if not held.entity.topic:
        text = f"bucket {command.name} is of the key-value store: nobody has added it"
        return Unchanged(refused("bucket_of_store", text))
    if other := clash(request, held):
        return Unchanged(other)
    names = sorted(_names_of_indexes(state, command.name))
    if names:
        text = f"bucket {command.name} has indexes: {', '.join(names[:INDEXES_NAMED])}"
        more = f" and {len(names) - INDEXES_NAMED} more" if len(names) > INDEXES_NAMED else ""
        return Unchanged(refused("bucket_in_use", text + more, indexes=len(names)))
    with_it = (stream_key(command.name), rollback_key(command.name))
    changes = (
        *(Change("BucketForgotten", key, None) for key in with_it if state.get(key) is not None),
        Change("BucketRemoved", held.entity.key, None),
    )
    answer = {"bucket": describe_bucket(held.entity)}
    return replace(accepted(request, changes, answer), subject=len(changes) - 1)


def _read_again(state: StateContext, request: Request, given: Circumstances) -> Decision:
    """Begin another reading, with branches of its own: what is held is of none of them.

    So the bucket goes back to nothing, as if the topic had been made anew.
    """
    command = request.command
    assert isinstance(command, ReadTopicAgain)
    held = state.bucket(command.name)
    bucket = held.entity if held is not None else None
    if not isinstance(bucket, Bucket) or not bucket.topic or bucket.reading != command.reading:
        return Unchanged(Outcome("ok"))
    again = replace(bucket, reading=bucket.reading + 1, read_from_ms=given.wall_ms)
    return Accepted((Change("BucketReadAgain", again.key, again),), {})


def _names_of_indexes(state: StateContext, bucket: str) -> list[str]:
    found = (held.entity for held in state.of_kind("index"))
    indexes = (i for i in found if isinstance(i, Index) and i.bucket == bucket)
    return [index.name for index in indexes if not index.part_of]


BUCKET_DECIDERS: dict[type, Callable[[StateContext, Request, Circumstances], Decision]] = {
    AddBucket: _add_bucket,
    ReadTopicAgain: _read_again,
    RemoveBucket: _remove_bucket,
}
