"""A proxy in front of a real broker that knows one request from another, and can hold them back.

The broker advertises the proxy's address to all who come to its second listener: every client that
comes through it once does so always. Requests are whole
frames of Kafka's protocol: a length, then the number of the API. A `Rule` decides what becomes of
each: it goes on, it is held, or its connection to the client is cut while the broker keeps the
request. A held request reaches the broker when the test lets go of it, over the connection on which
it came: that is how a packet is late. Answers are whole frames, too: an `Alteration` changes one
and knows what was asked, because answers of two APIs may have the same bytes in them.
"""

from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from coordinator.embedded.broker import Broker
from coordinator.embedded.ports import pick_free

LOOPBACK = "127.0.0.1"
PRODUCE, METADATA, CREATE_TOPICS, END_TXN, DESCRIBE_CONFIGS = 0, 3, 19, 26, 32
HEAD = struct.Struct(">ihhi")
BACKLOG = 128
WAIT_S = 90.0

PASS, HOLD, HOLD_AND_CUT, DELIVER_AND_CUT = "pass", "hold", "hold and cut", "deliver and cut"


@dataclass(slots=True)
class Held:
    """A request that has not reached the broker yet, and since when."""

    api: int
    frame: bytes
    broker: socket.socket
    since_s: float


Rule = Callable[[int], str]
"""Says what becomes of a request of this API."""

Alteration = Callable[[int, bytes], bytes]
"""Changes the answer to a request of this API on its way to the client: a whole frame."""

DUPLICATE_SEQUENCE_NUMBER = 46
NO_ERROR = struct.pack(">h", 0)
NO_TIME = struct.pack(">q", -1)


def only_once(api: int, action: str) -> Rule:
    """Return a rule that treats the next request of an API so, and lets everything else pass."""
    left = [action]

    def rule(asked: int) -> str:
        return left.pop() if asked == api and left else PASS

    return rule


@contextmanager
def proxied_broker(folder: Path) -> Iterator[tuple[Broker, KafkaProxy]]:
    """Run a broker that has two addresses: its own, and that of a proxy."""
    proxy, ports = KafkaProxy(), list[int]()
    while len(ports) < 3:
        ports.append(pick_free(avoid=ports))
    own, controller, behind = (f"{LOOPBACK}:{port}" for port in ports)
    settings = {
        "listeners": f"PLAINTEXT://{own},CONTROLLER://{controller},PROXIED://{behind}",
        "advertised.listeners": f"PLAINTEXT://{own},PROXIED://{proxy.bootstrap_servers}",
        "listener.security.protocol.map": ",".join(
            f"{name}:PLAINTEXT" for name in ("PLAINTEXT", "CONTROLLER", "PROXIED")
        ),
    }
    proxy.serve(ports[2])
    try:
        with Broker(folder, port=ports[0], controller_port=ports[1], settings=settings) as broker:
            yield broker, proxy
    finally:
        proxy.close()


def as_duplicates(topic: str) -> Alteration:
    """Return what makes a broker acknowledge records of a topic without saying where they are.

    So answers one that has the records already, and has lost what it knew of their batches: it
    knows that they are duplicates, and not of what.
    """
    return as_answered(topic, DUPLICATE_SEQUENCE_NUMBER)


def as_answered(topic: str, code: int) -> Alteration:
    """Return what makes a broker answer with an error where it has written records of a topic.

    Changed are error and offset of partition 0 in the answer to a Produce request that was carried
    out: the name with its length, one partition, its number, no error; a time of the append that
    is not said follows. A request that the broker refused (it leads no partition of a new topic
    yet) is repeated by the client, and stays so.
    """
    head = bytes((len(topic) + 1,)) + topic.encode() + bytes((2, 0, 0, 0, 0))
    body = struct.pack(">hq", code, -1)

    def altered(api: int, data: bytes) -> bytes:
        at = data.find(head) + len(head)
        rest = data[at + len(body) :]
        is_written = data[at : at + 2] == NO_ERROR
        is_found = api == PRODUCE and at >= len(head)
        is_produced = is_found and is_written and rest.startswith(NO_TIME)
        return data[:at] + body + rest if is_produced else data

    return altered


FORGETFUL = {
    "metadata.recovery.strategy": "none",
    "topic.metadata.refresh.interval.ms": 300,
}
"""With these a client that is once told of no broker never finds one again. Without them that is a
matter of moments: it depends on what else the client is just told."""


def as_without_brokers(proxy: KafkaProxy, told: list[bytes]) -> Alteration:
    """Return what makes a broker tell that there is none, as one does that is about to stop.

    The list of brokers in an answer to a Metadata request has one, with a number, the proxy's
    address and no rack; `told` gets each answer that was changed.
    """
    address = bytes((len(LOOPBACK) + 1,)) + LOOPBACK.encode() + struct.pack(">i", proxy.port)
    one = b"\x02" + struct.pack(">i", 1) + address + b"\x00\x00"

    def altered(api: int, data: bytes) -> bytes:
        before, found, after = data.partition(one)
        if api != METADATA or not found:
            return data
        told.append(data)
        size = int.from_bytes(before[:4], "big") - len(one) + 1
        return size.to_bytes(4, "big") + before[4:] + b"\x01" + after

    return altered


class KafkaProxy:
    """Relays between clients and one broker; `rule` and `alter` may be replaced at any time."""

    def __init__(self) -> None:
        self.rule: Rule = lambda api: PASS
        self.alter: Alteration = _unaltered
        self._held: list[Held] = []
        self._seen: list[tuple[int, float]] = []
        self._answered: set[socket.socket] = set()
        self._target = 0
        self._closing = False
        self._changed = threading.Condition()
        self._sockets: set[socket.socket] = set()
        self._listener = socket.create_server((LOOPBACK, 0), backlog=BACKLOG)
        self.port: int = self._listener.getsockname()[1]

    @property
    def bootstrap_servers(self) -> str:
        return f"{LOOPBACK}:{self.port}"

    def serve(self, target_port: int) -> None:
        """Relay to the broker on this port from now on."""
        self._target = target_port
        threading.Thread(target=self._accept, daemon=True).start()

    def reset(self) -> None:
        """Let everything pass, and forget what was."""
        with self._changed:
            self.rule = lambda api: PASS
            self.alter = _unaltered
            self._held.clear()
            self._seen.clear()

    def times(self, api: int) -> list[float]:
        """Return when requests of an API came, in seconds of the monotonic clock."""
        with self._changed:
            return [at for seen, at in self._seen if seen == api]

    def wait_for_held(self, timeout_s: float = WAIT_S) -> Held:
        """Return the first request that is held, as soon as there is one."""
        with self._changed:
            assert self._changed.wait_for(lambda: bool(self._held), timeout_s), "nothing is held"
            return self._held[0]

    def release(self) -> None:
        """Let what is held reach the broker, and return when that has answered."""
        with self._changed:
            held, self._held = self._held, []
            self._answered -= {one.broker for one in held}
        for one in held:
            one.broker.sendall(one.frame)
        with self._changed:
            done = self._changed.wait_for(
                lambda: {one.broker for one in held} <= self._answered, WAIT_S
            )
        assert done, "the broker did not answer"

    def close(self) -> None:
        self._closing = True
        for one in (self._listener, *self._sockets):
            _end(one)
            one.close()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection((LOOPBACK, self._target))
            except OSError:
                continue
            for one in (client, broker):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                self._sockets.add(one)
            ends = (client, broker, {})
            threading.Thread(target=self._requests, args=ends, daemon=True).start()
            threading.Thread(target=self._answers, args=ends, daemon=True).start()

    def _requests(
        self, client: socket.socket, broker: socket.socket, asked: dict[int, int]
    ) -> None:
        """Carry requests to the broker; one that is held keeps its connection there open."""
        kept = False
        with suppress(OSError, struct.error):
            while (frame := _frame(client)) is not None:
                _, api, _, number = HEAD.unpack_from(frame)
                asked[number] = api
                action = self.rule(api)
                with self._changed:
                    self._seen.append((api, time.monotonic()))
                    if action in (HOLD, HOLD_AND_CUT):
                        self._held.append(Held(api, frame, broker, time.monotonic()))
                        self._changed.notify_all()
                kept = kept or action != PASS
                if action == DELIVER_AND_CUT:
                    # Before the broker hears of it: its answer must not be quicker.
                    _end(client)
                if action in (PASS, DELIVER_AND_CUT):
                    broker.sendall(frame)
                if action in (HOLD_AND_CUT, DELIVER_AND_CUT):
                    break
        _end(client)
        if not kept:
            _end(broker)

    def _answers(self, client: socket.socket, broker: socket.socket, asked: dict[int, int]) -> None:
        """Carry answers to the client, as long as it is there; `asked` has the API by number."""
        there = True
        with suppress(OSError):
            while data := _frame(broker):
                number = int.from_bytes(data[4:8], "big")
                with self._changed:
                    self._answered.add(broker)
                    self._changed.notify_all()
                if there:
                    try:
                        client.sendall(self.alter(asked.pop(number), data))
                    except OSError:
                        there = False
        _end(client)


def _unaltered(api: int, data: bytes) -> bytes:
    return data


def _frame(stream: socket.socket) -> bytes | None:
    """Return the next request or answer with its length in front; None at the end."""
    head = _exactly(stream, 4)
    if head is None:
        return None
    body = _exactly(stream, int.from_bytes(head, "big"))
    return None if body is None else head + body


def _exactly(stream: socket.socket, count: int) -> bytes | None:
    parts: list[bytes] = []
    while count:
        part = stream.recv(min(count, 1 << 16))
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _end(one: socket.socket) -> None:
    with suppress(OSError):
        one.shutdown(socket.SHUT_RDWR)
