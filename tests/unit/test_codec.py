"""Records to bytes and back; what is no record is refused by code; schemas only evolve safely."""

from __future__ import annotations

import contextlib
import io
import json
from dataclasses import fields, replace
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.model import commands, records, stream_records
from coordinator.core.model.entities import Entity, Rollback, Source, Stream
from coordinator.core.model.stream_records import NOT_SAID, TOGETHER_MAX
from coordinator.core.timestamps import progress as timestamp_progress
from schemas.registry import (
    FOLDER,
    RECORD_BYTES_MAX,
    Registry,
    Schema,
    SchemaError,
    registry,
)
from streaming.timestamps.query_state import TIMESTAMP_OVERHEAD_BYTES, TOGETHER_BYTES_MAX
from tests.support.indexes import make_key_versions
from tests.support.records import ONE_OF_EACH, SETTING, TXN, nested
from tests.support.strategies import any_entity, mutations


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
    nested |= {"ConnectionRead", "GenerationTaken", "Comparison", "Operation", "Move"}
    nested |= {"SliceLoad", "TopicSeen", "Origin"}
    nested |= {"PutSetting", "DeleteSetting"}
    of_their_own = set(registry().current) - nested - {"DdlCommand"}
    assert {kind.__name__ for kind in codec.TO_AVRO} == of_their_own
    assert set(codec.FROM_AVRO) == of_their_own
    assert {type(r).__name__ for r in ONE_OF_EACH} | {"Index", "Bucket", "Setting", "Consumed"} == (
        of_their_own
    )


@pytest.mark.parametrize(
    "wrong",
    [
        {"failover_vbuuids": b""},
        {"failover_vbuuids": bytes(7), "failover_seqnos": bytes(7)},
        {"failover_vbuuids": bytes(8), "failover_seqnos": bytes(8)},
        {"restart_seqnos": b""},
    ],
)
def test_a_rollback_whose_timestamps_are_none_is_refused(wrong: dict[str, bytes]) -> None:
    (fine,) = (record for record in ONE_OF_EACH if isinstance(record, Rollback))
    with pytest.raises(SchemaError, match=r"no vector|other vbuckets") as caught:
        codec.decode(codec.encode(replace(fine, **wrong)))
    assert caught.value.code == "bad_body"


def test_a_source_that_lacks_numbers_of_its_vbuckets_is_refused() -> None:
    (fine,) = (record for record in ONE_OF_EACH if isinstance(record, Stream))
    source = Source(1, 5, 4, began=2, restarted=(3, 4), under=(4, 4))
    assert codec.decode(codec.encode(replace(fine, sources=(source,)))).sources == (source,)
    with pytest.raises(SchemaError, match="without their numbers") as caught:
        codec.decode(codec.encode(replace(fine, sources=(replace(source, under=(4,)),))))
    assert caught.value.code == "bad_body"


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
    command = commands.CreateIndex(name="n", bucket="b", expressions=("x",), if_not_exists=True)
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


def test_a_field_that_is_retired_is_read_by_older_versions_and_not_by_this_one() -> None:
    record = timestamp_progress.TimestampProgress(5, (), 7, 9)
    name, fields = registry().decode(codec.encode(record))
    assert (fields["query"], fields["batch"], fields["generation"]) == ("", -1, 0)
    fields.update(query="an older one's", batch=3, generation=1)
    assert codec.decode(registry().current[name].encode(fields)) == record


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


def test_what_an_older_record_lacks_is_written_again_like_what_it_has() -> None:
    """Avro says bytes by default as text: they were read as text, and could not be written."""
    tried = 0
    for name, current in registry().current.items():
        for version in registry().versions(name)[1:]:
            _, fields = registry().decode(version.encode(_sample(version.parsed, {})))
            assert registry().decode(current.encode(fields)) == (name, fields)
            tried += 1
    assert tried > 20


def test_the_indexes_of_a_record_are_read_wherever_its_version_has_them() -> None:
    now = make_key_versions(3, indexes=(9, 7, 11), builds=(1, 2, 3), items=b"i", previous=NOT_SAID)
    said = {name: getattr(now, name) for name in now.__slots__}
    for version in registry().versions("KeyVersions"):
        known = {field["name"] for field in version.parsed["fields"]}
        if "builds" in known:
            written = version.encode({n: v for n, v in said.items() if n in known} | {"told": b""})
            assert codec.decode(written) == now
    assert codec.decode(codec.encode(now)) == now


def test_records_have_the_fields_of_their_schemas() -> None:
    parsed = registry().current["TransactionCommitted"].parsed
    named = {f["name"] for f in parsed["fields"]}
    assert {f.name for f in fields(records.TransactionCommitted)} - {"txn"} <= named


def test_a_message_of_more_timestamps_than_a_turn_of_the_loop_folds_is_none() -> None:
    """120,000 fit into a record, and held the loop of every node for seconds, at each start."""

    def encoded(count: int) -> bytes:
        one = stream_records.StabilityTimestamp("b", 1, bytes(8), bytes(8), 0)
        return codec.encode(stream_records.ConsolidatedStability((one,) * count))

    assert len(codec.decode(encoded(TOGETHER_MAX)).timestamps) == TOGETHER_MAX
    with pytest.raises(SchemaError) as refused:
        codec.decode(encoded(TOGETHER_MAX + 1))
    assert refused.value.code == "too_large"


def test_the_application_writes_fewer_timestamps_into_a_message() -> None:
    assert TOGETHER_BYTES_MAX // TIMESTAMP_OVERHEAD_BYTES < TOGETHER_MAX
