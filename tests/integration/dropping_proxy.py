"""A TCP proxy before a broker that loses answers: the broker did what it was asked, nobody hears.

It knows of Kafka's protocol what the head of a request is: size 4, key of the API 2. The broker
must advertise the proxy's address.
"""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress

PRODUCE = 0
HEAD = struct.Struct(">ih")
CHUNK_BYTES = 64 * 1024
TIMEOUT_S = 20.0


class DroppingProxy:
    """Carries connections to a broker, and cuts them off instead of telling some answers."""

    def __init__(self) -> None:
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listening.getsockname()[1]
        self.to_drop = 0
        """So many answers to the next requests to produce are lost."""
        self.dropped = 0
        self._target = 0
        self._stopping = threading.Event()

    def start(self, target_port: int) -> None:
        self._target = target_port
        threading.Thread(target=self._accept, daemon=True).start()

    def stop(self) -> None:
        self._stopping.set()
        self._listening.close()

    def _accept(self) -> None:
        while not self._stopping.is_set():
            with suppress(OSError):
                client, _ = self._listening.accept()
                threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        with client, suppress(OSError):
            broker = socket.create_connection(("127.0.0.1", self._target), TIMEOUT_S)
            broker.settimeout(None)
            with broker:
                self._carry(client, broker)

    def _carry(self, client: socket.socket, broker: socket.socket) -> None:
        """Carry requests one by one, so that the answer to each is known."""
        with client.makefile("rb") as requests, broker.makefile("rb") as answers:
            while head := requests.read(HEAD.size):
                size, api = HEAD.unpack(head)
                broker.sendall(head + requests.read(size - 2))
                length = answers.read(4)
                if len(length) < 4:
                    return
                answer = answers.read(int.from_bytes(length, "big"))
                if api == PRODUCE and self.to_drop > 0:
                    self.to_drop -= 1
                    self.dropped += 1
                    return
                client.sendall(length + answer)
