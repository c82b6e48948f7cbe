"""`indexctl` from its arguments to exit codes, against a real HTTP server on loopback."""

import json
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from coordinator.cli.main import app
from tests.support.http_node import Answer, Node, Request, refusal, unused_url

TRAVEL = Path(__file__).parents[3] / "examples" / "travel.sql"

AUTHORITY: dict[str, Any] = {
    "epoch": 3,
    "master": "n1",
    "mastership": {"state": "elected", "message": "", "waiting_for": []},
    "minimum": 2,
    "roster": [1, 2, 3],
    "active": [1, 2],
}


@dataclass
class Cluster:
    """A coordinator of one node that keeps its indexes and settings in memory."""

    indexes: dict[str, dict[str, Any]] = field(default_factory=dict)
    config: dict[str, dict[str, Any]] = field(default_factory=dict)
    cas: int = 100
    digest: str = "d" * 64
    url: str = ""
    override: Callable[[Request], Answer | None] = lambda request: None
    keys: list[str] = field(default_factory=list)
    seen: list[Request] = field(default_factory=list)

    def __call__(self, request: Request) -> Answer:
        self.seen.append(request)
        if "idempotency-key" in request.headers:
            self.keys.append(request.headers["idempotency-key"])
        parts = request.path.removeprefix("/v1/").split("/")
        return self.override(request) or getattr(self, f"{request.method}_{parts[0]}")(
            request, *parts[1:]
        )

    def commit(self) -> dict[str, Any]:
        self.cas += 1
        return {"cas": self.cas, "txn": f"1-{self.cas}"}

    def POST_indexes(self, request: Request) -> Answer:  # noqa: N802
        body = json.loads(request.body)
        for index in self.indexes.values():
            if (index["bucket"], index["name"]) == (body["bucket"], body["name"]):
                if body["if_not_exists"]:
                    return Answer(200, {"index": index, "cas": index["cas"], "existed": True})
                return refusal(409, "index_exists", cas=index["cas"])
        committed = self.commit()
        replicas = [n + 2 for n in range(body.get("replicas", 0))]
        slices = [
            {"slice": n, "master": 1, "replicas": replicas} for n in range(body.get("slices", 1))
        ]
        index = {"where": None, "using": "gsi", **body, "id": str(len(self.indexes) + 1)}
        index.update(state="ready", topology={"slices": slices}, cas=committed["cas"])
        self.indexes[index["id"]] = index
        return Answer(201, {"index": index, **committed})

    def GET_indexes(self, request: Request, index_id: str = "") -> Answer:  # noqa: N802
        if index_id:
            index = self.indexes.get(index_id)
            if index is None:
                return refusal(404, "index_not_found")
            return Answer(200, {"index": index, "cas": index["cas"]})
        wanted = {k: v for k, v in request.query.items() if k in ("bucket", "name")}
        found = [i for i in self.indexes.values() if wanted.items() <= i.items()]
        return Answer(200, {"indexes": found, "cas": self.cas})

    def DELETE_indexes(self, request: Request, index_id: str) -> Answer:  # noqa: N802
        index = self.indexes.get(index_id)
        if index is None:
            return refusal(404, "index_not_found")
        if request.headers.get("if-match", str(index["cas"])) != str(index["cas"]):
            return refusal(412, "cas_mismatch", expected=1, actual=index["cas"])
        del self.indexes[index_id]
        return Answer(200, {"index": index, **self.commit()})

    def GET_config(self, request: Request, key: str = "") -> Answer:  # noqa: N802
        if not key:
            return Answer(200, {"config": self.config, "cas": self.cas})
        if key not in self.config:
            return refusal(404, "config_not_found")
        return Answer(200, {"key": key, **self.config[key], "txn": "1-1"})

    def PUT_config(self, request: Request, key: str) -> Answer:  # noqa: N802
        actual = self.config.get(key, {"cas": 0})["cas"]
        if int(request.headers.get("if-match", actual)) != actual:
            return refusal(412, "cas_mismatch", actual=actual)
        committed = self.commit()
        self.config[key] = {"value": json.loads(request.body), "cas": committed["cas"]}
        return Answer(200, {"key": key, "value": self.config[key]["value"], **committed})

    def DELETE_config(self, request: Request, key: str) -> Answer:  # noqa: N802
        if self.config.pop(key, None) is None:
            return refusal(404, "config_not_found")
        return Answer(200, {"key": key, "value": None, **self.commit()})

    def GET_state(self, request: Request) -> Answer:  # noqa: N802
        state = {"cluster_id": "c1", "epoch": 3, "master": "n1", "cas": self.cas}
        return Answer(200, {**state, "digest": self.digest, "indexes": self.indexes})

    def GET_members(self, request: Request) -> Answer:  # noqa: N802
        me = {"node": "n1", "role": "master", "state": "normal", "cas": self.cas, "pid": 1}
        gone = {**me, "node": "n2", "role": "replica", "alive": False, "address": None}
        me.update(address=self.url, alive=True)
        return Answer(200, {**AUTHORITY, "members": [me, gone]})

    def GET_indexers(self, request: Request) -> Answer:  # noqa: N802
        one = {"id": "i1", "address": "a:1", "zone": "z", "alive": True, "slices": 2, "bytes": 9}
        return Answer(200, {"indexers": [one]})

    def GET_projectors(self, request: Request) -> Answer:  # noqa: N802
        one = {"id": 7, "address": "a:2", "alive": False, "pid": 4321, "kv": "http://store"}
        return Answer(200, {"projectors": [{**one, "waiting": ["beers", "travel"]}]})

    def GET_transactions(self, request: Request) -> Answer:  # noqa: N802
        one = {"txn": "1-9", "status": "commit", "cas": 9, "participants": ["n1", "n2"]}
        return Answer(200, {"transactions": [{**one, "reason": None}]})

    def GET_stability(self, request: Request) -> Answer:  # noqa: N802
        return Answer(200, {"node": 1, "buckets": [TIMED, UNTIMED]})


TIMED: dict[str, Any] = {
    "bucket": "travel",
    "vbuckets": 1024,
    "stability": {"number": 41, "at_ms": 1, "age_ms": 1_250, "digest": "0af", "seqnos": 7_700},
    "began_again": None,
    "current": {"seqnos": 7_712, "at_ms": 401, "age_ms": 90},
    "owners": [
        {"connection": "77", "projector": 0, "number": 5, "vbuckets": 512},
        {"connection": "9", "projector": 1, "number": 5, "vbuckets": 500},
    ],
    "projectors": [{"projector": 0, "number": 5}, {"projector": 1, "number": 5}],
    "lag": {
        "high": 7_709,
        "seqnos": 9,
        "ms": 300,
        "indexers": [
            {"indexer": 1, "ahead": 9, "behind": 0, "branched": 0, "has_snapshot": True},
            {"indexer": 2, "ahead": 1, "behind": 4, "branched": 3, "has_snapshot": False},
        ],
    },
}
UNTIMED: dict[str, Any] = {
    "bucket": "people",
    "vbuckets": 64,
    "stability": None,
    "began_again": None,
    "current": None,
    "owners": [],
    "projectors": [],
    "lag": {"high": 88, "seqnos": 88, "ms": 0, "indexers": []},
}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    cluster = Cluster()
    node = Node(cluster)
    cluster.url = node.url
    monkeypatch.setenv("INDEXCTL_URL", node.url)
    yield cluster
    node.stop()


def indexctl(*arguments: str, stdin: str | None = None) -> Result:
    result = CliRunner().invoke(app, list(arguments), input=stdin)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    assert "Traceback" not in result.output
    return result


def answer_of(*arguments: str, code: int = 0) -> Any:
    """Run a command with --json and return what it answers, an error or a body."""
    result = indexctl(*arguments, "--json")
    assert result.exit_code == code, result.output
    return json.loads(result.stdout or result.stderr)


CITY = ("create", "by_city", "--bucket", "travel", "--on", "lower(city)", "--on", "country desc")


def test_create_from_options_sends_normalised_expressions(cluster):
    result = indexctl(*CITY, "--where", "type='airport'", "--slices", "2", "--replicas", "1")
    assert result.exit_code == 0, result.output
    assert result.stdout == "created by_city on travel: id 1, ready, cas 101\n"
    sent = cluster.indexes["1"]
    assert sent["expressions"] == ["LOWER(city)", "country DESC"]
    assert (sent["where"], sent["slices"], sent["replicas"]) == ("type = 'airport'", 2, 1)


def test_indexers_are_named_by_numbers_as_the_api_takes_them(cluster):
    assert indexctl(*CITY, "--node", "2", "--node", "1").exit_code == 0
    assert cluster.indexes["1"]["nodes"] == [2, 1]
    assert indexctl(*CITY, "--node", "i1").exit_code == 2


def test_create_from_a_statement_is_the_same_as_from_options(cluster):
    body = answer_of("create", "create index by_city on travel(lower(city), country desc)")
    del cluster.indexes["1"]
    again = answer_of(*CITY)
    for volatile in ("cas", "id"):
        assert body["index"].pop(volatile)
        assert again["index"].pop(volatile)
    assert body["index"] == again["index"]


def test_create_primary_needs_no_name(cluster):
    assert answer_of("create", "--primary", "--bucket", "b")["index"]["name"] == "#primary"


@pytest.mark.parametrize(
    ("arguments", "code", "exit_code"),
    [
        (["create", "i", "--on", "c"], "usage", 2),
        (["create", "i", "--bucket", "b"], "usage", 2),
        (["create", "i", "--bucket", "b", "--on", "c", "--primary"], "usage", 2),
        (["create", "--bucket", "b", "--on", "c"], "usage", 2),
        (["create", "create index i on b(c)", "--slices", "1"], "usage", 2),
        (["create", "i", "--bucket", "b", "--on", "c d"], "invalid_statement", 1),
        (["create", "create index i on b(c d)"], "invalid_statement", 1),
        (["create", "drop index i on b"], "usage", 2),
        (["create", "build index on b(i)"], "usage", 2),
        (["create", "alter index i on b"], "invalid_statement", 1),
        (["create", "i", "--bucket", "b", "--on", "c", "--bound", "M"], "usage", 2),
        (["create", "create index i on b(c)", "--bound", "1"], "usage", 2),
        (["drop", "i"], "usage", 2),
        (["drop", "i", "--bucket", "b"], "index_not_found", 3),
        (["drop", "7"], "index_not_found", 3),
        (["show", "i"], "index_not_found", 3),
        (["show", "7"], "index_not_found", 3),
        (["config", "get", "k"], "config_not_found", 3),
        (["config", "delete", "k"], "config_not_found", 3),
        (["config", "set", "k", "bare"], "usage", 2),
        (["config", "set", "k", "NaN"], "usage", 2),
        (["config", "set", "k", "1", "--if-match", "5"], "cas_mismatch", 4),
        (["apply", "/no/such/file"], "usage", 2),
        (["list", "--url", "ftp://x"], "invalid_request", 1),
    ],
)
def test_an_error_has_its_code_and_exit_code_for_people_and_programs(
    cluster, arguments, code, exit_code
):
    result = indexctl(*arguments)
    assert result.exit_code == exit_code
    assert result.stdout == ""
    assert result.stderr.startswith("error: ")
    assert f"[{code}]" in result.stderr
    assert answer_of(*arguments, code=exit_code)["error"]["code"] == code


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("status", "code", "exit_code"),
    [
        (409, "index_exists", 4),
        (409, "placement_impossible", 1),
        (409, "indexer_refused", 1),
        (410, "request_expired", 1),
        (503, "no_master", 5),
        (503, "overloaded", 5),
        (504, "timeout", 5),
    ],
)
def test_refusals_of_the_cluster_have_their_exit_codes(cluster, status, code, exit_code):
    cluster.override = lambda r: refusal(status, code) if r.method == "POST" else None
    assert answer_of(*CITY, "--timeout", "0.3", code=exit_code)["error"]["code"] == code


@pytest.mark.parametrize(
    "command",
    [
        "list --timeout inf",
        "list --timeout 1e300",
        "mutate b --rate inf",
        "scan b.i --equals 1e999",
        "scan b.i --prefix [1e999]",
        "config set k -1e400",
        "create i -b b -e c --bound 1e999",
    ],
)
def test_a_number_that_no_process_could_use_is_wrong_usage(cluster, command):
    result = indexctl(*command.split())
    assert result.exit_code == 2
    assert cluster.seen == []


@pytest.mark.parametrize(
    "command", ["list -b", "show", "scan", "config get", "config delete", "drop -b b", "load"]
)
def test_an_argument_that_is_not_utf_8_is_wrong_usage(cluster, command):
    more = ["people:1", "--kv", cluster.url] if command == "load" else []
    result = indexctl(*command.split(), "x\udcff", *more)
    assert result.exit_code == 2
    assert "an argument is not text: 'x\\udcff' [usage]" in result.stderr


@pytest.mark.parametrize(
    ("key", "path"),
    [(".", "%2E"), ("..", "%2E%2E"), ("../indexes", "..%2Findexes"), ("a/./b", "a%2F.%2Fb")],
)
def test_a_setting_keeps_its_name_in_a_path(cluster, key, path):
    """`.` and `..` by themselves would be other routes: the list of the settings, and no route."""
    cluster.override = lambda r: Answer(200, {"key": key, "value": 1, "cas": 1, "txn": ""})
    assert f"{key} = 1" in indexctl("config", "get", key).stdout
    assert f"/v1/config/{path}" in [request.path for request in cluster.seen]


def test_a_name_that_is_too_long_for_a_url_is_refused(cluster):
    assert answer_of("config", "get", "k" * 100_000, code=1)["error"]["code"] == "invalid_request"


@pytest.mark.parametrize(
    "command", ["lisst", "list --nope", "create --slices x", "config", "transactions -n 1001"]
)
def test_wrong_usage_ends_with_2(command):
    assert indexctl(*command.split()).exit_code == 2


def every_command(command: Any) -> Iterator[Any]:
    yield command
    for one in getattr(command, "commands", {}).values():
        yield from every_command(one)


@pytest.mark.parametrize("command", ["drop", "build"])
def test_a_statement_where_names_are_taken_is_sent_to_apply(command):
    statement = f"{command.upper()} INDEX by_tz ON travel"
    result = indexctl(command, statement)
    assert result.exit_code == 2
    assert f"{command} takes names and ids: a statement is for `indexctl apply`" in result.stderr


def test_no_help_text_has_what_rich_takes_for_markup():
    texts = [
        text
        for command in every_command(typer.main.get_command(app))
        for text in (command.help, command.epilog, *(p.help for p in command.params if p.help))
    ]
    assert len(texts) > 100
    assert [text for text in texts if re.search(r"\[[a-z#/@]", text or "")] == []


def test_a_word_that_is_not_json_gets_a_hint(cluster):
    assert """config set k '"bare"'""" in indexctl("config", "set", "k", "bare").stderr


def test_where_nothing_listens_the_error_says_what_to_do():
    closed_url = unused_url()
    for arguments in (["list"], ["apply", str(TRAVEL)], ["status"]):
        result = indexctl(*arguments, "--url", closed_url, "--timeout", "0.1")
        assert result.exit_code == 5
        assert result.stdout == ""
        assert (
            f"no coordinator answers at {closed_url}: start one with `indexctl run`, "
            "or set INDEXCTL_URL" in result.stderr
        )


@pytest.mark.thorough
def test_a_node_that_answered_and_is_silent_then_is_not_taken_for_no_node(cluster):
    cluster.indexes["1"] = {"id": "1", "name": "i", "bucket": "b", "expressions": ["c"]}
    cluster.override = lambda request: Answer(200, None) if request.path == "/v1/scan" else None
    result = indexctl("scan", "b.i", "--timeout", "0.3")
    assert result.exit_code == 5
    assert f"no answer from {cluster.url} in " in result.stderr
    assert "--timeout [unreachable]" in result.stderr
    assert "indexctl run" not in result.stderr


@pytest.mark.parametrize(
    ("given", "sent"),
    [((), None), (("--timeout", "2.5"), 2_500), (("--timeout", "90"), 60_000)],
)
def test_the_deadline_of_a_scan_is_told_to_the_node(cluster, given, sent):
    indexctl("create", "CREATE INDEX i ON b(c)")
    answer = {"index": "1", "count": 0, "consistency": {"mode": "any"}, "cas": 1}
    cluster.override = answer_to("/v1/scan", answer)
    assert "0 entries" in indexctl("scan", "b.i", "--count", *given).stdout
    assert json.loads(cluster.seen[-1].body).get("timeout_ms") == sent


@pytest.mark.parametrize("url", ["foo", "foo:1", "http://", "ftp://foo", "//foo", "http://a:b"])
def test_what_is_no_url_of_a_store_is_wrong_usage(url):
    for command in (["mutate", "b"], ["load", "b", "people:1"], ["kv", "buckets"]):
        result = indexctl(*command, "--kv", url)
        assert result.exit_code == 2
        assert f"{url} is no URL of a key-value store" in result.stderr


def test_by_default_all_nodes_of_a_run_are_tried(cluster, monkeypatch):
    monkeypatch.delenv("INDEXCTL_URL")
    monkeypatch.setattr("coordinator.cli.session.DEFAULT_URLS", f"{unused_url()},{cluster.url}")
    assert indexctl("list").exit_code == 0


def test_common_options_may_stand_before_the_command(cluster, monkeypatch):
    monkeypatch.delenv("INDEXCTL_URL")
    result = indexctl("--url", cluster.url, "--json", "list")
    assert json.loads(result.stdout) == {"indexes": [], "cas": 100}


def test_list_and_show_print_what_there_is(cluster):
    assert "no indexes" in indexctl("list").stdout
    indexctl(*CITY, "--replicas", "2", "--defer-build")
    listed = indexctl("list").stdout
    for text in ("by_city", "travel", "LOWER(city), country DESC", "ready, deferred", "101"):
        assert text in listed
    for arguments in (["1"], ["by_city"], ["by_city", "--bucket", "travel"]):
        shown = indexctl("show", *arguments).stdout
        assert "by_city" in shown
        assert "2, 3" in shown
        assert answer_of("show", *arguments)["index"]["id"] == "1"
        assert answer_of("show", *arguments)["cas"] == 101


def test_show_asks_for_the_bucket_where_the_name_is_not_enough(cluster):
    for bucket in ("a", "b"):
        indexctl("create", f"CREATE INDEX i ON {bucket}(c)")
    assert "--bucket: a, b" in indexctl("show", "i").stderr


def test_an_index_is_named_with_its_bucket_as_it_is_in_a_scan(cluster):
    for bucket in ("a", "b", "a.b"):
        indexctl("create", f"CREATE INDEX i ON `{bucket}`(c)")
    assert answer_of("show", "b.i")["index"]["bucket"] == "b"
    assert answer_of("show", "a.b.i")["index"]["bucket"] == "a.b"
    assert "dropped i on a.b" in indexctl("drop", "a.b.i").stdout
    assert answer_of("drop", "a.b.i", code=3)["error"]["code"] == "index_not_found"
    assert "absent b.j" in indexctl("drop", "b.j", "--if-exists").stdout
    assert sorted(i["bucket"] for i in cluster.indexes.values()) == ["a", "b"]


def test_a_name_with_a_dot_is_dropped_only_in_the_bucket_that_was_said(cluster):
    indexctl("create", "CREATE INDEX `x.i` ON travel(c)")
    assert answer_of("show", "x.i")["index"]["bucket"] == "travel"
    assert indexctl("drop", "x.i").exit_code == 3
    assert "dropped x.i" in indexctl("drop", "travel.x.i").stdout


def test_where_bucket_and_name_can_be_divided_in_two_ways_nothing_is_chosen(cluster):
    indexctl("create", "CREATE INDEX `b.i` ON a(c)")
    indexctl("create", "CREATE INDEX i ON `a.b`(c)")
    for command in ("show", "drop"):
        assert "give --bucket: a, a.b" in indexctl(command, "a.b.i").stderr
    assert "dropped i on a.b" in indexctl("drop", "i", "--bucket", "a.b").stdout


def test_control_characters_in_a_name_do_not_reach_the_terminal(cluster):
    assert indexctl("create", "CREATE INDEX `x\x1b[31m[bold]` ON b(c)").exit_code == 0
    listed = indexctl("list").stdout
    assert "\x1b" not in listed
    assert "x\\x1b[31m[bold]" in listed


def test_drop_by_name_and_by_id(cluster):
    indexctl(*CITY)
    assert indexctl("drop", "by_city", "--bucket", "travel", "--if-match", "1").exit_code == 4
    assert "dropped by_city" in indexctl("drop", "by_city", "--bucket", "travel").stdout
    indexctl(*CITY)
    assert answer_of("drop", "1")["index"]["name"] == "by_city"
    assert indexctl("drop", "1", "--if-exists").exit_code == 0


def test_the_example_is_applied_once_and_exists_afterwards(cluster):
    first = answer_of("apply", str(TRAVEL))
    assert [r["outcome"] for r in first["results"]] == ["created"] * 8
    again = indexctl("apply", str(TRAVEL))
    assert again.exit_code == 0
    assert "8 statements: 8 exists" in again.stdout
    assert "[8/8] exists by_height" in again.stderr
    assert len(cluster.keys) == len(set(cluster.keys)) == 16


SCRIPT = "CREATE INDEX a ON b(c);\nCREATE INDEX a ON b(c);\nDROP INDEX IF EXISTS z ON b"


def test_apply_stops_at_the_first_error(cluster):
    result = indexctl("apply", "-", "--json", stdin=SCRIPT)
    assert result.exit_code == 1
    answer = json.loads(result.stdout)
    assert [r["outcome"] for r in answer["results"]] == ["created", "failed", "skipped"]
    assert answer["failed"] == 1
    assert answer["results"][1]["error"]["code"] == "index_exists"
    assert [r["line"] for r in answer["results"]] == [1, 2, 3]


def test_apply_orders_builds_and_goes_on(cluster):
    ordered = {"indexes": [], "cas": 107, "txn": "1-7"}
    cluster.override = answer_to("/v1/indexes/build", ordered)
    script = "BUILD INDEX ON b(a, c);\nBUILD INDEX ON b;\nDROP INDEX IF EXISTS z ON b"
    results = json.loads(indexctl("apply", "-", "--json", stdin=script).stdout)["results"]
    assert [(r["verb"], r["name"], r["outcome"]) for r in results] == [
        ("build", "a, c", "ordered"),
        ("build", "*", "ordered"),
        ("drop", "z", "absent"),
    ]
    bodies = [json.loads(r.body) for r in cluster.seen if r.path == "/v1/indexes/build"]
    assert [(b["bucket"], b["names"]) for b in bodies] == [("b", ["a", "c"]), ("b", [])]


def test_create_takes_bounds_and_show_shows_them(cluster):
    bounds = ["--bound", '"F"', "--bound", '["P", 1.5]']
    made = indexctl("create", "i", "--bucket", "b", "--on", "c", "--on", "d", *bounds)
    assert made.exit_code == 0
    [body] = [json.loads(r.body) for r in cluster.seen if r.method == "POST"]
    assert (body["partitioning"], body["bounds"]) == ("range", [["F"], ["P", 1.5]])
    assert "slices" not in body
    cluster.indexes["1"]["topology"].update(partitioning="range", bounds=body["bounds"])
    assert '["F"], ["P", 1.5]' in indexctl("show", "1").stdout


def test_apply_goes_on_where_it_is_told_to(cluster):
    result = indexctl("apply", "-", "--keep-going", stdin=SCRIPT)
    assert result.exit_code == 1
    assert "3 statements: 1 created, 1 failed, 1 absent" in result.stdout
    assert "[index_exists]" in result.stdout


def test_one_statement_is_told_in_the_singular(cluster):
    result = indexctl("apply", "-", stdin="DROP INDEX IF EXISTS a ON b;")
    assert result.stdout.splitlines()[-1] == "1 statement: 1 absent"


def test_apply_sends_nothing_of_a_script_that_cannot_be_parsed(cluster):
    result = indexctl("apply", "-", stdin="CREATE INDEX a ON b(c);\n  DROP INDEX x y")
    assert result.exit_code == 1
    assert result.stderr.split("\n")[:3] == [
        "error: line 2, column 16: expected ON, found y [invalid_statement]",
        "   2 |   DROP INDEX x y",
        "     |                ^",
    ]
    assert cluster.keys == []
    as_json = indexctl("apply", "-", "--json", stdin="\nDROP x")
    assert json.loads(as_json.stderr)["error"]["details"] == {"line": 2, "column": 6}


def test_settings_are_set_read_listed_and_deleted(cluster):
    for key, text in [("n", "-5"), ("s", '"ü"'), ("o", '{"a": [null]}')]:
        assert answer_of("config", "set", key, text)["value"] == json.loads(text)
    assert indexctl("config", "get", "s").stdout == 's = "ü" (cas 102)\n'
    assert indexctl("config", "set", "s", "1", "--if-match", "102").exit_code == 0
    assert indexctl("config", "set", "s", "1", "--if-match", "0").exit_code == 4
    assert indexctl("config", "delete", "n").exit_code == 0
    assert set(answer_of("config", "list")["config"]) == {"o", "s"}
    assert '{"a": [null]}' in indexctl("config", "list").stdout


def test_status_says_who_is_there_and_whether_they_agree(cluster):
    indexctl(*CITY)
    result = indexctl("status")
    assert result.exit_code == 0, result.output
    for text in ("c1", "n1", "agree (1 of 2 nodes answered)", "1 (1 ready)", "i1", "dddd", "4321"):
        assert text in result.stdout
    answer = answer_of("status")
    assert answer["digests"] == "agree"
    assert answer["indexes"] == {"total": 1, "by_state": {"ready": 1}}
    assert [node["digest"] for node in answer["nodes"]] == [cluster.digest, None]
    assert [one["id"] for one in answer["projectors"]] == [7]


def test_a_projector_that_is_dead_is_seen_at_a_glance(cluster):
    for command in ("status", "projectors"):
        (line,) = [one for one in indexctl(command).stdout.splitlines() if "4321" in one]
        assert line.split() == ["7", "no", "4321", "http://store", "beers,", "travel"]


@pytest.mark.parametrize(
    ("cas", "digest", "outcome", "exit_code"),
    [(100, "e", "differ", 1), (99, "e", "agree", 0), (100, "d" * 64, "agree", 0)],
)
def test_status_compares_digests_at_the_same_cas_only(cluster, cas, digest, outcome, exit_code):
    other = Node(Cluster(cas=cas, digest=digest))
    me = {"node": "n1", "role": "master", "state": "normal", "pid": 1, "alive": True}
    both = [{**me, "cas": 1, "address": cluster.url}, {**me, "cas": 1, "address": other.url}]
    body = {**AUTHORITY, "members": both}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/members" else None
    try:
        assert answer_of("status", code=exit_code)["digests"] == outcome
    finally:
        other.stop()


def row(node: int, url: str | None, **more: Any) -> dict[str, Any]:
    fields = {"role": "replica", "state": "replica", "cas": 5, "pid": node, "alive": True}
    return {"node": node, "address": url, "digest": "d", "reason": "", **fields, **more}


@pytest.fixture
def nodes() -> Iterator[Callable[..., list[Node]]]:
    """Start nodes, each with its own idea of the cluster: epoch, master and CAS."""
    started: list[Node] = []

    def start(*views: tuple[int, int, int], gone: int = 0) -> list[Node]:
        urls: list[str] = []
        for number, (epoch, master, cas) in enumerate(views, 1):

            def answer(request: Request, me=number, view=(epoch, master, cas)) -> Answer | None:
                if request.path != "/v1/members":
                    return None
                rows = [row(n, url, cas=1) for n, url in enumerate(urls, 1)]
                rows[me - 1]["cas"] = view[2]
                rows += [row(len(urls) + 1 + n, unused_url()) for n in range(gone)]
                said = {**AUTHORITY, "node": me, "epoch": view[0], "master": view[1]}
                return Answer(200, {**said, "members": rows})

            started.append(Node(Cluster(cas=cas, override=answer)))
            urls.append(started[-1].url)
        return started

    yield start
    for node in started:
        node.stop()


def test_the_node_that_came_back_is_not_believed_though_it_is_asked_first(nodes):
    """It has not read of the failover yet: the others know of a later epoch."""
    back, new, third = nodes((3, 1, 90), (4, 2, 120), (4, 2, 110))
    for url in (back.url, f"{back.url},{new.url},{third.url}"):
        shown = json.loads(indexctl("members", "--json", "--url", url).stdout)
        assert (shown["epoch"], shown["master"], shown["silent"]) == (4, 2, [])
        assert [member["cas"] for member in shown["members"]] == [90, 120, 110]
        status = json.loads(indexctl("status", "--json", "--url", url).stdout)
        assert (status["epoch"], status["master"], status["silent"]) == (4, 2, [])
        assert status["cas"] == 120
    table = indexctl("members", "--url", back.url).stdout
    assert "silent" not in table


def test_of_those_who_know_the_newest_epoch_the_one_with_the_highest_cas_is_believed(nodes):
    one, *_ = nodes((4, 1, 110), (4, 2, 120), (3, 3, 500))
    shown = json.loads(indexctl("members", "--json", "--url", one.url).stdout)
    assert (shown["epoch"], shown["master"]) == (4, 2)


def test_who_does_not_answer_is_named(nodes):
    one, *_ = nodes((4, 2, 110), (4, 2, 120), gone=2)
    for command in ("members", "status"):
        shown = json.loads(indexctl(command, "--json", "--url", one.url).stdout)
        assert shown["silent"] == [3, 4]
        assert "node 3, 4" in indexctl(command, "--url", one.url).stdout


@pytest.mark.thorough
def test_a_step_down_means_the_newest_epoch(nodes):
    back, new = nodes((3, 1, 90), (4, 2, 120))
    indexctl("step-down", "--url", back.url)
    posts = [r for node in (back, new) for r in node.requests if r.method == "POST"]
    assert json.loads(posts[0].body)["epoch"] == 4


@pytest.mark.parametrize(
    ("command", "text"), [("members", "replica"), ("indexers", "a:1"), ("transactions", "n1, n2")]
)
def test_lists_have_a_table_and_json(cluster, command, text):
    assert text in indexctl(command).stdout
    assert command in answer_of(command)


def test_timestamps_shows_stability_lag_and_who_owns_the_streams(cluster):
    travel, more, people = indexctl("timestamps").stdout.splitlines()[3:6]
    for text in ("41", "1.2 s", "7700", "7712", " 12 ", "0.4", "1 of 2", "0: 77 (512)"):
        assert text in travel, travel
    assert more.split() == ["1:", "9", "(500)"]
    assert "indexer 2: other branch in 3 vbuckets" in travel
    assert people.split() == ["people", "-", "-", "-", "88", "-", "-", "-", "-", "-"]
    assert answer_of("timestamps") == {"node": 1, "buckets": [TIMED, UNTIMED]}
    assert answer_of("timestamps", "travel") == {"node": 1, "buckets": [TIMED]}
    assert answer_of("timestamps", "none", code=3)["error"]["code"] == "not_found"


def test_while_spark_is_away_a_lag_is_behind_what_indexers_hold(cluster):
    body = {"node": 1, "buckets": [{**TIMED, "current": None, "owners": []}]}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/stability" else None
    travel = indexctl("timestamps").stdout.splitlines()[3]
    for text in ("7700", "7709", " 9 ", "0.3"):
        assert text in travel, travel


def test_timestamps_tells_of_numbers_that_began_again(cluster):
    again = {"number": 2, "at_ms": 1, "age_ms": 1}
    body = {"node": 1, "buckets": [{**TIMED, "began_again": again, "lag": None}]}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/stability" else None
    assert "numbers restarted at 2" in indexctl("timestamps").stdout


@pytest.mark.parametrize(
    ("age_ms", "text"), [(0, "0.0 s"), (119_000, "119.0 s"), (120_000, "2 min"), (9**10, "40 d")]
)
def test_a_long_age_has_a_larger_unit(cluster, age_ms, text):
    stable = {**TIMED["stability"], "age_ms": age_ms}
    body = {"node": 1, "buckets": [{**TIMED, "stability": stable}]}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/stability" else None
    assert f" {text} " in indexctl("timestamps").stdout


def test_lags_are_asked_of_the_master_and_of_others_where_it_is_silent(cluster):
    members = [{"node": "n1", "alive": True, "address": unused_url()}]
    body = {**AUTHORITY, "members": members}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/members" else None
    assert answer_of("timestamps", "travel")["buckets"] == [TIMED]


@pytest.mark.thorough
def test_watching_prints_a_document_a_line_until_it_is_interrupted(cluster):
    """What happens while a node is away is told, and the watching goes on."""
    away = False

    def silent(request: Request) -> Answer | None:
        return refusal(503, "no_master") if away and request.path == "/v1/stability" else None

    cluster.override = silent
    program = (
        "import signal\n"
        "from coordinator.cli import main, timestamps\n"
        "timestamps.PERIOD_S = 0.01\n"
        # A shell in the background lets its children ignore it.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "main.main()"
    )
    arguments = ("timestamps", "travel", "--watch", "--json", "--timeout", "1")
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        lines = map(json.loads, watching.stdout)
        assert next(lines) == {"node": 1, "buckets": [TIMED]}
        away = True
        error = next(line["error"] for line in lines if "error" in line)
        assert error["code"] == "no_master"
        away = False
        assert next(line for line in lines if "error" not in line)["buckets"] == [TIMED]
        watching.send_signal(signal.SIGINT)
        watching.stdout.read()  # A pipe that nobody reads would hold it up.
        assert watching.wait(20) == 0


@pytest.mark.thorough
@pytest.mark.parametrize(
    "arguments", [("state", "--at", "99"), ("diff", "99"), ("diff", "1", "99")]
)
def test_a_node_that_waits_for_a_cas_still_to_come_is_not_taken_for_no_node(cluster, arguments):
    waits = ("/v1/state", "/v1/diff")
    cluster.override = lambda request: Answer(200, None) if request.path in waits else None
    result = indexctl(*arguments, "--timeout", "0.3")
    assert result.exit_code == 5
    assert f"no answer from {cluster.url} in " in result.stderr
    assert "indexctl run" not in result.stderr


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("after", "told"),
    [
        ("999999", "the cluster is at CAS 100: waiting until it comes to CAS 999999\n"),
        ("100", ""),
        ("now", ""),
    ],
)
def test_a_watch_after_a_cas_still_to_come_says_once_that_it_waits(cluster, after, told):
    tries = 0

    def ends_in_time(request: Request) -> Answer | None:
        nonlocal tries
        if request.path != "/v1/watch":
            return None
        tries += 1
        return refusal(504, "timeout") if tries < 3 else refusal(410, "compacted")

    cluster.override = ends_in_time
    result = indexctl("watch", "--after", after)
    assert tries == 3
    assert result.stderr == f"{told}error: because of compacted [compacted]\n"


def test_until_is_a_time_of_the_history_of_timestamps(cluster):
    alone = indexctl("timestamps", "travel", "--until", "5m")
    assert (alone.exit_code, alone.stderr) == (2, "error: --until needs --history [usage]\n")
    a_cas = indexctl("timestamps", "travel", "--history", "--until", "5")
    assert a_cas.exit_code == 2
    assert "Give a time such as" in a_cas.stderr
    assert "CAS" not in a_cas.stderr


def test_a_watch_of_a_bucket_that_is_not_there_ends_at_once(cluster):
    assert indexctl("timestamps", "none", "--watch").exit_code == 3


class Fault(Exception):
    code = "port_taken"
    message = "port 8600 is taken: use --http-port"


@pytest.fixture
def supervisor(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A stand-in for the supervisor, which would start Kafka."""
    import coordinator.embedded

    module = ModuleType("coordinator.embedded.supervisor")
    module.RunOptions = dict  # type: ignore[attr-defined]
    module.forgotten = []  # type: ignore[attr-defined]
    module.reset = module.forgotten.append  # type: ignore[attr-defined]
    module.check_data_folder = lambda data_dir: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(coordinator.embedded, "supervisor", module, raising=False)
    return module


def test_run_passes_its_options_on_and_ends_with_its_code(supervisor):
    seen = []
    supervisor.run = lambda options: seen.append(options) or 7
    given = "--nodes 5 --indexers 2 --http-port 9000 --data-dir /d --cluster c --not-durable"
    given += " --projectors 4 --no-example --no-timestamps --brokers 3 --replication-factor 3"
    given += " --sync-partitions 8 --log-capacity 50 --request-window-ms 2000 --archive"
    given += " --history-retention 30d --history-archive /a"
    given += " --allowed-host Proxy.example --allowed-host 10.0.0.1"
    assert indexctl("run", *given.split()).exit_code == 7
    assert indexctl("run").exit_code == 7
    chosen = {"nodes": 5, "indexers": 2, "http_port": 9000, "data_dir": Path("/d")}
    chosen |= {"projectors": 4, "example": "none", "bootstrap_servers": None}
    chosen |= {"cluster": "c", "durable": False, "allowed_hosts": ("proxy.example", "10.0.0.1")}
    chosen |= {"timestamps": False, "spark_master": "local[2]", "archive": True}
    assert seen[0] == {
        **chosen,
        "brokers": 3,
        "replication_factor": 3,
        "log_capacity": 50,
        "sync_partitions": 8,
        "request_window_ms": 2000,
        "history_retention": "30d",
        "history_archive": Path("/a"),
    }
    assert (seen[1]["nodes"], seen[1]["http_port"], seen[1]["durable"]) == (3, 8600, True)
    assert not seen[1]["archive"]
    assert seen[1]["allowed_hosts"] == ()
    assert indexctl("run", "--allowed-host", "http://proxy").exit_code == 2
    assert "--cluster a b: letters" in indexctl("run", "--cluster", "a b").stderr
    assert len(seen) == 2


def test_run_prints_a_fault_on_one_line(supervisor):
    def fail(options: Any) -> int:
        raise Fault

    supervisor.run = fail
    result = indexctl("run")
    assert result.exit_code == 1
    assert result.stderr == f"error: {Fault.message} [port_taken]\n"


def test_reset_without_a_terminal_needs_yes(supervisor):
    assert indexctl("reset", "--data-dir", "/d").exit_code == 2
    assert supervisor.forgotten == []
    assert indexctl("reset", "--data-dir", "/d", "--yes").exit_code == 0
    assert supervisor.forgotten == [Path("/d")]


def test_reset_looks_at_the_folder_before_it_asks(supervisor):
    def refuse(data_dir: Path) -> None:
        raise Fault

    supervisor.check_data_folder = refuse
    result = indexctl("reset", "--data-dir", "/d", stdin="y\n")
    assert result.stderr == f"error: {Fault.message} [port_taken]\n"
    assert result.exit_code == 1
    assert supervisor.forgotten == []


COMMANDS = ["run", "reset", "status", "create", "drop", "list", "show", "apply", "transactions"]
COMMANDS += ["members leave", "members reform", "step-down", "projectors", "build"]
COMMANDS += [
    "timestamps",
    "rollbacks",
    "plot",
    "sql",
    "members",
    "indexers",
    "config get",
    "config set",
    "config delete",
    "config list",
]


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_and_json(command):
    result = indexctl(*command.split(), "--help")
    assert result.exit_code == 0
    assert "--json" in result.stdout


HEAVY = "{'faust', 'confluent_kafka', 'aiokafka', 'sqlglot', 'rocksdict', 'fastapi', 'uvicorn', "
HEAVY += "'duckdb', 'matplotlib', 'pyspark'}"


@pytest.mark.thorough
@pytest.mark.parametrize("command", [["--help"], ["status"], ["list"]])
def test_light_commands_do_not_load_what_they_do_not_need(cluster, command):
    program = (
        "import sys\nfrom coordinator.cli.main import app\n"
        f"app({command!r}, standalone_mode=False)\n"
        f"print(sorted({HEAVY} & set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "[]\n")


def test_status_says_why_there_is_no_master(cluster):
    standing = {"state": "no_eligible_node", "message": "waiting for 1, 3", "waiting_for": [1, 3]}
    body = {**AUTHORITY, "mastership": standing, "members": []}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/members" else None
    assert "none (waiting for 1, 3)" in indexctl("status").stdout
    assert "none (waiting for 1, 3)" in indexctl("members").stdout
    assert answer_of("status")["mastership"] == standing


RETAINED = {"retention_ms": 5_400_000, "oldest_cas": 57, "archived": 3, "failures": 0, "error": ""}


@pytest.mark.parametrize(
    ("retained", "text"),
    [
        (None, "history  all of it in Kafka"),
        (RETAINED, "history  archived after 90m, in Kafka from CAS 57 on"),
        ({**RETAINED, "oldest_cas": None}, "history  archived after 90m"),
        (
            {**RETAINED, "retention_ms": 30 * 86_400_000, "error": "disk full"},
            "history  archived after 30d, in Kafka from CAS 57 on (stays in Kafka: disk full)",
        ),
    ],
)
def test_status_says_where_the_history_is_as_the_master_knows_it(nodes, retained, text):
    other, master = nodes((4, 2, 120), (4, 2, 120))
    told = master.script.override
    master.script.override = lambda r: _with(told(r), history_retention=retained)
    old = other.script.override
    other.script.override = lambda r: _with(old(r), history_retention={**RETAINED, "oldest_cas": 1})
    assert text in indexctl("status", "--url", other.url).stdout.splitlines()
    shown = json.loads(indexctl("status", "--json", "--url", other.url).stdout)
    assert shown["history_retention"] == retained


def _with(answer: Answer | None, **more: Any) -> Answer | None:
    return answer and Answer(answer.status, {**answer.body, **more})


def test_step_down_names_the_mastership_that_it_means(cluster):
    cluster.override = answer_to("/v1/members/step-down", {"epoch": 4, "master": 2, "address": "x"})
    assert "node 2 is master, epoch 4" in indexctl("step-down", "--to", "2").stdout
    [body] = [json.loads(r.body) for r in cluster.seen if r.method == "POST"]
    assert (body["epoch"], body["successor"]) == (3, 2)


def test_a_node_that_leaves_is_named_in_the_path(cluster):
    after = {"roster": [1, 3], "active": [1, 3], "minimum": 2}
    cluster.override = answer_to("/v1/members/2/leave", after)
    assert "node 2 has left; active: 1, 3" in indexctl("members", "leave", "2").stdout


def test_a_master_that_may_not_leave_keeps_the_mastership(cluster):
    body = {**AUTHORITY, "master": 1, "active": [1, 2], "minimum": 2, "members": []}
    cluster.override = lambda r: Answer(200, body) if r.path == "/v1/members" else None
    result = indexctl("members", "leave", "1")
    assert result.exit_code == 1
    assert "[leave_impossible]" in result.stderr
    assert not [r for r in cluster.seen if r.method == "POST"]


def test_build_waits_for_what_is_being_built_already(cluster):
    """The same command again, after Ctrl-C or a timeout."""
    indexctl(*CITY)
    cluster.indexes["1"]["state"] = "backfill"
    shown = []

    def override(request):
        if (request.method, request.path) == ("POST", "/v1/indexes/build"):
            return Answer(200, {"indexes": [], "cas": 107, "txn": "1-7"})
        if request.path == "/v1/indexes/1":
            shown.append(cluster.indexes["1"]["state"])
            cluster.indexes["1"]["state"] = "maintenance"
        return None

    cluster.override = override
    result = indexctl("build", "--bucket", "travel", "--wait")
    assert result.exit_code == 0, result.output
    assert shown[0] == "backfill"
    assert "maintenance" in result.stdout


@pytest.mark.parametrize("waits", [(), ("--wait",)])
def test_a_bucket_that_has_nothing_to_build_is_named(cluster, waits):
    cluster.override = answer_to("/v1/indexes/build", {"indexes": [], "cas": 1, "txn": None})
    result = indexctl("build", "--bucket", "nowhere", *waits)
    assert result.exit_code == 0
    assert result.stdout == "bucket nowhere has no deferred indexes\n"


def test_reform_without_a_master_asks_the_node_that_is_furthest(cluster):
    standing = {"state": "no_eligible_node", "message": "", "waiting_for": [1]}
    both = [{"node": n, "alive": True, "cas": n, "address": cluster.url} for n in (2, 3)]
    after = {"roster": [3], "active": [3], "minimum": 1}

    def override(request):
        if request.path == "/v1/members":
            return Answer(200, {**AUTHORITY, "mastership": standing, "members": both})
        return answer_to("/v1/members/reform", after)(request)

    cluster.override = override
    forget = ("--forget", "1", "--forget", "2")
    said = indexctl("members", "reform", "--minimum", "1", *forget).stdout
    assert said == "reformed: node 3, at least 1 copy\n"
    assert json.loads(cluster.seen[-1].body)["forget"] == [1, 2]


def answer_to(path, body):
    """Return an override that answers a POST to `path`."""
    return lambda r: Answer(200, body) if (r.method, r.path) == ("POST", path) else None


@pytest.mark.parametrize("seconds", ["inf", "1e308", "0"])
def test_a_time_that_no_cluster_takes_is_wrong_usage(seconds: str) -> None:
    done = CliRunner().invoke(app, ["topics", "subscribe", "t", "s", "--expires-after", seconds])
    assert done.exit_code == 2
    assert "--expires-after" in done.stderr
