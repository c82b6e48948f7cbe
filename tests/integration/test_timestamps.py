"""Timestamps as nodes read them: a test writes `stability` and `restart`, and asks over HTTP."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from confluent_kafka import KafkaError, Message, Producer
from typer.testing import CliRunner

from coordinator import codec
from coordinator.cli.main import app
from coordinator.core.model.records import DeadLetter
from coordinator.core.model.stream_records import (
    SEQNO_REGRESSED,
    ConsolidatedStability,
    RestartTimestamp,
    RollbackEnquiry,
    StabilityTimestamp,
    Tick,
)
from coordinator.core.model.vectors import Vector
from coordinator.kafka.topics import DEAD_LETTER, RESTART, STABILITY, STABILITY_HISTORY
from tests.integration.cluster import DEADLINE_S, Cluster, an_index, error_of, wait_until

pytestmark = pytest.mark.integration

TOP = 2**64 - 1
VBUCKETS = 1_024
NODE = 1


@pytest.fixture(scope="module")
def plant(broker: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One node and one indexer, with a bucket `travel`, that the tests of this module share."""
    folder = tmp_path_factory.mktemp("timestamps")
    with Cluster(folder, broker.bootstrap_servers, nodes=1, indexers=1) as running:
        running.start()
        with running.client() as client:
            client.create_index(an_index("by_a"))
        yield running


class Writer:
    """Writes what the application that computes timestamps would: transactions, keyed by bucket."""

    def __init__(self, plant: Cluster, compression: str = "none") -> None:
        self._plant = plant
        self._producer = Producer(
            {
                "bootstrap.servers": plant.servers,
                "transactional.id": f"{plant.name}.timestamps",
                "compression.type": compression,
                "log_level": 2,
            }
        )
        self._producer.init_transactions(DEADLINE_S)

    def write(self, topic: str, *records: Any, commit: bool = True) -> list[int]:
        """Write records, or bytes that are none, in one transaction; return their offsets."""
        offsets = [-1] * len(records)
        self._producer.begin_transaction()
        for place, record in enumerate(records):

            def report(error: KafkaError | None, message: Message, place: int = place) -> None:
                assert error is None, error
                offsets[place] = message.offset() or 0

            value = record if isinstance(record, bytes) else codec.encode(record)
            key = getattr(record, "bucket", "*").encode()
            self._producer.produce(self._plant.topic(topic), value, key=key, on_delivery=report)
        assert self._producer.flush(DEADLINE_S) == 0
        if commit:
            self._producer.commit_transaction(DEADLINE_S)
        else:
            self._producer.abort_transaction(DEADLINE_S)
        return offsets


@pytest.fixture(scope="module")
def writer(plant: Cluster) -> Writer:
    return Writer(plant)


def stable(
    number: int, bucket: str, seqnos: Sequence[int] = (), at_ms: int = 0
) -> StabilityTimestamp:
    seqnos = seqnos or [number] * VBUCKETS
    vector = Vector([TOP - n for n in range(len(seqnos))], seqnos)
    return StabilityTimestamp(bucket, number, *vector.to_bytes(), at_ms or now_ms())


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def number_at(plant: Cluster, bucket: str) -> int:
    """Return the number that the node shows, 0 if it shows none."""
    answer = plant.ask(NODE, "GET", f"/v1/stability/{bucket}")
    return int(answer.json()["number"]) if answer.status_code == 200 else 0


def shown(plant: Cluster, bucket: str, number: int) -> dict[str, Any]:
    """Return a bucket's timestamp once it has this number."""
    wait_until(lambda: number_at(plant, bucket) == number, f"{bucket} at {number}")
    return plant.get(NODE, f"/v1/stability/{bucket}")


def row(plant: Cluster, bucket: str) -> dict[str, Any]:
    rows = plant.get(NODE, "/v1/stability")["buckets"]
    found = [r for r in rows if r["bucket"] == bucket]
    return found[0] if found else {"began_again": None}


@pytest.mark.parametrize("compression", ["gzip", "snappy", "lz4", "zstd"])
def test_what_is_written_with_any_compression_is_read(plant: Cluster, compression: str) -> None:
    """A codec that the nodes lack would end all of them, again and again."""
    Writer(plant, compression).write(STABILITY, *(stable(n, compression) for n in range(1, 9)))
    shown(plant, compression, 8)


def test_a_bucket_without_a_timestamp_and_an_unknown_one_say_so(plant: Cluster) -> None:
    for path in ("/v1/stability/nowhere", "/v1/restart/nowhere"):
        answer = plant.ask(NODE, "GET", path)
        assert (answer.status_code, error_of(answer)) == (404, "not_found")
    answer = plant.ask(NODE, "GET", "/v1/stability/travel")
    assert (answer.status_code, error_of(answer)) == (404, "no_stability_timestamp")
    nothing = {"bucket": "travel", "restarts": [], "enquiries": []}
    assert plant.get(NODE, "/v1/restart/travel") == nothing
    assert row(plant, "travel")["stability"] is None
    paths = {"/v1/stability", "/v1/stability/{bucket}", "/v1/restart/{bucket}"}
    assert paths <= set(plant.get(NODE, "/openapi.json")["paths"])


def test_the_newest_committed_timestamp_is_shown_with_its_vector_and_age(
    plant: Cluster, writer: Writer
) -> None:
    writer.write(STABILITY, stable(1, "travel"), stable(2, "travel"))
    writer.write(STABILITY, stable(9, "travel"), commit=False)
    record = stable(3, "travel", [0, TOP, *range(2, VBUCKETS)], now_ms() - 60_000)
    writer.write(STABILITY, ConsolidatedStability((record, stable(7, "other"))))
    found = shown(plant, "travel", 3)
    vector = Vector.from_bytes(record.vbuuids, record.seqnos)
    assert found["at_ms"] == record.at_ms
    assert 60_000 <= found["age_ms"] < 120_000
    assert found["digest"] == f"{vector.digest():016x}"
    assert len(found["vbuckets"]) == VBUCKETS
    assert found["vbuckets"]["0"] == [str(TOP), "0"]
    assert found["vbuckets"]["1"] == [str(TOP - 1), str(TOP)]
    listed = row(plant, "travel")
    assert listed["vbuckets"] == VBUCKETS
    assert listed["stability"]["number"] == 3
    assert listed["stability"]["digest"] == found["digest"]
    assert listed["stability"]["seqnos"] == sum(vector.seqnos.tolist())
    assert row(plant, "other")["stability"]["number"] == 7
    assert row(plant, "other")["vbuckets"] is None


def test_the_master_shows_what_indexers_hold(plant: Cluster) -> None:
    found = wait_until(lambda: row(plant, "travel")["lag"], "an indexer says what it holds")
    assert (found["high"], found["seqnos"], found["ms"]) == (0, 0, 0)
    [indexer] = found["indexers"]
    assert (indexer["indexer"], indexer["ahead"], indexer["has_snapshot"]) == (1, 0, False)
    assert indexer["behind"] == row(plant, "travel")["stability"]["seqnos"]


def test_bad_records_are_dead_letters_and_lower_numbers_are_ignored(
    plant: Cluster, writer: Writer
) -> None:
    good = codec.encode(stable(5, "bad"))
    bad = [
        b"garbage",
        good[:2] + bytes(8) + good[10:],
        codec.encode(Tick(1, 1)),
        good[:-3],
        codec.encode(StabilityTimestamp("bad", 6, b"1234", b"", 1)),
    ]
    lower = stable(4, "bad", at_ms=now_ms() + 1_000)
    offsets = writer.write(STABILITY, stable(5, "bad"), *bad, lower)

    def ignored() -> dict[str, Any] | None:
        found = row(plant, "bad")
        return found if found["began_again"] else None

    listed = wait_until(ignored, "a lower number")
    assert (listed["stability"]["number"], listed["began_again"]["number"]) == (5, 4)
    assert number_at(plant, "bad") == 5
    writer.write(STABILITY, stable(6, "bad"))
    shown(plant, "bad", 6)
    assert row(plant, "bad")["began_again"] is None

    def letters() -> list[DeadLetter] | None:
        found = [r for r in plant.records(DEAD_LETTER) if r.topic == plant.topic(STABILITY)]
        return found if len(found) >= len(bad) else None

    found = {letter.offset: letter for letter in wait_until(letters, "dead letters")}
    assert sorted(found) == offsets[1:-1]
    assert [found[offset].value for offset in offsets[1:-1]] == bad
    assert all(letter.reason for letter in found.values())
    assert plant.ask(NODE, "GET", "/readyz").status_code == 200


def test_restart_timestamps_and_enquiries_are_shown_newest_first(
    plant: Cluster, writer: Writer
) -> None:
    vbuuids, seqnos = Vector([5, TOP], [TOP, 0]).to_bytes()
    restarts = [
        RestartTimestamp(
            bucket="travel",
            number=n,
            round=n % 2,
            vbuckets=(3, 9),
            vbuuids=vbuuids,
            seqnos=seqnos,
            branched=(9,),
            projectors=(0, 1),
            reason="closed",
            at_ms=now_ms(),
        )
        for n in range(1, 4)
    ]
    enquiry = RollbackEnquiry(
        bucket="travel",
        number=4,
        vbucket=3,
        vbuuid=5,
        seqno=10,
        seen_vbuuid=TOP,
        seen_seqno=8,
        projector=1,
        connection=2**62,
        reason=SEQNO_REGRESSED,
        at_ms=now_ms() - 5_000,
    )
    writer.write(RESTART, *restarts, b"garbage", enquiry, restarts[1], enquiry)

    def read() -> dict[str, Any] | None:
        body = plant.get(NODE, "/v1/restart/travel")
        return body if body["enquiries"] else None

    found = wait_until(read, "an enquiry")
    assert [r["number"] for r in found["restarts"]] == [3, 2, 1]
    newest = found["restarts"][0]
    assert newest["vbuckets"] == {"3": ["5", str(TOP)], "9": [str(TOP), "0"]}
    assert (newest["branched"], newest["projectors"], newest["round"]) == ([9], [0, 1], 1)
    assert (newest["reason"], newest["at_ms"]) == ("closed", restarts[2].at_ms)
    [asked] = found["enquiries"]
    assert 5_000 <= asked.pop("age_ms") < 60_000
    assert asked == {
        "number": 4,
        "at_ms": enquiry.at_ms,
        "reason": SEQNO_REGRESSED,
        "vbucket": 3,
        "position": ["5", "10"],
        "seen": [str(TOP), "8"],
        "projector": 1,
        "connection": str(2**62),
    }
    limited = plant.get(NODE, "/v1/restart/travel?limit=1")
    assert [r["number"] for r in limited["restarts"]] == [3]
    for limit in ("0", "101", "x"):
        answer = plant.ask(NODE, "GET", f"/v1/restart/travel?limit={limit}")
        assert error_of(answer) == "invalid_request"


def test_a_killed_node_never_shows_a_lower_number_when_it_is_back(
    plant: Cluster, writer: Writer
) -> None:
    """It says that it is not ready until it has read the topic to its end."""
    for number in range(1, 120):
        writer.write(STABILITY, stable(number, "killed"), stable(number, "beside"))
    shown(plant, "killed", 119)
    plant.nodes[NODE].kill()
    writer.write(STABILITY, stable(120, "killed"), *(stable(119, "killed") for _ in range(3)))
    plant.nodes[NODE].start()
    seen: set[tuple[int, int | str]] = set()

    def serves() -> bool:
        answer = plant.ask(NODE, "GET", "/v1/stability/killed")
        body = answer.json()
        code = answer.status_code
        seen.add((code, body["number"] if code == 200 else body["error"]["code"]))
        return code == 200

    wait_until(serves, "a timestamp after the restart")
    assert {answer for answer in seen if answer[0] == 200} == {(200, 120)}
    assert seen - {(200, 120)} <= {(503, "not_ready")}
    assert number_at(plant, "beside") == 119
    assert [r["number"] for r in plant.get(NODE, "/v1/restart/travel")["restarts"]] == [3, 2, 1]
    writer.write(STABILITY, stable(121, "killed"))
    shown(plant, "killed", 121)
    plant.settled()


def test_settings_of_timestamps_are_checked_when_they_are_written(plant: Cluster) -> None:
    good = plant.put("timestamps/travel", {"algorithm": "heartbeat", "period_ms": 500})
    assert good.status_code == 200, good.text
    for key in ("timestamps", "timestamps/travel"):
        bad = plant.put(key, {"period_ms": 5})
        assert (bad.status_code, error_of(bad)) == (400, "invalid_request")
        assert "period_ms" in bad.json()["error"]["message"]
    kept = plant.get(NODE, "/v1/config/timestamps/travel")["value"]
    assert kept == {"algorithm": "heartbeat", "period_ms": 500}


def test_the_command_line_shows_them(plant: Cluster, writer: Writer) -> None:
    writer.write(STABILITY, stable(44, "shown"))
    shown(plant, "shown", 44)
    program = [sys.executable, "-m", "coordinator.cli.main", "timestamps", "shown"]
    program += ["--url", plant.nodes[NODE].url]
    done = subprocess.run([*program, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    [found] = json.loads(done.stdout)["buckets"]
    assert (found["bucket"], found["stability"]["number"]) == ("shown", 44)
    done = subprocess.run(program, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{44 * VBUCKETS}" in done.stdout


# -- the timestamps that a bucket had -------------------------------------------------------------


def test_the_history_of_a_bucket_is_read_backwards_page_by_page(
    plant: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(plant)
    with plant.client() as client:
        client.create_index(an_index("by_past", "past"))
    end_ms = now_ms()
    made = [stable(number, "past", at_ms=end_ms - 100 * (200 - number)) for number in range(1, 201)]
    for begin in range(0, 200, 20):
        part = made[begin : begin + 20]
        beside = [stable(record.number, "other", at_ms=record.at_ms) for record in part]
        writer.write(STABILITY_HISTORY, *part, b"no record", *beside)
    writer.write(STABILITY_HISTORY, stable(999, "past"), commit=False)

    def told(**query: Any) -> list[int]:
        found: list[int] = []
        before: int | None = None
        with plant.client() as client:
            while True:
                page = client.stability_history("past", before=before, **query)
                assert len(page["timestamps"]) <= query.get("limit", 10)
                found += [row["number"] for row in page["timestamps"]]
                before = page["next"]
                if before is None:
                    return found

    everything = list(range(200, 0, -1))
    for limit in (1, 7, 100):
        assert told(limit=limit) == everything
    within = [r.number for r in reversed(made) if made[49].at_ms <= r.at_ms <= made[99].at_ms]
    assert told(limit=100, from_ms=made[49].at_ms, to_ms=made[99].at_ms) == within
    assert told(to_ms=1) == []
    row = plant.get(NODE, "/v1/stability/past/history?limit=1")["timestamps"][0]
    digest = f"{Vector.from_bytes(made[-1].vbuuids, made[-1].seqnos).digest():016x}"
    assert (row["number"], row["hash"], row["at_ms"]) == (200, digest, made[-1].at_ms)
    missing = plant.ask(NODE, "GET", "/v1/stability/none/history")
    assert (missing.status_code, missing.json()["error"]["code"]) == (404, "not_found")
    monkeypatch.setenv("INDEXCTL_URL", plant.urls[0])
    command = ["timestamps", "past", "--history", "-n", "3", "--json"]
    result = CliRunner().invoke(app, command)
    assert [json.loads(line)["number"] for line in result.stdout.splitlines()] == [200, 199, 198]
    shown = CliRunner().invoke(app, ["timestamps", "past", "--history"])
    assert "200" in shown.stdout, shown.output
    early = CliRunner().invoke(app, ["timestamps", "past", "--history", "--until", "1d"])
    assert early.stdout == "no timestamps\n", early.output
    assert CliRunner().invoke(app, ["timestamps", "--history"]).exit_code == 2


def test_a_watch_tells_of_each_new_timestamp_of_its_buckets(plant: Cluster) -> None:
    writer = Writer(plant)
    writer.write(STABILITY, stable(70, "watched"), stable(80, "unwatched"))
    wait_until(lambda: number_at(plant, "watched") == 70, "the node has read it")
    with plant.client() as client:
        told = client.watch("now", kind="stability", bucket="watched")
        events = (event for event in told if event["type"] == "stability")
        assert next(events)["number"] == 70, "the one that there is comes first"
        record = stable(71, "watched")
        writer.write(STABILITY, stable(81, "unwatched"), record)
        digest = f"{Vector.from_bytes(record.vbuuids, record.seqnos).digest():016x}"
        assert next(events) == {
            "type": "stability",
            "bucket": "watched",
            "number": 71,
            "at_ms": record.at_ms,
            "hash": digest,
        }
        told.close()
