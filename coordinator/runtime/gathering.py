"""How long to gather before something is passed on: the longer, the more comes. Pure.

To pass a batch on costs much the same whatever is in it. So whoever has little passes it on soon,
and it is seen soon; whoever has much waits until there is more, and each thing costs less.
"""

from __future__ import annotations


class Gathering:
    """The wait between two batches: from `least_s` up to `most_s`, seconds.

    It grows where more than `per_s` things come in a second, and shrinks where fewer do.
    """

    __slots__ = ("_least_s", "_most_s", "_per_s", "wait_s")

    def __init__(self, least_s: float, most_s: float, per_s: float) -> None:
        self.wait_s = least_s
        self._least_s, self._most_s, self._per_s = least_s, most_s, per_s

    def passed(self, count: int) -> None:
        """Note how many things there were in a batch.

        The wait at most doubles: many that came at once, and no more, do not hold up what follows.
        """
        wanted_s = min(count / self._per_s, self._most_s, 2 * self.wait_s)
        self.wait_s = max(wanted_s, self._least_s)
