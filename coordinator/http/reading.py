"""How requests with a body are read: up to a bound, and beside the loop.

FastAPI reads, parses and validates a body in the loop, however large it is. The routes here give
it the finished model instead. The bounds of lists are in the models.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

from fastapi import Request
from fastapi.dependencies.models import Dependant
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from coordinator.core.model import json_text
from coordinator.http.aside import BODIES
from coordinator.http.errors import ApiError
from coordinator.runtime.http_errors import PROBLEMS_MAX
from coordinator.runtime.request_bodies import BodyTooLongError, read_body

BODY_BYTES_MAX = 256 * 1024
"""The longest body of a request: a vector of 6,000 vbuckets, or an index with all it may have. A
megabyte of JSON holds the interpreter for a tenth of a second, in whatever thread it is read."""

INLINE_BYTES_MAX = 4 * 1024
"""What is no longer than this is read in the loop: handing it over would cost more."""

NAME_SHOWN_MAX = 100
"""So much of the name of a parameter a refusal repeats."""


async def body_of(request: Request, limit: int = BODY_BYTES_MAX) -> bytes:
    """Return the body of a request. Raises ApiError."""
    try:
        return await read_body(request, limit)
    except BodyTooLongError as error:
        raise ApiError("value_too_large", str(error), {"limit": error.limit_bytes}) from None
    except ClientDisconnect:
        raise ApiError("invalid_request", "the body is incomplete") from None


API = "/v1/"
ABSENT = "Field required"
"""What FastAPI says of a body that is not there."""

M = TypeVar("M", bound=BaseModel)


async def beside(body: bytes, work: Callable[[], Any]) -> Any:
    """Return what `work` on a body returns: done in a thread, if the body is long."""
    return work() if len(body) <= INLINE_BYTES_MAX else await BODIES.run(work)


class BoundedRoute(APIRoute):
    """A route whose body is read within bounds, and handed to FastAPI as a model.

    A route of the API refuses a query with a parameter that it does not know: whoever has misspelt
    one would get the answer to another question, or have done what was to be tried only. Probes and
    metrics take any: what asks for them may be configured to add some.
    """

    @property
    def parameters(self) -> frozenset[str]:
        """The names of the parameters that a query may have."""
        return frozenset(_parameters_of(self.dependant))

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle, known = self._reading_the_body(), self.parameters
        if not self.path.startswith(API):
            return handle

        async def checked(request: Request) -> Response:
            refuse_unknown(request, known)
            return await handle(request)

        return checked

    def _reading_the_body(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()
        field = self.body_field
        model = field.field_info.annotation if field is not None else None
        if not isinstance(model, type) or not issubclass(model, BaseModel):
            return handle

        async def bounded(request: Request) -> Response:
            body = await body_of(request)
            if not body:
                return await handle(_Read(request, body, None))
            return await handle(_Read(request, body, await beside(body, lambda: read(body, model))))

        return bounded


async def model_of(request: Request, model: type[M]) -> M:
    """Return the body of a request as a model, for a route that does without FastAPI.

    Raises ApiError, RequestValidationError.
    """
    refuse_unknown(request)
    body = await body_of(request)
    if not body:
        raise RequestValidationError([{"type": "missing", "loc": ("body",), "msg": ABSENT}])
    found: M = await beside(body, lambda: read(body, model))
    return found


def _parameters_of(dependant: Dependant) -> Iterator[str]:
    """Yield the query parameters of a route, and of what it depends on."""
    yield from (one.alias for one in dependant.query_params)
    for inner in dependant.dependencies:
        yield from _parameters_of(inner)


def refuse_unknown(request: Request, known: frozenset[str] = frozenset()) -> None:
    """Refuse a query with another parameter than the known ones. Raises ApiError."""
    name = next((name for name in request.query_params if name not in known), None)
    if name is None:
        return
    shown = name[:NAME_SHOWN_MAX]
    takes = f"the parameters here are {', '.join(sorted(known))}" if known else "there are none"
    text = f"there is no parameter {shown!r} here: {takes}"
    raise ApiError("unknown_parameter", text, {"parameter": shown, "known": sorted(known)})


class _Read(Request):
    """A request whose body has been read, and made into a model."""

    def __init__(self, request: Request, body: bytes, model: BaseModel | None) -> None:
        super().__init__(request.scope, request.receive)
        self._given = body
        self._model = model

    async def body(self) -> bytes:
        return self._given

    async def json(self) -> Any:
        return self._model


def read(body: bytes, model: type[M]) -> M:
    """Return the model that a body is. Raises ApiError, RequestValidationError."""
    try:
        return model.model_validate(json_text.parse(body))
    except ValidationError as error:
        if error.error_count() > PROBLEMS_MAX:
            text = f"the body has {error.error_count()} problems"
            raise ApiError("invalid_request", text) from None
        problems = error.errors(include_url=False, include_input=False)
        raise RequestValidationError(
            [{**problem, "loc": ("body", *problem["loc"])} for problem in problems]
        ) from None
    except ValueError as error:
        raise ApiError("invalid_request", f"the body is no JSON: {error}"[:300]) from None
