"""What the API shows of a node's state, as JSON values. Reads only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from coordinator.core.catalog.buckets import describe_bucket
from coordinator.core.catalog.decisions import describe_index
from coordinator.core.catalog.state import StateContext, Versioned
from coordinator.core.consensus.build_progress import Progress
from coordinator.core.leader.handshake import Handshake
from coordinator.core.model import digest as digests
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.entities import BACKFILL, PENDING, Bucket, Index, Setting
from coordinator.core.model.records import SliceLoads
from coordinator.core.model.types import Cas
from coordinator.core.node import Node
from coordinator.http.encoding import Raw
from coordinator.node.retention import Retention


def state(node: int, authority: AuthorityState | None, context: StateContext) -> dict[str, Any]:
    """Return the whole StateContext, as `node` has applied it."""
    return {
        "cluster_id": authority.cluster_id if authority else None,
        "epoch": authority.epoch if authority else 0,
        "master": (authority.master or None) if authority else None,
        "node": node,
        "cas": context.cas,
        "digest": digests.text(context.digest),
        "indexes": {
            str(index.id): _index(context.whole(index), cas) for index, cas in context.indexes()
        },
        "buckets": {
            v.entity.name: {n: one for n, one in describe_bucket(v.entity).items() if n != "name"}
            | {"cas": v.cas}
            for v in context.of_kind("bucket")
            if isinstance(v.entity, Bucket)
        },
        "config": config(context),
    }


def config(context: StateContext) -> dict[str, Any]:
    """Return every setting with its CAS, by key."""
    held = {v.entity.name: v for v in context.of_kind("config") if isinstance(v.entity, Setting)}
    return {n: Raw(_setting(held[n])) for n in sorted(held)}


def _setting(held: Versioned) -> str:
    return f'{{"value":{setting_value(held)},"cas":{held.cas}}}'


def setting_value(held: Versioned) -> Raw:
    """Return a setting's value: the text that was written, which was JSON then."""
    assert isinstance(held.entity, Setting)
    return Raw(held.entity.value_json)


def _index(index: Index, cas: Cas) -> dict[str, Any]:
    return {**describe_index(index), "cas": cas}


def index(held: Index, progress: Mapping[tuple[int, int], Progress]) -> dict[str, Any]:
    """Return an index with the progress of its build, which is null where none is under way."""
    return {**describe_index(held), "progress": progress_of(held, progress)}


def progress_of(held: Index, progress: Mapping[tuple[int, int], Progress]) -> dict[str, Any] | None:
    """Return how far the build of an index is, null where none is under way."""
    if held.state not in (PENDING, BACKFILL):
        return None
    found = progress.get((held.id, held.build)) or Progress(0, 0, 0.0)
    remaining_s = found.remaining_s
    return {
        "sent": found.sent,
        "total": found.total,
        "percent": round(found.percent, 1) if found.total else 0.0,
        "documents_per_s": round(found.per_s),
        "remaining": max(0, found.total - found.sent),
        "remaining_s": None if remaining_s is None else round(remaining_s, 1),
    }


def indexes(
    context: StateContext,
    bucket: str | None,
    name: str | None,
    progress: Mapping[tuple[int, int], Progress],
) -> list[dict[str, Any]]:
    """Return the indexes, narrowed to a bucket or a name, each with its CAS and progress.

    A filter by name does not find an index that is still to replace another: it has no name yet.
    """
    return [
        {**index(context.whole(held), progress), "cas": cas}
        for held, cas in context.indexes()
        if bucket in (None, held.bucket)
        and (name is None or (name == held.name and not held.is_replacement))
    ]


def topology(context: StateContext) -> dict[str, Any]:
    """Return where the slices of every index are."""
    return {
        "cas": context.cas,
        "indexes": {
            str(index.id): {
                "name": index.name,
                "bucket": index.bucket,
                "state": index.state,
                "slices": describe_index(context.whole(index))["topology"]["slices"],
            }
            for index, _ in context.indexes()
        },
    }


def transactions(authority: AuthorityState | None, limit: int) -> dict[str, Any]:
    """Return the newest rows of the rolling log of transactions, newest first."""
    rows = authority.newest(limit) if authority else ()
    return {
        "transactions": [
            {
                "txn": str(row.txn),
                "status": row.status,
                "cas": row.cas,
                "participants": list(row.participants),
                "reason": row.reason,
            }
            for row in rows
        ]
    }


def members(node: Node) -> dict[str, Any]:
    """Return every node of the roster, as the Authority and the heartbeats have it.

    Clients send writes to these addresses. So an address is the one with which the node was
    admitted, never one that only a heartbeat names: any client of Kafka can send a heartbeat.
    """
    authority = node.authority
    roster = authority.roster if authority else node.config.roster
    known = set(roster) | set(node.peers.nodes) | {node.config.node}
    active = authority.members if authority else {}
    rows = []
    for number in sorted(known | set(active)):
        own = number == node.config.node
        peer = node.peers.nodes.get(number)
        beat = node.heartbeat() if own else (peer.beat if peer else None)
        member = active.get(number)
        is_master = authority is not None and authority.master == number
        role = "master" if is_master else "replica" if member is not None else "outside"
        rows.append(
            {
                "node": number,
                "role": role,
                "state": beat.state if beat else "unknown",
                "cas": beat.cas if beat else 0,
                "digest": digests.text(beat.digest) if beat else "",
                "address": node.config.address if own else member.address if member else "",
                "pid": beat.pid if beat else 0,
                "alive": own or node.peers.alive(peer),
                "reason": beat.reason if beat else "",
            }
        )
    standing = node.mastership
    return {
        "node": node.config.node,
        "epoch": authority.epoch if authority else 0,
        "master": (authority.master or None) if authority else None,
        "mastership": {
            "state": standing.state,
            "message": standing.message,
            "waiting_for": list(standing.waiting_for),
        },
        "minimum": authority.minimum if authority else node.config.quorum,
        "roster": list(authority.roster if authority else node.config.roster),
        "active": list(authority.active) if authority else [],
        "members": rows,
    }


def scan_address(node: Node, indexer: int) -> str | None:
    """Return the registered address of an indexer, for scans. None: its heartbeats have another
    incarnation or address than the registered one."""
    info = node.authority.indexers.get(indexer) if node.authority else None
    if info is None or not info.address.startswith("http"):
        return None
    peer = node.peers.indexers.get(indexer)
    said = (peer.beat.incarnation, peer.beat.address) if peer is not None else None
    return info.address if said in (None, (info.incarnation, info.address)) else None


def indexers(node: Node) -> dict[str, Any]:
    """Return every indexer that is registered or was heard, with its load."""
    registered = node.authority.indexers if node.authority else {}
    rows = []
    for number in sorted(set(registered) | set(node.peers.indexers)):
        peer = node.peers.indexers.get(number)
        info = registered.get(number)
        beat = peer.beat if peer else None
        handshake = node.master.handshakes.get(number) if node.master else None
        rows.append(
            {
                "id": number,
                "address": info.address if info else "",
                "zone": beat.zone if beat else info.zone if info else "",
                "registered": info is not None,
                "alive": info is not None and node.peers.alive(peer),
                "slices": node.state.load.get(number, 0),
                "allocated": beat.slices if beat else 0,
                "bytes": beat.bytes if beat else 0,
                "pid": beat.pid if beat else 0,
                "handshake": _handshake(handshake),
                "load": _load(node.peers.loads.get(number)),
            }
        )
    return {"indexers": rows}


def _load(told: SliceLoads | None) -> dict[str, Any] | None:
    """Return what an indexer has told of the weight of its slices."""
    if told is None:
        return None
    return {
        "slices": [
            {
                "index": str(one.index_id),
                "slice": one.slice,
                "entries": one.entries,
                "bytes": one.bytes,
                "mutations_per_second": one.mutations,
            }
            for one in told.loads
        ],
        "left_out": told.left_out,
        "at_ms": told.at_ms,
    }


def _handshake(handshake: Handshake | None) -> dict[str, Any] | None:
    """Return how an indexer's holdings compare with the state, where the master knows it."""
    if handshake is None:
        return None
    difference = handshake.difference
    return {
        "agreed": handshake.agreed,
        "missing": len(difference.missing),
        "orphans": len(difference.orphans),
        "moved": len(difference.moved),
    }


def projectors(node: Node) -> dict[str, Any]:
    """Return every projector that is registered or was heard."""
    registered = node.authority.projectors if node.authority else {}
    rows = []
    for number in sorted(set(registered) | set(node.peers.projectors)):
        peer = node.peers.projectors.get(number)
        info = registered.get(number)
        beat = peer.beat if peer else None
        rows.append(
            {
                "id": number,
                "address": info.address if info else "",
                "registered": info is not None,
                "alive": info is not None and node.peers.alive(peer),
                "pid": beat.pid if beat else 0,
                "kv": beat.kv if beat and info and beat.incarnation == info.incarnation else "",
                "buckets": {b.name: b.vbuckets for b in beat.buckets} if beat else {},
                "waiting": sorted(w.bucket for w in beat.waiting) if beat else [],
                "problems": {t.name: t.problem for t in beat.topics if t.problem} if beat else {},
            }
        )
    return {"projectors": rows}


def history_retention(retention: Retention | None) -> dict[str, Any] | None:
    """Return how long this node, if it is master, keeps `history` in Kafka, and what came of it.

    None: it lets nothing go.
    """
    if retention is None:
        return None
    status = retention.status
    return {
        "retention_ms": retention.retention_ms,
        "oldest_cas": status.oldest_cas,
        "archived": status.archived,
        "failures": status.failures,
        "error": status.error,
    }
