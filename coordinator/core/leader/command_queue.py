"""The commands that wait for a transaction, in order, bounded by number and by bytes.

Pure. The queue has bounds, and its owner refuses what exceeds them. Commands that were accepted
return to the front: after a rollback, or when what they waited for has happened.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator

from coordinator.core.model.commands import Request, weight


class CommandQueue:
    """A queue of requests that knows what it weighs."""

    def __init__(self) -> None:
        self._requests: deque[Request] = deque()
        self.size_bytes = 0

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def append(self, request: Request) -> None:
        """Put a request at the end."""
        self._requests.append(request)
        self.size_bytes += weight(request)

    def pop(self) -> Request:
        """Take the first request."""
        request = self._requests.popleft()
        self.size_bytes -= weight(request)
        return request

    def push_front(self, requests: Iterable[Request]) -> None:
        """Put requests in front of all others, in their order."""
        ordered = list(requests)
        self._requests.extendleft(reversed(ordered))
        self.size_bytes += sum(map(weight, ordered))

    def take_late(self, now_ms: int) -> list[Request]:
        """Take out and return the requests whose callers wait no longer."""
        late = [r for r in self._requests if r.token and r.deadline_ms <= now_ms]
        if late:
            kept = [r for r in self._requests if not (r.token and r.deadline_ms <= now_ms)]
            self._requests = deque(kept)
            self.size_bytes -= sum(map(weight, late))
        return late

    def clear(self) -> None:
        self._requests.clear()
        self.size_bytes = 0
