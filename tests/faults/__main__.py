"""Hurt a real cluster: `make chaos ROUNDS=10`, or `python -m tests.faults --rounds 10`.

Each round strikes the same cluster with a sequence of faults, drawn from its seed, while clients
work on it, and judges what came of it. Exit code 1 means that something does not hold; histories
are kept then.
"""

from __future__ import annotations

import argparse
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from coordinator.embedded.brokers import Brokers
from tests.faults.cluster import FaultCluster, require_means
from tests.faults.nemesis import KINDS, possible_kinds
from tests.faults.rounds import Report, run_round, timings

STEPS = 5


def main() -> int:
    arguments = _arguments()
    try:
        require_means()
    except AssertionError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    # What ends this ends it in order: mounts do not go with their process.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    folder = Path(tempfile.mkdtemp(prefix="chaos-"))
    reports: list[Report] = []
    begin = time.monotonic()
    try:
        _run(arguments, folder, reports)
    except KeyboardInterrupt:
        print("\nstopped")
    _summarise(reports, time.monotonic() - begin)
    bad = any(report.violations for report in reports)
    if bad or arguments.keep:
        print(f"histories and logs are in {folder}")
    else:
        shutil.rmtree(folder, ignore_errors=True)
    if bad:
        return 1
    return 0 if len(reports) == arguments.rounds else 130


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.faults", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, help="of the first round; the next ones count on")
    parser.add_argument("--steps", type=int, default=STEPS, help="faults a round")
    parser.add_argument("--brokers", type=int, default=1, choices=(1, 3))
    parser.add_argument("--kinds", help=f"some of: {','.join(KINDS)}")
    parser.add_argument("--keep", action="store_true", help="keep histories and logs")
    parser.add_argument("--go-on", action="store_true", help="do not end with a violation")
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",") if arguments.kinds else possible_kinds()
    if unknown := sorted(set(kinds) - set(possible_kinds())):
        parser.error(f"not known, or not possible here: {', '.join(unknown)}")
    arguments.kinds = kinds
    if arguments.seed is None:
        arguments.seed = random.randrange(1_000_000)
    return arguments


def _run(arguments: argparse.Namespace, folder: Path, reports: list[Report]) -> None:
    with (
        Brokers(folder / "kafka", arguments.brokers) as brokers,
        FaultCluster(folder, brokers) as cluster,
    ):
        cluster.start()
        for number in range(arguments.rounds):
            report = run_round(
                cluster,
                number,
                arguments.seed + number,
                arguments.kinds,
                steps=arguments.steps,
                folder=folder,
                say=lambda text: print(text, flush=True),
            )
            reports.append(report)
            print(report, flush=True)
            if report.violations and not arguments.go_on:
                return


def _summarise(reports: list[Report], took_s: float) -> None:
    """Print what all rounds came to."""
    counts: Counter[str] = Counter()
    kinds: Counter[str] = Counter()
    recoveries_s: dict[str, list[float]] = {}
    for report in reports:
        counts.update(report.counts)
        kinds.update(report.kinds)
        for kind, all_s in report.recoveries_s.items():
            recoveries_s.setdefault(kind, []).extend(all_s)
    violated = sum(bool(report.violations) for report in reports)
    print(f"{len(reports)} rounds in {took_s:.0f} s, {violated} violated")
    print(f"  operations: {', '.join(f'{n} {what}' for what, n in counts.items())}")
    print(f"  faults: {', '.join(f'{kind} x{n}' for kind, n in sorted(kinds.items()))}")
    for line in timings(recoveries_s):
        print(f"  to the next write: {line}")


if __name__ == "__main__":
    sys.exit(main())
