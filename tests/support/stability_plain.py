"""The fold of a bucket once more: one record at a time, in dicts and Python's own numbers.

Written from the rules, for nothing but to be compared. It bounds nothing, and has no heartbeats.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from coordinator.core.model.stream_records import (
    ConnectionClosed,
    FailoverLog,
    PromotionRequested,
    StreamBegin,
    StreamEnd,
    Sync,
)
from coordinator.core.timestamps.settings import TimestampSettings

HURRIED_PERIOD_MS, HURRIED_MS_MAX = 500, 60_000


def _place() -> SimpleNamespace:
    return SimpleNamespace(
        current=(0, 0),
        stable=(0, 0),
        seen=(0, 0),
        owner=None,
        heard=None,
        lost=None,
        asked=None,
        doubt=None,
        out=set(),
    )


class Plain:
    """A bucket; `read` and `tick` return what follows, as tuples."""

    def __init__(self, vbuckets: int, settings: TimestampSettings, now_ms: int) -> None:
        self.settings, self.now = settings, now_ms
        self.places = [_place() for _ in range(vbuckets)]
        self.waiting: dict[int, list[Any]] = {v: [] for v in range(vbuckets)}
        self.begun: dict[tuple[int, int], int] = {}
        self.over: dict[tuple[int, int], int] = {}
        self.numbers: dict[int, int] = {}
        self.closed: dict[int, int] = {}
        self.ends: dict[tuple[int, int], list[Any]] = {}
        self.syncs: dict[tuple[int, int], Any] = {}
        self.logs: dict[int, list[tuple[int, int]]] = {}
        self.published: int | None = None
        self.hurried = 0
        self.out: list[tuple[Any, ...]] = []

    # -- records ---------------------------------------------------------------------------------

    def read(self, record: Any) -> list[tuple[Any, ...]]:
        self.out = []
        match record:
            case FailoverLog():
                self.logs[record.vbucket] = [(b.vbuuid, b.seqno) for b in record.branches]
            case StreamBegin(kind="maintenance"):
                self.begin(record)
            case StreamEnd(kind="maintenance"):
                self.end(record)
            case ConnectionClosed(kind="maintenance"):
                self.close(record)
            case Sync():
                key = (record.connection, record.vbucket)
                if self.counts(record):
                    self.say(record)
                elif key not in self.syncs or record.ordinal >= self.syncs[key][0].ordinal:
                    since = self.syncs[key][1] if key in self.syncs else self.now
                    self.syncs[key] = (record, since)
            case PromotionRequested():
                until = self.now + min(record.wait_ms, HURRIED_MS_MAX)
                self.hurried = max(self.hurried, until)
        self.catch_up()
        if isinstance(record, StreamEnd) and record.reason == "rollback":
            place = self.places[record.vbucket]
            if self.refused and "stream_refused" not in place.out:
                place.out.add("stream_refused")
                seen = (record.vbuuid, record.seqno)
                self.out.append(("enquiry", "stream_refused", record.vbucket, *seen))
        self.publish(ticked=False)
        return self.out

    def catch_up(self) -> None:
        """Take the SYNCs that were kept and count now, forget those that never will; judge all."""
        for key, (kept, _) in sorted(self.syncs.items()):
            if self.counts(kept):
                self.say(kept)
                del self.syncs[key]
            elif not self.may_count(kept):
                del self.syncs[key]
        for vbucket in range(len(self.places)):
            self.judge(vbucket)

    def begin(self, r: StreamBegin) -> None:
        key = (r.connection, r.vbucket)
        self.numbers[r.connection] = self.numbers.get(r.connection, 0) or r.number
        if r.ordinal <= max(self.begun.get(key, -1), self.over.get(key, -1)):
            return
        self.begun[key] = r.ordinal
        later = sorted(e for e in self.ends.pop(key, []) if e[0] > r.ordinal)
        if later[1:]:
            self.ends[key] = later[1:]
        ends = [e[0] for e in later[:1]]
        if self.closed.get(r.connection, -1) > r.ordinal:
            ends.append(self.closed[r.connection])
        if ends:
            self.over[key] = min(ends)
        self.withdraw(r.vbucket, r.connection)
        claim = self.claim(r.vbucket, r)
        if claim == "takes":
            self.own(r.vbucket, r, min(ends) if ends else None)
        elif claim == "waits" and not ends:
            self.waiting[r.vbucket].append((r, self.now))
            self.waiting[r.vbucket].sort(key=lambda w: -w[0].number)

    def end(self, r: StreamEnd) -> None:
        key, place = (r.connection, r.vbucket), self.places[r.vbucket]
        owner = place.owner
        mine = owner is not None and owner.connection == r.connection
        past = 0 < self.numbers.get(r.connection, 0) < (owner.number if owner else 0) and not mine
        self.refused = not past
        begun, over = self.begun.get(key, -1), self.over.get(key, -1)
        if begun >= 0 and r.ordinal <= max(begun, over):
            return
        if begun > over:
            self.over[key] = r.ordinal
            self.withdraw(r.vbucket, r.connection)
            if mine and owner.ended is None:
                self.vacate(r.vbucket, r.ordinal)
        elif r.reason != "rollback" and not past:
            found = {*self.ends.get(key, []), (r.ordinal, r.projector, self.now)}
            self.ends[key] = sorted(found)[-4:]

    def close(self, r: ConnectionClosed) -> None:
        self.numbers.setdefault(r.connection, 0)
        self.closed[r.connection] = max(r.ordinal, self.closed.get(r.connection, -1))
        for vbucket in range(len(self.places)):
            self.withdraw(vbucket, r.connection)
        for vbucket, place in enumerate(self.places):
            o = place.owner
            if o and o.connection == r.connection and o.ended is None and o.begun < r.ordinal:
                self.vacate(vbucket, r.ordinal)

    def claim(self, vbucket: int, offer: StreamBegin) -> str:
        owner = self.places[vbucket].owner
        if owner is None or owner.connection == offer.connection:
            return "takes"
        if 0 < offer.number < owner.number:
            return "late"
        if owner.ended is not None:
            return "takes"
        newer = offer.number > owner.number and offer.projector == owner.projector
        return "takes" if newer else "waits"

    def own(self, vbucket: int, r: StreamBegin, ended: int | None) -> None:
        place = self.places[vbucket]
        place.owner = SimpleNamespace(
            connection=r.connection,
            projector=r.projector,
            number=r.number,
            begun=r.ordinal,
            ended=ended,
        )
        place.heard, place.doubt, place.asked = self.now, None, None
        place.lost = None if ended is None else self.now
        place.out -= {"sync_missing", "stream_refused"}
        if place.current == (0, 0):
            place.current = (r.vbuuid, r.seqno)
        place.seen = (r.vbuuid, min(r.seqno, place.current[1]))
        self.settle(vbucket)

    def vacate(self, vbucket: int, ordinal: int) -> None:
        place = self.places[vbucket]
        place.owner.ended, place.lost, place.asked = ordinal, self.now, None
        self.settle(vbucket)

    def settle(self, vbucket: int) -> None:
        for held in list(self.waiting[vbucket]):
            if self.claim(vbucket, held[0]) == "late":
                self.waiting[vbucket].remove(held)
        for held in list(self.waiting[vbucket]):
            if self.claim(vbucket, held[0]) == "takes":
                self.waiting[vbucket].remove(held)
                self.own(vbucket, held[0], None)
                return

    def withdraw(self, vbucket: int, connection: int) -> None:
        self.waiting[vbucket] = [w for w in self.waiting[vbucket] if w[0].connection != connection]

    # -- SYNC ------------------------------------------------------------------------------------

    def counts(self, r: Sync) -> bool:
        owner = self.places[r.vbucket].owner
        return (
            owner is not None
            and owner.connection == r.connection
            and r.ordinal > owner.begun
            and (owner.ended is None or r.ordinal < owner.ended)
        )

    def may_count(self, r: Sync) -> bool:
        key, owner = (r.connection, r.vbucket), self.places[r.vbucket].owner
        if r.connection not in self.numbers:
            return True
        if (
            owner
            and owner.connection != r.connection
            and 0 < self.numbers[r.connection] < owner.number
        ):
            return False
        begun, over = self.begun.get(key, -1), self.over.get(key, -1)
        if begun < 0:
            return True
        if r.ordinal <= max(begun, over):
            return False
        held = any(w[0].connection == r.connection for w in self.waiting[r.vbucket])
        return held or over > begun

    def say(self, r: Sync) -> None:
        place = self.places[r.vbucket]
        place.heard = self.now
        place.out.discard("sync_missing")
        if r.vbuuid == place.seen[0]:
            place.seen = (r.vbuuid, max(r.seqno, place.seen[1]))
        else:
            self.judge(r.vbucket)
            place.seen = (r.vbuuid, r.seqno)

    def judge(self, vbucket: int) -> None:
        place = self.places[vbucket]
        (vbuuid, seqno), (seen, said) = place.current, place.seen
        if place.owner is None:
            return
        if vbuuid == seen or (seqno == 0 and (said or vbuuid == 0)):
            place.current = (seen, max(seqno, said))
        else:
            names = [name for name, _ in self.logs.get(vbucket, [])]
            if seen not in names:
                place.doubt = self.now if place.doubt is None else place.doubt
                return
            if vbuuid in names[: names.index(seen)]:
                place.doubt = None
                return
            place.doubt = None
            if not self.covered(vbucket, seen, vbuuid, seqno):
                self.enquire(vbucket, "seqno_regressed")
                place.current = (seen, said)
            elif said >= seqno:
                place.current = (seen, said)
        place.doubt = None
        place.out.discard("seqno_regressed")

    def covered(self, vbucket: int, new: int, old: int, seqno: int) -> bool:
        branches = self.logs[vbucket]
        names = [name for name, _ in branches]
        if seqno == 0:
            return True
        if old not in names:
            return False
        newer = branches[names.index(new) : names.index(old)]
        return all(seqno <= began for _, began in newer)

    def enquire(self, vbucket: int, reason: str) -> None:
        place = self.places[vbucket]
        if reason not in place.out:
            place.out.add(reason)
            self.out.append(("enquiry", reason, vbucket, *place.seen))

    # -- limits ----------------------------------------------------------------------------------

    def tick(self, after_ms: int) -> list[tuple[Any, ...]]:
        self.now += after_ms
        self.out = []
        limits, now = self.settings, self.now
        for key, (sync, since) in list(self.syncs.items()):
            if now - since >= limits.sync_missing_ms:
                del self.syncs[key]
                place = self.places[sync.vbucket]
                if place.lost is None and (place.owner is None or place.owner.ended is not None):
                    place.lost = now - limits.sync_missing_ms
        late = [
            v
            for v, waiting in self.waiting.items()
            if any(now - since >= limits.begin_held_ms for _, since in waiting)
        ]
        for v in late:
            first, _ = self.waiting[v].pop(0)
            self.own(v, first, None)
            self.judge(v)
        self.restart("begin_held", late)
        unmatched = set()
        for key, ends in list(self.ends.items()):
            old = [e for e in ends if now - e[2] >= limits.end_unmatched_ms]
            if not old:
                continue
            self.ends[key] = [e for e in ends if e not in old]
            if not self.ends[key]:
                del self.ends[key]
            place = self.places[key[1]]
            owned = place.owner is not None and place.owner.ended is None
            if owned and place.heard > max(e[2] for e in old):
                continue
            unmatched.add(key[1])
            if not owned:
                place.lost = max(e[2] for e in old) if place.lost is None else place.lost
                place.asked = now
        self.restart("end_unmatched", sorted(unmatched))
        due = []
        for v, place in enumerate(self.places):
            if place.lost is None or "stream_refused" in place.out:
                continue
            first = place.asked is None and now - place.lost >= limits.begin_held_ms
            if first or (
                place.asked is not None
                and now - place.asked >= max(limits.sync_missing_ms, place.asked - place.lost)
            ):
                place.asked = now
                due.append(v)
        self.restart("no_owner", due)
        for v, place in enumerate(self.places):
            owned = place.owner is not None and place.owner.ended is None
            if owned and now - place.heard >= limits.sync_missing_ms:
                self.enquire(v, "sync_missing")
        for v, place in enumerate(self.places):
            if place.doubt is not None and now - place.doubt >= limits.begin_held_ms:
                self.enquire(v, "seqno_regressed")
        self.catch_up()
        self.publish(ticked=True)
        return self.out

    def restart(self, reason: str, vbuckets: list[int]) -> None:
        if vbuckets:
            found = [self.places[v].current for v in vbuckets]
            self.out.append(("restart", reason, tuple(vbuckets), tuple(found)))

    def publish(self, ticked: bool) -> None:
        period, hurried = self.settings.period_ms, self.now < self.hurried
        if hurried:
            period = min(period, HURRIED_PERIOD_MS)
        if (ticked or hurried) and (self.published is None or self.now - self.published >= period):
            self.promote([self.promoted(v) for v in range(len(self.places))])

    def promoted(self, v: int) -> tuple[int, int]:
        (vbuuid, seqno), (new, said) = self.places[v].stable, self.places[v].current
        if new == 0:
            return vbuuid, seqno
        if new == vbuuid:
            return new, max(seqno, said)
        if seqno == 0:
            return (new, said) if said or vbuuid == 0 else (vbuuid, seqno)
        goes_over = self.is_part(v, (vbuuid, seqno), (new, said)) or self.is_lost(
            v, vbuuid, seqno, new
        )
        return (new, said) if goes_over else (vbuuid, seqno)

    def is_lost(self, v: int, old: int, seqno: int, new: int) -> bool:
        """Tell whether a branch that is not older does not have a position."""
        names = [name for name, _ in self.logs.get(v, [])]
        if new not in names or old in names[: names.index(new)]:
            return False
        return not self.covered(v, new, old, seqno)

    def is_part(self, v: int, old: tuple[int, int], new: tuple[int, int]) -> bool:
        """Tell whether a position is part of the history that another one ends."""
        if old[1] == 0 or (old[0] == new[0] and old[1] <= new[1]):
            return True
        names = [name for name, _ in self.logs.get(v, [])]
        if new[1] < old[1] or new[0] not in names or old[0] in names[: names.index(new[0])]:
            return False
        return self.covered(v, new[0], *old)

    def promote(self, after: list[tuple[int, int]]) -> None:
        if after != [place.stable for place in self.places]:
            for place, stable in zip(self.places, after, strict=True):
                place.stable = stable
            self.published = self.now
            self.out.append(("stable", tuple(after)))
