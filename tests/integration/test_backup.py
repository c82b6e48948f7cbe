"""A cluster in a file, and a cluster from it, on topics with other offsets than the first ones.

The oracle reads the topics of both clusters itself, and folds `history` from nothing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaException, Producer
from typer.testing import CliRunner

from coordinator import codec
from coordinator.backup import restoring
from coordinator.backup.contents import read_backup
from coordinator.backup.errors import BackupError
from coordinator.cli.main import app
from coordinator.client.errors import CoordinatorError
from coordinator.client.request_ids import new_request_id
from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.model import digest as digests
from coordinator.core.model.commands import CreateIndex
from coordinator.core.model.records import AuthoritySnapshot, DdlReply
from coordinator.core.model.types import Offset
from coordinator.embedded.broker import Broker
from coordinator.kafka.readers import watermarks
from coordinator.kafka.state_sources import Sources
from coordinator.kafka.topics import (
    COMMIT,
    DDL,
    DDL_PARTITIONS,
    DDL_REPLIES,
    HISTORY,
    SNAPSHOTS,
    STATECONTEXT,
    delete_records,
    ensure_topics,
    transactional_id,
)
from tests.integration.cluster import Cluster, an_index, value_of, wait_until

pytestmark = pytest.mark.integration

Told = dict[str, Any]
SHIFTS = {COMMIT: 3, STATECONTEXT: 4_000, HISTORY: 7, SNAPSHOTS: 11}
"""How many records each topic has had, and has no more, before anything is restored to it."""


@dataclass(frozen=True)
class Origin:
    """The cluster that was backed up, and what it was like at that moment."""

    cluster: Cluster
    file: Path
    told: Told
    state: Told
    history: list[Told]
    raw: list[bytes]
    expected: StateContext


def indexctl(*arguments: object, code: int = 0) -> Any:
    """Run a command with --json; return its last line, or the error that it ends with."""
    result = CliRunner().invoke(app, [*map(str, arguments), "--json"])
    assert result.exit_code == code, result.output
    lines = [json.loads(line) for line in result.output.splitlines()]
    return lines[-1]["error"] if code else lines[-1]


def backup(cluster: Cluster, file: Path, *more: object) -> Told:
    where = ("--bootstrap-servers", cluster.servers, "--cluster", cluster.name)
    told: Told = indexctl("backup", file, *where, *more)["backup"]
    return told


def restore(cluster: Cluster, file: Path, *more: object, code: int = 0) -> Told:
    where = ("--bootstrap-servers", cluster.servers, "--cluster", cluster.name)
    nodes = ("--nodes", len(cluster.roster))
    body: Told = indexctl("restore", file, *where, *nodes, *more, code=code)
    return body if code else body["restored"]


def history_of(cluster: Cluster, node: int, after: int = 0) -> list[Told]:
    now = cluster.get(node, "/v1/state")["cas"]
    path = f"/v1/history?after={after}&limit=1000&at_least={now}"
    body = cluster.get(node, path)
    assert body["next"] is None
    events: list[Told] = body["events"]
    return events


@pytest.fixture(scope="module")
def origin(broker: Broker, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Origin]:
    """A cluster with indexes, settings, drops and commands from `ddl`; it runs on."""
    folder = tmp_path_factory.mktemp("backup")
    with Cluster(folder, broker.bootstrap_servers, indexers=2) as running:
        running.start()
        with running.client() as client:
            for number in range(4):
                client.put_config(f"app/{number % 3}", {"n": number, "text": "é" * number})
            client.create_index(an_index("kept", "travel"))
            gone = client.create_index(an_index("gone", "other"))["index"]["id"]
            client.drop_index(gone)
            client.delete_config("app/0")
            request = publish_create(running, "published")
            wait_until(lambda: replied(running, request), "the command is executed")
        state = running.settled()
        file = folder / "cluster.backup"
        told = backup(running, file)
        raw = [value_of(message) for message in running.read(HISTORY)]
        folded = folded_from(codec.decode(one) for one in raw)
        yield Origin(running, file, told, state, history_of(running, 1), raw, folded)


def folded_from(events: Any) -> StateContext:
    return states.evolve(states.EMPTY, [(event.mutation, event.cas) for event in events])


def publish_create(cluster: Cluster, name: str) -> str:
    request = new_request_id()
    command = CreateIndex(name=name, bucket="travel", expressions=("a",), defer_build=True)
    cluster.publish(DDL, codec.encode_ddl(request, command, "producer"), 1)
    return request


def replied(cluster: Cluster, request: str) -> DdlReply | None:
    found = cluster.records(DDL_REPLIES, DDL_PARTITIONS)
    return next((reply for reply in found if reply.request == request), None)


def shift(cluster: Cluster) -> None:
    """Make the topics of a cluster that was never started, with other offsets than new ones.

    Records were deleted from them; from `statecontext`, which is compacted, none can be: there a
    transaction was aborted.
    """
    ensure_topics(cluster.servers, cluster.name)
    with uncommitted(cluster, {STATECONTEXT: SHIFTS[STATECONTEXT]}) as producer:
        producer.abort_transaction(30)
    for name, count in SHIFTS.items():
        if name != STATECONTEXT:
            cluster.publish_all(name, [(b"old", 0)] * count)
            delete_records(cluster.servers, cluster.topic(name), Offset(count))
        low, end = watermarks(cluster.servers, cluster.topic(name))
        assert (low == count) or (end > count)


@contextmanager
def uncommitted(cluster: Cluster, counts: dict[str, int]) -> Iterator[Producer]:
    """Yield a producer whose open Kafka transaction has records of another restore."""
    producer = Producer(
        {
            "bootstrap.servers": cluster.servers,
            "transactional.id": transactional_id(cluster.name),
            "transaction.timeout.ms": restoring.TRANSACTION_TIMEOUT_MS,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    for name, count in counts.items():
        for number in range(count):
            producer.produce(cluster.topic(name), b"old", f"old{number}", partition=0)
    assert producer.flush(30) == 0
    yield producer


# -- the whole way -------------------------------------------------------------------------------


def test_a_restored_cluster_is_the_one_that_was_backed_up(
    origin: Origin, make_cluster: Callable[..., Cluster]
) -> None:
    target = make_cluster(nodes=2, indexers=2)
    shift(target)
    told = restore(target, origin.file)
    last = origin.state["cas"]
    assert told["changes"] == len(origin.raw) == len(origin.history)

    # What is written, before any node has seen it.
    history = [value_of(message) for message in target.read(HISTORY)]
    assert history[: len(origin.raw)] == origin.raw
    held = {e.mutation.key: (e.cas, e.mutation.value) for e in map(codec.decode, values_of(target))}
    forgotten = {key for key in origin.expected.entities if key.startswith("consumed/")}
    assert forgotten, "a command of the ddl topic was executed"
    assert held == {
        key: (one.cas, one.value)
        for key, one in origin.expected.entities.items()
        if key not in forgotten
    }

    target.start()
    # The past is the same at every moment that there was, on every node.
    for node in target.nodes:
        found = history_of(target, node)
        assert [e for e in found if e["cas"] <= last] == origin.history
        then = target.get(node, f"/v1/state?cas={last}")
        assert (then["cas"], then["digest"]) == (last, origin.state["digest"])
        assert then["indexes"] == origin.state["indexes"]
        assert then["config"] == origin.state["config"]
    middle = origin.history[len(origin.history) // 2]["cas"]
    one, other = (c.get(1, f"/v1/state?cas={middle}") for c in (origin.cluster, target))
    assert (one["digest"], one["cas"]) == (other["digest"], other["cas"])

    # What comes later is above, and a watcher of before goes on without a gap.
    with target.client() as client:
        made = client.put_config("after", 1)["cas"]
        client.create_index(an_index("after", "travel"))
        assert made > told["next_cas"] > last
        with closing(client.watch(last - 3)) as events:
            seen = list(takewhile(lambda e: e.get("cas", 0) < made, changes_only(events)))
        request = publish_create(target, "published-after")
        wait_until(lambda: replied(target, request), "a command at an offset of before")
        with pytest.raises(CoordinatorError) as refused:
            client.put_config("again", 1, request_id=origin.history[0]["request"])
        assert refused.value.code == "request_expired", "it would be executed a second time"
    assert [e["cas"] for e in seen] == [
        e["cas"] for e in history_of(target, 1, after=last - 3) if e["cas"] < made
    ]
    cas = [event["cas"] for event in history_of(target, 1)]
    assert cas == sorted(set(cas))

    # Indexers have allocated what was restored, and the state has the numbers of their storage.
    wait_until(lambda: all_agree(target), "the indexers hold what the state says")
    state = target.settled()
    restored = {key: state["indexes"][key] for key in origin.state["indexes"]}
    for key, index in restored.items():
        was = origin.state["indexes"][key]
        assert index["topology"]["shards"] != was["topology"]["shards"]
        assert same(index) == same(was)
    config = {key: state["config"][key] for key in origin.state["config"] if key != "started"}
    assert config == {k: v for k, v in origin.state["config"].items() if k != "started"}
    assert target.digest_by_history() == (state["cas"], state["digest"])


def all_agree(cluster: Cluster) -> bool:
    rows = cluster.get(cluster.master(), "/v1/indexers")["indexers"]
    return all(row["handshake"]["agreed"] for row in rows)


def same(index: Told) -> Told:
    """Return what of an index does not depend on where it is stored."""
    topology = {k: v for k, v in index["topology"].items() if k != "shards"}
    return {**index, "topology": topology, "cas": 0}


def changes_only(events: Any) -> Iterator[Told]:
    return (event for event in events if event["type"] == "change")


def values_of(cluster: Cluster) -> list[bytes]:
    return [value_of(message) for message in cluster.read(STATECONTEXT)]


def test_a_restored_cluster_can_be_backed_up_and_its_nodes_can_lose_their_folders(
    origin: Origin, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    """With a part of the history alone, at that: what came before it is a copy of the state."""
    cut = origin.history[4]["cas"]
    part = tmp_path / "part.backup"
    backup(origin.cluster, part, "--history-after", cut)
    target = make_cluster(nodes=1, indexers=1)
    told = restore(target, part)
    base = told["history_after"]
    assert 0 < base <= cut
    target.start()
    kept = [event for event in origin.history if event["cas"] > base]
    last = origin.state["cas"]
    assert [e for e in history_of(target, 1, after=base) if e["cas"] <= last] == kept
    then, now = (c.get(1, f"/v1/state?cas={base}") for c in (origin.cluster, target))
    assert (then["cas"], then["digest"], then["config"]) == (
        now["cas"],
        now["digest"],
        now["config"],
    )
    gone = target.ask(1, "GET", f"/v1/history?after={base - 1}")
    assert gone.json()["error"]["code"] == "compacted"

    # A folder that is lost is filled again, from `statecontext` or from the copies.
    (first,) = (r for r in target.records(COMMIT) if isinstance(r, AuthoritySnapshot))
    sources = Sources(target.servers, target.name, threading.Event(), lambda *_: None)
    assert [info.cas for info in first.snapshot.snapshots] == [base, last]
    for info in first.snapshot.snapshots:
        assert sources.read_copy(info.copy, info.offset).digest == info.digest
    target.nodes[1].stop()
    shutil.rmtree(target.nodes[1].folder)
    target.start()
    assert re.search("full synchronisation to CAS [0-9]+ from", target.nodes[1].said)
    again = tmp_path / "again.backup"
    body = backup(target, again)
    assert body["history_after"] == base
    checked = indexctl("restore", again, "--check")["checked"]
    assert checked["digest"] == target.settled()["digest"]
    assert checked["changes"] == len(history_of(target, 1, after=base))


# -- what is refused -----------------------------------------------------------------------------


def test_a_cluster_that_is_not_empty_is_left_as_it_is(origin: Origin) -> None:
    before = {n: watermarks(origin.cluster.servers, origin.cluster.topic(n)) for n in SHIFTS}
    error = restore(origin.cluster, origin.file, code=1)
    assert error["code"] == "cluster_in_use"
    after = {n: watermarks(origin.cluster.servers, origin.cluster.topic(n)) for n in SHIFTS}
    for name in (STATECONTEXT, HISTORY, SNAPSHOTS):
        assert before[name] == after[name]


def test_a_damaged_file_is_refused_before_anything_is_written(
    origin: Origin, make_cluster: Callable[..., Cluster], tmp_path: Path
) -> None:
    damaged = bytearray(origin.file.read_bytes())
    damaged[len(damaged) // 2] ^= 1
    file = tmp_path / "damaged.backup"
    file.write_bytes(damaged)
    target = make_cluster(nodes=1, indexers=0)
    ensure_topics(target.servers, target.name)
    error = restore(target, file, code=1)
    assert error["code"] == "backup_damaged"
    assert all(watermarks(target.servers, target.topic(name))[1] == 0 for name in SHIFTS)


def test_a_restore_that_was_killed_leaves_nothing_and_can_be_done_again(
    origin: Origin, make_cluster: Callable[..., Cluster]
) -> None:
    target = make_cluster(nodes=1, indexers=0)
    ensure_topics(target.servers, target.name)
    with uncommitted(target, dict.fromkeys(SHIFTS, 1)):
        pass
    told = restore(target, origin.file)
    assert told["changes"] == len(origin.raw)
    (first,) = (r for r in target.records(COMMIT) if isinstance(r, AuthoritySnapshot))
    assert first.snapshot.roster == (1,)
    error = restore(target, origin.file, code=4)
    assert error["code"] == "not_empty"


@pytest.mark.parametrize("with_callback", [False, True], ids=["alone", "with a callback"])
def test_a_restore_whose_cluster_is_taken_meanwhile_writes_nothing(
    origin: Origin,
    make_cluster: Callable[..., Cluster],
    monkeypatch: pytest.MonkeyPatch,
    with_callback: bool,
) -> None:
    """Python makes a SystemError of what the client says, if a callback is due in the same call."""
    target = make_cluster(nodes=1, indexers=0)
    ensure_topics(target.servers, target.name)
    monkeypatch.setattr(restoring, "TOLD_EVERY", 1)
    flush = restoring._Restore._flush

    def flush_with_callback(restore: restoring._Restore) -> None:
        try:
            flush(restore)
        except KafkaException as error:
            raise SystemError("returned a result with an exception set") from error

    if with_callback:
        monkeypatch.setattr(restoring._Restore, "_flush", flush_with_callback)
    taken: list[int] = []

    def take(count: int) -> None:
        if not taken:
            taken.append(count)
            with uncommitted(target, {}) as producer:
                producer.abort_transaction(30)

    with origin.file.open("rb") as file:
        found = read_backup(file)
        place = restoring.Target(
            servers=target.servers, cluster=target.name, roster=(1,), minimum=1
        )
        with pytest.raises(BackupError) as caught:
            restoring.restore_backup(file, found, place, take)
    assert taken
    assert caught.value.code == "restore_failed"
    assert [message for name in SHIFTS for message in target.read(name)] == []


def test_a_commit_whose_markers_come_late_is_waited_for(
    origin: Origin, make_cluster: Callable[..., Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kafka acknowledges the end of a transaction before readers see it."""
    target = make_cluster(nodes=1, indexers=0)
    asked: list[bool] = []
    look = restoring._Restore._is_there

    def late(restore: restoring._Restore, cluster_id: str) -> bool:
        asked.append(len(asked) >= 2 and look(restore, cluster_id))
        return asked[-1]

    monkeypatch.setattr(restoring._Restore, "_is_there", late)
    assert restore(target, origin.file)["changes"] == len(origin.raw)
    assert asked[:2] == [False, False]
    assert asked[-1]


def test_a_backup_of_no_cluster_or_over_a_file_is_refused(origin: Origin, tmp_path: Path) -> None:
    where = ("--bootstrap-servers", origin.cluster.servers)
    file = tmp_path / "none.backup"
    error = indexctl("backup", file, *where, "--cluster", "nobody", code=3)
    assert error["code"] == "no_cluster"
    assert os.listdir(tmp_path) == []
    file.write_text("mine")
    error = indexctl("backup", file, *where, "--cluster", origin.cluster.name, code=4)
    assert error["code"] == "exists"
    assert file.read_text() == "mine"


def test_a_backup_is_of_the_state_that_its_digest_names(origin: Origin) -> None:
    assert (origin.told["cas"], origin.told["digest"]) == (
        origin.state["cas"],
        origin.state["digest"],
    )
    assert origin.told["digest"] == digests.text(origin.expected.digest)
    assert origin.file.stat().st_mode & 0o777 == 0o600
    assert origin.told["bytes"] == origin.file.stat().st_size


def test_a_backup_keeps_the_last_transaction_however_little_of_the_history_is_wanted(
    origin: Origin, tmp_path: Path
) -> None:
    """It says what came before: without it the past of the new cluster would be empty."""
    told = backup(origin.cluster, tmp_path / "least", "--history-after", origin.told["cas"])
    assert told["history_after"] < told["cas"] == origin.told["cas"]
    assert told["changes"] > 0
