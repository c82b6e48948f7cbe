"""Records to bytes and back; what is no record is refused by code; schemas only evolve safely."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import fields
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st
from immutables import Map

from coordinator import codec
from coordinator.core.catalog.snapshots import SnapshotChunk, SnapshotEntry
from coordinator.core.model import commands, records
from coordinator.core.model import stream_records as streams
from coordinator.core.model.authority_state import (
    AuthorityState,
    IndexerInfo,
    Member,
    OpenTransaction,
    SnapshotInfo,
    TransactionStatus,
)
from coordinator.core.model.entities import Bucket, Entity, RequestOutcome, Setting, Source, Stream
from coordinator.core.model.outcome_records import OutcomesRecorded, RecordedOutcome
from coordinator.core.model.types import TxnId
from coordinator.core.timestamps import progress
from coordinator.core.timestamps.bucket_state import TimestampState
from schemas.registry import (
    FOLDER,
    RECORD_BYTES_MAX,
    Registry,
    Schema,
    SchemaError,
    registry,
)
from tests.unit.strategies import any_entity, mutations

TXN = TxnId(3, 7)
BIG = 2**128 - 1
U64 = b"\xff" * 8 + b"\x01" * 8
AUTHORITY = AuthorityState(
    "c1",
    1,
    (1, 2, 3),
    2,
    100,
    600_000,
    epoch=3,
    master=2,
    incarnation=2**62,
    address="http://127.0.0.1:1",
    members=Map({2: Member(2, 5, "x")}),
    indexers=Map({0: IndexerInfo(0, 9, "i", "z")}),
    last_seq=7,
    open=OpenTransaction(TXN, 40, (1, 2), 12, BIG, 2),
    last_txn=TxnId(3, 6),
    last_cas=12,
    digest=BIG,
    acceptors=(1, 2),
    log=Map({4: TransactionStatus(TxnId(3, 6), "commit", 12, (1,), "")}),
    log_next=5,
    snapshots=(SnapshotInfo(2**61, 12, BIG, 9, 40, 5),),
    outcomes_digest=BIG - 1,
)
SETTING = Setting("k", "1")
MUTATION = records.Mutation("SettingWritten", SETTING.key, codec.encode(SETTING), SETTING, "r")

ONE_OF_EACH: list[Any] = [
    RequestOutcome("r", "done", 5, 0, 1, 2, 1, "{}", "", "", "{}", True, 9),
    AUTHORITY,
    TransactionStatus(TXN, "initial", 0, (1, 2), "why"),
    records.ClusterFormed("c", 1, (1,), 1, 10, 5, 6),
    records.MasterClaimed(4, 1, 2, "http://x", 12, BIG, AUTHORITY, 8),
    records.AuthoritySnapshot(3, AUTHORITY),
    records.TransactionProposed(TXN, 12, BIG, (1, 2, 3), (MUTATION,)),
    records.TransactionCommitted(TXN, 40, (1, 2), (13, 14), BIG, 7),
    records.TransactionCommitted(TXN, 40, (1,), (13,), BIG, 7, b"group", 5, BIG, 2**41),
    records.OutcomesForgotten(3, 12, BIG, 2**41),
    records.OutcomesSeparated(3, 12, BIG, BIG - 1, (b"one", b"two"), BIG - 2, 5),
    records.SnapshotKept(3, 2**61, 12, BIG, 9, 40, 5),
    records.CopyRequested(1, 2, 3, 9, 12),
    records.CopyOffered(3, 1, 2, 9, 2**61, 7),
    OutcomesRecorded(
        *(TXN, 14, 5),
        (RecordedOutcome("r", "done", 5, "indexes", (1, 2**40), 13, True, "{}", "c", "m", "{}"),),
    ),
    SnapshotChunk(
        *(2**61, 12, BIG, 0, True),
        (SnapshotEntry(SETTING.key, 12, codec.encode(SETTING), SETTING),),
    ),
    records.TransactionRolledBack(TXN, -1, "no", 7),
    records.MemberAdmitted(3, 2, 1, "x", 12, BIG, 5),
    records.MemberExpired(3, 2, "silent", 5),
    records.IndexerRegistered(3, 250, 1, "x", "", 5),
    records.MemberLeft(3, 2, 1, "me", 5),
    records.MasterResigned(3, 2, 1, "upgrade", 5),
    records.ClusterReformed(3, 1, 12, BIG, 1, (1, 3), "me", "two are lost", 5),
    records.ProjectorRegistered(3, 0, 1, "x", 5),
    records.ReadBarrier(3, 2**62),
    records.ProposalAnswered(1, 2, TXN, 40, "refused", "disk"),
    records.JoinRequested(2, 1, "x", 12, BIG),
    records.SliceAnswered(1, 2, 77, "allocated", "", (0, 1), 2**40),
    records.HoldingsReported(1, 2, 9, 12, 0, 1, (records.Holding(77, 5, (0, 1)),)),
    records.HoldingsRequested(3, 1, 2, 9, True),
    records.ProjectorHeartbeat(
        0,
        2,
        "x",
        99,
        5,
        "http://kv",
        (records.BucketSeen("b", 64),),
        (records.StreamAwaited("b", 3),),
        (records.BackfillProgress(77, 1, 10, 20),),
    ),
    records.NodeHeartbeat(1, 2, "master", 3, 12, BIG, "x", 99, "", 5),
    records.IndexerHeartbeat(1, 2, "x", "z", 99, 3, 4096, 12, 5),
    records.TimestampsHeartbeat(2**62, 99, "q", 7, 5),
    records.TimestampsHeartbeat(
        *(2**62, 99, "q", 7, 5),
        (records.BucketCurrent("b", str(2**70)),),
        (records.StreamOwner("b", 2**62, 1, 3, 1024),),
    ),
    records.DdlReply("r", "ok", "{}", "", "", "{}", 13, "3-7", 5),
    records.DeadLetter("ddl", 0, 3, "not_avro", b"\x00", 5),
    records.Event(MUTATION, TXN, 0, 1, 13),
    commands.CreateIndex("n", "b", ("x",), nodes=(1, 2)),
    commands.DropIndex(bucket="b", name="n"),
    commands.BuildIndexes((1, 2), "b", ("n",)),
    Stream("b", 3, (Source(0, 7, 3), Source(1, 9, 2)), U64, U64, "a new projector"),
    streams.StreamBegin("b", 1023, "backfill", 1, 2**62, 0, 2**64 - 1, 2**63, 5, 3),
    streams.StreamEnd("b", 1023, "maintenance", 1, 2**62, 9, 2**64 - 1, 2**63, "closed", 5),
    streams.ConnectionClosed("b", "maintenance", 1, 2**62, 10, "gone", 5),
    streams.Sync("b", 7, 1, 2**62, 3, 2**63, 2**64 - 1, 5),
    streams.KeyVersions("b", "maintenance", 1, 2**62, 4, 3, (77, 78), (1, 2), b"items", 5, 3, True),
    streams.CatchUpRequested(1, 2, "b", (0, 7), U64, U64, 5),
    streams.FailoverLog("b", 7, (streams.FailoverBranch(2**64 - 1, 2**63),), 5),
    streams.HwHeartbeat(
        *(1, 2, "b", (77,), U64, U64, 1, 2, 3, 4, (streams.BuildProgress(77, 1, b"\x01"),), 5),
        (streams.ConnectionRead(1, 2**62, (4, 0, 0, 17)),),
        (streams.GenerationTaken(2**62, 250, b"\x01"),),
    ),
    streams.StabilityTimestamp("b", 4, U64, U64, 5),
    streams.ConsolidatedStability((streams.StabilityTimestamp("b", 4, U64, U64, 5),)),
    streams.Tick(5, 2**62),
    streams.RestartRequested("b", 3, 1024, (1, 2), "bootstrap", 5),
    streams.PromotionRequested("b", 10_000, 5),
    streams.RestartTimestamp("b", 9, 3, (0, 7), U64, U64, (7,), (0,), "held begin", 5),
    streams.RollbackEnquiry(
        "b", 9, 7, 2**63, 2**64 - 1, 2**64 - 1, 2**63, 0, 2**62, streams.SYNC_MISSING, 5
    ),
    TimestampState("b", "query", 9, 1024, 5, b"\x01state"),
    streams.IndexRouted(0, 2, 77, 1, "no such bucket"),
    streams.IndexBuilt(1, 2, 77, 1),
    progress.TimestampProgress("q", 3, 1, 5, (progress.NextOffset("c.sync", 2, 2**40),)),
    progress.TimestampContext(9, (Bucket("b", 64),), (Setting("timestamps", "{}"),)),
    progress.TimestampWaiting((records.DeadLetter("c.sync", 0, 3, "not yet", b"\x00", 5),)),
]


@pytest.mark.parametrize("record", ONE_OF_EACH, ids=lambda r: type(r).__name__)
def test_what_is_encoded_decodes_to_the_same(record: Any) -> None:
    assert codec.decode(codec.encode(record)) == record


@given(any_entity())
def test_every_entity_survives(entity: Entity) -> None:
    assert codec.decode(codec.encode(entity)) == entity


@given(st.lists(mutations(), max_size=5))
def test_a_proposal_carries_its_mutations_byte_by_byte(chosen: list[records.Mutation]) -> None:
    proposal = records.TransactionProposed(TXN, 0, 0, (1,), tuple(chosen))
    decoded = codec.decode(codec.encode(proposal))
    assert [m.value for m in decoded.mutations] == [m.value for m in chosen]
    assert [m.entity for m in decoded.mutations] == [m.entity for m in chosen]


def test_every_record_of_the_core_has_a_schema_and_a_converter() -> None:
    nested = {"Digest", "Slice", "Shard", "Holding", "Mutation", "OpenTransaction"}
    nested |= {"Member", "IndexerInfo", "ProjectorInfo", "Source", "FailoverBranch"}
    nested |= {"BucketCurrent", "StreamOwner", "SnapshotInfo", "SnapshotEntry", "RecordedOutcome"}
    nested |= {"BucketSeen", "BackfillProgress", "BuildProgress", "StreamAwaited", "NextOffset"}
    nested |= {"ConnectionRead", "GenerationTaken"}
    of_their_own = set(registry().current) - nested - {"DdlCommand"}
    assert {kind.__name__ for kind in codec.TO_AVRO} == of_their_own
    assert set(codec.FROM_AVRO) == of_their_own
    assert {type(r).__name__ for r in ONE_OF_EACH} | {"Index", "Bucket", "Setting", "Consumed"} == (
        of_their_own
    )


def test_the_fingerprint_is_the_one_of_the_avro_specification() -> None:
    # The specification's own example: CRC-64-AVRO of "int" is 0x7275d51a3f395c8f.
    assert fastavro.schema.fingerprint('"int"', "CRC-64-AVRO") == "8f5c393f1ad57572"
    data = codec.encode(records.ReadBarrier(1, 2))
    assert data[:2] == b"\xc3\x01"
    assert data[2:10] == bytes.fromhex(registry().current["ReadBarrier"].fingerprint)


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"", "not_avro"),
        (b"hello", "not_avro"),
        (b"\xc3\x01short", "not_avro"),
        (b"\xc3\x01" + b"\x00" * 8 + b"body", "unknown_schema"),
        (codec.encode(SETTING)[:-1], "bad_body"),
        (codec.encode(SETTING) + b"!", "bad_body"),
    ],
)
def test_what_is_no_record_is_refused_by_code(data: bytes, code: str) -> None:
    with pytest.raises(SchemaError) as caught:
        codec.decode(data)
    assert caught.value.code == code


@given(st.binary(max_size=200))
def test_no_garbage_gets_past_the_codec_in_another_way(data: bytes) -> None:
    with pytest.raises(SchemaError):
        codec.decode(data)


@given(st.binary(max_size=60), st.sampled_from(ONE_OF_EACH))
def test_a_good_head_with_a_garbage_body_raises_nothing_else(body: bytes, record: Any) -> None:
    data = codec.encode(record)[:10] + body
    with contextlib.suppress(SchemaError):
        codec.decode(data)


def nested(depth: int) -> bytes:
    """Return an event whose value is an event, and so on; the innermost has a setting."""
    data = codec.encode(SETTING)
    for _ in range(depth):
        fields = codec.TO_AVRO[records.Event](records.Event(MUTATION, TXN, 0, 1, 1))
        data = registry().current["Event"].encode({**fields, "value": data})
    return data


@pytest.mark.parametrize("depth", [2, 400, 5_000])
def test_a_mutation_carries_an_entity_and_nothing_that_carries_more(depth: int) -> None:
    assert isinstance(codec.decode(nested(1)), records.Event)
    with pytest.raises(SchemaError, match="an entity belongs here, not Event") as caught:
        codec.decode(nested(depth))
    assert caught.value.code == "bad_body"


def test_a_record_that_is_too_large_is_not_read() -> None:
    with pytest.raises(SchemaError) as caught:
        codec.decode(codec.encode(SETTING)[:10] + bytes(RECORD_BYTES_MAX))
    assert caught.value.code == "too_large"


def test_no_schema_contains_itself() -> None:
    """So that no record is nested deeper than its schema is."""
    shapes = {path.stem: json.loads(path.read_text()) for path in FOLDER.glob("*.avsc")}
    inside = {name: _named(shape) & shapes.keys() for name, shape in shapes.items()}
    while leaves := {name for name, names in inside.items() if not names}:
        inside = {n: names - leaves for n, names in inside.items() if n not in leaves}
    assert inside == {}


def _named(shape: Any) -> set[str]:
    """Return the names of the types that a type is made of."""
    if isinstance(shape, str):
        return {shape}
    if isinstance(shape, list):
        return set().union(*map(_named, shape))
    parts = [field["type"] for field in shape.get("fields", ())]
    parts += [shape[part] for part in ("items", "values") if part in shape]
    own = shape["type"]
    return set().union(*map(_named, parts), set() if own == "record" else _named(own))


@pytest.mark.parametrize("oddity", [OverflowError, AttributeError, RecursionError, MemoryError])
def test_whatever_is_odd_about_the_fields_is_a_schema_error(
    oddity: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def build(fields: Any) -> Any:
        raise oddity("odd")

    monkeypatch.setitem(codec.FROM_AVRO, "Setting", build)
    with pytest.raises(SchemaError) as caught:
        codec.decode(codec.encode(SETTING))
    assert caught.value.code == "bad_body"


# -- commands from the ddl topic -----------------------------------------------------------------

POSITION = commands.Position(1, 5)


def test_a_producers_command_becomes_a_recorded_request() -> None:
    command = commands.CreateIndex("n", "b", ("x",), if_not_exists=True)
    request = codec.decode_ddl(codec.encode_ddl("r1", command, "me", 7), POSITION)
    assert request.command == command
    assert (request.id, request.principal, request.expected_cas) == ("r1", "me", 7)
    assert request.recorded
    assert request.position == POSITION


def test_the_fingerprint_tells_commands_and_their_conditions_apart() -> None:
    one = commands.DropIndex(1)
    prints = {
        codec.fingerprint(one, None),
        codec.fingerprint(one, 0),
        codec.fingerprint(commands.DropIndex(2), None),
    }
    assert len(prints) == 3
    assert all(0 <= p < 2**63 for p in prints)


@pytest.mark.parametrize(
    "data",
    [
        codec.encode(SETTING),
        codec.encode_ddl("", commands.DropIndex(1)),
        codec.encode_ddl("x" * 129, commands.DropIndex(1)),
        registry()
        .current["DdlCommand"]
        .encode({"request": "r", "principal": "", "expected_cas": None}),
    ],
)
def test_a_record_that_is_no_command_is_refused(data: bytes) -> None:
    with pytest.raises(SchemaError, match=r"DdlCommand|request id|exactly one"):
        codec.decode_ddl(data, POSITION)


# -- evolution -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", sorted(registry().current))
def test_every_version_of_a_schema_is_kept(name: str) -> None:
    """A version is kept under its fingerprint, so that records written with it stay readable."""
    current = registry().current[name]
    kept = FOLDER / "released" / f"{name}.{current.fingerprint}.avsc"
    assert kept.exists(), "run `make schemas`, and commit the new version beside the old one"
    for path in (FOLDER / "released").glob(f"{name}.*.avsc"):
        parsed = fastavro.parse_schema(json.loads(path.read_text()), _force=True)
        assert Schema(name, parsed).fingerprint == path.name.split(".")[1]


def test_every_released_version_is_compatible_both_ways() -> None:
    for path in sorted((FOLDER / "released").glob("*.avsc")):
        name = path.name.partition(".")[0]
        old = fastavro.parse_schema(json.loads(path.read_text()), _force=True)
        assert _both_ways(old, registry().current[name].parsed) == "", path.name


OLD = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "long"}]}


@pytest.mark.parametrize(
    ("change", "fine"),
    [
        ([{"name": "a", "type": "long"}, {"name": "b", "type": "string", "default": ""}], True),
        ([{"name": "a", "type": "long"}, {"name": "b", "type": "string"}], False),
        ([{"name": "a", "type": "string"}], False),
        ([{"name": "c", "type": "long"}], False),
        ([{"name": "a", "type": "int"}], False),
    ],
)
def test_an_incompatible_change_would_be_noticed(change: list[Any], fine: bool) -> None:
    new = fastavro.parse_schema({**OLD, "fields": change}, _force=True)
    old = fastavro.parse_schema(OLD, _force=True)
    assert (_both_ways(old, new) == "") is fine


def _both_ways(old: Any, new: Any) -> str:
    """Return what breaks when either schema reads what the other wrote, or an empty text."""
    for writer, reader in ((old, new), (new, old)):
        out = io.BytesIO()
        fastavro.schemaless_writer(out, writer, _sample(writer))
        out.seek(0)
        try:
            fastavro.schemaless_reader(out, writer, reader)
        except Exception as error:
            return f"{type(error).__name__}: {error}"
    return ""


def _sample(schema: Any, names: dict[str, Any] | None = None) -> Any:
    """Return a value of a schema: its unions' last branch, two items an array."""
    names = {} if names is None else names
    if isinstance(schema, list):
        return _sample(schema[-1], names)
    if isinstance(schema, str):
        plain = {"string": "x", "bytes": b"x", "boolean": True, "null": None}
        if schema in plain:
            return plain[schema]
        return 1 if schema in ("int", "long") else _sample(names[schema], names)
    if schema["type"] == "record":
        names[schema["name"]] = schema
        return {f["name"]: _sample(f["type"], names) for f in schema["fields"]}
    if schema["type"] == "fixed":
        names[schema["name"]] = schema
        return b"\x01" * schema["size"]
    if schema["type"] == "array":
        return [_sample(schema["items"], names)] * 2
    return _sample(schema["type"], names)


def test_a_reader_resolves_an_older_writers_schema(tmp_path: Any) -> None:
    """The registry finds the writer's schema by fingerprint, and reads into the current one."""
    new = {**OLD, "fields": [*OLD["fields"], {"name": "b", "type": "string", "default": "new"}]}
    (tmp_path / "released").mkdir()
    (tmp_path / "R.avsc").write_text(json.dumps(new))
    (tmp_path / "released" / "R.v1.avsc").write_text(json.dumps(OLD))
    written = Schema("R", fastavro.parse_schema(OLD, _force=True)).encode({"a": 5})
    assert Registry(tmp_path).decode(written) == ("R", {"a": 5, "b": "new"})


def test_records_have_the_fields_of_their_schemas() -> None:
    parsed = registry().current["TransactionCommitted"].parsed
    named = {f["name"] for f in parsed["fields"]}
    assert {f.name for f in fields(records.TransactionCommitted)} - {"txn"} <= named
