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
from indexer_sim.pipeline.fillings import Filling, Fillings

PATH = "/v1/slices/transfer"
JSON = {"content-type": "application/json"}

IDLE_S, WAIT_S = 1.0, 0.05
AT_ONCE_S = 0.06
"""What may be taken over in this time may come at once."""

ANSWER_S = 3.0
PASSING = frozenset({503, 504})
"""Refusals with these statuses may pass."""

FILLING = "filling slices from another indexer"


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
                asks = self.fillings.asks(time.monotonic(), self._limit())
                taken = sum(self._ask(client, filling, ask) for filling, ask in asks)
                while self.fillings.said:
                    self._status_log.info(self.fillings.said.pop(0))
                if taken:
                    self._wait_for_pace(taken)
                elif not asks:
                    self._woken.clear()
                    self._woken.wait(IDLE_S if self.fillings.are_idle() else WAIT_S)

    def _limit(self) -> int:
        """Return how many documents may come at once."""
        per_s = self._documents_per_s()
        return max(1, min(int(per_s * AT_ONCE_S), DOCUMENTS_MAX)) if per_s else DOCUMENTS_MAX

    def _wait_for_pace(self, taken: int) -> None:
        now_s = time.monotonic()
        self._pace.took(taken, self._documents_per_s(), now_s)
        self._stopping.wait(max(0.0, self._pace.due_s - now_s))

    def _ask(self, client: httpx.Client, filling: Filling, ask: Ask) -> int:
        """Ask one question, and take its answer; return how many documents were taken over."""
        if self._stopping.is_set():
            return 0
        taken = 0
        try:
            given = self._answer(client, ask)
            taken = self.fillings.take(filling, ask, given, time.monotonic())
        except TransferRefused as refusal:
            self.fillings.refused(filling, refusal, time.monotonic())
        except StorageError as error:
            self._status_log.problem(FILLING, error.message)
            self.fillings.failed(filling)
        except (httpx.HTTPError, ValueError) as error:
            self._status_log.problem(FILLING, f"{type(error).__name__}: {error}")
        else:
            self._status_log.resolved(FILLING)
        if self.fillings.has_filled(filling):
            self._news()
        return taken

    def _answer(self, client: httpx.Client, ask: Ask) -> Given:
        """Return what the indexer answers. Raises TransferRefused, HTTPError, ValueError."""
        address = self._addresses.get(ask.indexer)
        if address is None:
            raise httpx.ConnectError(f"indexer {ask.indexer} is not heard")
        answer = client.post(f"{address}{PATH}", content=ask_bytes(ask), headers=JSON)
        if answer.status_code == 200:
            return read_given(answer.content)
        code, message = "internal", f"status {answer.status_code}"
        try:
            said = orjson.loads(answer.content)["error"]
            code, message = str(said["code"]), str(said["message"])
        except (ValueError, KeyError, TypeError):
            pass
        raise TransferRefused(code, message, is_passing=answer.status_code in PASSING)
