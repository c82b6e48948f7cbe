"""The timestamps of the buckets over HTTP, as the asked node has read them: any node answers.

They are no part of the state: they have no CAS, and a read of them waits for nothing.
"""

from __future__ import annotations

from typing import Annotated, Any

from confluent_kafka import KafkaException
from fastapi import FastAPI, Query
from starlette.responses import Response

from coordinator.core.model.entities import Bucket
from coordinator.core.timestamps import board as boards
from coordinator.core.timestamps.board import BucketBoard
from coordinator.http import models, timestamp_views
from coordinator.http.aside import HISTORY
from coordinator.http.errors import ApiError
from coordinator.http.shared import MS_MAX, explained, read_answer, read_aside, watermarks
from coordinator.kafka.topics import RESTART, STABILITY
from coordinator.node.shell import Shell

LIMIT, LIMIT_MAX = 10, 100


def add_timestamps(app: FastAPI, shell: Shell) -> None:
    """Add the routes of timestamps."""

    @app.get("/v1/stability", response_model=models.StabilitiesAnswer)
    async def list_stability() -> Response:
        """Show every bucket's newest stability timestamp without its vector, its lag and owners.

        Only the master knows the high watermarks of the indexers: `lag` is null on other nodes.
        """
        node = _read(shell, STABILITY).node
        buckets = {
            held.entity.name: held.entity
            for held in node.state.of_kind("bucket")
            if isinstance(held.entity, Bucket)
        }
        heard = watermarks(node)
        rows = [
            timestamp_views.Row(
                name,
                buckets[name].vbuckets if name in buckets else None,
                boards.of(node.timestamps, name),
                node.state.stream(name),
                None if heard is None else heard.get(name, []),
                peer.beat if (peer := node.peers.application_of(name)) else None,
            )
            for name in sorted({*buckets, *node.timestamps})
        ]
        now_ms, number = node.now.wall_ms, node.config.node
        return await read_aside(shell, lambda: timestamp_views.stabilities(number, rows, now_ms))

    @app.get("/v1/stability/{bucket}", response_model=models.StabilityAnswer)
    async def get_stability(bucket: str) -> Response:
        """Show a bucket's newest stability timestamp: for each vbucket `[vbuuid, seqno]`."""
        held = _board(shell, STABILITY, bucket).stability
        if held is None:
            text = explained(shell, bucket, f"there is no stability timestamp of {bucket} yet")
            raise ApiError("no_stability_timestamp", text, {"bucket": bucket}, status=404)
        now_ms = shell.node.now.wall_ms
        return await read_aside(shell, lambda: timestamp_views.stability(held.record, now_ms))

    @app.get("/v1/stability/{bucket}/history", response_model=models.StabilityHistoryAnswer)
    async def get_stability_history(
        bucket: str,
        before: Annotated[int | None, Query(ge=0, le=MS_MAX)] = None,
        limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT,
        from_ms: Annotated[int, Query(ge=0, le=MS_MAX)] = 0,
        to_ms: Annotated[int | None, Query(ge=0, le=MS_MAX)] = None,
    ) -> Response:
        """Show a bucket's stability timestamps within times, newest first, without their vectors.

        If `next` is not null, ask again with `before` set to it. Retention is seven days.
        """
        _board(shell, STABILITY, bucket)

        def build() -> dict[str, Any]:
            page = shell.stability_log.page(
                bucket, before=before, limit=limit, from_ms=from_ms, to_ms=to_ms
            )
            return timestamp_views.stability_history(bucket, page.timestamps, page.next)

        try:
            found = await HISTORY.run(build)
        except KafkaException as error:
            text = f"stability-history cannot be read: {error.args[0].str()}"
            raise ApiError("unavailable", text) from None
        return read_answer(shell, found)

    @app.get("/v1/restart/{bucket}", response_model=models.RestartAnswer)
    async def get_restart(
        bucket: str, limit: Annotated[int, Query(ge=1, le=LIMIT_MAX)] = LIMIT
    ) -> Response:
        """Show a bucket's last restart timestamps and rollback enquiries, newest first.

        Retention is one hour.
        """
        known = _board(shell, RESTART, bucket)
        now_ms = shell.node.now.wall_ms
        return await read_aside(
            shell, lambda: timestamp_views.restart(bucket, known, limit, now_ms)
        )


def _board(shell: Shell, topic: str, bucket: str) -> BucketBoard:
    """Return what is known of a bucket. Raises ApiError: there is no such bucket."""
    node = _read(shell, topic).node
    if bucket not in node.timestamps and node.state.bucket(bucket) is None:
        if not node.is_following:
            raise ApiError("not_ready", f"this node has not caught up: {node.why_not_ready}")
        raise ApiError("not_found", f"there is no bucket {bucket}", {"bucket": bucket})
    return boards.of(node.timestamps, bucket)


def _read(shell: Shell, topic: str) -> Shell:
    """Return `shell`, which has read the topic from its start: numbers are never seen to fall.

    Raises ApiError: not yet.
    """
    if not shell.has_read(topic):
        raise ApiError("not_ready", "this node has not read the topic of timestamps to its end yet")
    return shell
