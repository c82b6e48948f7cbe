"""Errors of the HTTP API: one shape, stable codes, and a default status for each code."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from starlette.responses import Response

from coordinator.core.model.commands import Outcome
from coordinator.http.encoding import encoded
from coordinator.runtime import http_guard
from coordinator.runtime.http_guard import error_body

STATUS: Mapping[str, int] = {
    "invalid_request": 400,
    "unknown_parameter": 400,
    "clock_ahead": 400,
    "not_found": 404,
    "index_not_found": 404,
    "config_not_found": 404,
    "member_not_found": 404,
    "topic_not_found": 404,
    "bucket_not_found": 404,
    "kafka_topic_not_found": 404,
    "subscription_not_found": 404,
    "method_not_allowed": 405,
    "index_exists": 409,
    "topic_exists": 409,
    "bucket_exists": 409,
    "bucket_in_use": 409,
    "bucket_of_store": 409,
    "too_many_buckets": 409,
    "kafka_topic_unfit": 409,
    "topic_in_use": 409,
    "too_many_topics": 409,
    "subscriber_exists": 409,
    "too_many_subscriptions": 409,
    "delivered_elsewhere": 409,
    "indexer_refused": 409,
    "no_successor": 409,
    "leave_impossible": 409,
    "reform_impossible": 409,
    "placement_impossible": 409,
    "index_not_ready": 409,
    "index_failed": 409,
    "index_altering": 409,
    "rebalance_running": 409,
    "indexer_away": 409,
    "rebalance_outdated": 409,
    "rebalance_not_found": 404,
    "indexer_not_found": 404,
    "projector_not_found": 404,
    "indexer_alive": 409,
    "projector_alive": 409,
    "indexer_in_use": 409,
    "alter_abandoned": 409,
    "request_expired": 410,
    "timestamp_gone": 410,
    "compacted": 410,
    "subscription_expired": 410,
    "cas_mismatch": 412,
    "value_too_large": 413,
    "too_large": 413,
    "request_mismatch": 422,
    **http_guard.STATUS,
    "internal": 500,
    "history_archive_damaged": 500,
    "history_archive_foreign": 500,
    "no_master": 503,
    "unavailable": 503,
    "overloaded": 503,
    "not_ready": 503,
    "history_archive_unavailable": 503,
    "index_building": 503,
    "index_rolling_back": 503,
    "index_recovering": 503,
    "slice_unavailable": 503,
    "no_stability_timestamp": 503,
    "timeout": 504,
    "timestamp_not_reached": 504,
    "not_master": 307,
}


class ApiError(Exception):
    """An answer that is an error; `code` is one of `STATUS`, `status` that one's unless given."""

    def __init__(
        self,
        code: str,
        message: str,
        details: dict[str, Any] | None = None,
        *,
        status: int | None = None,
    ) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.details = details or {}
        self.status = STATUS.get(code, 500) if status is None else status


def raise_unless_ok(outcome: Outcome) -> Outcome:
    """Return an outcome that is ok; raise its refusal as an ApiError otherwise."""
    if outcome.status != "ok":
        raise ApiError(outcome.code, outcome.message, outcome.details)
    return outcome


def error_response(error: ApiError, target: str = "") -> Response:
    """Return the response for `error`; `target` is the path and query that was asked for."""
    body = error_body(error.code, error.message, error.details)
    headers = {}
    if error.code == "not_master" and error.details.get("address"):
        headers["Location"] = error.details["address"] + target
    elif error.status == 503:
        headers["Retry-After"] = "1"
    return json_response(body, error.status, headers)


def json_response(
    body: Any, status: int = 200, headers: Mapping[str, str] | None = None
) -> Response:
    """Return an answer that is JSON, as `encoded` writes it."""
    return Response(encoded(body), status, headers, "application/json")
