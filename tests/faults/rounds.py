"""One round: a load under a sequence of faults, then the verdict on what came of it."""

from __future__ import annotations

import random
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.faults.cluster import FaultCluster
from tests.faults.load import Ack, Load
from tests.faults.nemesis import BROKER, MASTER, Nemesis, Strike, plan
from tests.faults.verdict import collect, violations
from tests.integration.cluster import wait_until

PROGRESS_S = 120.0
WARM_UP = 20
ON_THE_WAY_S = 0.2
"""An answer that comes within this of a strike had left before it."""


@dataclass
class Report:
    """What a round did, and what was wrong."""

    number: int
    seed: int
    counts: dict[str, int] = field(default_factory=dict)
    kinds: Counter[str] = field(default_factory=Counter)
    recoveries_s: dict[str, list[float]] = field(default_factory=dict)
    restarts: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    took_s: float = 0.0
    history: Path | None = None

    def __str__(self) -> str:
        operations = ", ".join(f"{count} {what}" for what, count in self.counts.items())
        kinds = ", ".join(f"{kind} x{n}" if n > 1 else kind for kind, n in self.kinds.items())
        lines = [
            f"round {self.number}: seed {self.seed}, {self.took_s:.0f} s",
            f"  operations: {operations}",
            f"  faults: {kinds}",
            *(f"  to the next write: {line}" for line in timings(self.recoveries_s)),
            *(f"  {text}" for text in self.restarts),
            "  verdict: " + ("holds" if not self.violations else "VIOLATED"),
            *(f"    {text}" for text in self.violations),
        ]
        if self.violations:
            lines.append(f"  history: {self.history}")
        return "\n".join(lines)


def timings(recoveries_s: dict[str, list[float]]) -> list[str]:
    """Return a line for each kind: how long until the next acknowledged write."""
    lines = []
    for kind, all_s in sorted(recoveries_s.items()):
        middle, longest = statistics.median(all_s), max(all_s)
        lines.append(f"{kind}: p50 {middle:.1f} s, max {longest:.1f} s ({len(all_s)})")
    return lines


def run_round(
    cluster: FaultCluster,
    number: int,
    seed: int,
    kinds: Sequence[str],
    *,
    steps: int,
    folder: Path,
    say: Callable[[str], None] = print,
) -> Report:
    """Hurt the cluster by `steps` faults under a load; it is healed when this returns."""
    begin = time.monotonic()
    report = Report(number, seed)
    rng = random.Random(seed)
    nemesis = Nemesis(cluster, rng)
    load = Load(cluster, number, seed)
    sequence = plan(rng, kinds, steps)
    say(f"round {number}: seed {seed}: " + ", ".join("+".join(step) for step in sequence))
    exits = len(cluster.exits)
    try:
        with load:
            wait_until(load.progress(WARM_UP), "the first writes", PROGRESS_S)
            for step in sequence:
                _strike(nemesis, step, load)
            report.violations = judge(nemesis, load)
    except AssertionError as error:
        report.violations.append(f"the cluster does not recover: {error}")
    finally:
        cluster.heal()
    report.restarts = [str(one) for one in cluster.exits[exits:]]
    report.counts = load.record.counts()
    report.kinds = Counter(strike.kind for strike in nemesis.strikes)
    report.recoveries_s = recoveries(nemesis.strikes, load.record.acks)
    report.took_s = time.monotonic() - begin
    report.history = folder / f"round-{number}.history"
    write_history(report.history, nemesis, load, str(report))
    return report


def judge(nemesis: Nemesis, load: Load) -> list[str]:
    """Wait until the healed cluster is quiet, and return all that is wrong.

    Raises AssertionError where it does not become quiet.
    """
    load.finish()
    evidence = collect(nemesis.cluster, load)
    ended = [one for one in nemesis.cluster.exits if one.at >= load.began]
    evidence.exits = [str(one) for one in ended if one.is_fault]
    evidence.undetected = _undetected(nemesis)
    return violations(evidence)


def _strike(nemesis: Nemesis, step: Sequence[str], load: Load) -> None:
    """Strike with all of a step, heal, and wait until the cluster serves again."""
    struck: list[Strike] = []
    try:
        for kind in step:
            struck.append(nemesis.strike(kind))
    finally:
        for strike in reversed(struck):
            if strike.until is not None and len(struck) > 1:
                strike.until = None  # The other fault may be in its way.
            nemesis.heal(strike)
    wait_until(load.progress(3), f"writes after {' and '.join(step)}", PROGRESS_S)


def recoveries(strikes: Sequence[Strike], acks: Sequence[Ack]) -> dict[str, list[float]]:
    """Return, for each kind that hits the master or a broker, how long no write got through."""
    found: dict[str, list[float]] = {}
    for strike in strikes:
        if strike.on not in (MASTER, BROKER):
            continue
        later = sorted(ack for ack in acks if ack.at > strike.at + ON_THE_WAY_S)
        if strike.on == MASTER and strike.epoch:
            newer = [ack for ack in later if ack.epoch > strike.epoch]
            later = newer or later
        if later:
            found.setdefault(strike.kind, []).append(later[0].at - strike.at)
    return found


def _undetected(nemesis: Nemesis) -> list[str]:
    """Return the nodes that went on with a folder that was damaged for certain."""
    return [
        f"node {node} did not synchronise in full after its folder was damaged"
        for node, said in nemesis.damaged
        if "synchronised from " not in nemesis.cluster.nodes[node].said[said:]
    ]


def write_history(path: Path, nemesis: Nemesis, load: Load, heading: str) -> None:
    """Write all that happened to a file, in its order."""
    rows = [(strike.at, f"FAULT {strike.since(load.began)}") for strike in nemesis.strikes]
    rows += [
        (one.at, f"EXIT [{one.at - load.began:.2f}] {one}")
        for one in nemesis.cluster.exits
        if one.at >= load.began
    ]
    for sent in load.record.sent:
        shown = sent.since(load.began)
        about = f"{shown.target[1]} {sent.request} txn {sent.txn or '-'} cas {sent.cas}"
        rows.append((sent.operation.invoked, f"{shown} | {about} {sent.code}"))
    lines = [heading, "", "times are in seconds since the load began", ""]
    lines += [text for _, text in sorted(rows, key=lambda row: row[0])]
    path.write_text("\n".join(lines) + "\n")
