"""What became of requests: a window of the newest outcomes, kept beside the StateContext.

Pure. A repeat of a request gets its first outcome, also after a failover. Each committed
transaction carries, in its verdict on the commit topic, one group with the outcomes of all its
requests, how far older groups are forgotten now, and the digest of what is left. So every node
that reads the log has the same window, and nothing of it weighs on the state: no key, no CAS.

An outcome refers to what it is about, and does not repeat it. Its CAS is stored, since an entity
that is written again gets another.

Invariants: groups ascend by CAS, and are forgotten oldest first; the digest is the sum over the
groups of the window, of the bytes as they were written.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import takewhile
from typing import NamedTuple

from coordinator.core.model import digest as digests
from coordinator.core.model.outcome_records import RecordedOutcome
from coordinator.core.model.ports import EntityCodec
from coordinator.core.model.types import Cas, Instant, TxnId

GROUPS_FORGOTTEN_MAX = 1_024
"""So many groups at most one transaction forgets; it adds one."""

LEADS_FIRST = 10
"""For this part of the window a master leads before it forgets anything."""

KEY = "outcomes"
UUID7 = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-7[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}", re.I)

AHEAD_MS_MAX = 300_000
"""A request id may come from so far in the future: by then a client's clock is wrong, and its
outcome would have to be kept for as much longer."""


class RememberedOutcome(NamedTuple):
    """A remembered outcome, with the transaction that brought it."""

    txn: TxnId
    outcome: RecordedOutcome


class KeptGroup(NamedTuple):
    """A group as it was written, with what has to be known of it before anybody asks for it.

    `born_ms` is when the newest of its requests says that it was made, `at_ms` when the group was
    recorded, both by the wall clock. A store keeps all of it: nothing is parsed at a start.
    """

    cas: Cas
    value: bytes
    ids: tuple[str, ...]
    born_ms: int
    at_ms: int


class _Group(NamedTuple):
    """A group in the window; `since_ms` is when it came here, by the monotonic clock."""

    kept: KeptGroup
    since_ms: int


class OutcomeWindow:
    """The groups that are remembered, the oldest first, found by the id of a request."""

    def __init__(self, codec: EntityCodec) -> None:
        self._codec = codec
        self._groups: deque[_Group] = deque()
        self._values: dict[int, bytes] = {}
        self._cas_of: dict[str, int] = {}
        self.is_whole = True
        """Whether nothing is missing that was recorded before this node began to read."""
        self.size_bytes = 0
        """What all groups weigh as they were written."""
        self.digest = digests.EMPTY

    def __len__(self) -> int:
        """How many outcomes are remembered."""
        return len(self._cas_of)

    # -- what is known -----------------------------------------------------------------------

    @property
    def oldest_cas(self) -> Cas:
        """The CAS of the oldest group, 0 if there is none."""
        return self._groups[0].kept.cas if self._groups else Cas(0)

    def knows(self, request_id: str) -> bool:
        """Tell whether it is remembered what became of a request."""
        return request_id in self._cas_of

    def find(self, request_id: str) -> RememberedOutcome | None:
        """Return what became of a request, if it is remembered."""
        cas = self._cas_of.get(request_id)
        if cas is None:
            return None
        group = self._codec.decode_outcomes(self._values[cas])
        found = next(one for one in group.outcomes if one.id == request_id)
        return RememberedOutcome(group.txn, found)

    def kept(self) -> Iterator[KeptGroup]:
        """Yield each group, the oldest first."""
        return (group.kept for group in self._groups)

    # -- what changes it ---------------------------------------------------------------------

    def begin(self, digest: int) -> None:
        """Reading begins in the middle of the log, where the window has this digest."""
        self.is_whole = digest == digests.EMPTY

    def agrees(self, digest: int) -> bool:
        """Tell whether the window is what the log says, as far as this node can know.

        Groups from before its time are missing until all of them are forgotten: then, and only
        then, what is left has the digest.
        """
        self.is_whole = self.is_whole or digest == self.digest
        return not self.is_whole or digest == self.digest

    def restore(self, groups: Iterable[KeptGroup], now: Instant) -> None:
        """Take what the store held; the window was empty before."""
        for group in groups:
            self._add(group, now)

    def add(self, cas: Cas, value: bytes, now: Instant) -> KeptGroup:
        """Take the group that a transaction brought, and return what to keep of it."""
        group = self._codec.decode_outcomes(value)
        ids = tuple(one.id for one in group.outcomes)
        born_ms = max((time_of_uuid7(one) or 0 for one in ids), default=0)
        born_ms = min(born_ms, group.at_ms + AHEAD_MS_MAX)
        kept = KeptGroup(cas, value, ids, born_ms, group.at_ms)
        self._add(kept, now)
        return kept

    def _add(self, kept: KeptGroup, now: Instant) -> None:
        cas, value = kept.cas, kept.value
        self._groups.append(_Group(kept, now.mono_ms))
        self._values[cas] = value
        self.size_bytes += len(value)
        self._cas_of.update(dict.fromkeys(kept.ids, cas))
        self.digest = (self.digest + digests.weight(KEY, cas, value)) & digests.MODULUS_MASK

    def forget(self, up_to: int) -> list[int]:
        """Forget the groups up to this CAS, and return the CAS of each."""
        gone: list[int] = []
        while self._groups and self._groups[0].kept.cas <= up_to:
            group = self._groups.popleft().kept
            del self._values[group.cas]
            self.size_bytes -= len(group.value)
            for request_id in group.ids:
                if self._cas_of.get(request_id) == group.cas:
                    del self._cas_of[request_id]
            weight = digests.weight(KEY, group.cas, group.value)
            self.digest = (self.digest - weight) & digests.MODULUS_MASK
            gone.append(group.cas)
        return gone

    # -- what a master asks ------------------------------------------------------------------

    def due(self, now: Instant, window_ms: int, led_ms: int) -> int:
        """Return the CAS up to which groups have outlived the window, 0 if none has.

        By the wall clock, from when they were recorded or from when a client says that it made the
        request, whichever is later; and by this node's monotonic clock: a wall clock that ran ahead
        must not forget what a client may still repeat. Nor must one that ran ahead when they were
        recorded keep them for ever: the monotonic clock alone decides in the end.

        `led_ms` is for how long the master has led. A new one forgets nothing: what was published
        shortly before an outage is not later than what is then due, and has yet to be decided.
        """
        found = 0
        if led_ms < window_ms // LEADS_FIRST:
            return found
        for (group, since_ms), _ in zip(self._groups, range(GROUPS_FORGOTTEN_MAX), strict=False):
            until_ms = max(group.at_ms, group.born_ms) + window_ms
            held_ms = now.mono_ms - since_ms
            outlived = until_ms < now.wall_ms and held_ms > window_ms
            if not outlived and held_ms <= window_ms + AHEAD_MS_MAX:
                break
            found = group.cas
        return found

    def forgotten_ms(self, up_to: int) -> int:
        """Return when the newest request of the groups up to a CAS was made, as its id says.

        A master whose clock is behind would take an older one for new; so the log tells all.
        """
        older = takewhile(lambda group: group.cas <= up_to, self.kept())
        return max((group.born_ms for group in older), default=0)

    def digest_after(self, cas: Cas, value: bytes, forgotten: int) -> int:
        """Return the digest that the window would have after this group, and after forgetting."""
        digest = self.digest + (digests.weight(KEY, cas, value) if value else 0)
        for group in self.kept():
            if group.cas > forgotten:
                break
            digest -= digests.weight(KEY, group.cas, group.value)
        return digest & digests.MODULUS_MASK


def time_of_uuid7(request_id: str) -> int | None:
    """Return the Unix time in ms that a UUIDv7 carries (RFC 9562, 5.7), None for other ids.

    Only the form with dashes counts: hex digits alone may be of any digest.
    """
    if UUID7.fullmatch(request_id) is None:
        return None
    return int(request_id[:8] + request_id[9:13], 16)
