"""Copies of past states in a node's folder, so that a state of long ago is a short replay away.

A copy is a file named after its CAS. It says the digest of its state; one that is damaged is
deleted, and the one before it takes its place: `history` has all that copies hold.
"""

from __future__ import annotations

import contextlib
import logging
import os
import struct
import time
import zlib
from bisect import bisect_right
from pathlib import Path

from coordinator import codec
from coordinator.core.catalog.snapshots import Assembly, SnapshotChunk, chunks
from coordinator.core.catalog.state import EMPTY, StateContext, Versioned, restore
from coordinator.core.model.types import Cas
from coordinator.runtime.files import make_durably
from schemas.registry import SchemaError

SUFFIX, HALF_SUFFIX = ".state", ".tmp"
LENGTH = struct.Struct("<I")
COPY = 0
"""The number of the one copy in a file."""

SPACING_MIN = 4_000
"""So many CAS lie between two copies at least: some tenths of a second of replay."""

REFUSED_S = 60.0
"""So long no copy is due after the disk has refused one."""

log = logging.getLogger("coordinator")


class StateCopies:
    """The copies in one folder. One thread at a time may use them; any may ask what `is_due`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._held: tuple[Cas, ...] = ()
        self._refused_s: float | None = None
        with contextlib.suppress(OSError):
            names = (path.stem for path in folder.glob(f"*{SUFFIX}"))
            self._held = tuple(sorted(Cas(int(name)) for name in names if name.isdecimal()))
            for half in folder.glob(f"*{HALF_SUFFIX}"):
                half.unlink()

    def at(self, cas: Cas) -> StateContext:
        """Return the newest state that a copy has at or below a CAS; the empty one if none has."""
        while (found := bisect_right(self._held, cas)) > 0:
            newest = self._held[found - 1]
            try:
                return self._read(newest)
            except (OSError, ValueError, zlib.error, struct.error, SchemaError) as error:
                log.error("the copy of the state at CAS %d is deleted: %s", newest, error)
                self._held = tuple(held for held in self._held if held != newest)
                with contextlib.suppress(OSError):
                    self._path(newest).unlink()
        return EMPTY

    def newest(self, cas: Cas) -> Cas:
        """Return the CAS of the newest copy at or below a CAS, 0 if there is none."""
        found = bisect_right(self._held, cas)
        return self._held[found - 1] if found else Cas(0)

    def is_due(self, state: StateContext) -> bool:
        """Tell whether a copy of this state is wanted: none is near.

        The larger the state, the rarer its copies: what they take grows with the history alone.
        """
        refused_s = self._refused_s
        if refused_s is not None and time.monotonic() - refused_s < REFUSED_S:
            return False
        all_held = self._held
        below = bisect_right(all_held, state.cas)
        spacing = max(SPACING_MIN, len(state.entities))
        since = all_held[below - 1] if below else 0
        until = all_held[below] if below < len(all_held) else None
        return state.cas - since >= spacing and (until is None or until - state.cas >= spacing)

    def add(self, state: StateContext) -> None:
        """Keep a copy. Where the disk refuses, there is none: a replay takes longer then."""
        path = self._path(state.cas)
        temporary = path.with_suffix(HALF_SUFFIX)
        try:
            make_durably(self._folder)
            with open(temporary, "wb") as file:
                packer = zlib.compressobj(1)
                for chunk in chunks(COPY, state):
                    raw = codec.encode(chunk)
                    file.write(packer.compress(LENGTH.pack(len(raw)) + raw))
                file.write(packer.flush())
            os.replace(temporary, path)
        except OSError as error:
            log.warning("no copy of the state at CAS %d: %s", state.cas, error)
            self._refused_s = time.monotonic()
            with contextlib.suppress(OSError):
                temporary.unlink()
            return
        self._refused_s = None
        self._held = tuple(sorted({*self._held, state.cas}))

    def _path(self, cas: Cas) -> Path:
        return self._folder / f"{cas:020d}{SUFFIX}"

    def _read(self, cas: Cas) -> StateContext:
        """Return the state of a copy. Raises ValueError: it is not what it says."""
        raw = zlib.decompress(self._path(cas).read_bytes())
        entities: list[tuple[str, Versioned]] = []
        assembly, digest, position = Assembly(COPY), None, 0
        while position < len(raw):
            (length,) = LENGTH.unpack_from(raw, position)
            position += LENGTH.size
            chunk = codec.decode(raw[position : position + length])
            position += length
            if not isinstance(chunk, SnapshotChunk) or chunk.cas != cas:
                raise ValueError("it has something else in it")
            entities += assembly.add(chunk)
            digest = chunk.digest
        state = restore(cas, entities)
        if not assembly.is_whole or state.digest != digest:
            raise ValueError("it is not whole")
        return state
