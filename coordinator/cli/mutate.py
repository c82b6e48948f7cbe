"""Traffic for a bucket: updates, deletions and inserts; updates are skewed to a few hot documents.

The choice of the document to update follows Zipf's law. The new version gets one or two fields from
another document, so the set of values stays realistic. A field whose value is a part of the id is
not changed. The same seed makes the same changes of the same documents.
"""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from coordinator.cli.kv_client import Kv
from coordinator.cli.output import CommandError

DOCUMENTS_MAX = 100_000
"""Of more than these, only some are changed: they are kept here."""

BATCH_MAX = 500
TICK_S = 0.02
RETRY_S = 0.3
SHOWN_S = 0.5


def zipf(chance: float, count: int, skew: float) -> int:
    """Return a number below `count` for a chance in [0, 1): the lower the more often."""
    if abs(skew - 1) < 1e-9:
        place = (count + 1) ** chance
    else:
        power = 1 - skew
        place = (((count + 1) ** power - 1) * chance + 1) ** (1 / power)
    return min(count - 1, max(0, int(place) - 1))


@dataclass(frozen=True)
class Mix:
    """Of which changes the traffic is made, in any unit."""

    updates: float
    deletes: float
    inserts: float

    def __post_init__(self) -> None:
        shares = (self.updates, self.deletes, self.inserts)
        if min(shares) < 0 or sum(shares) <= 0:
            raise CommandError("usage", "--updates, --deletes and --inserts are all 0")


class Traffic:
    """Changes of documents that are given as pairs (id, document); knows what it has made."""

    def __init__(
        self, documents: Iterable[tuple[str, Any]], mix: Mix, *, skew: float, seed: str
    ) -> None:
        self._documents = list(documents)
        self._skew = skew
        self._seed = seed
        self._random = random.Random(seed)
        self._random.shuffle(self._documents)
        self._inserted = 0
        self._shares = (mix.updates, mix.deletes, mix.inserts)
        self.done = {"updated": 0, "deleted": 0, "inserted": 0}

    def lines(self, count: int) -> bytes:
        """Return the next changes, fewer if there is nothing left to change."""
        made = []
        for what in self._random.choices(("update", "delete", "insert"), self._shares, k=count):
            if not self._documents:
                break
            made.append(json.dumps(getattr(self, f"_{what}")(), ensure_ascii=False))
        return "".join(f"{line}\n" for line in made).encode("utf-8", "backslashreplace")

    def _chosen(self) -> int:
        return zipf(self._random.random(), len(self._documents), self._skew)

    def _update(self) -> dict[str, Any]:
        place = self._chosen()
        name, document = self._documents[place]
        document = self._mixed(name, document)
        self._documents[place] = (name, document)
        self.done["updated"] += 1
        return {"id": name, "doc": document}

    def _delete(self) -> dict[str, Any]:
        # Not a hot one: their place would be another's, and the skew not what was asked for.
        place = self._random.randrange(len(self._documents))
        name, _ = self._documents[place]
        self._documents[place] = self._documents[-1]
        self._documents.pop()
        self.done["deleted"] += 1
        return {"id": name, "deleted": True}

    def _insert(self) -> dict[str, Any]:
        self._inserted += 1
        name = f"mutate::{self._seed}::{self._inserted}"
        document = self._mixed(name, self._random.choice(self._documents)[1])
        self._documents.append((name, document))
        self.done["inserted"] += 1
        return {"id": name, "doc": document}

    def _mixed(self, name: str, document: Any) -> Any:
        """Return a document with one or two fields as another one has them."""
        other = self._random.choice(self._documents)[1]
        if not isinstance(document, dict) or not isinstance(other, dict):
            return other
        fields = [key for key in other if key not in document or str(document[key]) not in name]
        chosen = self._random.sample(fields, min(len(fields), self._random.randint(1, 2)))
        return document | {key: other[key] for key in chosen}


@dataclass
class Report:
    """What a run did."""

    seconds: float = 0.0
    changes: int = 0
    failed: int = 0
    retried: int = 0
    done: dict[str, int] = field(default_factory=dict)

    @property
    def per_s(self) -> float:
        return round(self.changes / self.seconds, 1) if self.seconds else 0.0

    def as_json(self) -> dict[str, Any]:
        return {
            "seconds": round(self.seconds, 3),
            "changes": self.changes,
            "per_s": self.per_s,
            "failed": self.failed,
            "retried": self.retried,
            **self.done,
        }


def sample(kv: Kv, bucket: str) -> list[tuple[str, Any]]:
    """Return documents to change: all, or some of many."""
    count = next(
        (b["documents"] for b in kv.get("buckets")["buckets"] if b["name"] == bucket), None
    )
    if count is None:
        raise CommandError("not_found", f"the store has no bucket {bucket}")
    if not count:
        raise CommandError("usage", f"{bucket} has no documents: see `indexctl load`")
    lines = map(json.loads, kv.documents(bucket, 1 + count // DOCUMENTS_MAX))
    return [(line["id"], line["doc"]) for line in lines]


def run(
    kv: Kv,
    bucket: str,
    traffic: Traffic,
    *,
    rate: float,
    seconds: float | None,
    patience_s: float,
    show: Callable[[Report], None],
) -> Report:
    """Send `rate` changes a second, until the time is over or Ctrl-C; return what came of it."""
    report = Report(done=traffic.done)
    began = shown = time.monotonic()
    try:
        while seconds is None or report.seconds < seconds:
            due = int(rate * report.seconds) + 1 - report.changes
            lines = traffic.lines(min(due, BATCH_MAX)) if due > 0 else b""
            if lines:
                _send(kv, bucket, lines, report, patience_s)
            elif due > 0:
                break
            else:
                time.sleep(max(TICK_S, (1 - due) / rate) if rate < 1 / TICK_S else TICK_S)
            now = time.monotonic()
            report.seconds = now - began
            if now - shown >= SHOWN_S:
                shown = now
                show(report)
    except KeyboardInterrupt:
        report.seconds = time.monotonic() - began
    return report


def _send(kv: Kv, bucket: str, lines: bytes, report: Report, patience_s: float) -> None:
    """Send lines; again while the store is away, for so long as `patience_s`."""
    deadline = time.monotonic() + patience_s
    while True:
        try:
            answer = kv.load(bucket, lines)
            break
        except CommandError as error:
            if error.code != "unavailable" or time.monotonic() > deadline:
                raise
            report.retried += 1
            time.sleep(RETRY_S)
    report.changes += lines.count(b"\n")
    report.failed += answer["failed"]
