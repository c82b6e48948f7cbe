"""A real cluster under a load and under faults: random sequences of every kind, and directed ones.

Each test ends with the cluster healed and judged: what clients were told, what the logs hold, what
the nodes show and keep, and what the indexers hold (see `verdict.py`). A failure names the file
with the whole history.
"""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from coordinator.client.request_ids import new_request_id
from coordinator.core.model.records import Event
from tests.faults import damage
from tests.faults.cluster import DISK, NETWORK, not_here, waived
from tests.faults.conftest import Arena
from tests.faults.load import Load
from tests.faults.nemesis import (
    KINDS,
    NEEDS,
    REFUSES,
    ZOMBIE_S,
    Nemesis,
    Strike,
    possible_kinds,
)
from tests.faults.rounds import PROGRESS_S, judge, run_round, write_history
from tests.integration.cluster import wait_until

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]

SEED = int(os.environ.get("CHAOS_SEED", "0")) or random.randrange(1_000_000)
ROUNDS = 7
"""Together they have every kind; `make test` has the first, so a seventh, drawn anew each time.
`make chaos` has as many as one likes."""

DIRECTED = {"stop-master", "cut", "full-disk-node", "damage"}
"""Kinds with tests of their own here; the rounds of `make chaos` have them, too."""


@contextmanager
def under_load(arena: Arena, folder: Path) -> Iterator[tuple[Nemesis, Load]]:
    """Yield a nemesis beside a load; judge what came of it in the end."""
    print(f"CHAOS_SEED={SEED} draws the same faults")
    nemesis = Nemesis(arena.cluster, random.Random(SEED))
    load = Load(arena.cluster, next(arena.numbers), SEED)
    path = folder / "history"
    try:
        with load:
            wait_until(load.progress(10), "the first writes", PROGRESS_S)
            yield nemesis, load
            wait_until(load.progress(3), "writes in the end", PROGRESS_S)
            found = judge(nemesis, load)
    finally:
        arena.cluster.heal()
        write_history(path, nemesis, load, f"seed {SEED}")
        print(f"the history is in {path}")
    assert not found, "\n".join(found)


def _strike_and_heal(nemesis: Nemesis, load: Load, kind: str) -> Strike:
    made = nemesis.strike(kind)
    nemesis.heal(made)
    wait_until(load.progress(3), f"writes after {kind}", PROGRESS_S)
    return made


# -- every kind -----------------------------------------------------------------------------------


def _shares() -> list[list[str]]:
    """Return the kinds that have no test of their own, divided at random among the rounds."""
    kinds = [kind for kind in KINDS if kind not in DIRECTED]
    random.Random(SEED).shuffle(kinds)
    return [kinds[number::ROUNDS] for number in range(ROUNDS)]


@pytest.mark.parametrize(
    "number", [0, *(pytest.param(n, marks=pytest.mark.matrix) for n in range(1, ROUNDS))]
)
def test_a_load_under_a_random_sequence_of_faults(
    arena: Arena, tmp_path: Path, number: int
) -> None:
    possible = possible_kinds()
    kinds = [kind for kind in _shares()[number] if kind in possible]
    skipped = set(KINDS) - set(possible)
    assert all(NEEDS[kind] in waived() for kind in skipped), skipped
    report = run_round(
        arena.cluster,
        next(arena.numbers),
        SEED + number,
        kinds,
        steps=len(kinds),
        folder=tmp_path,
    )
    print(report)
    assert not report.violations, str(report)
    assert set(report.kinds) >= set(kinds)


# -- the zombie -----------------------------------------------------------------------------------


class Asked(threading.Thread):
    """A request to one node that may answer late, or never; it follows no redirect."""

    def __init__(self, method: str, url: str, **more: Any) -> None:
        super().__init__(daemon=True)
        self.id = new_request_id()
        self.answer: httpx.Response | None = None
        self._ask: Callable[[httpx.Client], httpx.Response] = lambda http: http.request(
            method,
            url,
            headers={"Idempotency-Key": self.id, **more.pop("headers", {})},
            **more,
        )
        self.start()

    def run(self) -> None:
        with (
            suppress(httpx.HTTPError),
            httpx.Client(timeout=60, trust_env=False, verify=False) as http,
        ):
            self.answer = self._ask(http)


def _effects(history: list[Event], request: str) -> list[int]:
    """Return the CAS at which a request wrote a setting."""
    written = [e for e in history if e.mutation.event == "SettingWritten"]
    return [event.cas for event in written if event.mutation.request == request]


def test_a_master_that_slept_through_its_replacement_tells_nothing_false(
    arena: Arena, tmp_path: Path
) -> None:
    cluster = arena.cluster
    with under_load(arena, tmp_path) as (nemesis, load), cluster.client() as client:
        key = f"{load.prefix}-zombie"
        before = client.put_config(key, "before")["cas"]
        zombie, epoch = nemesis.master()
        made = nemesis.strike("stop-master")
        assert made.victim == zombie.name
        path = f"{zombie.url}/v1/config/{key}"
        # They lie in the zombie's sockets while it sleeps, and are the first that it sees.
        stale = Asked("PUT", path, json="stale", headers={"If-Match": str(before)})
        absent = Asked("PUT", path, json="absent", headers={"If-Match": "0"})
        plain = [Asked("PUT", f"{path}-{n}", json=n) for n in range(5)]
        read = Asked("GET", f"{path}?consistency=linearizable")
        wait_until(nemesis.another_than(zombie, epoch), "another master")
        with cluster.client(*(node for node in cluster.nodes if node != zombie.node)) as awake:
            after = awake.put_config(key, "after")["cas"]
        assert after > before
        nemesis.heal(made)
        assert time.monotonic() - made.at >= ZOMBIE_S
        for asked in (stale, absent, read, *plain):
            asked.join(60)
        wait_until(
            lambda: cluster.member(zombie.node)["role"] == "replica", "the zombie is a replica"
        )
        history = cluster.history()

    assert stale.answer is None or stale.answer.status_code != 200, stale.answer.text
    assert not _effects(history, stale.id)
    for refused in (stale, absent):
        if refused.answer is not None and refused.answer.status_code == 412:
            assert refused.answer.json()["error"]["details"]["actual"] == after
    assert absent.answer is None or absent.answer.status_code != 200, absent.answer.text
    if read.answer is not None and read.answer.status_code == 200:
        assert read.answer.json()["value"] == "after"
    for one in plain:
        effects = _effects(cluster.history(), one.id)
        assert len(effects) <= 1
        if one.answer is not None and one.answer.status_code == 200:
            assert effects == [one.answer.json()["cas"]]


# -- folders and disks ----------------------------------------------------------------------------


@pytest.mark.matrix
def test_a_damaged_folder_is_noticed_and_synchronised_in_full(arena: Arena, tmp_path: Path) -> None:
    """Each way to damage it; meanwhile no node ever shows a state that was not committed.

    `make test` has one way, without a load: among what a restart is tested with.
    """
    cluster = arena.cluster
    with under_load(arena, tmp_path) as (nemesis, load):
        for how in (*damage.CERTAIN, *damage.POSSIBLE):
            victim = nemesis.replica()
            cluster.kill(victim)
            how(victim.folder, nemesis.rng)
            said = len(victim.said)
            cluster.revive(victim)
            if how in damage.CERTAIN:
                what = f"{victim.name} synchronises in full after {how.__name__}"
                wait_until(lambda v=victim, s=said: "synchronised from " in v.said[s:], what)  # type: ignore[misc]
                noticed = ("store_damaged", "digest_mismatch")
                assert any(word in victim.said[said:] for word in noticed), how.__name__
            cluster.settled_members()
            wait_until(load.progress(), "a write", PROGRESS_S)


@pytest.mark.matrix
@pytest.mark.skipif(DISK in waived(), reason="waived by CHAOS_WAIVE")
def test_a_full_disk_is_left_alone_and_comes_back(arena: Arena, tmp_path: Path) -> None:
    """Of a replica, which leaves the active list, and of the master, which hands over: under a
    load, and judged. Without one `make test` has both, where faults of one part are tested."""
    cluster = arena.cluster
    with under_load(arena, tmp_path) as (nemesis, load):
        for choose in (nemesis.replica, lambda: nemesis.master()[0]):
            victim = choose()
            said = len(victim.said)
            made = nemesis.fill(victim)
            assert REFUSES in victim.said[said:]
            wait_until(load.progress(3), "writes without it", PROGRESS_S)
            assert cluster.master() != victim.node
            assert cluster.member(victim.node)["role"] in ("outside", "replica")
            nemesis.heal(made)
            cluster.settled_members()


# -- networks and brokers -------------------------------------------------------------------------


@pytest.mark.skipif(NETWORK in waived(), reason="waived by CHAOS_WAIVE")
def test_a_master_that_is_cut_off_from_kafka_is_replaced_and_confirms_nothing(
    arena: Arena, tmp_path: Path
) -> None:
    cluster = arena.cluster
    assert NETWORK not in not_here()
    with under_load(arena, tmp_path) as (nemesis, load):
        victim, epoch = nemesis.master()
        network = cluster.networks[victim.node]
        network.cut("both")
        path = f"{victim.url}/v1/config/{load.prefix}-cut"
        asked = [Asked("PUT", path, json=1), Asked("GET", f"{path}?consistency=linearizable")]
        try:
            wait_until(nemesis.another_than(victim, epoch), "another master")
            wait_until(load.progress(3), "writes at the other master", PROGRESS_S)
            assert not any(one.answer is not None and one.answer.is_success for one in asked)
        finally:
            network.heal()
        cluster.settled_members()
        for one in asked:
            one.join(60)


@pytest.mark.matrix
def test_a_broker_that_is_killed_or_stopped_costs_time_and_nothing_else(
    arena: Arena, tmp_path: Path
) -> None:
    with under_load(arena, tmp_path) as (nemesis, load):
        for kind in ("kill-broker", "stop-broker"):
            _strike_and_heal(nemesis, load, kind)
            arena.cluster.settled_members()
