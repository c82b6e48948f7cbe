"""Limits of a process, as the kernel keeps them for one whose disk is full."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import contextmanager

OURS = 0


def limit_file_size(pid: int, limit_bytes: int) -> int:
    """Let the kernel refuse what a process writes past `limit_bytes` of a file; return what the
    limit was."""
    before, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (limit_bytes, most))
    return before


@contextmanager
def file_size_limit(limit_bytes: int, pid: int = OURS) -> Iterator[None]:
    """The same for a while."""
    before = limit_file_size(pid, limit_bytes)
    try:
        yield
    finally:
        limit_file_size(pid, before)
