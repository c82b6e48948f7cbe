"""Watches: how a stream of server-sent events becomes changes, and where it goes on when it ends.

The decisions are here, without I/O; the two clients carry them out. A watch goes from node to node.
It yields each change once, in order of CAS, whichever node or connection fails.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from typing import Any, Protocol

from coordinator.client.errors import CoordinatorError, error_of

FIRST_PAUSE_S, PAUSE_MAX_S = 0.05, 1.0
SILENCE_S = 20.0
"""Nodes send a bookmark every five seconds: a connection that is silent for so long is dead."""
SHOWN = 100

POSITIONS = frozenset({"change", "bookmark", "snapshot_end"})


class ServerSentEvent(Protocol):
    """A server-sent event, as the parser returns it."""

    @property
    def event(self) -> str: ...

    @property
    def data(self) -> str: ...


class Watch:
    """One watch: its position, and which of the events it passes on."""

    def __init__(self, after: int | str, query: Mapping[str, Any], path: str = "/v1/watch") -> None:
        self.path = path
        self._query = {name: value for name, value in query.items() if value is not None}
        self.position = after
        """The position to resume from: a CAS, as soon as one is known."""

        self.has_received = False
        """Whether any node has sent anything yet."""

        self._pause_s = FIRST_PAUSE_S

    @property
    def query(self) -> dict[str, Any]:
        return {**self._query, "after": self.position}

    def begin(self) -> dict[str, Any] | None:
        """Return the event to yield when a node has begun to answer, if any.

        A snapshot that was cut off comes again as a whole, and may lack what was dropped meanwhile.
        """
        is_again = self.position == "snapshot" and self.has_received
        return {"type": "snapshot_restart"} if is_again else None

    def receive(self, event: ServerSentEvent) -> dict[str, Any] | None:
        """Return the event to yield for one that was received, with its `type`; None: none.

        Raises CoordinatorError: `compacted`, or `bad_response`, if no node sends such an event.
        """
        try:
            return self._received(event, json.loads(event.data))
        except (ValueError, TypeError, KeyError, AttributeError):
            text = f"a watch was told {event.event!r} with {event.data[:SHOWN]!r}"
            raise error_of("bad_response", text) from None

    def _received(self, event: ServerSentEvent, body: dict[str, Any]) -> dict[str, Any] | None:
        self.has_received = True
        self._pause_s = FIRST_PAUSE_S
        if event.event == "compacted":
            raise error_of("compacted", f"the history begins with CAS {body['oldest']}", body)
        if event.event == "lagged":
            self._advance(body["cas"])
            return None
        is_old = isinstance(self.position, int) and body.get("cas", 0) <= self.position
        if event.event == "change" and is_old:
            return None
        if event.event in POSITIONS:
            self._advance(body["cas"])
        return {"type": event.event, **body}

    def _advance(self, cas: int) -> None:
        self.position = max(cas, self.position) if isinstance(self.position, int) else cas

    def pause_s(self) -> float:
        """Return how long to wait before the next try: longer each time in a row."""
        pause_s, self._pause_s = self._pause_s, min(PAUSE_MAX_S, 2 * self._pause_s)
        return pause_s


ENDS = frozenset({"unsubscribed", "expired"})
ACKNOWLEDGE_S = 0.5


class Receiving:
    """One subscriber that receives: which CAS to acknowledge, and when."""

    def __init__(self, path: str, acknowledges: bool) -> None:
        """`path`: that of the subscription."""
        self.watch = Watch("acknowledged", {}, f"{path}/watch")
        self.has_ended = False
        self._acknowledges = acknowledges
        self._handled = self._last = -1
        self._acknowledged_s = time.monotonic()

    def handled(self, event: dict[str, Any]) -> int | None:
        """The caller asks for the next event after this one: return the CAS to acknowledge now.

        It is due after a `bookmark`, and every `ACKNOWLEDGE_S` otherwise; None: nothing is due.
        """
        self.has_ended = event["type"] in ENDS
        if self.has_ended:
            self._handled = -1
        elif event["type"] in POSITIONS:
            self._handled = event["cas"]
        is_due = time.monotonic() - self._acknowledged_s > ACKNOWLEDGE_S
        return self.unacknowledged() if event["type"] == "bookmark" or is_due else None

    def unacknowledged(self) -> int | None:
        """Return the CAS that is still to be acknowledged; None: nothing."""
        self._acknowledged_s = time.monotonic()
        return self._handled if self._acknowledges and self._handled > self._last else None

    def acknowledged(self, cas: int) -> None:
        """A node has accepted an acknowledgement; until then the client repeats it."""
        self._last = cas


class StateWait:
    """Waits until an index has a state: what its newest version means."""

    def __init__(self, index_id: str | int, state: str, timeout_s: float | None) -> None:
        self._id = str(index_id)
        self._state = state
        self._until_s = None if timeout_s is None else time.monotonic() + timeout_s
        self._timeout_s = timeout_s
        self._seen = ""

    @property
    def filters(self) -> dict[str, Any]:
        """The filters of the watch. Another index may have this id as its name."""
        return {"key": f"index/{self._id}"}

    def check(self, index: dict[str, Any] | None, cas: int) -> dict[str, Any] | None:
        """Return what to answer for this version, None to wait on.

        Raises CoordinatorError: `index_not_found`, `index_failed`.
        """
        if index is None or (index["state"] == "dropping" and self._state != "dropping"):
            raise error_of("index_not_found", f"index {self._id} was dropped", {"index": self._id})
        self._seen = index["state"]
        if index["state"] == self._state:
            return {"index": index, "cas": cas}
        if index["state"] == "error":
            text = f"index {self._id} failed: {index['reason']}"
            raise error_of("index_failed", text, {"state": "error", "reason": index["reason"]})
        return None

    def receive(self, event: dict[str, Any] | None) -> dict[str, Any] | None:
        """Return what to answer for an event of the watch (None: it was cut off), None to wait on.

        Raises CoordinatorError: as `check`, and `timeout`.
        """
        if event is not None and event["type"] == "change":
            found = self.check(None if event["dropped"] else event["value"], event["cas"])
            if found is not None:
                return found
        if self._until_s is not None and time.monotonic() > self._until_s:
            text = f"index {self._id} is {self._seen} after {self._timeout_s:g} s"
            raise error_of("timeout", text, {"state": self._seen})
        return None


def refusal_of(status: int, content: bytes) -> CoordinatorError | None:
    """Return why a watch was refused for good; None: another try may do better."""
    try:
        error = json.loads(content)["error"]
        found = error_of(str(error["code"]), str(error["message"]), dict(error["details"]))
    except (ValueError, KeyError, TypeError):
        found = error_of("bad_response", f"a watch was answered {status}")
    return found if 400 <= status < 500 and status not in (408, 429) else None
