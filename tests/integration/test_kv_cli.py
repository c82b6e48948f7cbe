"""`indexctl load`, `mutate` and `kv` against a real key-value store."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli.main import app
from tests.integration.kv import KvProcess, StreamReader, until
from tests.support.http_node import Answer, Node
from tests.support.kv_follower import Follower

buckets = map("b{}".format, count(1))


@pytest.fixture(scope="module")
def kv(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KvProcess]:
    with KvProcess(tmp_path_factory.mktemp("kv") / "data") as running:
        yield running


@pytest.fixture
def bucket(kv: KvProcess) -> str:
    name = next(buckets)
    kv.ask("PUT", f"/buckets/{name}", {"vbuckets": 8})
    return name


def run(kv: KvProcess, *arguments: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(app, [*arguments, "--kv", kv.url], input=stdin)


def answer(kv: KvProcess, *arguments: str, stdin: str | None = None) -> Any:
    result = run(kv, *arguments, "--json", stdin=stdin)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def test_the_airports_are_loaded_and_their_bucket_is_made(kv: KvProcess) -> None:
    name = next(buckets)
    found = answer(kv, "load", name, "airports", "--vbuckets", "4")
    assert found["written"] > 20_000
    assert found["failed"] == 0
    document = kv.ask("GET", f"/buckets/{name}/documents/airport::EDDB")
    assert document["doc"]["city"] == "Berlin"
    listed = {b["name"]: b for b in answer(kv, "kv", "buckets")["buckets"]}
    assert (listed[name]["documents"], listed[name]["vbuckets"]) == (found["written"], 4)
    refused = run(kv, "load", name, "airports", "--vbuckets", "8")
    assert (refused.exit_code, "[exists]" in refused.output) == (4, True)


def test_lines_that_are_wrong_are_told_by_their_numbers(
    kv: KvProcess, bucket: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    file.write_text('{"name":"a","x":1}\n\n{"x":2}\nnonsense\n{"name":7}\n{"name":""}')
    result = run(kv, "load", bucket, str(file), "--key", "name", "--json")
    found = json.loads(result.stdout)
    assert result.exit_code == 1
    assert (found["written"], found["failed"]) == (2, 3)
    assert [error["line"] for error in found["errors"]] == [3, 4, 6]
    assert set(kv.documents(bucket)) == {b"a", b"7"}
    codes = [error["code"] for error in found["errors"]]
    assert codes == ["invalid_request", "invalid_json", "invalid_request"]
    assert "--key" in run(kv, "load", bucket, str(file)).output


def test_a_line_that_is_nested_too_deeply_stops_no_other(
    kv: KvProcess, bucket: str, tmp_path: Path
) -> None:
    file = tmp_path / "lines"
    deep = ['{"name":"a","x":' + "[" * n + "]" * n + "}" for n in (300, 5_000)]
    file.write_text("\n".join([*deep, '{"name":"b"}']))
    result = run(kv, "load", bucket, str(file), "--key", "name", "--json")
    found = json.loads(result.stdout)
    told = [(error["line"], error["code"]) for error in found["errors"]]
    assert told == [(1, "too_deep"), (2, "too_deep")]
    assert set(kv.documents(bucket)) == {b"b"}


def test_what_was_dumped_can_be_loaded_again(kv: KvProcess, bucket: str) -> None:
    answer(kv, "load", bucket, "people:300")
    dumped = kv.http.get(f"/buckets/{bucket}/documents").text.splitlines()
    lines = [json.dumps({k: json.loads(line)[k] for k in ("id", "doc")}) for line in dumped]
    other = next(buckets)
    assert answer(kv, "load", other, "-", stdin="\n".join(lines))["written"] == 300
    assert kv.documents(other) == kv.documents(bucket)


def test_traffic_has_the_rate_and_the_mix_that_were_asked_for(kv: KvProcess, bucket: str) -> None:
    answer(kv, "load", bucket, "people:500")
    mix = ("--updates", "1", "--deletes", "1", "--inserts", "2")
    # So slowly that also a busy machine has made more than a few when the time is over.
    found = answer(kv, "mutate", bucket, "--rate", "50", "--seconds", "4", "--seed", "3", *mix)
    assert 20 < found["changes"] <= 201
    assert found["changes"] == found["updated"] + found["deleted"] + found["inserted"]
    assert found["failed"] == found["retried"] == 0
    assert len(kv.documents(bucket)) == 500 + found["inserted"] - found["deleted"]


def test_levers_do_what_they_say(kv: KvProcess, bucket: str) -> None:
    assert answer(kv, "kv", "move", bucket, "--to", "1", "--vbuckets", "0-2,7")["moved"] == [
        *(0, 1, 2)
    ]
    assert len(answer(kv, "kv", "move", bucket, "--to", "0", "--count", "2")["moved"]) == 2
    follower = Follower(8)
    reader = StreamReader(kv, follower, bucket=bucket, node=1, connection="lever")
    until("it is there", lambda: "lever" in kv.connections())
    assert [c["id"] for c in answer(kv, "kv", "connections")["connections"]] == ["lever"]
    assert answer(kv, "kv", "close", "lever") == {"closed": "lever"}
    reader.join()
    assert follower.closed
    crashed = answer(kv, "kv", "crash", "1", "--bucket", bucket, "--lose", "0")
    assert crashed["vbuckets"] == 5
    assert [n["node"] for n in answer(kv, "kv", "nodes")["nodes"]] == [0, 1]
    fault = answer(kv, "kv", "fault", "end", "drop", "--count", "2", "--vbuckets", "1,3")
    assert [f["vbuckets"] for f in answer(kv, "kv", "faults")["faults"]] == [[1, 3]]
    assert answer(kv, "kv", "faults", "--remove", str(fault["id"])) == {"removed": 1}
    assert answer(kv, "kv", "faults", "--clear") == {"removed": 0}


@pytest.mark.parametrize(
    "command",
    ["buckets", "nodes", "connections", "faults", "move BUCKET --to 0 --count 1", "crash 0"],
)
def test_every_view_is_for_people_too(kv: KvProcess, bucket: str, command: str) -> None:
    result = run(kv, "kv", *command.replace("BUCKET", bucket).split())
    assert result.exit_code == 0, result.output
    assert result.stdout.strip()


@pytest.mark.parametrize(
    ("command", "code", "exit_code"),
    [
        ("load BUCKET /no/such/file", "usage", 2),
        ("load BUCKET people:x", "usage", 2),
        ("mutate none", "not_found", 3),
        ("mutate BUCKET", "usage", 2),
        ("mutate BUCKET --updates 0 --deletes 0 --inserts 0", "usage", 2),
        ("kv move BUCKET --to 1", "usage", 2),
        ("kv move BUCKET --to 1 --vbuckets x", "usage", 2),
        ("kv move BUCKET --to 9 --count 1", "not_found", 3),
        ("kv crash 9", "not_found", 3),
        ("kv close none", "not_found", 3),
        ("kv fault mutations drop", "invalid_request", 1),
        ("kv faults --remove 99", "not_found", 3),
    ],
)
def test_a_refusal_has_its_code_and_its_exit_code(
    kv: KvProcess, bucket: str, command: str, code: str, exit_code: int
) -> None:
    result = run(kv, *command.replace("BUCKET", bucket).split(), "--json")
    assert (json.loads(result.stderr)["error"]["code"], result.exit_code) == (code, exit_code)


def test_the_store_is_found_by_the_projectors(kv: KvProcess, bucket: str) -> None:
    told = [{"id": 0, "alive": False, "kv": "http://127.0.0.1:1"}]
    node = Node(lambda request: Answer(200, {"projectors": told}))
    command = ["kv", "buckets", "--url", node.url, "--json"]
    try:
        result = CliRunner().invoke(app, command)
        assert (json.loads(result.stderr)["error"]["code"], result.exit_code) == ("unavailable", 5)
        told += [{"id": 1, "alive": True}, {"id": 2, "alive": True, "kv": kv.url}]
        result = CliRunner().invoke(app, command)
        assert bucket in {b["name"] for b in json.loads(result.stdout)["buckets"]}
        told.clear()
        assert "--kv URL" in CliRunner().invoke(app, command).stderr
    finally:
        node.stop()


def test_talking_to_the_store_loads_neither_kafka_nor_rocksdb(kv: KvProcess) -> None:
    program = (
        "import sys; from coordinator.cli.main import app;"
        f"app(['load', 'light', 'people:10', '--kv', {kv.url!r}], standalone_mode=False);"
        "print(sorted({'confluent_kafka', 'rocksdict', 'fastapi', 'faust'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == "[]", done.stderr
