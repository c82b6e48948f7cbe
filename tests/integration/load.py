"""Clients that change settings and indexes while something goes wrong, and what they were told.

Each request has an id of its own and is repeated under it until it is answered, as the client
does. `Load.check` holds what was told against the history: no acknowledged change is lost, none is
done twice, and nothing is there that nobody asked for.
"""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError, UnavailableError
from coordinator.client.request_ids import new_request_id
from coordinator.core.model.entities import DROPPING, Index
from coordinator.core.model.records import Mutation
from tests.integration.cluster import Cluster, an_index, wait_until

KEYS = 5
PAUSE_S = 0.03
"""Between the answer and the next request of a client: they write while something goes wrong, and
leave the processors to those who have to notice it."""


class Load:
    """A context in which `writers` threads write settings and one makes and drops indexes.

    Where `indexers_may_be_silent`, an indexer may take longer than the time-out of DDL: the index
    is then refused and undone, and nothing of it may be left.
    """

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        *,
        writers: int = 3,
        indexers_may_be_silent: bool = False,
    ) -> None:
        self.name = name
        self._indexers_may_be_silent = indexers_may_be_silent
        self.told: dict[str, tuple[str, int]] = {}
        """Of each acknowledged request: the key that it changed, and the CAS it was told."""
        self.unknown: set[str] = set()
        self.refused: set[str] = set()
        self.undone: set[str] = set()
        """Requests for an index whose indexers stayed silent: the index was made, and removed."""
        self.errors: list[Exception] = []
        self._cluster = cluster
        self._answered_s: list[float] = []
        self._stopping = threading.Event()
        works: list[Callable[[Client, int], None]] = [self._setting(n) for n in range(writers)]
        self._threads = [
            threading.Thread(target=self._run, args=(work, n % len(cluster.nodes) + 1))
            for n, work in enumerate([*works, self._index])
        ]

    def __enter__(self) -> Load:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping.set()
        for thread in self._threads:
            thread.join()

    def goes_on(self, answers: int) -> None:
        """Wait until so many more requests were answered."""
        enough = len(self._answered_s) + answers

        def answered() -> bool:
            assert not self.errors, self.errors
            return len(self._answered_s) >= enough

        wait_until(answered, f"{answers} more requests are answered")

    def longest_silence_s(self, since_s: float) -> float:
        """Return the longest time without an answer that began after `since_s` (monotonic)."""
        times = [since_s, *sorted(t for t in list(self._answered_s) if t > since_s)]
        return max(after - before for before, after in pairwise(times))

    # -- clients -----------------------------------------------------------------------------

    def _run(self, work: Callable[[Client, int], None], node: int) -> None:
        with self._cluster.client(node) as client:
            number = 0
            while not self._stopping.wait(PAUSE_S):
                try:
                    work(client, number)
                except Exception as error:
                    self.errors.append(error)
                    return
                number += 1

    def _setting(self, writer: int) -> Callable[[Client, int], None]:
        def write(client: Client, number: int) -> None:
            key = f"{self.name}/{writer}/{number % KEYS}"
            self._ask(lambda r: client.put_config(key, r, request_id=r), lambda _: f"config/{key}")

        return write

    def _index(self, client: Client, number: int) -> None:
        index = an_index(f"{self.name}-{number}", self.name)
        made = self._ask(lambda r: client.create_index(index, request_id=r), _index_key)
        if made is not None:
            number = made["index"]["id"]
            self._ask(lambda r: client.drop_index(number, request_id=r), _index_key)

    def _ask(
        self, send: Callable[[str], dict[str, Any]], key_of: Callable[[dict[str, Any]], str]
    ) -> dict[str, Any] | None:
        request = new_request_id()
        try:
            answer = send(request)
        except UnavailableError:
            self.unknown.add(request)
            return None
        except CoordinatorError as error:
            # A master that has not heard the indexers again places nothing on them.
            if error.code == "placement_impossible":
                self.refused.add(request)
            elif error.code == "indexer_refused" and self._indexers_may_be_silent:
                self.undone.add(request)
            else:
                raise
            return None
        self.told[request] = (key_of(answer), answer["cas"])
        self._answered_s.append(time.monotonic())
        return answer

    # -- judging -----------------------------------------------------------------------------

    def check(self) -> None:
        """Check what the clients were told against the history; call it once they have ended."""
        assert not self.errors, self.errors
        events = self._cluster.history()
        done = Counter(
            (event.mutation.request, event.mutation.key)
            for event in events
            if event.mutation.request and self._is_ours(event.mutation)
        )
        versions = {(event.mutation.key, event.cas) for event in events}
        assert set(done.values()) <= {1}, "a request took effect twice"
        for request, (key, cas) in self.told.items():
            assert done[request, key] == 1, f"{request} was acknowledged, and is lost"
            assert (key, cas) in versions, f"{request} was told a CAS that {key} never had"
        assert not self.refused & {request for request, _ in done}, "a refusal took effect"
        last = {event.mutation.key: event.mutation for event in events}
        undone = [last[key].entity for request, key in done if request in self.undone]
        left = [i for i in undone if isinstance(i, Index) and i.state != DROPPING]
        assert not left, f"refused by an indexer, and still there: {left}"
        strangers = {r for r, _ in done} - self.told.keys() - self.unknown - self.undone
        assert not strangers, f"nobody asked for {len(strangers)} requests"

    def _is_ours(self, mutation: Mutation) -> bool:
        if isinstance(mutation.entity, Index):
            return mutation.entity.bucket == self.name
        return mutation.key.startswith(f"config/{self.name}/")


def _index_key(answer: dict[str, Any]) -> str:
    return f"index/{answer['index']['id']}"
