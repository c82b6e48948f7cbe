"""How long to wait before a child that died is started again: a pure policy, with a given clock."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BackoffPolicy:
    """Waits double from `first_s` to `max_s`; a child that ran for `stable_s` begins anew."""

    first_s: float = 0.5
    factor: float = 2.0
    max_s: float = 30.0
    stable_s: float = 30.0


class Backoff:
    """The state of one child under a policy; `now` is any monotonic clock's, in seconds."""

    def __init__(self, policy: BackoffPolicy, now: float) -> None:
        self._policy = policy
        self._started = now
        self._delay_s = policy.first_s

    def started(self, now: float) -> None:
        """Note that the child was started."""
        self._started = now

    def died(self, now: float) -> float:
        """Note that the child died; return how many seconds to wait before the next start."""
        if now - self._started >= self._policy.stable_s:
            self._delay_s = self._policy.first_s
        delay_s = min(self._delay_s, self._policy.max_s)
        self._delay_s = min(delay_s * self._policy.factor, self._policy.max_s)
        return delay_s
