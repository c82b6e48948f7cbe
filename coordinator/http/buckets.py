"""Buckets: those of Kafka topics, which are added and removed, and those of the key-value store.

A bucket of the store comes with its first index. What the projectors say of a topic is no part of
the state: any node hears it.
"""

from __future__ import annotations

from collections import Counter
from typing import Annotated, Any

from fastapi import FastAPI, Query
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from coordinator import codec
from coordinator.core.catalog.buckets import describe_bucket
from coordinator.core.catalog.state import StateContext
from coordinator.core.model import commands
from coordinator.core.model.entities import Bucket, Index
from coordinator.core.model.records import ProjectorHeartbeat
from coordinator.core.model.types import Cas
from coordinator.core.node import Node
from coordinator.http.aside import BUCKETS
from coordinator.http.errors import ApiError
from coordinator.http.execution import (
    IdempotencyKey,
    IfMatch,
    Principal,
    answer,
    execute,
    remembered,
)
from coordinator.http.history import Settle
from coordinator.http.models import Text
from coordinator.http.shared import Consistency, read_answer, read_aside
from coordinator.kafka.errors import KafkaRefusal
from coordinator.node.shell import Shell

NAME_MAX = 256
URL_MAX = 2_048


class SourceBody(BaseModel):
    """The Kafka topic that has a bucket's documents, what its records are, and the URL of their
    schema registry, if the format has one."""

    model_config = ConfigDict(extra="forbid", strict=True)

    topic: Annotated[Text, Field(max_length=NAME_MAX)]
    format: Annotated[Text, Field(max_length=NAME_MAX)] = "json"
    registry: Annotated[Text, Field(max_length=URL_MAX)] | None = None


class BucketBody(BaseModel):
    """A bucket to add."""

    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[Text, Field(max_length=NAME_MAX)]
    source: SourceBody


class SourceModel(BaseModel):
    topic: str
    format: str
    registry: str | None


class BucketModel(BaseModel):
    """A bucket; `source` is null for one of the key-value store."""

    name: str
    vbuckets: int
    source: SourceModel | None


class ReaderModel(BaseModel):
    """A projector that is alive: how many partitions of the topic are its to read, how many records
    it has read since it began that were no documents, and what is wrong with the topic."""

    projector: int
    owned: int
    unreadable: int
    problem: str | None


class ListedBucketModel(BucketModel):
    """`indexes` is how many indexes the bucket has; `projectors` is empty but for topics."""

    cas: Cas
    indexes: int
    projectors: list[ReaderModel]


class BucketAnswer(BaseModel):
    bucket: BucketModel
    cas: Cas
    txn: str = ""


class ShownBucketAnswer(BaseModel):
    bucket: ListedBucketModel
    cas: Cas


class BucketsAnswer(BaseModel):
    buckets: list[ListedBucketModel]
    cas: Cas


def add_buckets(app: FastAPI, shell: Shell, settle: Settle) -> None:
    """Add the routes; `settle` waits until this node may answer a read."""

    @app.post("/v1/buckets", status_code=201, response_model=BucketAnswer)
    async def add_bucket(
        body: BucketBody,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Add a bucket whose documents are in a Kafka topic: its partitions are the vbuckets."""
        source = body.source
        try:
            partitions = await _partitions(shell, source.topic)
        except ApiError:
            await settle("linearizable", 0)
            if remembered(shell, idempotency_key) is None:
                raise
            partitions = 0  # Whatever the topic is now, the first outcome is answered.
        command = commands.AddBucket(
            body.name, source.topic, partitions, source.format, source.registry or ""
        )
        outcome = await execute(
            shell,
            command,
            key=idempotency_key,
            if_match=if_match,
            principal=x_principal,
            fingerprint=codec.hashed(f"{body.model_dump_json()} {if_match}".encode()),
        )
        return answer(outcome, 201)

    @app.get("/v1/buckets", response_model=BucketsAnswer)
    async def list_buckets(
        consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """List the buckets: those of topics, and those of the store that have, or had, indexes."""
        await settle(consistency, at_least)
        state, beats = shell.node.state, _beats(shell.node)
        return await read_aside(shell, lambda: {"buckets": _shown(state, beats), "cas": state.cas})

    @app.get("/v1/buckets/{bucket}", response_model=ShownBucketAnswer)
    async def get_bucket(
        bucket: str, consistency: Consistency = None, at_least: Annotated[int, Query(ge=0)] = 0
    ) -> Response:
        """Show one bucket."""
        await settle(consistency, at_least)
        state = shell.node.state
        found = next((b for b in _shown(state, _beats(shell.node)) if b["name"] == bucket), None)
        if found is None:
            raise ApiError("bucket_not_found", f"there is no bucket {bucket[:128]!r}")
        return read_answer(shell, {"bucket": found, "cas": found["cas"]})

    @app.delete("/v1/buckets/{bucket}", response_model=BucketAnswer)
    async def remove_bucket(
        bucket: str,
        idempotency_key: IdempotencyKey = None,
        if_match: IfMatch = None,
        x_principal: Principal = None,
    ) -> Response:
        """Remove a bucket of a topic that has no indexes. The topic stays as it is."""
        command = commands.RemoveBucket(bucket)
        outcome = await execute(
            shell, command, key=idempotency_key, if_match=if_match, principal=x_principal
        )
        return answer(outcome)


async def _partitions(shell: Shell, topic: str) -> int:
    """Return how many partitions a topic has that can be a bucket. Raises ApiError."""
    try:
        facts = await BUCKETS.run(lambda: shell.examine_topic(topic))
    except KafkaRefusal as error:
        code = "unavailable" if error.code == "kafka_unreachable" else error.code
        raise ApiError(code, error.message) from error
    return facts.partitions


def _beats(node: Node) -> list[ProjectorHeartbeat]:
    """Return the last heartbeats of the projectors that are alive."""
    peers = node.peers
    return [p.beat for _, p in sorted(peers.projectors.items()) if peers.alive(p)]


def _shown(state: StateContext, beats: list[ProjectorHeartbeat]) -> list[dict[str, Any]]:
    """Return all buckets in the order of their names."""
    of_index = (held.entity for held in state.of_kind("index"))
    indexes = Counter(i.bucket for i in of_index if isinstance(i, Index) and not i.part_of)
    held = ((v.entity, v.cas) for v in state.of_kind("bucket"))
    found = [(bucket, cas) for bucket, cas in held if isinstance(bucket, Bucket)]
    return [
        {
            "source": None,
            **describe_bucket(bucket),
            "cas": cas,
            "indexes": indexes[bucket.name],
            "projectors": _readers(bucket.name, beats) if bucket.topic else [],
        }
        for bucket, cas in sorted(found, key=lambda one: one[0].name)
    ]


def _readers(bucket: str, beats: list[ProjectorHeartbeat]) -> list[dict[str, Any]]:
    return [
        {
            "projector": beat.projector,
            "owned": seen.owned,
            "unreadable": seen.unreadable,
            "problem": seen.problem or None,
        }
        for beat in beats
        for seen in beat.topics
        if seen.name == bucket
    ]
