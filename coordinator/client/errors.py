"""What the client raises. Codes are the API's, and a few of the client's own.

The client's own codes: `unreachable` (no known node answers, or no Kafka broker), `bad_response`
(an answer that is not one of this API), `no_reply` (Kafka has the command, and no master has
answered it yet) and `publisher_closed` (another thread closed the publisher meanwhile).
"""

from __future__ import annotations

from typing import Any


class CoordinatorError(Exception):
    """A refusal or a fault, with the stable `code`, a `message` for people, and `details`."""

    def __init__(self, code: str, message: str, details: dict[str, Any] | None = None) -> None:
        super().__init__(code, message, details or {})
        self.code = code
        self.message = message
        self.details = details or {}

    def __str__(self) -> str:
        return f"{self.message} [{self.code}]"


class NotFoundError(CoordinatorError):
    """There is no such index, bucket, setting, topic or subscription."""


class ConflictError(CoordinatorError):
    """The name is taken, the entity has another CAS than expected, or an index is being altered."""


class UnavailableError(CoordinatorError):
    """No answer by the deadline, or one that leaves the outcome open.

    A write may or may not have taken effect.
    """


_CLASSES: dict[str, type[CoordinatorError]] = {
    "index_not_found": NotFoundError,
    "config_not_found": NotFoundError,
    "topic_not_found": NotFoundError,
    "bucket_not_found": NotFoundError,
    "kafka_topic_not_found": NotFoundError,
    "subscription_not_found": NotFoundError,
    "rebalance_not_found": NotFoundError,
    "indexer_not_found": NotFoundError,
    "projector_not_found": NotFoundError,
    "index_exists": ConflictError,
    "topic_exists": ConflictError,
    "bucket_exists": ConflictError,
    "bucket_in_use": ConflictError,
    "topic_in_use": ConflictError,
    "subscriber_exists": ConflictError,
    "index_altering": ConflictError,
    "rebalance_running": ConflictError,
    "indexer_away": ConflictError,
    "indexer_alive": ConflictError,
    "projector_alive": ConflictError,
    "indexer_in_use": ConflictError,
    "rebalance_outdated": ConflictError,
    "alter_abandoned": ConflictError,
    "cas_mismatch": ConflictError,
    "not_master": UnavailableError,
    "no_master": UnavailableError,
    "unavailable": UnavailableError,
    "timeout": UnavailableError,
    "index_building": UnavailableError,
    "index_rolling_back": UnavailableError,
    "index_recovering": UnavailableError,
    "slice_unavailable": UnavailableError,
    "no_stability_timestamp": UnavailableError,
    "timestamp_not_reached": UnavailableError,
    "unreachable": UnavailableError,
    "no_reply": UnavailableError,
    "publisher_closed": UnavailableError,
}


def error_of(code: str, message: str, details: dict[str, Any] | None = None) -> CoordinatorError:
    """Return the error of the class that belongs to `code`."""
    return _CLASSES.get(code, CoordinatorError)(code, message, details)
