"""Every decoder, parser and cursor ends in a value or in its own error, in time, on any input."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
from hypothesis import strategies as st

from coordinator import codec
from coordinator.core.keys import key_versions
from coordinator.core.keys.collation import decode_some, encode_key
from coordinator.core.keys.key_order import KeyOrder
from coordinator.core.keys.rows import row_of
from coordinator.core.keys.scan_pages import Page, PageError, pack, unpack
from coordinator.core.keys.scans import Cursor, ScanError, cover_of
from coordinator.core.keys.topology import read_bounds
from coordinator.core.model import json_text
from coordinator.core.model.commands import CreateIndex, Position, Request
from coordinator.core.timestamps import settings as timestamp_settings
from coordinator.http.encoding import encoded
from coordinator.language.ddl_commands import Definition, examine_here, read_command
from coordinator.language.ddl_parser import SqlError, normalise_expression, parse_script
from coordinator.language.expressions import EvaluationError, compile_index
from indexer_sim.scans.api import ScanRefused, read_scan
from projector_sim.protocol import frames
from schemas.registry import HEAD_BYTES, SchemaError
from streaming.archive.rows import UnreadableError, history_row, stability_row
from tests.support.fuzzing import (
    SCALARS,
    TEXTS,
    VALUES,
    damaged,
    holds,
    total,
)
from tests.support.hostile import (
    EXPRESSIONS,
    SCHEMAS,
    _of,
)
from tests.support.indexes import make_index
from tests.support.records import ONE_OF_EACH, nested

pytestmark = pytest.mark.fuzz

ORDER = KeyOrder((False, True, False))
PLACE = Position(0, 1)
DEEP = "[" * 949 + "]" * 949

# -- what inputs are made of ---------------------------------------------------------------------


RECORDS = st.sampled_from(sorted(SCHEMAS)).flatmap(_of)
KNOWN = st.sampled_from([codec.encode(record) for record in ONE_OF_EACH])
ODD_RECORDS = damaged(KNOWN | RECORDS, HEAD_BYTES) | damaged(KNOWN) | st.binary(max_size=40)

FINITE = st.floats(allow_nan=False, allow_infinity=False)
COMPONENTS = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | FINITE | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
KEYS = st.lists(COMPONENTS, min_size=3, max_size=3)
ENTRIES = st.builds(lambda key, name: ORDER.encode(key) + name, KEYS, st.binary(max_size=9))
PAGES = st.builds(
    Page,
    st.lists(ENTRIES, max_size=4),
    st.booleans(),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.lists(st.integers(0, 2**63), max_size=3).map(tuple),
)
ITEMS = st.builds(
    key_versions.Item,
    st.integers(1, 6),
    st.integers(0, 65_535),
    st.integers(0, 2**64 - 1),
    st.integers(0, 65_535),
    st.integers(0, 65_535),
    st.binary(max_size=9),
    st.binary(max_size=12),
    st.just(()),
) | st.builds(
    key_versions.Item,
    st.integers(8, 9),
    st.integers(0, 65_535),
    st.integers(0, 2**64 - 1),
    st.just(0),
    st.just(key_versions.NO_SLICE),
    st.binary(max_size=9),
    st.just(b""),
    st.dictionaries(
        st.integers(0, 9), st.tuples(st.integers(0, 65_535), st.binary(max_size=9)), max_size=3
    ).map(lambda found: tuple((place, *found[place]) for place in sorted(found))),
)
FRAMES = st.sampled_from(
    [
        frames.sync([(1, 2), (3, 2**64 - 1)]),
        frames.end(1, 2, frames.Reason.DONE),
        frames.begin(1, 2, 3, ()),
        frames.rollback(1, 2),
        frames.close("x"),
    ]
)

STATEMENTS = st.builds(
    lambda key, where, options: f"CREATE INDEX i ON b({key}) WHERE {where} WITH {{{options}}}",
    *(EXPRESSIONS, EXPRESSIONS, EXPRESSIONS),
)
JSON_TEXTS = (
    VALUES.map(json.dumps)
    | st.text(max_size=20)
    | st.builds(lambda o, n, c: o * n + c * n, TEXTS, st.integers(0, 2_000), TEXTS)
)

SCAN_FIELDS = {
    "indexer": 1,
    "index": "5",
    "slices": [0],
    "begin": "",
    "end": "ff",
    "consistency": "any",
}


@st.composite
def scan_bodies(draw: st.DrawFn) -> bytes:
    body: Any = dict(SCAN_FIELDS)
    names = (*body, "after", "order", "limit", "count", "shard", "build", "timeout_ms", "more")
    for name in draw(st.lists(st.sampled_from(names), max_size=2)):
        body[name] = draw(VALUES)
    vbuckets = st.dictionaries(st.integers(-1, 70).map(str) | TEXTS, VALUES, max_size=2)
    if draw(st.booleans()):
        form = draw(st.sampled_from(["consistent", "at_least", "x"]))
        body["consistency"] = {form: draw(VALUES | st.builds(dict, vbuckets=vbuckets))}
    return json.dumps(draw(st.just(body) | VALUES)).encode()


# -- the laws ------------------------------------------------------------------------------------


class Decoder(NamedTuple):
    """A function that takes what came from outside, and the only errors that it may end in."""

    function: Callable[[Any], Any]
    errors: tuple[type[Exception], ...]
    inputs: st.SearchStrategy[Any]
    examples: tuple[Any, ...] = ()


def _covered(scan: dict[str, Any]) -> Any:
    return cover_of(scan, ORDER)


def _deck(data: bytes) -> list[Any]:
    return list(frames.Decoder().feed(data))


def _begun(data: bytes) -> list[Any]:
    items = key_versions.unpack(data)
    return [key_versions.begun(item) for item in items if item.kind == key_versions.BEGIN]


COVERS = st.dictionaries(
    st.sampled_from(["equals", "prefix", "range", "starts_with", "x"]),
    VALUES
    | st.lists(SCALARS, max_size=4)
    | st.fixed_dictionaries(
        {}, optional={"low": VALUES, "high": VALUES, "include_low": SCALARS, "x": SCALARS}
    ),
    max_size=2,
)

DECODERS: dict[str, Decoder] = {
    "record": Decoder(
        codec.decode,
        (SchemaError,),
        ODD_RECORDS,
        (b"", nested(2), nested(400), nested(2_000)),
    ),
    "entity": Decoder(codec.decode_entity, (SchemaError,), ODD_RECORDS, (nested(1),)),
    "command": Decoder(lambda data: codec.decode_ddl(data, PLACE), (SchemaError,), ODD_RECORDS),
    "ddl topic": Decoder(
        lambda data: read_command(data, PLACE),
        (),
        ODD_RECORDS
        | EXPRESSIONS.filter(str.isprintable).map(
            lambda text: codec.encode_ddl(
                "r", CreateIndex(name="i", bucket="b", expressions=(text,))
            )
        ),
        (codec.encode_ddl("r", CreateIndex(name="i", bucket="b", expressions=("ELSE",))),),
    ),
    "archive": Decoder(history_row, (UnreadableError,), ODD_RECORDS | RECORDS),
    "archive of stability": Decoder(stability_row, (UnreadableError,), ODD_RECORDS | RECORDS),
    "json": Decoder(json_text.parse, (ValueError,), JSON_TEXTS, (DEEP, "[" * 10**6, '{"a":' * 900)),
    "timestamp setting": Decoder(
        timestamp_settings.parse,
        (ValueError,),
        JSON_TEXTS
        | st.dictionaries(
            st.sampled_from([*timestamp_settings.NAMES, "x"]), VALUES, max_size=3
        ).map(json.dumps),
        (DEEP,),
    ),
    "bounds": Decoder(
        lambda text: read_bounds(text, ORDER),
        (ValueError,),
        JSON_TEXTS | st.lists(st.lists(SCALARS, max_size=4), max_size=4).map(json.dumps),
        (DEEP, json.dumps([[n] for n in range(9_000)])),
    ),
    "script": Decoder(
        parse_script,
        (SqlError,),
        EXPRESSIONS | STATEMENTS,
        ("CREATE INDEX i ON b(ELSE)", "CREATE INDEX i ON b(a) WITH " + '{"a":' * 400),
    ),
    "expression": Decoder(
        normalise_expression, (SqlError,), EXPRESSIONS, ("ELSE", "ELSE a", "THEN", "(" * 4_000)
    ),
    "definition": Decoder(
        lambda text: examine_here(Definition((text,), text)), (), EXPRESSIONS, ("ELSE",)
    ),
    "cursor": Decoder(
        Cursor.read,
        (ScanError,),
        st.text(max_size=60) | st.text("ABC=-_", max_size=60),
        ("", "=", "é", "A" * 99_999, str(Cursor(7, b"12345678", 1, 1, b"x"))),
    ),
    "cover": Decoder(_covered, (ScanError,), COVERS),
    "page": Decoder(unpack, (PageError,), damaged(PAGES.map(pack))),
    "key": Decoder(lambda data: decode_some(data, 3), (ValueError,), damaged(KEYS.map(encode_key))),
    "ordered key": Decoder(ORDER.decode, (ValueError,), damaged(KEYS.map(ORDER.encode))),
    "row": Decoder(lambda data: row_of(data, ORDER), (ValueError,), damaged(ENTRIES)),
    "key versions": Decoder(_begun, (ValueError,), damaged(ITEMS.map(key_versions.pack))),
    "scan of an indexer": Decoder(
        lambda body: read_scan(body, 1), (ScanRefused,), scan_bodies() | st.binary(max_size=30)
    ),
    "frames": Decoder(
        _deck,
        (ValueError,),
        damaged(FRAMES),
        tuple(
            b"\x00\x00\x00\x02" + kind + b"x" + b"\xff" * 9 for kind in (b"\x01", b"\x03", b"\x04")
        ),
    ),
}


@pytest.mark.parametrize("name", DECODERS)
def test_whatever_comes_in_ends_in_a_value_or_in_the_one_error(name: str) -> None:
    decoder = DECODERS[name]
    law = total(decoder.function, *decoder.errors)
    holds(law, decoder.inputs, decoder.examples)


# -- what is written can be read -----------------------------------------------------------------


def _comes_back(data: bytes) -> None:
    try:
        record = codec.decode(data)
    except SchemaError:
        return
    assert codec.decode(codec.encode(record)) == record


def test_every_record_that_can_be_read_can_be_written_and_read_again() -> None:
    holds(_comes_back, RECORDS)


def _normal(text: str) -> None:
    for definition in (Definition((text,)), Definition(("a",), text)):
        found = examine_here(definition)
        assert isinstance(found, str) or examine_here(found) == found


def test_what_was_accepted_in_its_normal_form_is_accepted_again_as_it_is() -> None:
    known = ("a", "a DESC", "NOT a IS NULL", "a + b - c", "INTERVAL INTERVAL END")
    holds(_normal, EXPRESSIONS, known)


DOCUMENTS = st.dictionaries(st.sampled_from(["a", "b", "i", "c d"]), COMPONENTS, max_size=4)


def _compiles(given: tuple[str, dict[str, Any]]) -> None:
    """What was accepted compiles, and evaluates every document to a key, or says why not."""
    text, document = given
    found = examine_here(Definition((text,), None))
    if isinstance(found, str):
        return
    index = make_index(1, expressions=found.expressions)
    evaluate = compile_index(index)
    try:
        assert isinstance(evaluate("id", document), bytes | None)
    except EvaluationError:
        return


def test_what_is_accepted_can_be_evaluated_over_every_document() -> None:
    holds(_compiles, st.tuples(EXPRESSIONS, DOCUMENTS), (("a", {}), ("a + 1 || 'x'", {"a": 1})))


def _page_comes_back(page: Page) -> None:
    found = unpack(pack(page))
    assert found._replace(entries=list(found.entries)) == page


def test_pages_cursors_and_items_come_back() -> None:
    holds(_page_comes_back, PAGES)
    holds(
        lambda cursor: _same(Cursor.read(str(cursor)), cursor),
        st.builds(
            Cursor,
            st.integers(0, 2**64 - 1),
            st.binary(min_size=8, max_size=8),
            st.integers(0, 2**64 - 1),
            st.integers(0, 2**64 - 1),
            st.binary(max_size=40),
        ),
    )
    holds(lambda item: _same(list(key_versions.unpack(key_versions.pack(item))), [item]), ITEMS)


def _same(found: Any, expected: Any) -> None:
    assert found == expected


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | FINITE | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=20) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=40,
)


def test_answers_of_the_api_are_the_json_that_they_stand_for() -> None:
    holds(lambda value: _same(json_text.parse(encoded(value)), value), JSON_VALUES)


def test_the_request_of_a_command_does_not_depend_on_how_it_is_read() -> None:
    def law(text: str) -> None:
        command = CreateIndex(name="i", bucket="b", expressions=(text,))
        data = codec.encode_ddl("r", command)
        request = read_command(data, PLACE)
        assert isinstance(request, Request)
        assert request.fingerprint == codec.fingerprint(command, None)

    holds(law, EXPRESSIONS.filter(lambda text: text.isprintable()))
