"""Fills parts from other indexers, over HTTP, in a thread of its own.

`fillings` says what is asked, and when. It goes no faster than the setting `rebalance` lets copies
move: scans and maintenance come first.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping

import httpx
import orjson

from coordinator.core.model.entities import Index
from coordinator.kafka.state_follower import StatusLog
from coordinator.runtime.pace import Pace
from coordinator.runtime.threads import Threads
from indexer_sim.bucket.database import StorageError
from indexer_sim.bucket.storage import Storage
from indexer_sim.bucket.transfers import (
    DOCUMENTS_MAX,
    Ask,
    Given,
    TransferRefused,
    ask_bytes,
    read_given,
)
from indexer_sim.pipeline.fillings import SAID_MAX, Filling, Fillings

PATH = "/v1/slices/transfer"
HEADERS = {"content-type": "application/json", "accept-encoding": "identity"}

IDLE_S, WAIT_S = 1.0, 0.05
AT_ONCE_S = 0.06
"""What may be taken over in this time may come at once."""

LOOK_S = 0.5
ANSWER_S, REST_S = 3.0, 1.0
"""So long an answer may take, and who did not answer is left alone for a moment."""

ANSWER_BYTES_MAX = 64 * 1024 * 1024
"""A page ends with the record with which it has a megabyte: a document may have many keys."""

LOOKED_AT_COST = 8
"""To look at so many documents costs an origin about as much as to give one."""

NOT_FOUND = 404
PASSING = frozenset({503, 504})
"""Refusals with these statuses may pass."""

FILLING = "filling slices from indexer"


class Filler:
    """Asks, takes what is answered, and waits, until it is stopped.

    `news` is called when a part is full.
    """

    def __init__(
        self,
        storage: Storage,
        documents_per_s: Callable[[], int],
        news: Callable[[], None],
        status_log: StatusLog,
        threads: Threads,
    ) -> None:
        self.fillings = Fillings(storage)
        self._documents_per_s = documents_per_s
        self._news = news
        self._status_log = status_log
        self._addresses: dict[int, str] = {}
        self._rests_until_s: dict[int, float] = {}
        self._pace = Pace()
        self._woken = threading.Event()
        self._stopping = threading.Event()
        self._thread = threads.make("filler", self._run, self._stopping)

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._woken.set()

    def join(self) -> None:
        self._thread.join()

    def know(self, indexes: Mapping[int, Index]) -> None:
        """These are the indexes that are held, as the log has them."""
        self.fillings.know(indexes)
        self._woken.set()

    def meet(self, indexer: int, address: str) -> None:
        """Note where an indexer answers."""
        self._addresses[indexer] = address

    def _run(self) -> None:
        with httpx.Client(timeout=ANSWER_S, trust_env=False) as client:
            while not self._stopping.is_set():
                per_s = self._documents_per_s()
                asks = self.fillings.asks(time.monotonic(), _at_once(per_s))
                taken = sum(self._ask(client, filling, ask) for filling, ask in asks)
                while self.fillings.said:
                    self._status_log.info(self.fillings.said.pop(0))
                if taken:
                    self._wait_for_pace(taken, per_s)
                else:
                    self._woken.clear()
                    self._woken.wait(IDLE_S if self.fillings.are_idle else WAIT_S)

    def _wait_for_pace(self, taken: int, per_s: int) -> None:
        """Wait until the next documents may come; another setting counts at once."""
        self._pace.took(taken, per_s, time.monotonic())
        while not self._stopping.is_set() and self._documents_per_s() == per_s:
            left_s = self._pace.due_s - time.monotonic()
            if left_s <= 0:
                return
            self._stopping.wait(min(left_s, LOOK_S))
        self._pace = Pace()

    def _ask(self, client: httpx.Client, filling: Filling, ask: Ask) -> int:
        """Ask one question, and take its answer; return how many documents that costs."""
        if self._stopping.is_set() or time.monotonic() < self._rests_until_s.get(ask.indexer, 0.0):
            return 0
        about = f"{FILLING} {ask.indexer}"
        cost = 0
        try:
            given = self._answer(client, ask)
            self.fillings.take(filling, ask, given, time.monotonic())
            cost = max(len(given.documents), given.looked_at // LOOKED_AT_COST)
        except TransferRefused as refusal:
            self.fillings.refused(filling, refusal, time.monotonic())
        except StorageError as error:
            self._status_log.problem(about, error.message)
            self.fillings.failed(filling)
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            # All parts that ask this one would wait as long, and all others with them.
            self._rests_until_s[ask.indexer] = time.monotonic() + REST_S
            self._status_log.problem(about, f"{type(error).__name__}: {error}"[:SAID_MAX])
        else:
            self._status_log.resolved(about)
        if self.fillings.has_filled(filling):
            self._news()
        return cost

    def _answer(self, client: httpx.Client, ask: Ask) -> Given:
        """Return what the indexer answers. Raises TransferRefused, HTTPError, ValueError."""
        address = self._addresses.get(ask.indexer)
        if address is None:
            raise httpx.ConnectError(f"indexer {ask.indexer} is not heard")
        asked = client.stream("POST", f"{address}{PATH}", content=ask_bytes(ask), headers=HEADERS)
        with asked as answer:
            status, body = answer.status_code, self._body(answer)
        if status == 200:
            return read_given(body)
        code, message = "internal", f"status {status}"
        if status == NOT_FOUND:
            code, message = "not_found", "its version is older, and gives no slices"
        try:
            said = orjson.loads(body)["error"]
            code, message = str(said["code"]), str(said["message"])
        except (ValueError, KeyError, TypeError):
            pass
        raise TransferRefused(code, message, is_passing=status in PASSING)

    def _body(self, answer: httpx.Response) -> bytes:
        """Return what an answer has. ValueError: it takes too long, or is too large."""
        until_s = time.monotonic() + ANSWER_S
        found = bytearray()
        for chunk in answer.iter_raw():
            found += chunk
            if len(found) > ANSWER_BYTES_MAX:
                raise ValueError("an answer that is too large")
            if time.monotonic() > until_s or self._stopping.is_set():
                raise ValueError("an answer that takes too long")
        return bytes(found)


def _at_once(per_s: int) -> int:
    """Return how many documents may come at once, where so many may in a second; 0: all."""
    return max(1, min(int(per_s * AT_ONCE_S), DOCUMENTS_MAX)) if per_s else DOCUMENTS_MAX
