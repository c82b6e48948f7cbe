"""TCP relays between network namespaces, in a process of their own.

`python -m tests.faults.relay <legs>`: the legs are JSON, a list of `[from, to]`, each end
`[pid, host, port]`: an address as the namespace of that process (0: this one) has it. What connects
to `from` is carried to `to`. Says `ready` once it listens everywhere.

A socket belongs to the namespace in which it was made, so one loop serves them all.
"""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress

CLONE_NEWNET = 0x40000000
CONNECT_TIMEOUT_S = 2.0
CHUNK_BYTES = 64 * 1024

End = tuple[int, str, int]


class Namespaces:
    """The network namespaces of some processes, and this one's own."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._own = os.open("/proc/self/ns/net", os.O_RDONLY)
        self._of: dict[int, int] = {0: self._own}

    @contextmanager
    def entered(self, pid: int) -> Iterator[None]:
        """Make what is made inside belong to the namespace of `pid`. Nothing may be awaited."""
        if pid not in self._of:
            self._of[pid] = os.open(f"/proc/{pid}/ns/net", os.O_RDONLY)
        self._enter(self._of[pid])
        try:
            yield
        finally:
            self._enter(self._own)

    def _enter(self, descriptor: int) -> None:
        if self._libc.setns(descriptor, CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns failed")

    def socket(self, pid: int) -> socket.socket:
        with self.entered(pid):
            made = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        made.setblocking(False)
        return made


async def serve(legs: list[tuple[End, End]]) -> None:
    """Relay along `legs` for ever."""
    namespaces = Namespaces()
    servers = [await _listen(namespaces, *leg) for leg in legs]
    print("ready", flush=True)
    await asyncio.gather(*(server.serve_forever() for server in servers))


async def _listen(namespaces: Namespaces, begin: End, end: End) -> asyncio.Server:
    pid, host, port = begin
    listener = namespaces.socket(pid)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind((host, port))

    async def accepted(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError):
            await _carry(namespaces, end, reader, writer)
        writer.close()

    return await asyncio.start_server(accepted, sock=listener, backlog=128)


async def _carry(
    namespaces: Namespaces, end: End, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    """Connect to `end`, and carry bytes both ways until either side has closed."""
    pid, host, port = end
    there = namespaces.socket(pid)
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await asyncio.get_running_loop().sock_connect(there, (host, port))
    except BaseException:
        there.close()
        raise
    far_reader, far_writer = await asyncio.open_connection(sock=there)
    ways = [
        asyncio.ensure_future(_pump(reader, far_writer)),
        asyncio.ensure_future(_pump(far_reader, writer)),
    ]
    try:
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for way in ways:
            way.cancel()
        far_writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(CHUNK_BYTES):
            writer.write(data)
            await writer.drain()


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        asyncio.run(serve(json.loads(sys.argv[1])))
