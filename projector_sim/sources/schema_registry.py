"""A schema registry, over its HTTP API: it has the schemas that Avro records name by number.

A schema never changes, so each is asked for once. A registry that is away is waited for: nothing
can be read without it, and nothing is wrong with the records.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

import httpx

from projector_sim.sources.topic_records import AvroSchema, RecordError, RegistryClosed, parse_avro

TIMEOUT_S = 5.0
PAUSE_S = 0.5
ANSWER_BYTES_MAX = 4 * 1024 * 1024
REFERENCES_MAX = 100
TYPE = "application/vnd.schemaregistry.v1+json"
UNKNOWN = 404
UNKNOWN_CODES = (40401, 40402, 40403)
"""What a registry says of a subject, a version or a schema that it has not. Any other 404 is of
somebody who is no registry."""

DENIALS = 4
REFUSED_S = 30.0
"""So long it is not asked again for what it has not, or what cannot be read."""

REFUSED_MAX = 1_000
PROBLEM_LENGTH_MAX = 300


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
        self._url = url.rstrip("/")
        self._wait = wait
        self._problem = problem
        self._resolved = resolved
        self._known: dict[int, AvroSchema] = {}
        self._refused: dict[int, tuple[float, RecordError]] = {}

    def get(self, number: int) -> AvroSchema:
        """Return a schema. RecordError: there is none; RegistryClosed: nobody waits any more."""
        known = self._known.get(number)
        if known is not None:
            return known
        until_s, refusal = self._refused.get(number, (0.0, None))
        if refusal is None or time.monotonic() >= until_s:
            try:
                found = self._known[number] = self._fetch(number)
            except RecordError as error:
                if len(self._refused) >= REFUSED_MAX:
                    self._refused.clear()
                self._refused[number] = (time.monotonic() + REFUSED_S, error)
                refusal = error
            else:
                return found
        raise RecordError(refusal.code, str(refusal))

    def _fetch(self, number: int) -> AvroSchema:
        said = self._ask(f"/schemas/ids/{number}", f"schema {number}")
        named: dict[str, Any] = {}
        try:
            self._refer(said, named, [0])
            return parse_avro(_text_of(said), named)
        except (RecordError, RegistryClosed):
            raise
        except Exception as error:
            text = f"schema {number}, or what it refers to, cannot be read: {error!r:.200}"
            raise RecordError("bad_schema", text) from error

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
        """Ask until there is an answer.

        A registry may learn late of a schema that another of its nodes has given out: that it has
        none is believed when it has said so several times.
        """
        denials = 0
        while True:
            try:
                status, body = asyncio.run(self._answer(path))
                if status == UNKNOWN and _error_code(body) in UNKNOWN_CODES:
                    denials += 1
                    if denials > DENIALS:
                        raise RecordError("unknown_schema", f"the registry has no {what}")
                    problem = f"it has no {what}"
                elif status != httpx.codes.OK:
                    problem = f"{what}: HTTP {status}"
                elif _error_code(body) is not None:
                    problem = f"{what}: error {_error_code(body)}"
                else:
                    said = _read(body, what)
                    self._resolved()
                    return said
            except RecordError:
                self._resolved()
                raise
            except Exception as error:
                problem = f"{what}: {type(error).__name__}: {error}"
            self._problem(problem[:PROBLEM_LENGTH_MAX])
            if self._wait(PAUSE_S):
                raise RegistryClosed(problem)

    async def _answer(self, path: str) -> tuple[int, bytes]:
        """Return the status and the body of an answer, as it comes and within one deadline."""
        body = bytearray()
        async with (
            asyncio.timeout(TIMEOUT_S),
            self._client() as client,
            client.stream("GET", path) as answer,
        ):
            if answer.headers.get("Content-Encoding", "identity") != "identity":
                raise ValueError("an encoding that was not asked for")
            async for part in answer.aiter_raw():
                body += part
                if len(body) > ANSWER_BYTES_MAX:
                    text = f"a schema of more than {ANSWER_BYTES_MAX} bytes"
                    raise RecordError("bad_schema", text)
        return answer.status_code, bytes(body)

    def _client(self) -> httpx.AsyncClient:
        """Return a client. One that waits in a thread has no deadline for the head of an answer."""
        return httpx.AsyncClient(
            base_url=self._url,
            timeout=TIMEOUT_S,
            trust_env=False,
            headers={"Accept": f"{TYPE}, application/json", "Accept-Encoding": "identity"},
        )


def _error_code(body: bytes) -> Any:
    """Return the error that an answer says, None if it says none."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        return None
    return said.get("error_code") if isinstance(said, dict) and "schema" not in said else None


def _read(body: bytes, what: str) -> dict[str, Any]:
    """Return an answer. RecordError: it can never be read; ValueError: it is none."""
    try:
        said = json.loads(body)
    except json.JSONDecodeError:
        raise
    except (ValueError, RecursionError) as error:
        raise RecordError("bad_schema", f"{what} cannot be read: {error}") from error
    if not isinstance(said, dict):
        raise RecordError("bad_schema", f"the registry's answer about {what} is none")
    return said


def _text_of(said: dict[str, Any]) -> str:
    if said.get("schemaType", "AVRO") != "AVRO" or not isinstance(said.get("schema"), str):
        raise RecordError("bad_schema", f"a schema of the type {said.get('schemaType')}, not AVRO")
    text: str = said["schema"]
    return text
