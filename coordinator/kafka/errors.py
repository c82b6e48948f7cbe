"""What Kafka refuses, in one line each, with a stable code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from confluent_kafka import KafkaError, KafkaException

UNANSWERED = frozenset(
    {
        KafkaError._ALL_BROKERS_DOWN,
        KafkaError._TRANSPORT,
        KafkaError._TIMED_OUT,
        KafkaError._TIMED_OUT_QUEUE,
    }
)
"""What the client says where no broker has answered."""

TRANSIENT = UNANSWERED | frozenset(
    {
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NETWORK_EXCEPTION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.COORDINATOR_LOAD_IN_PROGRESS,
        KafkaError.COORDINATOR_NOT_AVAILABLE,
        KafkaError.NOT_COORDINATOR,
        KafkaError.NOT_CONTROLLER,
    }
)
"""What is said while a broker is away and another takes over for it."""


def passes_by_itself(error: KafkaError) -> bool:
    """Tell whether the client will get over what it reports to a reader, without being asked."""
    code = error.code()
    return bool(error.retriable()) or code in TRANSIENT or code == KafkaError._PARTITION_EOF


def never_connected(error: KafkaError) -> bool:
    """Tell whether a connection was refused: nothing that was sent over it can arrive late.

    One broker of several that is away is tried again all the time; that says nothing about the
    connections in use. Only the client's text tells the two apart; any other text is a loss.
    """
    return error.code() == KafkaError._TRANSPORT and "in state CONNECT" in error.str()


USED_UP = "without setting an exception"


def clients_error(error: BaseException) -> BaseException:
    """Return what Kafka's client means by what one of its calls raised.

    It reports a fatal error as an exception, out of the call that serves its callbacks. Where a
    callback is due in the same call, Python makes a SystemError of it: with the error as its cause,
    or, if the callback has used it up, without any. Then all that is known is that it was fatal.
    """
    if not isinstance(error, SystemError):
        return error
    if isinstance(error.__cause__, KafkaException):
        return error.__cause__
    if USED_UP in str(error):
        return KafkaException(
            KafkaError(KafkaError._FATAL, "Kafka's client has failed", fatal=True)
        )
    return error


@contextmanager
def as_meant() -> Iterator[None]:
    """Raise what Kafka's client means by what its calls raise in here."""
    try:
        yield
    except SystemError as error:
        raise clients_error(error) from None


class KafkaRefusal(Exception):
    """A clear refusal; `code` is stable, `message` says what is wrong and what to do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


UNKNOWN_TOPIC = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC, KafkaError._UNKNOWN_PARTITION}
)
"""What is said of a topic that a broker does not know, by the broker or by the client."""


def may_pass(error: BaseException) -> bool:
    """Tell whether asking again may help: a broker does not know a new topic at once, nor any topic
    right after its start."""
    if not isinstance(error, KafkaException):
        return False
    return is_away(error) or error.args[0].code() in UNKNOWN_TOPIC


def is_away(error: BaseException) -> bool:
    """Tell whether a broker is away, or another has yet to take over for it."""
    return isinstance(error, KafkaException) and error.args[0].code() in TRANSIENT


class LoginRefusals:
    """Hears that brokers do not let a client in: its `error_cb`. Calls of the client only say that
    nobody answers."""

    def __init__(self) -> None:
        self.said = ""

    def __call__(self, error: KafkaError) -> None:
        if error.code() in LOGIN:
            self.said = self.said or error.str()


LOGIN = frozenset(
    {KafkaError._AUTHENTICATION, KafkaError._SSL, KafkaError.SASL_AUTHENTICATION_FAILED}
)


def explain(
    error: KafkaException, bootstrap_servers: str, refusals: LoginRefusals | None = None
) -> KafkaRefusal:
    """Turn the client's exception into a refusal."""
    cause = error.args[0]
    if refusals is not None and refusals.said:
        message = f"Kafka at {bootstrap_servers} does not let this client in: {refusals.said}"
        return KafkaRefusal("kafka_login_refused", f"{message}; check --kafka-conf")
    if cause.name() in ("_TRANSPORT", "_ALL_BROKERS_DOWN", "_TIMED_OUT", "_RESOLVE"):
        return no_broker_answers(bootstrap_servers)
    return KafkaRefusal("kafka_error", f"{cause.name()}: {cause.str()}")


def no_broker_answers(bootstrap_servers: str) -> KafkaRefusal:
    """Return the refusal that says so."""
    message = f"no Kafka broker answers at {bootstrap_servers}: is it running there?"
    return KafkaRefusal("kafka_unavailable", message)
