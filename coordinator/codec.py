"""Records of the core to bytes, and back.

The names of the schemas are the names of the core's dataclasses; so are most fields. What Avro
has no type for is turned here: transaction ids become two longs, digests 16 bytes little-endian,
persistent maps arrays. Nothing is decided here, and nothing read or written.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any, get_args

from immutables import Map

from coordinator.core.catalog import snapshots
from coordinator.core.catalog.ddl import PRINCIPAL_LENGTH_MAX, REQUEST_ID_LENGTH_MAX
from coordinator.core.keys.key_versions import pack_indexes, unpack_indexes
from coordinator.core.model import (
    commands,
    entities,
    outcome_records,
    records,
    stream_records,
    subscription_records,
)
from coordinator.core.model.authority_state import (
    AuthorityState,
    IndexerInfo,
    Member,
    OpenTransaction,
    ProjectorInfo,
    SnapshotInfo,
    TransactionStatus,
)
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import Cas, TxnId
from coordinator.core.timestamps import progress as timestamp_progress
from coordinator.core.timestamps.bucket_state import TimestampState
from schemas.registry import SchemaError, registry

Fields = dict[str, Any]


def encode(record: Any) -> bytes:
    """Return the single-object encoding of any record or entity of the core."""
    kind = type(record)
    return registry().current[kind.__name__].encode(TO_AVRO[kind](record))


def decode(data: bytes) -> Any:
    """Return the record or entity that `data` encodes. Raises SchemaError."""
    return _built(*registry().decode(data))


def decode_entity(data: bytes) -> entities.Entity:
    """Return the entity that `data` encodes: nothing that has records inside. Raises SchemaError.

    What a mutation carries is read by this. A mutation inside of a mutation would be read as deep
    as somebody cared to nest them.
    """
    name, fields = registry().decode(data)
    if name not in _ENTITIES:
        raise SchemaError("bad_body", f"an entity belongs here, not {name}")
    entity: entities.Entity = _built(name, fields)
    return entity


_ENTITIES = frozenset(kind.__name__ for kind in get_args(entities.Entity))


def _built(name: str, fields: Fields) -> Any:
    """Return the record of these fields. Whatever is odd about them is a SchemaError."""
    builder = FROM_AVRO.get(name)
    if builder is None:
        raise SchemaError("unknown_schema", f"{name} is no record of its own")
    listed, limit = BOUNDED.get(name, ("", 0))
    if listed and len(fields[listed]) > limit:
        raise SchemaError("too_large", f"{name}: {len(fields[listed])} {listed}; at most {limit}")
    try:
        record = builder(fields)
    except Exception as error:
        raise SchemaError("bad_body", f"{name}: {type(error).__name__}: {error}") from error
    if type(record) in _VECTORED:
        _check_vector(name, record.vbuuids, record.seqnos)
    elif type(record) is stream_records.ConsolidatedStability:
        for timestamp in record.timestamps:
            _check_vector(name, timestamp.vbuuids, timestamp.seqnos)
    if type(record) is entities.Stream and not all(map(_is_whole, record.sources)):
        raise SchemaError("bad_body", f"{name}: a source has vbuckets without their numbers")
    if type(record) is entities.Rollback:
        _check_vector(name, record.failover_vbuuids, record.failover_seqnos)
        _check_vector(name, record.restart_vbuuids, record.restart_seqnos)
        if len(record.failover_seqnos) not in (0, 8 * len(record.vbuckets)):
            raise SchemaError("bad_body", f"{name}: its failover timestamp is of other vbuckets")
    return record


BOUNDED: dict[str, tuple[str, int]] = {
    stream_records.ConsolidatedStability.__name__: ("timestamps", stream_records.TOGETHER_MAX),
    stream_records.FailoverLog.__name__: ("branches", stream_records.BRANCHES_MAX),
}
"""Records with a list that is no longer than this, whatever a record may weigh."""

_VECTORED = frozenset(
    {
        entities.Stream,
        stream_records.CatchUpRequested,
        stream_records.HwHeartbeat,
        stream_records.RestartTimestamp,
        stream_records.StabilityTimestamp,
    }
)
"""Records whose `vbuuids` and `seqnos` are a vector: 8 bytes a vbucket each."""


def _is_whole(source: entities.Source) -> bool:
    return len(source.restarted) == len(source.under)


def _check_vector(name: str, vbuuids: bytes, seqnos: bytes) -> None:
    if len(vbuuids) != len(seqnos) or len(seqnos) % 8:
        text = f"{name}: {len(vbuuids)} and {len(seqnos)} bytes are no vector"
        raise SchemaError("bad_body", text)


class Codec:
    """The core's `EntityCodec`, on Avro."""

    def encode_entity(self, entity: entities.Entity) -> bytes:
        return encode(entity)

    def encode_outcomes(self, group: outcome_records.OutcomesRecorded) -> bytes:
        return encode(group)

    def decode_outcomes(self, value: bytes) -> outcome_records.OutcomesRecorded:
        """Return the group. Raises SchemaError."""
        group = decode(value)
        if not isinstance(group, outcome_records.OutcomesRecorded):
            raise SchemaError("bad_body", f"{type(group).__name__} is no group of outcomes")
        return group


# -- shapes --------------------------------------------------------------------------------------


def _plain(record: Any) -> Fields:
    """Return the fields of a record whose fields are Avro's own."""
    return {name: getattr(record, name) for name in type(record).__slots__}


def _digest(value: int) -> bytes:
    return value.to_bytes(16, "little")


def _undigest(value: bytes) -> int:
    return int.from_bytes(value, "little")


def _txn(fields: Fields) -> TxnId:
    return TxnId(fields.pop("txn_epoch"), fields.pop("txn_seq"))


def _with_digest(*names: str) -> tuple[Callable[[Any], Fields], Callable[..., Any]]:
    """Return converters for records whose only special fields are digests and a `txn`."""

    def to_avro(record: Any) -> Fields:
        fields = _plain(record)
        for name in names:
            fields[name] = _digest(fields[name])
        if type(fields.get("txn")) is TxnId:
            fields["txn_epoch"], fields["txn_seq"] = fields.pop("txn")
        return fields

    def from_avro(kind: type, fields: Fields) -> Any:
        for name in names:
            fields[name] = _undigest(fields[name])
        if "txn_seq" in fields and "txn" in kind.__slots__:  # type: ignore[attr-defined]
            fields["txn"] = _txn(fields)
        for name, value in fields.items():
            if type(value) is list:
                fields[name] = tuple(value)
        return kind(**fields)

    return to_avro, from_avro


_to_common, _from_common = _with_digest()


def _mutation_to(mutation: Mutation) -> Fields:
    return {
        "event": mutation.event,
        "key": mutation.key,
        "value": mutation.value,
        "request": mutation.request,
        "principal": mutation.principal,
        "at_ms": mutation.at_ms,
        "undoes": mutation.undoes,
    }


def _mutation_from(fields: Fields) -> Mutation:
    value = fields["value"]
    return Mutation(
        fields["event"],
        fields["key"],
        value,
        None if value is None else decode_entity(value),
        fields["request"],
        fields["principal"],
        fields["at_ms"],
        undoes=fields["undoes"],
    )


def _event_to(event: Event) -> Fields:
    fields = _mutation_to(event.mutation)
    fields["txn_epoch"], fields["txn_seq"] = event.txn
    fields["index"] = event.index
    fields["count"] = event.count
    fields["cas"] = event.cas
    return fields


def _event_from(fields: Fields) -> Event:
    txn = TxnId(fields["txn_epoch"], fields["txn_seq"])
    return Event(_mutation_from(fields), txn, fields["index"], fields["count"], fields["cas"])


def _proposed_to(record: records.TransactionProposed) -> Fields:
    return {
        "txn_epoch": record.txn.epoch,
        "txn_seq": record.txn.seq,
        "prev_cas": record.prev_cas,
        "prev_digest": _digest(record.prev_digest),
        "participants": record.participants,
        "mutations": [_mutation_to(mutation) for mutation in record.mutations],
    }


def _proposed_from(fields: Fields) -> records.TransactionProposed:
    return records.TransactionProposed(
        _txn(fields),
        fields["prev_cas"],
        _undigest(fields["prev_digest"]),
        tuple(fields["participants"]),
        tuple(_mutation_from(mutation) for mutation in fields["mutations"]),
    )


def _index_to(index: entities.Index) -> Fields:
    fields = _plain(index)
    fields["slices"] = [_plain(piece) for piece in index.slices]
    fields["shards"] = [_plain(shard) for shard in index.shards]
    fields["origins"] = [_plain(origin) for origin in index.origins]
    return fields


def _index_from(fields: Fields) -> entities.Index:
    fields["expressions"] = tuple(fields["expressions"])
    fields["nodes"] = tuple(fields["nodes"])
    fields["slices"] = tuple(
        entities.Slice(
            piece["number"], piece["master"], tuple(piece["replicas"]), tuple(piece["leaving"])
        )
        for piece in fields["slices"]
    )
    fields["shards"] = tuple(entities.Shard(**shard) for shard in fields["shards"])
    fields["origins"] = tuple(entities.Origin(**origin) for origin in fields["origins"])
    return entities.Index(**fields)


def _status_to(row: TransactionStatus) -> Fields:
    return _to_common(row)


def _status_from(fields: Fields) -> TransactionStatus:
    status: TransactionStatus = _from_common(TransactionStatus, fields)
    return status


LISTS_MAX = 32
"""So many lists of indexes are remembered: each record of a connection has the same."""

_packed_indexes = lru_cache(LISTS_MAX)(pack_indexes)
_unpacked_indexes = lru_cache(LISTS_MAX)(unpack_indexes)


def _key_versions_to(record: stream_records.KeyVersions) -> Fields:
    fields = _plain(record)
    if len(record.indexes) == len(record.builds):
        fields |= {"told": _packed_indexes(record.indexes, record.builds)}
        fields |= {"indexes": (), "builds": ()}
    return fields


def _key_versions_from(fields: Fields) -> stream_records.KeyVersions:
    told = fields.pop("told")
    lists = _unpacked_indexes(told) if told else map(tuple, (fields["indexes"], fields["builds"]))
    fields["indexes"], fields["builds"] = lists
    return stream_records.KeyVersions(**fields)


_open_to, _open_from = _with_digest("prev_digest")
_info_to, _info_from = _with_digest("digest")


def authority_fields(state: AuthorityState, with_log: bool = True) -> Fields:
    """Return the Authority as Avro fields; without the log for a store that keeps rows apart."""
    fields = _plain(state)
    fields["members"] = [_plain(state.members[n]) for n in sorted(state.members)]
    fields["indexers"] = [_plain(state.indexers[n]) for n in sorted(state.indexers)]
    fields["projectors"] = [_plain(state.projectors[n]) for n in sorted(state.projectors)]
    fields["open"] = None if state.open is None else _open_to(state.open)
    fields["last_txn_epoch"], fields["last_txn_seq"] = fields.pop("last_txn")
    fields["digest"] = _digest(state.digest)
    fields["outcomes_digest"] = _digest(state.outcomes_digest)
    fields["snapshots"] = [_info_to(info) for info in state.snapshots]
    first = state.log_next - len(state.log)
    numbers = range(first, state.log_next) if with_log else range(0)
    fields["log"] = [_status_to(state.log[number]) for number in numbers]
    return fields


def _authority_from(fields: Fields) -> AuthorityState:
    fields["roster"] = tuple(fields["roster"])
    fields["acceptors"] = tuple(fields["acceptors"])
    fields["members"] = Map((m["node"], Member(**m)) for m in fields["members"])
    fields["indexers"] = Map((i["id"], IndexerInfo(**i)) for i in fields["indexers"])
    fields["projectors"] = Map((p["id"], ProjectorInfo(**p)) for p in fields["projectors"])
    opened = fields["open"]
    fields["open"] = None if opened is None else _open_from(OpenTransaction, opened)
    fields["last_txn"] = TxnId(fields.pop("last_txn_epoch"), fields.pop("last_txn_seq"))
    fields["digest"] = _undigest(fields["digest"])
    fields["outcomes_digest"] = _undigest(fields["outcomes_digest"])
    fields["snapshots"] = tuple(_info_from(SnapshotInfo, info) for info in fields["snapshots"])
    first = fields["log_next"] - len(fields["log"])
    rows = (_status_from(row) for row in fields["log"])
    fields["log"] = Map(enumerate(rows, first))
    return AuthorityState(**fields)


def encode_authority_without_log(state: AuthorityState) -> bytes:
    """Return the Authority's bytes for a store that keeps the rows of its log apart."""
    return registry().current["AuthorityState"].encode(authority_fields(state, with_log=False))


_claim_to, _claim_from = _with_digest("digest")


def _claimed_to(record: records.MasterClaimed) -> Fields:
    fields = _claim_to(record)
    fields["snapshot"] = authority_fields(record.snapshot)
    return fields


def _claimed_from(fields: Fields) -> records.MasterClaimed:
    fields["snapshot"] = _authority_from(fields["snapshot"])
    claim: records.MasterClaimed = _claim_from(records.MasterClaimed, fields)
    return claim


def _group_to(group: outcome_records.OutcomesRecorded) -> Fields:
    fields = _to_common(group)
    fields["outcomes"] = [_plain(outcome) for outcome in group.outcomes]
    return fields


def _group_from(fields: Fields) -> outcome_records.OutcomesRecorded:
    found = (outcome_records.RecordedOutcome(**_with_tuples(f)) for f in fields["outcomes"])
    return outcome_records.OutcomesRecorded(
        _txn(fields), fields["cas"], fields["at_ms"], tuple(found)
    )


def _with_tuples(fields: Fields) -> Fields:
    return {n: tuple(v) if type(v) is list else v for n, v in fields.items()}


_chunk_to, _chunk_from = _with_digest("digest")


def _snapshot_chunk_to(chunk: snapshots.SnapshotChunk) -> Fields:
    fields = _chunk_to(chunk)
    fields["entries"] = [
        {"key": entry.key, "cas": entry.cas, "value": entry.value} for entry in chunk.entries
    ]
    return fields


def _snapshot_chunk_from(fields: Fields) -> snapshots.SnapshotChunk:
    fields["entries"] = tuple(
        snapshots.SnapshotEntry(e["key"], e["cas"], e["value"], decode_entity(e["value"]))
        for e in fields["entries"]
    )
    chunk: snapshots.SnapshotChunk = _chunk_from(snapshots.SnapshotChunk, fields)
    return chunk


def _reported_from(fields: Fields) -> records.HoldingsReported:
    fields["holdings"] = tuple(
        records.Holding(h["index_id"], h["shard"], tuple(h["slices"])) for h in fields["holdings"]
    )
    return records.HoldingsReported(**fields)


# -- records with records in them, and unsigned numbers --------------------------------------------

_U64 = 2**64
_SIGN = 2**63
_UNSIGNED = ("vbuuid", "seqno", "seen_vbuuid", "seen_seqno")


def _nested(**fields_of: type) -> tuple[Callable[[Any], Fields], Callable[..., Any]]:
    """Return converters for records of which some fields are tuples of plain records."""

    def to_avro(record: Any) -> Fields:
        fields = _plain(record)
        for name in fields_of:
            fields[name] = [_signed(_plain(item)) for item in fields[name]]
        return _signed(fields)

    def from_avro(kind: type, fields: Fields) -> Any:
        for name, value in fields.items():
            if type(value) is list:
                item = fields_of.get(name)
                fields[name] = tuple(value if item is None else (item(**_inner(v)) for v in value))
        return kind(**_whole(fields))

    return to_avro, from_avro


def _inner(fields: Fields) -> Fields:
    """Return the fields of a nested record: its lists are tuples of plain values."""
    return _whole({k: tuple(v) if type(v) is list else v for k, v in fields.items()})


def _signed(fields: Fields) -> Fields:
    """Turn unsigned 64-bit numbers into Avro's long: two's complement."""
    for name in _UNSIGNED:
        if (value := fields.get(name, 0)) >= _SIGN:
            fields[name] = value - _U64
    return fields


def _whole(fields: Fields) -> Fields:
    for name in _UNSIGNED:
        if (value := fields.get(name, 0)) < 0:
            fields[name] = value + _U64
    return fields


# -- commands from producers ---------------------------------------------------------------------


def fingerprint(command: commands.Command, expected_cas: Cas | None) -> int:
    """Return 63 bits that tell one command from another under the same request id."""
    return hashed(_canonical(command) + repr(expected_cas).encode())


def hashed(text: bytes) -> int:
    """Return 63 bits that tell one text from another."""
    return int.from_bytes(blake2b(text, digest_size=8).digest(), "little") >> 1


def _canonical(command: commands.Command) -> bytes:
    """Return the same bytes for the same command, always; settings travel in no record."""
    if type(command) in TO_AVRO:
        return encode(command)
    return json.dumps([type(command).__name__, _plain(command)], sort_keys=True).encode()


_OPERATIONS: dict[str, type] = {
    "create": commands.CreateIndex,
    "drop": commands.DropIndex,
    "put": commands.PutSetting,
    "delete": commands.DeleteSetting,
    "alter": commands.AlterIndex,
}
_OPERATION_OF = {kind: name for name, kind in _OPERATIONS.items()}


def _operation_to(operation: commands.Operation) -> Fields:
    """Settings by themselves travel in no record, so their kinds are in no table."""
    name = _OPERATION_OF[type(operation)]
    fields = _alter_to(operation) if isinstance(operation, commands.AlterIndex) else None
    return {**dict.fromkeys(_OPERATIONS), name: fields or _plain(operation)}


def _operation_from(fields: Fields) -> commands.Operation:
    given = [(name, fields[name]) for name in _OPERATIONS if fields[name] is not None]
    if len(given) != 1:
        raise SchemaError("bad_body", f"an operation is one of {', '.join(_OPERATIONS)}")
    name, inner = given[0]
    built: commands.Operation = _OPERATIONS[name](**_with_tuples(inner))
    return built


def _alter_to(command: commands.AlterIndex) -> Fields:
    """Return lists for tuples: a tuple in a union would name one of its branches."""
    return {n: list(v) if type(v) is tuple else v for n, v in _plain(command).items()}


def _alter_from(fields: Fields) -> commands.AlterIndex:
    return commands.AlterIndex(**_with_tuples(fields))


def _transact_to(command: commands.Transact) -> Fields:
    return {
        "compare": [_plain(comparison) for comparison in command.compare],
        "then": [_operation_to(operation) for operation in command.then],
        "otherwise": [_operation_to(operation) for operation in command.otherwise],
        "undoes": command.undoes,
    }


def _transact_from(fields: Fields) -> commands.Transact:
    return commands.Transact(
        compare=tuple(commands.Comparison(**comparison) for comparison in fields["compare"]),
        then=tuple(map(_operation_from, fields["then"])),
        otherwise=tuple(map(_operation_from, fields["otherwise"])),
        undoes=fields["undoes"],
    )


_DDL: dict[str, type] = {
    "create": commands.CreateIndex,
    "drop": commands.DropIndex,
    "build": commands.BuildIndexes,
    "transact": commands.Transact,
    "alter": commands.AlterIndex,
}
_DDL_OF = {kind: name for name, kind in _DDL.items()}


DdlCommand = (
    commands.CreateIndex
    | commands.DropIndex
    | commands.AlterIndex
    | commands.BuildIndexes
    | commands.Transact
)
"""What a producer may put on the `ddl` topic."""


def encode_ddl(
    request: str,
    command: DdlCommand,
    principal: str = "",
    expected_cas: Cas | None = None,
) -> bytes:
    """Return a command as producers put it on the `ddl` topic."""
    fields = {
        "request": request,
        "principal": principal,
        "expected_cas": expected_cas,
        **dict.fromkeys(_DDL),
        _DDL_OF[type(command)]: TO_AVRO[type(command)](command),
    }
    return registry().current["DdlCommand"].encode(fields)


def decode_ddl(data: bytes, position: commands.Position) -> commands.Request:
    """Return the request that stands on the `ddl` topic at `position`. Raises SchemaError."""
    name, fields = registry().decode(data)
    if name != "DdlCommand":
        raise SchemaError("bad_body", f"a DdlCommand belongs here, not {name}")
    given = [(name, fields[name]) for name in _DDL if fields[name] is not None]
    if len(given) != 1:
        raise SchemaError("bad_body", f"exactly one of {', '.join(_DDL)} must be set")
    if not 0 < len(fields["request"]) <= REQUEST_ID_LENGTH_MAX:
        raise SchemaError("bad_body", f"a request id has 1 to {REQUEST_ID_LENGTH_MAX} characters")
    if len(fields["principal"]) > PRINCIPAL_LENGTH_MAX:
        raise SchemaError("bad_body", f"a principal has at most {PRINCIPAL_LENGTH_MAX} characters")
    command = _built(_DDL[given[0][0]].__name__, given[0][1])
    return commands.Request(
        command=command,
        id=fields["request"],
        principal=fields["principal"],
        expected_cas=fields["expected_cas"],
        fingerprint=fingerprint(command, fields["expected_cas"]),
        recorded=True,
        position=position,
    )


# -- the two tables ------------------------------------------------------------------------------

_COMMON: dict[type, tuple[str, ...]] = {
    entities.Bucket: (),
    entities.Setting: (),
    entities.RequestOutcome: (),
    entities.Consumed: (),
    entities.Topic: (),
    entities.Subscription: (),
    subscription_records.SubscriptionAcknowledged: (),
    subscription_records.SubscriberSeen: (),
    records.ClusterFormed: (),
    records.OutcomesForgotten: ("outcomes_digest",),
    records.OutcomesSeparated: ("digest", "state_digest", "outcomes_digest"),
    records.SnapshotKept: ("digest",),
    records.CopyRequested: (),
    records.CopyOffered: (),
    records.TransactionCommitted: ("state_digest", "outcomes_digest"),
    records.TransactionRolledBack: (),
    records.MemberAdmitted: ("digest",),
    records.MemberExpired: (),
    records.MemberLeft: (),
    records.MasterResigned: (),
    records.ClusterReformed: ("digest",),
    records.IndexerRegistered: (),
    records.ProjectorRegistered: (),
    records.ServiceRemoved: (),
    records.ReadBarrier: (),
    records.ProposalAnswered: (),
    records.JoinRequested: ("digest",),
    records.SliceAnswered: (),
    records.NodeHeartbeat: ("digest",),
    records.IndexerHeartbeat: (),
    records.HoldingsRequested: (),
    records.DdlReply: (),
    records.DeadLetter: (),
    commands.CreateIndex: (),
    commands.DropIndex: (),
    commands.BuildIndexes: (),
    stream_records.ConnectionClosed: (),
    stream_records.SyncVector: (),
    stream_records.CatchUpRequested: (),
    stream_records.StabilityTimestamp: (),
    stream_records.Tick: (),
    stream_records.RestartRequested: (),
    stream_records.PromotionRequested: (),
    stream_records.RestartTimestamp: (),
    TimestampState: (),
    stream_records.IndexRouted: (),
    stream_records.IndexBuilt: (),
}

_NESTED: dict[type, dict[str, type]] = {
    entities.Stream: {"sources": entities.Source},
    entities.Rollback: {},
    entities.Rebalance: {"moves": entities.Move},
    records.ProjectorHeartbeat: {
        "buckets": records.BucketSeen,
        "topics": records.TopicSeen,
        "waiting": records.StreamAwaited,
        "backfills": records.BackfillProgress,
    },
    records.SliceLoads: {"loads": records.SliceLoad},
    records.TimestampsHeartbeat: {
        "currents": records.BucketCurrent,
        "owners": records.StreamOwner,
    },
    stream_records.StreamBegin: {},
    stream_records.StreamEnd: {},
    stream_records.Sync: {},
    stream_records.FailoverLog: {"branches": stream_records.FailoverBranch},
    stream_records.RollbackEnquiry: {},
    stream_records.ConsolidatedStability: {"timestamps": stream_records.StabilityTimestamp},
    stream_records.HwHeartbeat: {
        "builds": stream_records.BuildProgress,
        "read": stream_records.ConnectionRead,
        "taken": stream_records.GenerationTaken,
    },
    timestamp_progress.TimestampProgress: {"offsets": timestamp_progress.NextOffset},
    timestamp_progress.TimestampContext: {
        "buckets": entities.Bucket,
        "settings": entities.Setting,
    },
    timestamp_progress.TimestampWaiting: {"letters": records.DeadLetter},
}

TO_AVRO: dict[type, Callable[[Any], Fields]] = {
    entities.Index: _index_to,
    Event: _event_to,
    AuthorityState: authority_fields,
    TransactionStatus: _status_to,
    records.TransactionProposed: _proposed_to,
    records.MasterClaimed: _claimed_to,
    records.AuthoritySnapshot: lambda r: {
        "epoch": r.epoch,
        "snapshot": authority_fields(r.snapshot),
    },
    commands.Transact: _transact_to,
    commands.AlterIndex: _alter_to,
    stream_records.KeyVersions: _key_versions_to,
    outcome_records.OutcomesRecorded: _group_to,
    snapshots.SnapshotChunk: _snapshot_chunk_to,
    records.HoldingsReported: lambda r: {
        **_plain(r),
        "holdings": [_plain(holding) for holding in r.holdings],
    },
}

FROM_AVRO: dict[str, Callable[[Fields], Any]] = {
    "Index": _index_from,
    "Event": _event_from,
    "AuthorityState": _authority_from,
    "TransactionStatus": _status_from,
    "TransactionProposed": _proposed_from,
    "MasterClaimed": _claimed_from,
    "AuthoritySnapshot": lambda f: records.AuthoritySnapshot(
        f["epoch"], _authority_from(f["snapshot"])
    ),
    "HoldingsReported": _reported_from,
    "Transact": _transact_from,
    "AlterIndex": _alter_from,
    "KeyVersions": _key_versions_from,
    "OutcomesRecorded": _group_from,
    "SnapshotChunk": _snapshot_chunk_from,
}


_RETIRED: dict[type, tuple[str, ...]] = {
    records.TimestampsHeartbeat: ("query",),
    TimestampState: ("query", "batch"),
    timestamp_progress.TimestampProgress: ("query", "batch", "generation"),
}
"""Fields that only older versions use: they are written as the schema's default, and not read."""


def _enter(kind: type, to_avro: Callable[[Any], Fields], from_avro: Callable[..., Any]) -> None:
    retired = frozenset(_RETIRED.get(kind, ()))

    def build(fields: Fields) -> Any:
        return from_avro(kind, {n: v for n, v in fields.items() if n not in retired})

    TO_AVRO[kind] = to_avro
    FROM_AVRO[kind.__name__] = build if retired else lambda fields: from_avro(kind, fields)


for _kind, _digests in _COMMON.items():
    _enter(_kind, *_with_digest(*_digests))
for _kind, _fields_of in _NESTED.items():
    _enter(_kind, *_nested(**_fields_of))
