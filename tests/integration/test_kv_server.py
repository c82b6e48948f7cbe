"""The process of the key-value store over real HTTP: streams, levers, faults, restarts, misuse."""

from __future__ import annotations

import contextlib
import fcntl
import io
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import pytest

from projector_sim.kv.server import main
from projector_sim.kv.store import KvStore
from projector_sim.kv.vbuckets import vbucket_of
from projector_sim.protocol.frames import Reason
from tests.integration.cluster import LINES
from tests.integration.kv import KvProcess, StreamReader, until
from tests.support.kv_follower import Follower

VBUCKETS = 16
EVERYTHING = {f"k{n}": {"n": n} for n in range(100)}
names = map("c{}".format, count(1))
buckets = map("b{}".format, count(1))


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvProcess]:
    """A store that the tests of this module share, each with a bucket of its own."""
    with KvProcess(tmp_path_factory.mktemp("kv") / "data") as running:
        yield running


@pytest.fixture
def bucket(kv: KvProcess) -> str:
    name = next(buckets)
    kv.ask("PUT", f"/buckets/{name}", {"vbuckets": VBUCKETS})
    return name


def opened(kv: KvProcess, bucket: str, node: int, follower: Follower, **more: Any) -> StreamReader:
    """Have a follower read the vbuckets of a node from where it is."""
    owners = kv.ask("GET", f"/buckets/{bucket}/vbuckets")["owners"]
    owned = [vbucket for vbucket, owner in enumerate(owners) if owner == node]
    vbuuids, seqnos = follower.starts(owned)
    body = {"vbuckets": owned, "vbuuids": vbuuids, "seqnos": seqnos, **more}
    return StreamReader(kv, follower, bucket=bucket, node=node, connection=next(names), **body)


def catch_up(kv: KvProcess, bucket: str, follower: Follower) -> None:
    """Wait until a follower has all that there is of the vbuckets that it was given."""

    def caught_up() -> bool:
        high = kv.high_seqnos(bucket)
        return all(follower.vbuckets[v].whole_at(high[v]) for v in follower.open())

    until("it begins", follower.open)
    until("it has caught up", caught_up)


# -- streams -------------------------------------------------------------------------------------


def test_two_nodes_streams_have_all_documents_together(kv: KvProcess, bucket: str) -> None:
    kv.write(bucket, EVERYTHING)
    followers = [Follower(VBUCKETS), Follower(VBUCKETS)]
    readers = [opened(kv, bucket, node, follower) for node, follower in enumerate(followers)]
    for follower in followers:
        catch_up(kv, bucket, follower)
    kv.load(bucket, {"id": "k0", "deleted": True}, {"id": "k1", "doc": "ü"})
    for follower in followers:
        catch_up(kv, bucket, follower)
    together = {**followers[0].documents, **followers[1].documents}
    assert together == {
        f"{key}".encode(): json.dumps(doc, separators=(",", ":")).encode()
        for key, doc in EVERYTHING.items()
        if key not in ("k0", "k1")
    } | {b"k1": '"ü"'.encode()}
    for reader in readers:
        reader.break_off()


def test_a_backfill_ends_by_itself_and_properly(kv: KvProcess, bucket: str) -> None:
    kv.write(bucket, EVERYTHING)
    high = kv.high_seqnos(bucket)
    follower = Follower(VBUCKETS)
    body = {"node": 1, "kind": "backfill", "until": list(map(str, high))}
    reader = StreamReader(kv, follower, bucket=bucket, connection=next(names), **body)
    reader.join()
    assert reader.clean
    assert {end.vbucket: (end.seqno, end.reason) for end in follower.ends} == {
        v: (high[v], Reason.DONE) for v in range(8, 16)
    }


def test_who_obeys_ends_with_the_documents_under_writes_moves_and_crashes(
    kv: KvProcess, bucket: str
) -> None:
    """The laws are checked by the followers, frame by frame; here it is about the end."""
    chance = random.Random(7)
    followers = [Follower(VBUCKETS), Follower(VBUCKETS)]
    with traffic(kv, bucket):
        readers = [opened(kv, bucket, node, follower) for node, follower in enumerate(followers)]
        for number in range(24):
            time.sleep(0.05)  # Not for anything to happen: for the traffic to be of some length.
            node = number % 2
            if number % 3 == 0:
                kv.ask("POST", f"/buckets/{bucket}/move", {"count": 3, "to": node})
            elif number % 3 == 1:
                assert readers[node].begun.wait(60)
                kv.ask("POST", f"/nodes/{node}/crash", {"lose": chance.randrange(40)})
                readers[node].join()
            if readers[node].over or number % 5 == 0:
                readers[node].break_off()
                followers[node].disconnected()
                readers[node] = opened(kv, bucket, node, followers[node])
    expected = kv.documents(bucket)
    owners = kv.ask("GET", f"/buckets/{bucket}/vbuckets")["owners"]
    for node, follower in enumerate(followers):
        owned = [vbucket for vbucket, owner in enumerate(owners) if owner == node]
        rollbacks = -1
        while rollbacks < len(follower.rollbacks):  # Who was told to roll back asks again.
            rollbacks = len(follower.rollbacks)
            readers[node].break_off()
            follower.disconnected()
            readers[node] = opened(kv, bucket, node, follower)
            until("it is answered", lambda f=follower, o=owned: f.answered == set(o))
        catch_up(kv, bucket, follower)
        documents = follower.documents
        for key in expected.keys() | documents.keys():
            if vbucket_of(key, VBUCKETS) in owned:
                assert documents.get(key) == expected.get(key)
        readers[node].break_off()


@contextlib.contextmanager
def traffic(kv: KvProcess, bucket: str) -> Iterator[None]:
    """Have documents written and deleted meanwhile, a few of them again and again."""
    chance = random.Random(8)
    done = threading.Event()

    def write() -> None:
        with httpx.Client(base_url=f"{kv.url}/v1", trust_env=False) as http:
            for number in count():
                lines = [
                    {"id": key, **({"doc": [number, "x" * 300]} if n % 9 else {"deleted": True})}
                    for n, key in enumerate(
                        f"k{int(chance.random() ** 3 * 3000)}" for _ in range(60)
                    )
                ]
                content = "".join(json.dumps(line) + "\n" for line in lines)
                http.post(f"/buckets/{bucket}/documents", content=content.encode(), headers=LINES)
                if done.is_set():
                    return

    writer = threading.Thread(target=write)
    writer.start()
    try:
        yield
    finally:
        done.set()
        writer.join()


def test_a_slow_reader_is_not_sent_what_it_does_not_read(kv: KvProcess, bucket: str) -> None:
    follower = Follower(VBUCKETS)
    reader = opened(kv, bucket, 0, follower, paused=True)
    for number in range(40):
        kv.write(bucket, {f"k{n}": f"{number}" + "x" * 4000 for n in range(300)})
    (found,) = (c for c in kv.connections().values() if c["bucket"] == bucket)
    assert found["behind"] > 0
    assert found["bytes"] < 12 * 1024 * 1024  # Mostly what the kernel takes; 24 MB were written.
    reader.resume()
    catch_up(kv, bucket, follower)
    documents = kv.documents(bucket)
    assert follower.documents == {
        key: doc for key, doc in documents.items() if vbucket_of(key, VBUCKETS) < VBUCKETS // 2
    }
    reader.break_off()


def test_a_branch_that_is_not_in_the_history_is_told_to_roll_back(
    kv: KvProcess, bucket: str
) -> None:
    kv.write(bucket, EVERYTHING)
    follower = Follower(VBUCKETS)
    follower.vbuckets[3].kept.append((77, 1, {}))
    follower.vbuckets[3].go_back(1)
    reader = opened(kv, bucket, 0, follower)
    until("it was told", lambda: follower.rollbacks)
    assert [(r.vbucket, r.seqno) for r in follower.rollbacks] == [(3, 0)]
    until("the others are streamed", lambda: follower.open() == [0, 1, 2, 4, 5, 6, 7])
    reader.break_off()


def test_a_name_is_taken_while_its_connection_lives(kv: KvProcess, bucket: str) -> None:
    follower = Follower(VBUCKETS)
    body = {"bucket": bucket, "node": 0, "kind": "maintenance", "connection": next(names)}
    reader = StreamReader(kv, follower, **body)
    assert reader.begun.wait(60)
    refused = kv.http.post("/streams", json=body)
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "exists")
    reader.break_off()
    until("it is gone", lambda: body["connection"] not in kv.connections())
    again = StreamReader(kv, Follower(VBUCKETS), **body)
    assert again.begun.wait(60)
    assert again.status == 200
    again.break_off()


# -- levers --------------------------------------------------------------------------------------


def test_a_closed_connection_is_told_so(kv: KvProcess, bucket: str) -> None:
    follower = Follower(VBUCKETS)
    reader = opened(kv, bucket, 0, follower)
    name = until(
        "it is there", lambda: [i for i, c in kv.connections().items() if c["bucket"] == bucket]
    )[0]
    kv.ask("DELETE", f"/connections/{name}")
    reader.join()
    assert reader.clean
    assert follower.closed == "closed on request"


def test_a_crash_breaks_the_nodes_connections_alone_and_begins_branches(
    kv: KvProcess, bucket: str
) -> None:
    kv.write(bucket, EVERYTHING)
    before = kv.ask("GET", f"/buckets/{bucket}/vbuckets")
    followers = [Follower(VBUCKETS), Follower(VBUCKETS)]
    readers = [opened(kv, bucket, node, follower) for node, follower in enumerate(followers)]
    for follower in followers:
        catch_up(kv, bucket, follower)
    answer = kv.ask("POST", "/nodes/0/crash", {"lose": 2, "vbuckets": [1], "bucket": bucket})
    assert answer == {"node": 0, "connections": 1, "vbuckets": 8, "lost": 2}
    readers[0].join()
    assert not readers[0].clean
    assert not followers[0].ends
    after = kv.ask("GET", f"/buckets/{bucket}/vbuckets?failover_logs=true")
    for vbucket in range(VBUCKETS):
        lost = 2 if vbucket == 1 else 0
        high = int(before["high_seqnos"][vbucket])
        assert int(after["high_seqnos"][vbucket]) == high - lost
        assert (after["vbuuids"][vbucket] != before["vbuuids"][vbucket]) == (vbucket < 8)
        log = after["failover_logs"][vbucket]
        assert log[0]["vbuuid"] == after["vbuuids"][vbucket]
        assert len(log) == (2 if vbucket < 8 else 1)
    assert not readers[1].over
    readers[1].break_off()


def test_more_than_is_kept_cannot_be_lost_and_nothing_is_broken_by_the_attempt(
    kv: KvProcess, bucket: str
) -> None:
    kv.ask("POST", f"/buckets/{bucket}/move", {"vbuckets": list(range(VBUCKETS)), "to": 0})
    for number in range(8):
        kv.load(bucket, *({"id": "one", "doc": [number, n]} for n in range(600)))
    follower = Follower(VBUCKETS)
    reader = opened(kv, bucket, 0, follower)
    catch_up(kv, bucket, follower)
    refused = kv.http.post("/nodes/0/crash", json={"lose": 4500, "bucket": bucket})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "too_far")
    kv.write(bucket, {"one": "more"})
    catch_up(kv, bucket, follower)
    reader.break_off()


def test_a_fault_drops_the_frames_that_it_names_as_often_as_it_says(
    kv: KvProcess, bucket: str
) -> None:
    kv.write(bucket, EVERYTHING)
    high = list(map(str, kv.high_seqnos(bucket)))
    body = {"kind": "end", "action": "drop", "bucket": bucket, "vbuckets": [1, 2, 3], "count": 2}
    fault = kv.ask("POST", "/faults", body)
    assert [f["id"] for f in kv.ask("GET", "/faults")["faults"]] == [fault["id"]]
    request = {"bucket": bucket, "node": 0, "kind": "backfill", "until": high}
    ended: list[list[int]] = []
    for _ in range(2):
        follower = Follower(VBUCKETS)
        StreamReader(kv, follower, connection=next(names), **request).join()
        ended.append(sorted(end.vbucket for end in follower.ends))
    assert ended == [[0, 3, 4, 5, 6, 7], [0, 1, 2, 3, 4, 5, 6, 7]]
    assert kv.ask("GET", "/faults") == {"faults": []}


@pytest.mark.parametrize("kind", ["begin", "mutations", "sync"])
def test_a_delay_holds_up_its_connection_and_loses_nothing(
    kv: KvProcess, bucket: str, kind: str
) -> None:
    kv.write(bucket, EVERYTHING)
    body = {"kind": kind, "action": "delay", "bucket": bucket, "count": 1, "delay_ms": 300}
    kv.ask("POST", "/faults", {**body, "stream": "maintenance"})
    follower = Follower(VBUCKETS)
    began = time.monotonic()
    reader = opened(kv, bucket, 0, follower)
    until("it has begun", lambda: len(follower.answered) == 8)
    catch_up(kv, bucket, follower)
    assert time.monotonic() - began > 0.3
    reader.break_off()


def test_who_watches_is_told_of_buckets_and_of_owners(kv: KvProcess, bucket: str) -> None:
    with httpx.stream("GET", f"{kv.url}/v1/watch", timeout=60, trust_env=False) as response:
        told = (json.loads(line)["buckets"] for line in response.iter_lines())
        first = next(told)[bucket]
        assert first["vbuckets"] == VBUCKETS
        kv.ask("POST", f"/buckets/{bucket}/move", {"vbuckets": [0], "to": 1})
        assert next(told)[bucket]["owners"] != first["owners"]
        kv.ask("DELETE", f"/buckets/{bucket}")
        assert bucket not in next(told)
        assert bucket not in next(told)  # Without a change, as a sign of life.


# -- documents -----------------------------------------------------------------------------------


def test_a_load_takes_the_good_lines_and_tells_of_the_others(kv: KvProcess, bucket: str) -> None:
    lines = [
        b'{"id":"a","doc":{"x":1}}',
        b"",
        b"nonsense",
        b'{"id":"b","deleted":true}',
        b'{"id":"c","doc":"' + b"x" * 2_000_000 + b'"}',
        b'{"id":"","doc":1}',
        b'{"id":"d","doc":1,"more":1}',
        b'{"id":"e","doc":1,"expires_in_s":-1}',
        b'{"id":"f","doc":null}',
    ]
    path = f"/buckets/{bucket}/documents"
    answer = kv.http.post(path, content=b"\n".join(lines), headers=LINES).json()
    assert {k: answer[k] for k in ("written", "deleted", "absent", "failed")} == {
        "written": 2,
        "deleted": 0,
        "absent": 1,
        "failed": 5,
    }
    assert [error["line"] for error in answer["errors"]] == [3, 5, 6, 7, 8]
    assert kv.documents(bucket) == {b"a": b'{"x":1}', b"f": b"null"}


def test_what_cannot_be_kept_is_refused_at_the_door(kv: KvProcess, bucket: str) -> None:
    deep, wide = "[" * 300 + "]" * 300, str(2**64)
    lines = [f'{{"id":"{n}","doc":{doc}}}' for n, doc in enumerate((1, deep, 2, wide, 3))]
    answer = kv.http.post(
        f"/buckets/{bucket}/documents", content="\n".join(lines), headers=LINES
    ).json()
    told = [(error["line"], error["code"]) for error in answer["errors"]]
    assert told == [(2, "too_deep"), (4, "number_out_of_range")]
    assert (answer["written"], answer["failed"]) == (3, 2)
    assert set(kv.documents(bucket)) == {b"0", b"2", b"4"}
    for doc, code in ((deep, "too_deep"), (wide, "number_out_of_range"), ("{", "invalid_json")):
        response = kv.http.put(f"/buckets/{bucket}/documents/x", content=doc)
        assert (response.status_code, response.json()["error"]["code"]) == (400, code)


def test_a_document_can_be_written_read_and_deleted(kv: KvProcess, bucket: str) -> None:
    path = f"/buckets/{bucket}/documents/a/b%20ü"
    first = kv.ask("PUT", path, {"x": [1, 2]})
    found = kv.ask("GET", path)
    assert (found["id"], found["doc"], found["seqno"]) == ("a/b ü", {"x": [1, 2]}, "1")
    assert found["vbuuid"] == first["vbuuid"]
    assert kv.ask("DELETE", path)["seqno"] == "2"
    assert kv.http.get(path).status_code == kv.http.delete(path).status_code == 404


def test_what_expires_is_streamed_as_a_deletion(kv: KvProcess, bucket: str) -> None:
    follower = Follower(VBUCKETS)
    readers = [opened(kv, bucket, node, follower) for node in (0,)]
    key = next(k for k in map(str, count()) if vbucket_of(k.encode(), VBUCKETS) == 0)
    kv.load(bucket, {"id": key, "doc": 1, "expires_in_s": 0.2})
    until("it comes, and goes", lambda: follower.vbuckets[0].seqno == 2)
    assert follower.documents == {}
    assert kv.documents(bucket) == {}
    readers[0].break_off()


# -- misuse --------------------------------------------------------------------------------------

STREAM = {"bucket": "BUCKET", "node": 0, "kind": "backfill", "connection": "misuse"}


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/nowhere", None, 404, "not_found"),
        ("PATCH", "/buckets", None, 405, "method_not_allowed"),
        ("PUT", "/buckets/new", {"vbuckets": 3}, 400, "invalid_request"),
        ("PUT", "/buckets/new", {"vbuckets": "8"}, 400, "invalid_request"),
        ("PUT", "/buckets/new", {"nodes": [7]}, 404, "not_found"),
        ("PUT", f"/buckets/{'x' * 129}", {}, 400, "invalid_request"),
        ("PUT", "/buckets/a%20b", {}, 400, "invalid_request"),
        ("PUT", "/buckets/BUCKET", {"vbuckets": 32}, 409, "exists"),
        ("DELETE", "/buckets/none", None, 404, "not_found"),
        ("GET", "/buckets/none/vbuckets", None, 404, "not_found"),
        ("GET", "/buckets/none/documents", None, 404, "not_found"),
        ("GET", "/buckets/BUCKET/documents?every=0", None, 400, "invalid_request"),
        ("PUT", f"/buckets/BUCKET/documents/{'x' * 251}", {}, 400, "invalid_request"),
        ("PUT", "/buckets/BUCKET/documents/x?expires_in_s=-1", {}, 400, "invalid_request"),
        ("PUT", "/buckets/BUCKET/documents/x", "x" * 1_100_000, 413, "value_too_large"),
        ("PUT", "/buckets/BUCKET/documents/x", "x" * 4_200_000, 413, "value_too_large"),
        ("POST", "/streams", STREAM | {"bucket": "none"}, 404, "not_found"),
        ("POST", "/streams", STREAM | {"node": 2}, 404, "not_found"),
        ("POST", "/streams", STREAM | {"kind": "other"}, 400, "invalid_request"),
        ("POST", "/streams", STREAM | {"vbuckets": [16]}, 400, "invalid_request"),
        ("POST", "/streams", STREAM | {"vbuckets": [1, 1]}, 400, "invalid_request"),
        ("POST", "/streams", STREAM | {"vbuckets": [1], "until": ["x"]}, 400, "invalid_request"),
        ("POST", "/streams", STREAM | {"vbuckets": [1], "until": []}, 400, "invalid_request"),
        ("POST", "/streams", STREAM | {"vbuckets": [1], "seqnos": ["1"]}, 400, "invalid_request"),
        ("POST", "/streams", STREAM | {"until": ["9" * 19] * 16}, 400, "invalid_request"),
        ("POST", "/buckets/BUCKET/move", {"to": 1}, 400, "invalid_request"),
        ("POST", "/buckets/BUCKET/move", {"to": 1, "vbuckets": [99]}, 400, "invalid_request"),
        ("POST", "/buckets/BUCKET/move", {"to": 9, "count": 1}, 404, "not_found"),
        ("POST", "/nodes/9/crash", {}, 404, "not_found"),
        ("POST", "/nodes/0/crash", {"lose": -1}, 400, "invalid_request"),
        ("POST", "/faults", {"kind": "mutations", "action": "drop"}, 400, "invalid_request"),
        ("POST", "/faults", {"kind": "end", "action": "delay"}, 400, "invalid_request"),
        ("DELETE", "/faults/99", None, 404, "not_found"),
        ("DELETE", "/connections/none", None, 404, "not_found"),
    ],
)
def test_misuse_has_a_code_and_changes_nothing(
    kv: KvProcess, bucket: str, method: str, path: str, body: Any, status: int, code: str
) -> None:
    if isinstance(body, dict) and body.get("bucket") == "BUCKET":
        body = {**body, "bucket": bucket}
    before = kv.ask("GET", "/buckets")
    response = kv.http.request(method, path.replace("BUCKET", bucket), json=body)
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (status, code)
    assert error["message"]
    assert kv.ask("GET", "/buckets") == before
    assert "misuse" not in kv.connections()


# -- the process ---------------------------------------------------------------------------------


def test_after_a_kill_everything_is_there_and_the_connections_are_gone(tmp_path: Path) -> None:
    with KvProcess(tmp_path / "data") as kv:
        kv.ask("PUT", "/buckets/b", {"vbuckets": VBUCKETS})
        kv.write("b", EVERYTHING)
        kv.ask("POST", "/buckets/b/move", {"vbuckets": [0], "to": 1})
        follower = Follower(VBUCKETS)
        reader = opened(kv, "b", 0, follower)
        catch_up(kv, "b", follower)
        before = kv.ask("GET", "/buckets/b/vbuckets?failover_logs=true"), kv.documents("b")
        assert kv.stop(signal.SIGKILL) == -signal.SIGKILL
        reader.join()
        assert not reader.clean
        kv.start()
        assert (
            kv.ask("GET", "/buckets/b/vbuckets?failover_logs=true"),
            kv.documents("b"),
        ) == before
        assert kv.connections() == {}
        follower.disconnected()
        reader = opened(kv, "b", 0, follower)
        kv.write("b", {f"k{n}": "after" for n in range(100)})
        catch_up(kv, "b", follower)
        assert not follower.rollbacks
        assert set(follower.documents.values()) == {b'"after"'}


def test_a_stop_tells_those_who_stream_and_waits_for_nobody(tmp_path: Path) -> None:
    with KvProcess(tmp_path / "data") as kv:
        kv.ask("PUT", "/buckets/b", {"vbuckets": VBUCKETS})
        kv.write("b", {f"k{n}": "x" * 20_000 for n in range(1000)})
        reading, stuck = Follower(VBUCKETS), Follower(VBUCKETS)
        reader = opened(kv, "b", 0, reading)
        opened(kv, "b", 0, stuck, paused=True).begun.wait(60)
        catch_up(kv, "b", reading)
        with httpx.stream("GET", f"{kv.url}/v1/watch", trust_env=False) as watch:
            lines = watch.iter_lines()
            next(lines)
            began = time.monotonic()
            assert kv.stop() == 0
            assert time.monotonic() - began < 30  # Two, where nothing else goes on.
        reader.join()
        assert reader.clean
        assert reading.closed


def refused(folder: Path, *more: str) -> tuple[int, str]:
    """Return how a start ends that is refused, and what it says."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said):
        code = main(["--data-dir", str(folder), "--port", "0", *more])
    assert said.getvalue().count("\n") == 1
    return code, said.getvalue()


def test_a_start_that_cannot_be_is_refused_in_one_line(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    store = KvStore(folder)
    store.create("b", VBUCKETS, [0, 2])
    store.close()
    code, said = refused(folder, "--nodes", "2")
    assert (code, "too_few_nodes" in said) == (78, True)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        code, said = refused(folder, "--nodes", "3", "--port", str(taken.getsockname()[1]))
    assert (code, "port_taken" in said) == (1, True)
    with open(folder / "lock") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        code, said = refused(folder)
    assert (code, "in use by another process" in said) == (1, True)
    (of_bucket,) = (folder / "buckets").iterdir()
    (of_bucket / "CURRENT").write_text("nonsense\n")
    code, said = refused(folder)
    assert (code, "damaged" in said) == (78, True)
    (tmp_path / "file").write_text("")
    assert refused(tmp_path / "file")[0] == 1


def test_a_wrong_command_line_ends_with_2() -> None:
    argv = [sys.executable, "-m", "projector_sim", "kv", "--port", "x", "--data-dir", "d"]
    assert subprocess.run(argv, capture_output=True, timeout=10).returncode == 2
