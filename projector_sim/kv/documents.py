"""Documents in and out of a bucket as lines of JSON: loading many, and dumping all.

A line to load is {"id", "doc", "expires_in_s"?} or {"id", "deleted": true}. What is wrong with a
line is told with its number and a stable code, and the others are written all the same. Neither
keeps more than a batch in memory.

What cannot be kept as it is, is refused: a document that is nested too deeply, and an integer that
64 bits do not hold (the parser would make a float of it, and say nothing).
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any
from zlib import crc32

import orjson

from projector_sim.kv.bucket import Bucket
from projector_sim.kv.layout import KEY_BYTES_MAX, Change, Mutation
from projector_sim.kv.vbuckets import vbucket_of

DOCUMENT_BYTES_MAX = 1024 * 1024
DEPTH_MAX = 254
"""So many arrays and objects may lie one in another: as deep as our writer of JSON goes, so that
the check costs nothing. Whoever reads a document can go down that far by calling itself."""

INTEGER_MIN, INTEGER_MAX = -(2**63), 2**64 - 1
LINE_BYTES_MAX = DOCUMENT_BYTES_MAX + 16 * 1024
LINE_TOO_LONG = f"a line has at most {LINE_BYTES_MAX} bytes"
BATCH_CHANGES, BATCH_BYTES = 500, 256 * 1024
ERRORS_MAX = 10
EXPIRES_IN_S_MAX = 10 * 365 * 24 * 3600
DUMP_BYTES = 256 * 1024
FIELDS = frozenset(("id", "doc", "expires_in_s", "deleted"))

DIGITS = bytes(ord("0") if chr(byte).isdigit() else byte for byte in range(128)) + bytes(128)
"""Turns each digit into a 0, so that a long number can be looked for as a string."""

LONG, LONG_NEGATIVE = b"0" * 20, b"-" + b"0" * 19
"""Only an integer that looks so may not fit into 64 bits."""

STEP, SAMPLED = 6, b"000"
"""Of each run of 19 digits, so many are seen by who looks at each sixth character only."""

RUN = re.compile(rb"0+")


class DocumentError(ValueError):
    """A document, or a line with one, cannot be taken; `code` is a stable word for the reason."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


def loads(text: bytes) -> Any:
    """Return what JSON says. DocumentError `invalid_json`, `too_deep`, `number_out_of_range`."""
    try:
        found = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        if error.msg.startswith("depth limit"):
            raise _too_deep() from None
        if error.msg.startswith("number is infinity"):
            raise DocumentError("number_out_of_range", "a number that no double holds") from None
        raise DocumentError("invalid_json", f"no JSON: {error.msg}") from None
    # Most texts have no long number: then a look at a sixth of them is all that it takes.
    if SAMPLED in text[::STEP].translate(DIGITS) and _has_long_integer(text.translate(DIGITS)):
        try:
            json.loads(text, parse_int=_checked)
        except RecursionError:
            raise _too_deep() from None
    return found


def _too_deep() -> DocumentError:
    return DocumentError("too_deep", f"nested more than {DEPTH_MAX} deep")


def _has_long_integer(plain: bytes) -> bool:
    """Tell whether a text whose digits are zeros may have one, perhaps in a string."""
    if LONG_NEGATIVE in plain:
        return True
    at = 0
    while (at := plain.find(LONG, at)) >= 0:
        if plain[at - 1 : at] != b".":
            return True
        run = RUN.match(plain, at)
        assert run is not None
        at = run.end()
    return False


def _checked(digits: str) -> int:
    if len(digits) > len(str(INTEGER_MIN)) or not INTEGER_MIN <= int(digits) <= INTEGER_MAX:
        named = digits if len(digits) <= 40 else f"{digits[:40]}…"
        raise DocumentError("number_out_of_range", f"the integer {named} does not fit into 64 bits")
    return int(digits)


def document_key(text: str) -> bytes:
    """Return the key of a document. DocumentError: that is no id."""
    key = text.encode()
    if not 0 < len(key) <= KEY_BYTES_MAX:
        raise DocumentError("invalid_request", f"an id has 1 to {KEY_BYTES_MAX} bytes")
    return key


def packed(document: Any) -> bytes:
    """Return a document that was read by `loads` in one line.

    DocumentError `too_deep`, `value_too_large`.
    """
    try:
        value = orjson.dumps(document)
    except TypeError:
        raise _too_deep() from None
    if len(value) > DOCUMENT_BYTES_MAX:
        text = f"a document has at most {DOCUMENT_BYTES_MAX} bytes"
        raise DocumentError("value_too_large", text)
    return value


def expiry_of(expires_in_s: Any, now_ms: int) -> int:
    """Return when a document expires, 0 for None. DocumentError: that is no time."""
    if expires_in_s is None:
        return 0
    if isinstance(expires_in_s, bool) or not isinstance(expires_in_s, int | float):
        raise DocumentError("invalid_request", "expires_in_s is a number of seconds")
    if not 0 < expires_in_s <= EXPIRES_IN_S_MAX:
        text = f"expires_in_s is more than 0, and at most {EXPIRES_IN_S_MAX}"
        raise DocumentError("invalid_request", text)
    return now_ms + math.ceil(expires_in_s * 1000)


def parse_line(line: bytes, now_ms: int) -> Change:
    """Return what a line asks for. DocumentError: it is not such a line."""
    if len(line) > LINE_BYTES_MAX:
        raise DocumentError("value_too_large", LINE_TOO_LONG)
    fields = loads(line)
    if not isinstance(fields, dict) or not isinstance(fields.get("id"), str):
        raise _no_line('a line is an object with an "id" that is a string')
    if not fields.keys() <= FIELDS:
        unknown = ", ".join(sorted(fields.keys() - FIELDS))
        raise _no_line(f"there is no field {unknown}")
    key = document_key(fields["id"])
    if "deleted" in fields:
        if fields["deleted"] is not True or len(fields) > 2:
            raise _no_line('a deletion is {"id": …, "deleted": true}')
        return Change(key, None)
    if "doc" not in fields:
        raise _no_line('a line has a "doc", or "deleted": true')
    return Change(key, packed(fields["doc"]), expiry_of(fields.get("expires_in_s"), now_ms))


def _no_line(message: str) -> DocumentError:
    return DocumentError("invalid_request", message)


@dataclass
class Loaded:
    """What became of the lines."""

    written: int = 0
    deleted: int = 0
    absent: int = 0
    """Deletions of documents that there were not."""
    failed: int = 0
    errors: list[dict[str, Any]] = field(default_factory=list)
    """The first of the lines that failed, at most `ERRORS_MAX`: number, code and message."""


class Loader:
    """Lines that come in pieces of any size, into a bucket."""

    def __init__(self, bucket: Bucket, now_ms: int) -> None:
        self.loaded = Loaded()
        self._bucket = bucket
        self._now_ms = now_ms
        self._rest = b""
        self._line = 0
        self._skipping = False
        self._batch: list[Change] = []
        self._bytes = 0

    def feed(self, data: bytes) -> bool:
        """Take in the next piece; return whether something was written. KvError."""
        lines = (self._rest + data).split(b"\n")
        self._rest = lines.pop()
        before = self.loaded.written + self.loaded.deleted
        for line in lines:
            self._add_line(line)
        if len(self._rest) > LINE_BYTES_MAX and not self._skipping:
            self._fail(self._line + 1, "value_too_large", LINE_TOO_LONG)
            self._skipping = True
        if self._skipping:
            self._rest = b""
        return self.loaded.written + self.loaded.deleted > before

    def finish(self) -> Loaded:
        """Take in a last line that has no end, and write what is left. KvError."""
        if self._rest:
            self._add_line(self._rest)
        self._write()
        return self.loaded

    def _add_line(self, line: bytes) -> None:
        self._line += 1
        if self._skipping:
            self._skipping = False
            return
        if not line or line.isspace():
            return
        try:
            change = parse_line(line, self._now_ms)
        except DocumentError as error:
            self._fail(self._line, error.code, str(error))
            return
        except Exception as error:
            # Whatever it is: a line must not stop the others.
            self._fail(self._line, "invalid_request", f"{type(error).__name__}: {error}")
            return
        self._batch.append(change)
        self._bytes += len(line)
        if len(self._batch) >= BATCH_CHANGES or self._bytes >= BATCH_BYTES:
            self._write()

    def _write(self) -> None:
        batch, self._batch, self._bytes = self._batch, [], 0
        for change, placed in zip(batch, self._bucket.write(batch), strict=True):
            if change.value is not None:
                self.loaded.written += 1
            elif placed.seqno:
                self.loaded.deleted += 1
            else:
                self.loaded.absent += 1

    def _fail(self, line: int, code: str, message: str) -> None:
        self.loaded.failed += 1
        if len(self.loaded.errors) < ERRORS_MAX:
            self.loaded.errors.append({"line": line, "code": code, "message": message})


def dump(bucket: Bucket, *, every: int = 1, ids_only: bool = False) -> Iterator[bytes]:
    """Yield all documents of one moment as lines, many at a time; or about one of `every`."""
    lines: list[bytes] = []
    size = 0
    for mutation in bucket.documents():
        if every > 1 and crc32(mutation.key) % every:
            continue
        line = _line(mutation, bucket.vbuckets, ids_only)
        lines.append(line)
        size += len(line)
        if size >= DUMP_BYTES:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)


def _line(mutation: Mutation, vbuckets: int, ids_only: bool) -> bytes:
    name = orjson.dumps(mutation.key.decode("utf-8", "replace"))
    vbucket = vbucket_of(mutation.key, vbuckets)
    head = b'{"id":%b,"vbucket":%d,"seqno":"%d"' % (name, vbucket, mutation.seqno)
    return head + (b"}\n" if ids_only else b',"doc":%b}\n' % (mutation.value or b"null"))
