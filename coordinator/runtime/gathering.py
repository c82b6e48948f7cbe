"""How long to gather before something is passed on: the longer, the more comes. Pure.

To pass a batch on costs much the same whatever is in it. So whoever has little passes it on soon,
and it is seen soon; whoever has much waits until there is more, and each thing costs less. Seconds
of any clock that does not go back.
"""

from __future__ import annotations


class Gathering:
    """The wait between two batches: from `least_s` up to `most_s`.

    It grows while more than `per_s` things come in a second, and shrinks while fewer do.
    """

    __slots__ = ("_least_s", "_most_s", "_passed_s", "_per_s", "wait_s")

    def __init__(self, least_s: float, most_s: float, per_s: float) -> None:
        self.wait_s = least_s
        self._least_s, self._most_s, self._per_s = least_s, most_s, per_s
        self._passed_s = float("-inf")

    def passed(self, count: int, now_s: float) -> None:
        """Note how many things were in the batch that was passed on just now.

        How fast they have come tells the time since the last batch that had any: many at once after
        a pause are few. The wait at most doubles: what follows a burst is not held up for long.
        """
        if not count:
            return
        took_s, self._passed_s = now_s - self._passed_s, now_s
        growth = min(count / max(took_s * self._per_s, 1.0), 2.0)
        self.wait_s = min(max(growth * self.wait_s, self._least_s), self._most_s)
