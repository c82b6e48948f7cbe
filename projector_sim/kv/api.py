"""The HTTP API of the key-value store: buckets, documents, streams, and levers to hurt it with."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import suppress
from dataclasses import asdict
from typing import Annotated, Any

import orjson
from fastapi import FastAPI, Query, Request
from starlette.requests import ClientDisconnect
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from coordinator.core.model.types import Seqno
from coordinator.runtime.http_guard import JSON, Guard
from projector_sim.kv.api_errors import (
    BoundedBodies,
    Refusal,
    add_handlers,
    error_response,
    json_response,
)
from projector_sim.kv.documents import (
    DocumentError,
    Loader,
    document_key,
    dump,
    expiry_of,
    loads,
    packed,
)
from projector_sim.kv.errors import KvError
from projector_sim.kv.hub import Hub, Live
from projector_sim.kv.models import BucketBody, CrashBody, FaultBody, MoveBody, StreamBody
from projector_sim.kv.vbuckets import vbucket_of

log = logging.getLogger("kv")

WATCH_S = 2.0
EVERY_MAX = 1_000_000
NDJSON = "application/x-ndjson"


def build_app(hub: Hub, hosts: Iterable[str] = ()) -> FastAPI:
    """Return the ASGI application of the store, which is known by these hosts."""
    app = FastAPI(title="Key-value store", version="1", redirect_slashes=False)
    app.add_middleware(BoundedBodies)
    app.add_middleware(Guard, hosts=hosts, media_types=(JSON, NDJSON))
    add_handlers(app)

    @app.exception_handler(ValueError)
    async def invalid(request: Request, error: ValueError) -> Response:
        code = error.code if isinstance(error, DocumentError) else "invalid_request"
        return error_response(KvError(code, str(error)))

    _add_buckets(app, hub)
    _add_documents(app, hub)
    _add_streams(app, hub)
    _add_levers(app, hub)
    return app


def now_ms() -> int:
    return int(time.time() * 1000)


def _add_buckets(app: FastAPI, hub: Hub) -> None:
    @app.get("/v1/buckets")
    async def buckets() -> Response:
        """List the buckets."""
        return json_response({"buckets": [_bucket(hub, name) for name in hub.store.buckets]})

    @app.put("/v1/buckets/{name}")
    async def create(name: str, body: BucketBody | None = None) -> Response:
        """Make a bucket, if it is not there."""
        body = body or BucketBody(vbuckets=None)
        _, made = hub.create(name, body.vbuckets, body.nodes)
        return json_response(_bucket(hub, name), 201 if made else 200)

    @app.delete("/v1/buckets/{name}")
    async def drop(name: str) -> Response:
        """Delete a bucket with all that is in it."""
        hub.drop(name)
        return json_response({"dropped": name})

    @app.get("/v1/buckets/{name}/vbuckets")
    async def vbuckets(name: str, failover_logs: bool = False) -> Response:
        """Show the owner, vbuuid and high seqno of each vbucket; its failover log if asked."""
        bucket = hub.store.bucket(name)
        found: dict[str, Any] = {
            "bucket": name,
            "vbuckets": bucket.vbuckets,
            "owners": bucket.owners(),
            "vbuuids": [str(vbuuid) for vbuuid in bucket.vbuuids()],
            "high_seqnos": [str(seqno) for seqno in bucket.high_seqnos()],
        }
        if failover_logs:
            found["failover_logs"] = [
                [{"vbuuid": str(b.vbuuid), "seqno": str(b.seqno)} for b in bucket.failover_log(v)]
                for v in range(bucket.vbuckets)
            ]
        return json_response(found)

    @app.get("/v1/watch")
    async def watch() -> Response:
        """Tell of the buckets, at every change of them or of their owners, and now and then."""
        return StreamingResponse(_watched(hub), media_type=NDJSON)


def _bucket(hub: Hub, name: str) -> dict[str, Any]:
    bucket = hub.store.bucket(name)
    return {
        "name": name,
        "vbuckets": bucket.vbuckets,
        "nodes": sorted(set(bucket.owners())),
        "documents": bucket.count(),
        "high_seqnos_sum": str(sum(bucket.high_seqnos())),
    }


async def _watched(hub: Hub) -> AsyncIterator[bytes]:
    changed = asyncio.Event()
    hub.watch(changed.set)
    try:
        while not hub.stopping:
            changed.clear()
            yield orjson.dumps(hub.watched()) + b"\n"
            with suppress(TimeoutError):
                async with asyncio.timeout(WATCH_S):
                    await changed.wait()
    finally:
        hub.unwatch(changed.set)


def _add_documents(app: FastAPI, hub: Hub) -> None:
    path = "/v1/buckets/{name}/documents"

    @app.get(path)
    async def get_all(
        name: str, every: Annotated[int, Query(ge=1, le=EVERY_MAX)] = 1, ids: bool = False
    ) -> Response:
        """Dump the documents of one moment as lines of JSON; or about one of `every`."""
        lines = dump(hub.store.bucket(name), every=every, ids_only=ids)

        async def pieces() -> AsyncIterator[bytes]:
            for piece in lines:
                yield piece
                await asyncio.sleep(0)

        return StreamingResponse(pieces(), media_type=NDJSON)

    @app.post(path)
    async def load(name: str, request: Request) -> Response:
        """Write and delete documents, one a line, while they come in."""
        loader = Loader(hub.store.bucket(name), now_ms())
        try:
            async for piece in request.stream():
                if loader.feed(piece):
                    await asyncio.sleep(0)
            loaded = loader.finish()
        except KvError as error:
            raise Refusal(error.code, error.message, asdict(loader.loaded)) from None
        except ClientDisconnect:
            raise Refusal("invalid_request", "the lines came to no end") from None
        return json_response(asdict(loaded))

    @app.get(path + "/{key:path}")
    async def get(name: str, key: str) -> Response:
        """Return a document, with where it is."""
        bucket = hub.store.bucket(name)
        found = bucket.newest(document_key(key))
        if found is None or found.value is None:
            raise KvError("not_found", f"there is no document {key}")
        vbucket = vbucket_of(found.key, bucket.vbuckets)
        return json_response(
            {
                "id": key,
                "vbucket": vbucket,
                "vbuuid": str(bucket.failover_log(vbucket)[0].vbuuid),
                "seqno": str(found.seqno),
                "expiry_ms": found.expiry_ms or None,
                "doc": orjson.Fragment(found.value),
            }
        )

    @app.put(path + "/{key:path}")
    async def put(
        name: str, key: str, request: Request, expires_in_s: float | None = None
    ) -> Response:
        """Write a document: the body."""
        bucket = hub.store.bucket(name)
        value = packed(loads(await request.body()))
        placed = bucket.upsert(document_key(key), value, expiry_of(expires_in_s, now_ms()))
        return _placed(hub, name, key, *placed)

    @app.delete(path + "/{key:path}")
    async def delete(name: str, key: str) -> Response:
        """Delete a document."""
        placed = hub.store.bucket(name).delete(document_key(key))
        if not placed.seqno:
            raise KvError("not_found", f"there is no document {key}")
        return _placed(hub, name, key, *placed)


def _placed(hub: Hub, name: str, key: str, vbucket: int, seqno: Seqno) -> Response:
    vbuuid = hub.store.bucket(name).failover_log(vbucket)[0].vbuuid
    return json_response(
        {"id": key, "vbucket": vbucket, "vbuuid": str(vbuuid), "seqno": str(seqno)}
    )


def _add_streams(app: FastAPI, hub: Hub) -> None:
    @app.post("/v1/streams")
    async def stream(body: StreamBody) -> Response:
        """Stream mutations, as frames, until the client goes or all vbuckets have ended."""
        return _StreamResponse(hub, hub.connect(body.request(hub.store.bucket(body.bucket))))

    @app.get("/v1/connections")
    async def connections() -> Response:
        """List the connections that stream."""
        living = hub.connections.values()
        return json_response({"connections": [live.connection.describe() for live in living]})

    @app.delete("/v1/connections/{connection:path}")
    async def close(connection: str) -> Response:
        """End a connection: it is told so, and sent nothing more."""
        hub.close(connection, "closed on request")
        return json_response({"closed": connection})


class _StreamResponse(Response):
    """Frames, until the end. A connection that breaks has no end: the client sees half a body."""

    def __init__(self, hub: Hub, live: Live) -> None:
        super().__init__()
        self._hub = hub
        self._live = live

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def send_chunk(chunk: bytes) -> None:
            await send({"type": "http.response.body", "body": chunk, "more_body": True})

        async def run() -> None:
            headers = [(b"content-type", b"application/octet-stream")]
            await send({"type": "http.response.start", "status": 200, "headers": headers})
            await live.connection.run(send_chunk)
            await send({"type": "http.response.body", "body": b""})

        live = self._live
        gone = asyncio.create_task(_disconnected(receive))
        live.task = asyncio.create_task(run())
        if live.broken:
            live.task.cancel()
        try:
            await asyncio.wait((live.task, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._hub.disconnected(live)
            gone.cancel()
            live.task.cancel()
            await asyncio.wait((live.task, gone))
        if not live.task.cancelled() and (error := live.task.exception()) is not None:
            log.error("connection %s", live.connection.request.connection, exc_info=error)


async def _disconnected(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _add_levers(app: FastAPI, hub: Hub) -> None:
    @app.get("/v1/nodes")
    async def nodes() -> Response:
        """List the nodes, with the vbuckets that they own."""
        return json_response({"nodes": [_node(hub, node) for node in range(hub.nodes)]})

    @app.post("/v1/buckets/{name}/move")
    async def move(name: str, body: MoveBody) -> Response:
        """Give vbuckets to a node."""
        bucket = hub.store.bucket(name)
        hub.check_node(body.to)
        if (body.vbuckets is None) == (body.count is None):
            raise Refusal("invalid_request", "name either vbuckets, or a count of them")
        chosen = body.vbuckets or []
        if body.count is not None:
            chosen = hub.some_vbuckets(name, body.count, body.to, body.source)
        if any(vbucket >= bucket.vbuckets for vbucket in chosen):
            raise Refusal("invalid_request", f"the vbuckets are 0 to {bucket.vbuckets - 1}")
        moved = hub.move(name, sorted(set(chosen)), body.to)
        return json_response({"bucket": name, "to": body.to, "moved": moved})

    @app.post("/v1/nodes/{node}/crash")
    async def crash(node: int, body: CrashBody | None = None) -> Response:
        """Break a node's connections, and have its vbuckets lose their last mutations."""
        body = body or CrashBody(lose=0)
        return json_response(await hub.crash(node, body.lose, body.vbuckets, body.bucket))

    @app.post("/v1/faults")
    async def add_fault(body: FaultBody) -> Response:
        """Have frames lost or late from now on."""
        return json_response(hub.faults.add(**body.model_dump()).as_json(), 201)

    @app.get("/v1/faults")
    async def faults() -> Response:
        """List the faults that are asked for."""
        return json_response({"faults": [fault.as_json() for fault in hub.faults.all()]})

    @app.delete("/v1/faults")
    async def clear_faults() -> Response:
        """Forget all faults."""
        return json_response({"removed": hub.faults.clear()})

    @app.delete("/v1/faults/{fault}")
    async def remove_fault(fault: int) -> Response:
        """Forget one fault."""
        if not hub.faults.remove(fault):
            raise KvError("not_found", f"there is no fault {fault}")
        return json_response({"removed": 1})


def _node(hub: Hub, node: int) -> dict[str, Any]:
    owned = {name: len(bucket.owned_by(node)) for name, bucket in hub.store.buckets.items()}
    connections = [live.connection.request.node for live in hub.connections.values()]
    return {"node": node, "vbuckets": owned, "connections": connections.count(node)}
