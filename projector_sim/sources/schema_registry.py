"""A schema registry, over its HTTP API: it has the schemas that Avro records name by number.

A schema never changes, so each is asked for once. A registry that is away is waited for: nothing
can be read without it, and nothing is wrong with the records.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx

from projector_sim.sources.topic_records import AvroSchema, RecordError, parse_avro

TIMEOUT_S = 5.0
PAUSE_S = 0.5
ANSWER_BYTES_MAX = 4 * 1024 * 1024
REFERENCES_MAX = 100
TYPE = "application/vnd.schemaregistry.v1+json"
UNKNOWN = 404


class RegistryClosed(Exception):
    """Nobody waits for the registry any more."""


class SchemaRegistry:
    """The schemas of one registry. For one thread."""

    def __init__(
        self,
        url: str,
        wait: Callable[[float], bool],
        problem: Callable[[str], None],
        resolved: Callable[[], None],
    ) -> None:
        """`wait` waits for so long, and tells whether to give up; `problem` says what is wrong with
        the registry, `resolved` that it answers again."""
        self._client = httpx.Client(
            base_url=url.rstrip("/"),
            timeout=TIMEOUT_S,
            trust_env=False,
            headers={"Accept": f"{TYPE}, application/json"},
        )
        self._wait = wait
        self._problem = problem
        self._resolved = resolved
        self._known: dict[int, AvroSchema | RecordError] = {}

    def close(self) -> None:
        self._client.close()

    def get(self, number: int) -> AvroSchema:
        """Return a schema. RecordError: there is none; RegistryClosed: nobody waits any more."""
        known = self._known.get(number)
        if known is None:
            try:
                known = self._fetch(number)
            except RecordError as error:
                known = error
            self._known[number] = known
        if isinstance(known, RecordError):
            raise RecordError(known.code, str(known))
        return known

    def _fetch(self, number: int) -> AvroSchema:
        said = self._ask(f"/schemas/ids/{number}", f"schema {number}")
        named: dict[str, Any] = {}
        try:
            self._refer(said, named, [0])
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, RecordError):
                raise
            text = f"what schema {number} refers to cannot be read: {error!r}"
            raise RecordError("bad_schema", text) from error
        return parse_avro(_text_of(said), named)

    def _refer(self, said: dict[str, Any], named: dict[str, Any], count: list[int]) -> None:
        """Fetch what a schema refers to, before it: those again may refer to others."""
        for reference in said.get("references") or ():
            count[0] += 1
            if count[0] > REFERENCES_MAX:
                raise RecordError("bad_schema", f"a schema with over {REFERENCES_MAX} references")
            subject, version = quote(str(reference["subject"]), safe=""), reference["version"]
            path = f"/subjects/{subject}/versions/{int(version)}"
            found = self._ask(path, f"{reference['subject']} version {version}")
            self._refer(found, named, count)
            if reference["name"] not in named:
                named[reference["name"]] = parse_avro(_text_of(found), named).parsed

    def _ask(self, path: str, what: str) -> dict[str, Any]:
        """Ask until there is an answer."""
        while True:
            try:
                with self._client.stream("GET", path) as answer:
                    body = _bounded(answer)
                    if answer.status_code == UNKNOWN:
                        raise RecordError("unknown_schema", f"the registry has no {what}")
                    answer.raise_for_status()
                    said = httpx.Response(200, content=body).json()
                if not isinstance(said, dict):
                    raise RecordError("bad_schema", f"the registry's answer about {what} is none")
            except (httpx.HTTPError, ValueError, OSError) as error:
                if isinstance(error, RecordError):
                    raise
                self._problem(f"{what}: {type(error).__name__}: {error}")
                if self._wait(PAUSE_S):
                    raise RegistryClosed from error
            else:
                self._resolved()
                return said


def _bounded(answer: httpx.Response) -> bytes:
    body = bytearray()
    for part in answer.iter_bytes():
        body += part
        if len(body) > ANSWER_BYTES_MAX:
            text = f"a schema of more than {ANSWER_BYTES_MAX} bytes"
            raise RecordError("bad_schema", text)
    return bytes(body)


def _text_of(said: dict[str, Any]) -> str:
    if said.get("schemaType", "AVRO") != "AVRO" or not isinstance(said.get("schema"), str):
        raise RecordError("bad_schema", f"a schema of the type {said.get('schemaType')}, not AVRO")
    text: str = said["schema"]
    return text
