"""Clients that work on a cluster while it is hurt, and a record of what each was told.

Settings and indexes of a round have names of their own, so that each round's history begins with
nothing. All times are on one monotonic clock. An operation whose deadline passed is unknown.
"""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import httpx
from confluent_kafka import KafkaError, Message, Producer, TopicPartition

from coordinator import codec
from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError, UnavailableError
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.commands import CreateIndex, DropIndex
from coordinator.core.model.records import DdlReply
from coordinator.kafka.readers import consumer
from coordinator.kafka.topics import DDL, DDL_PARTITIONS, DDL_REPLIES
from tests.integration.cluster import Cluster, an_index, wait_until
from tests.support.linearizability import UNKNOWN, Ok, Operation, Refused

SETTERS, DEFINERS = 4, 2
KEYS, NAMES = 5, 3
BUCKETS = ("east", "west")
DEADLINES_S = (3.0, 15.0, 15.0)
PAUSE_S_MAX = 0.12
TOPIC_PAUSE_S = 0.5
LARGE_BYTES = 24_000
LOOK_S = 0.4
LOOK_TIMEOUT_S = 1.0
ANSWERS_S = 60.0
WAITING_MAX = 40
"""So many commands wait on the topic at most: a slow disk makes one take longer than the pauses."""

CLOCKS_DIFFER_S = 0.1

CODES = {"config_not_found": "not_found", "index_not_found": "not_found"}
REFUSALS = frozenset(
    {
        "cas_mismatch",
        "config_not_found",
        "index_not_found",
        "index_exists",
        "indexer_refused",
        "placement_impossible",
    }
)
"""What a right cluster may refuse this load with; anything else is reported."""


@dataclass(frozen=True)
class Sent:
    """An operation, with what a checker of histories does not need.

    `cas` and `txn` are those that were acknowledged; `code` is that of the error, if there was one.
    """

    operation: Operation
    request: str = ""
    cas: int = 0
    txn: str = ""
    code: str = ""
    by_topic: bool = False

    @property
    def is_write(self) -> bool:
        return self.operation.call in ("put", "delete", "create", "drop")

    @property
    def is_acknowledged(self) -> bool:
        return self.is_write and isinstance(self.operation.result, Ok)

    @property
    def is_refused(self) -> bool:
        return isinstance(self.operation.result, Refused)

    def since(self, begin: float) -> Operation:
        """Return the operation with times that count from `begin`."""
        operation = self.operation
        returned = operation.returned
        return replace(
            operation,
            invoked=round(operation.invoked - begin, 4),
            returned=None if returned is None else round(returned - begin, 4),
        )

    @property
    def outcome(self) -> str:
        if isinstance(self.operation.result, Ok):
            return "read" if not self.is_write else "acknowledged"
        return "refused" if self.is_refused else "unknown"


class Seen(NamedTuple):
    """A node's own state, as a local read showed it."""

    node: int
    cas: int
    digest: str


class Ack(NamedTuple):
    """When a write was acknowledged, and by a master of which epoch."""

    at: float
    epoch: int


@dataclass
class Record:
    """Everything that was heard in a round."""

    sent: list[Sent] = field(default_factory=list)
    acks: list[Ack] = field(default_factory=list)
    seen: set[Seen] = field(default_factory=set)
    unexpected: list[str] = field(default_factory=list)

    def add(self, sent: Sent) -> None:
        self.sent.append(sent)
        if sent.is_acknowledged and not sent.by_topic:
            self.acks.append(Ack(sent.operation.returned or 0.0, int(sent.txn.split("-")[0])))
        if sent.code and sent.is_refused and sent.code not in REFUSALS:
            self.unexpected.append(f"refused with {sent.code}: {sent.operation}")

    def counts(self) -> dict[str, int]:
        """Return the number of operations by outcome."""
        found = dict.fromkeys(("acknowledged", "read", "refused", "unknown"), 0)
        for sent in self.sent:
            found[sent.outcome] += 1
        return found


def value_named(name: str, size: int) -> str:
    """Return a value that nobody else writes, of about this size; its name can be read off it."""
    return f"{name}:" + name[-1] * size


def name_of(value: Any) -> Any:
    """Return the name of a value, or the whole of one that is torn."""
    if not isinstance(value, str) or ":" not in value:
        return repr(value)
    name, _, rest = value.partition(":")
    return name if rest == name[-1] * len(rest) else repr(value)


def since_boot(wall_ms: int) -> float:
    """Return a time of the wall clock on the monotonic one."""
    return wall_ms / 1000 - (time.time() - time.monotonic())


class Worker:
    """One sequential process: a client that does one operation after the other."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        self.load = load
        self.name = name
        self.rng = rng
        self.count = 0
        urls = load.cluster.urls
        rng.shuffle(urls)
        self.client = Client(urls, deadline_s=rng.choice(DEADLINES_S))

    def run(self) -> None:
        with self.client:
            while not self.load.stopping.wait(self.rng.uniform(0.0, PAUSE_S_MAX)):
                self.once()

    def once(self) -> None:
        raise NotImplementedError

    def do(
        self,
        call: str,
        target: Any,
        argument: Any,
        ask: Callable[[str], Any],
        read: Callable[[Any], Ok] = lambda body: Ok(cas=body["cas"]),
        expected: int | None = None,
    ) -> Any:
        """Do one operation and record it; return the body of a success, else None."""
        request = new_request_id()
        invoked = time.monotonic()
        body: Any = None
        code, cas, txn = "", 0, ""
        try:
            body = ask(request)
            result: Any = read(body)
            cas, txn = body.get("cas", 0), body.get("txn", "")
        except CoordinatorError as error:
            code = error.code
            result = result_of(error)
            if result is UNKNOWN and not isinstance(error, UnavailableError):
                self.load.record.unexpected.append(f"{call} of {target}: {error}")
        returned = None if result is UNKNOWN else time.monotonic()
        operation = Operation(
            self.name, target, call, argument, result, invoked, returned, expected
        )
        self.load.record.add(Sent(operation, request, cas, txn, code))
        return body


def result_of(error: CoordinatorError) -> Any:
    """Translate what a client was told of an operation that did not succeed."""
    if isinstance(error, UnavailableError) or error.code in ("bad_response", "internal"):
        return UNKNOWN
    code = CODES.get(error.code, error.code)
    if code == "index_exists":
        return Refused(code, value=int(error.details["id"]))
    return Refused(code, error.details.get("actual"))


class Setter(Worker):
    """Writes, deletes and reads settings, some writes only at the CAS that it saw last."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        super().__init__(load, name, rng)
        self.last: dict[str, int] = {}

    def once(self) -> None:
        key = f"{self.load.prefix}/k{self.rng.randrange(KEYS)}"
        target, chance = ("setting", key), self.rng.random()
        expected = None
        if self.rng.random() < 0.4:
            expected = self.rng.choice([0, self.last.get(key, 0), self.last.get(key, 0)])
        if chance < 0.25:
            self._read(key, target)
        elif chance < 0.4:
            body = self.do(
                "delete",
                target,
                None,
                lambda request: self.client.delete_config(key, expected, request),
                expected=expected,
            )
            self._note(key, 0 if body else None)
        else:
            self._put(key, target, expected)

    def _put(self, key: str, target: Any, expected: int | None) -> None:
        self.count += 1
        name = f"{self.name}.{self.count}"
        value = value_named(name, LARGE_BYTES if self.count % 6 == 0 else 3)
        body = self.do(
            "put",
            target,
            name,
            lambda request: self.client.put_config(key, value, expected, request),
            expected=expected,
        )
        self._note(key, body["cas"] if body else None)

    def _read(self, key: str, target: Any) -> None:
        def ask(request: str) -> Any:
            try:
                return self.client.get_config(key, consistency="linearizable")
            except CoordinatorError as error:
                if error.code != "config_not_found":
                    raise
                return {"cas": 0, "value": None}

        def read(body: Any) -> Ok:
            value = body["value"]
            return Ok(None if value is None else name_of(value), body["cas"])

        body = self.do("read", target, None, ask, read)
        self._note(key, body["cas"] if body else None)

    def _note(self, key: str, cas: int | None) -> None:
        if cas is not None:
            self.last[key] = cas


class Definer(Worker):
    """Creates, drops and lists indexes under a few names."""

    def __init__(self, load: Load, name: str, rng: random.Random) -> None:
        super().__init__(load, name, rng)
        self.known: dict[str, set[int]] = {bucket: set() for bucket in load.buckets}

    def once(self) -> None:
        bucket = self.rng.choice(self.load.buckets)
        target, chance = ("bucket", bucket), self.rng.random()
        if chance < 0.3:
            body = self.do(
                "list",
                target,
                None,
                lambda request: self.client.list_indexes(bucket, consistency="linearizable"),
                lambda body: Ok(_names_in(body)),
            )
            if body:
                self.known[bucket] |= {int(i["id"]) for i in body["indexes"]}
        elif chance < 0.6 and self.known[bucket]:
            number = self.rng.choice(sorted(self.known[bucket]))
            self.do(
                "drop",
                target,
                number,
                lambda request: self.client.drop_index(number, request_id=request),
            )
            self.known[bucket].discard(number)
        else:
            self._create(bucket, target)

    def _create(self, bucket: str, target: Any) -> None:
        name = f"n{self.rng.randrange(NAMES)}"
        more = {"slices": self.rng.choice([1, 1, 3]), "replicas": self.rng.choice([0, 0, 1])}
        body = self.do(
            "create",
            target,
            name,
            lambda request: self.client.create_index(an_index(name, bucket, **more), request),
            lambda body: Ok(int(body["index"]["id"])),
        )
        if body:
            self.known[bucket].add(int(body["index"]["id"]))


def _names_in(body: Any) -> frozenset[tuple[str, int]]:
    """Return the indexes whose creation is complete; one in `init` may still be undone."""
    return frozenset(
        (index["name"], int(index["id"]))
        for index in body["indexes"]
        if index["state"] not in ("init", "dropping")
    )


class Publisher:
    """Puts commands on the `ddl` topic, and notes when their replies came."""

    def __init__(self, load: Load, rng: random.Random) -> None:
        self.load = load
        self.rng = rng
        self.lock = threading.Lock()
        self.published: dict[str, tuple[Any, float]] = {}
        self.written: set[str] = set()
        self.replies: dict[str, tuple[DdlReply, float]] = {}
        self.listening = threading.Event()
        self.done = threading.Event()

    def publish(self) -> None:
        """Publish until the load stops; some commands twice."""
        producer = Producer(
            {
                "bootstrap.servers": self.load.cluster.servers,
                "enable.idempotence": True,
                "message.timeout.ms": 120_000,
                "log_level": 0,
            }
        )
        topic = self.load.cluster.topic(DDL)
        while not self.load.stopping.wait(self.rng.uniform(0, 2 * TOPIC_PAUSE_S)):
            if len(self.unanswered()) >= WAITING_MAX:
                producer.poll(0)
                continue
            bucket = self.rng.choice(self.load.buckets)
            name = f"n{self.rng.randrange(NAMES)}"
            command: Any = DropIndex(bucket=bucket, name=name)
            if self.rng.random() < 0.6:
                command = CreateIndex(name=name, bucket=bucket, expressions=("a",))
            request = new_request_id()
            value = codec.encode_ddl(request, command, "producer")
            with self.lock:
                self.published[request] = (command, time.monotonic())
            for _ in range(self.rng.choice([1, 1, 1, 2])):
                producer.produce(
                    topic,
                    value,
                    partition=self.load.buckets.index(bucket),
                    on_delivery=self._delivered(request),
                )
            producer.poll(0)
        producer.flush(ANSWERS_S)

    def _delivered(self, request: str) -> Callable[[KafkaError | None, Message], None]:
        def report(error: KafkaError | None, message: Message) -> None:
            if error is None:
                with self.lock:
                    self.written.add(request)

        return report

    def listen(self) -> None:
        """Read replies until the round is over."""
        topic = self.load.cluster.topic(DDL_REPLIES)
        reader = consumer(self.load.cluster.servers, "chaos", **{"auto.offset.reset": "latest"})
        try:
            places = [TopicPartition(topic, p) for p in range(DDL_PARTITIONS)]
            for place in places:
                place.offset = reader.get_watermark_offsets(place, 30.0)[1]
            reader.assign(places)
            self.listening.set()
            while not self.done.is_set():
                for message in reader.consume(100, 0.2):
                    if message.error() is None:
                        self._take(codec.decode(message.value() or b""))
        finally:
            self.listening.set()
            reader.close()

    def _take(self, reply: Any) -> None:
        with self.lock:
            if reply.request in self.published:
                self.replies.setdefault(reply.request, (reply, time.monotonic()))

    def unanswered(self) -> list[str]:
        """Return the commands that are on the topic and have no reply yet."""
        with self.lock:
            return [r for r in self.written if r not in self.replies]

    def sent(self) -> list[Sent]:
        """Return the commands as operations."""
        return [
            _operation_of(request, command, invoked, self.replies.get(request))
            for request, (command, invoked) in self.published.items()
        ]


def _operation_of(
    request: str, command: Any, invoked: float, heard: tuple[DdlReply, float] | None
) -> Sent:
    """Return a command as an operation.

    Commands wait on the topic while there is no master. One begins to be in question when it is
    decided, which its reply tells, as it tells the id of what was dropped. So much narrower a
    history is harder to satisfy, and much easier to search.
    """
    target = ("bucket", command.bucket)
    call = "create" if isinstance(command, CreateIndex) else "drop"
    if heard is None:
        unheard = Operation("topic", target, call, command.name, UNKNOWN, invoked, None)
        return Sent(unheard, request, by_topic=True)
    reply, at = heard
    argument, result = command.name, Ok()
    if reply.status == "ok":
        number = int(json.loads(reply.answer_json)["index"]["id"])
        argument, result = (argument, Ok(number)) if call == "create" else (number, result)
    else:
        details = json.loads(reply.error_details_json)
        result = result_of(CoordinatorError(reply.error_code, reply.error_message, details))
    begin = min(at, max(invoked, since_boot(reply.at_ms) - CLOCKS_DIFFER_S))
    operation = Operation("topic", target, call, argument, result, begin, at)
    return Sent(operation, request, reply.cas, reply.txn, reply.error_code, by_topic=True)


class Load:
    """All clients of one round; a context manager that starts them, and ends them."""

    def __init__(self, cluster: Cluster, number: int, seed: int) -> None:
        self.cluster = cluster
        self.prefix = f"round{number}"
        self.buckets = [f"{bucket}{number}" for bucket in BUCKETS]
        self.began = time.monotonic()
        self.record = Record()
        self.stopping = threading.Event()
        rng = random.Random(f"load {seed}")
        workers: list[Worker] = [
            *(Setter(self, f"s{n}", random.Random(rng.random())) for n in range(SETTERS)),
            *(Definer(self, f"d{n}", random.Random(rng.random())) for n in range(DEFINERS)),
        ]
        self.publisher = Publisher(self, random.Random(rng.random()))
        self._tasks: list[Callable[[], None]] = [worker.run for worker in workers]
        self._tasks += [self.publisher.publish, self._look]
        self._threads: list[threading.Thread] = []
        self._listener = self._thread(self.publisher.listen)

    def _thread(self, task: Callable[[], None]) -> threading.Thread:
        def run() -> None:
            try:
                task()
            except BaseException as error:
                self.record.unexpected.append(f"a client failed: {type(error).__name__}: {error}")
                raise

        return threading.Thread(target=run, daemon=True)

    def __enter__(self) -> Load:
        self._listener.start()
        self.publisher.listening.wait(60.0)
        self._threads = [self._thread(task) for task in self._tasks]
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopping.set()
        for thread in self._threads:
            thread.join()
        self.publisher.done.set()
        self._listener.join()

    def progress(self, count: int = 1) -> Callable[[], bool]:
        """Return the condition that `count` more writes were acknowledged from now on."""
        begin = len(self.record.acks)
        return lambda: len(self.record.acks) >= begin + count

    def finish(self) -> None:
        """Stop the clients, and wait until everything that was published is answered."""
        self.stopping.set()
        for thread in self._threads:
            thread.join()
        with suppress(AssertionError):
            while left := len(self.publisher.unanswered()):
                wait_until(
                    lambda left=left: len(self.publisher.unanswered()) < left,
                    f"a reply, of {left} that are awaited",
                    ANSWERS_S,
                )
        self.publisher.done.set()
        self._listener.join()
        for sent in self.publisher.sent():
            self.record.add(sent)

    def _look(self) -> None:
        """Read the local state of every node, again and again."""
        with httpx.Client(timeout=LOOK_TIMEOUT_S, trust_env=False, verify=False) as http:
            while not self.stopping.wait(LOOK_S):
                for number, node in self.cluster.nodes.items():
                    with suppress(httpx.HTTPError):
                        answer = http.get(f"{node.url}/v1/state?consistency=local")
                        if answer.status_code == 200:
                            body = answer.json()
                            self.record.seen.add(Seen(number, body["cas"], body["digest"]))
