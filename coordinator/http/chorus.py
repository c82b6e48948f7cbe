"""Sends what is new to the watchers that rest: to all of them in one turn of the loop.

A watcher rests once it has taken everything. To wake the task of each of a thousand watchers costs
three times as much as to send to it. So the task sleeps on, and a round sends to all that were
called meanwhile. After a round the loop is left to others for a while: the more watchers there are,
and the more happens, the more changes each of them gets at once.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict, deque
from typing import Protocol

from coordinator.core.history.following import BOOKMARK_SOON_S

log = logging.getLogger("coordinator")

PORTION = 500
"""So many watchers are sent to before the loop does something else."""

REST_FACTOR, FEW, REST_MAX_S = 0.3, 10, 0.25
"""After a round none begins for so many times as long as it took, and once as long for each so many
changes that a watcher was sent beyond the first ones; not for longer. Few changes come soon after
they happen. Under full load watchers leave the loop to the node for most of the time."""


class Singer(Protocol):
    """A watcher that may rest."""

    def sing(self) -> int:
        """Send what is new, without waiting; return how many changes were sent."""

    def wake(self) -> None:
        """Have its own task look at what there is to do."""


class Chorus:
    """The watchers of a node that are to be sent something; for one loop."""

    def __init__(self) -> None:
        self._sung: OrderedDict[Singer, float] = OrderedDict()
        """Who has sung, and when last; of whom was sung longest ago comes first."""

        self._called: dict[Singer, None] = {}
        self._round: deque[Singer] = deque()
        self._is_due = self._looks = False
        """Whether a round is to come, or goes on; whether the timer for bookmarks runs."""

        self._rests_until_s = self._took_s = 0.0
        self._changes = 0

    def call(self, singer: Singer) -> None:
        """Have a watcher sing in the next round."""
        self._called[singer] = None
        if not self._is_due:
            loop = asyncio.get_running_loop()
            self._is_due = True
            loop.call_at(max(loop.time(), self._rests_until_s), self._begin)

    def forget(self, singer: Singer) -> None:
        """A watcher is gone."""
        self._called.pop(singer, None)
        self._sung.pop(singer, None)

    def _begin(self) -> None:
        self._round, self._called = deque(self._called), {}
        self._took_s, self._changes = 0.0, 0
        self._sing()

    def _sing(self) -> None:
        """Have some sing, and then the next ones, or end the round."""
        loop = asyncio.get_running_loop()
        begun_s = loop.time()
        for _ in range(min(PORTION, len(self._round))):
            self._have_sing(self._round.popleft(), begun_s)
        self._took_s += loop.time() - begun_s
        if self._round:
            loop.call_soon(self._sing)
            return
        self._is_due = False
        self._rests_until_s = loop.time() + rest_of(self._took_s, self._changes)
        if self._called:
            self.call(next(iter(self._called)))

    def _have_sing(self, singer: Singer, now_s: float) -> None:
        try:
            changes = singer.sing()
        except Exception:
            # Whatever it is: one watcher silences no other.
            log.exception("a watcher could not be sent what is new")
            singer.wake()
            return
        self._changes = max(self._changes, changes)
        if changes:
            self._sung[singer] = now_s
            self._sung.move_to_end(singer)
            if not self._looks:
                self._looks = True
                asyncio.get_running_loop().call_later(BOOKMARK_SOON_S, self._look)

    def _look(self) -> None:
        """Wake those who were sent nothing for a while: a bookmark is due. There is one timer for
        all: to set one for each costs more than to send."""
        loop = asyncio.get_running_loop()
        while self._sung:
            singer, sung_s = next(iter(self._sung.items()))
            left_s = sung_s + BOOKMARK_SOON_S - loop.time()
            if left_s > 0:
                loop.call_later(left_s, self._look)
                return
            del self._sung[singer]
            singer.wake()
        self._looks = False


def rest_of(took_s: float, changes: int) -> float:
    """Return how long no round begins after one that took so long, and sent so many changes to one
    watcher."""
    return min(REST_MAX_S, took_s * (REST_FACTOR + max(0, changes - FEW) / FEW))
