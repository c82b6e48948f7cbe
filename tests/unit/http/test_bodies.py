"""Bodies of requests: read no further than they may be long, and refused by name."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from starlette.requests import ClientDisconnect, Request

from coordinator.core.catalog.ddl import SETTING_BYTES_MAX
from coordinator.core.model import json_text
from coordinator.http import app as apps
from coordinator.http import aside, reading
from coordinator.http.aside import Aside, Seats, Turns
from coordinator.http.encoding import Raw, encoded
from coordinator.http.errors import ApiError
from coordinator.http.models import CreateIndexBody
from coordinator.http.reading import BODY_BYTES_MAX
from coordinator.runtime.http_errors import PROBLEMS_MAX
from coordinator.runtime.request_bodies import BodyTooLongError, read_body
from tests.support.lone_shell import LoneShell

JSON = {"Content-Type": "application/json"}


class Sender:
    """A client that sends pieces, and counts how many were taken."""

    def __init__(self, *pieces: bytes, ends: bool = True, length: str = "") -> None:
        self.taken = 0
        self._pieces, self._ends = pieces, ends
        self._headers = [(b"content-length", length.encode())] if length else []

    async def receive(self) -> dict[str, Any]:
        if self.taken == len(self._pieces):
            assert not self._ends, "more than all was asked for"
            return {"type": "http.disconnect"}
        self.taken += 1
        more = self.taken < len(self._pieces) or not self._ends
        return {
            "type": "http.request", "body": self._pieces[self.taken - 1], "more_body": more
        }  # fmt: skip

    def read(self, limit: int) -> bytes:
        scope = {"type": "http", "method": "POST", "headers": self._headers}
        return asyncio.run(read_body(Request(scope, self.receive), limit))


def test_a_body_within_the_limit_is_returned_whole() -> None:
    assert Sender(b"").read(0) == b""
    assert Sender(b"ab", b"", b"cd").read(4) == b"abcd"
    assert Sender(b"ab", length="2").read(2) == b"ab"
    assert Sender(b"ab", length="what").read(2) == b"ab"


def test_reading_stops_at_the_limit() -> None:
    endless = Sender(*[b"x" * 10] * 1_000)
    with pytest.raises(BodyTooLongError) as caught:
        endless.read(25)
    assert caught.value.limit_bytes == 25
    assert endless.taken == 3


def test_a_body_that_is_longer_than_was_announced_is_refused() -> None:
    with pytest.raises(BodyTooLongError):
        Sender(*[b"x" * 10] * 10, length="7").read(25)


@pytest.mark.parametrize("length", ["26", "9" * 18, "9" * 5_000])
def test_a_length_that_is_too_large_is_believed(length: str) -> None:
    sender = Sender(b"x", length=length)
    with pytest.raises(BodyTooLongError):
        sender.read(25)
    assert sender.taken == 0


def test_a_body_that_comes_to_no_end_is_none() -> None:
    with pytest.raises(ClientDisconnect):
        Sender(b"ab", ends=False).read(10)


def test_a_client_that_goes_away_within_its_body_is_refused() -> None:
    """It is no fault of the node: nobody is to look for it in the log."""
    scope = {"type": "http", "method": "POST", "headers": []}
    request = Request(scope, Sender(b"ab", ends=False).receive)
    with pytest.raises(ApiError, match="incomplete") as caught:
        asyncio.run(reading.body_of(request))
    assert (caught.value.code, caught.value.status) == ("invalid_request", 400)


# -- the API ------------------------------------------------------------------------------------


def ask(check: Callable[[LoneShell, Any], Awaitable[None]]) -> None:
    async def run() -> None:
        shell = LoneShell()
        try:
            async with shell.client() as http:
                await check(shell, http)
        finally:
            shell.examiner.close()

    asyncio.run(run())


def refusal(response: Any) -> tuple[int, str]:
    error = response.json()["error"]
    assert set(error) == {"code", "message", "details"}
    assert len(error["message"]) < 2_000
    return response.status_code, error["code"]


DEEP = "[" * 949 + "]" * 949
POSTS = ["/v1/indexes", "/v1/indexes/build", "/v1/scan", "/v1/members/step-down"]

BAD: list[tuple[str, int, str]] = [
    ("", 400, "invalid_request"),
    ("[", 400, "invalid_request"),
    ("[]", 400, "invalid_request"),
    (DEEP, 400, "invalid_request"),
    ("[" * 100_000, 400, "invalid_request"),
    ('{"a":' * 500 + "1" + "}" * 500, 400, "invalid_request"),
    ('{"name":' + DEEP + "}", 400, "invalid_request"),
    ("{" + ",".join(f'"a{n}":1' for n in range(20_000)) + "}", 400, "invalid_request"),
    ('{"name":"' + "x" * BODY_BYTES_MAX + '"}', 413, "value_too_large"),
    ('{"name":' + "9" * 5_000 + "}", 400, "invalid_request"),
    ('{"name":NaN}', 400, "invalid_request"),
]


@pytest.mark.thorough
def test_bad_bodies_are_refused_by_name_on_every_route() -> None:
    async def check(shell: LoneShell, http: Any) -> None:
        for path in POSTS:
            for body, status, code in BAD:
                answer = await http.post(path, content=body, headers=JSON)
                assert refusal(answer) == (status, code), (path, body[:40])
            answer = await http.post(path, content=b'{"name":"\xff"}', headers=JSON)
            assert refusal(answer) == (400, "invalid_request")
            utf_16 = json.dumps({"name": "x"}).encode("utf-16")
            answer = await http.post(path, content=utf_16, headers=JSON)
            assert refusal(answer) == (400, "invalid_request")
        assert (await http.get("/readyz")).status_code == 200

    ask(check)


def test_what_is_wrong_with_a_body_is_told_by_its_place() -> None:
    """No body is told apart from one that is no JSON; of problems without end only the number."""

    async def check(shell: LoneShell, http: Any) -> None:
        for path in POSTS:
            missing = await http.post(path, headers=JSON)
            (problem,) = missing.json()["error"]["details"]["problems"]
            assert problem == {"where": "body", "what": "Field required"}, path
        wrong = {"name": 1, "bucket": "b", "expressions": ["a"], "where": [2]}
        answer = await http.post("/v1/indexes", json=wrong)
        places = [one["where"] for one in answer.json()["error"]["details"]["problems"]]
        assert places == ["body.name", "body.where"]
        for count in (PROBLEMS_MAX, PROBLEMS_MAX + 1):
            # One of them is the name that is missing.
            more = {f"a{n}": 1 for n in range(count - 1)}
            answer = await http.post("/v1/indexes", json={"bucket": "b"} | more)
            error = answer.json()["error"]
            if count <= PROBLEMS_MAX:
                assert len(error["details"]["problems"]) == count
            else:
                assert error["message"] == f"the body has {count} problems"
                assert error["details"] == {}

    ask(check)


@pytest.mark.thorough
def test_a_setting_of_any_depth_leaves_the_master_alive() -> None:
    """Too deep is refused at the door: not by whoever decides, when it has been let in."""

    async def check(shell: LoneShell, http: Any) -> None:
        for depth in range(1, 1_100):
            value = "[" * depth + "]" * depth
            for headers in (JSON, {**JSON, "Idempotency-Key": f"depth-{depth}"}):
                answer = await http.put("/v1/config/x", content=value, headers=headers)
                if depth > json_text.DEPTH_MAX:
                    assert refusal(answer) == (400, "invalid_request")
                else:
                    assert answer.json()["value"] == json.loads(value)
        clash = await http.put("/v1/config/x", content="1", headers={**JSON, "If-Match": "1"})
        assert refusal(clash) == (412, "cas_mismatch")
        again = {**JSON, "Idempotency-Key": f"depth-{json_text.DEPTH_MAX}"}
        value = "[" * json_text.DEPTH_MAX + "]" * json_text.DEPTH_MAX
        repeat = await http.put("/v1/config/x", content=value, headers=again)
        assert repeat.json()["value"] == json.loads(value)

    ask(check)


VALUES = [1, -0.0, "\ud800", [[]], {"a": {"b": [None, True]}}, 10**4000, "\u2028", [1.5] * 5_000]


def test_a_setting_comes_back_as_it_was_written_everywhere() -> None:
    async def check(shell: LoneShell, http: Any) -> None:
        for value in VALUES:
            text = json.dumps(value)
            written = await http.put("/v1/config/x", content=text, headers=JSON)
            assert written.json()["value"] == value
            read = await http.get("/v1/config/x")
            assert text in read.text
            assert read.json() == {**written.json(), "txn": ""}
            listed = (await http.get("/v1/config")).json()["config"]
            assert listed == (await http.get("/v1/state")).json()["config"]
            assert listed["x"] == {"value": value, "cas": written.json()["cas"]}

    ask(check)


def test_a_value_has_at_most_so_many_bytes() -> None:
    async def check(shell: LoneShell, http: Any) -> None:
        fits = json.dumps("x" * (SETTING_BYTES_MAX - 2))
        assert (await http.put("/v1/config/x", content=fits, headers=JSON)).status_code == 200
        more = await http.put("/v1/config/x", content=fits + " ", headers=JSON)
        assert refusal(more) == (413, "value_too_large")
        assert more.json()["error"]["details"] == {"limit": SETTING_BYTES_MAX}

    ask(check)


def test_a_long_body_is_read_beside_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    beside: list[int] = []

    async def run(work: Callable[[], Any]) -> Any:
        beside.append(1)
        return work()

    monkeypatch.setattr(reading.BODIES, "run", run)

    async def check(shell: LoneShell, http: Any) -> None:
        short = {"name": "i", "bucket": "b", "expressions": ["a"]}
        assert (await http.post("/v1/indexes", json=short)).status_code == 201
        assert beside == []
        long = {**short, "name": "j", "expressions": ["a" * 4_000] * 2}
        assert (await http.post("/v1/indexes", json=long)).status_code == 201
        assert beside == [1]
        value = "[" + "1," * 4_000 + "1]"
        assert (await http.put("/v1/config/x", content=value, headers=JSON)).status_code == 200
        assert beside == [1, 1]

    ask(check)


def test_lists_of_a_body_are_bounded_before_their_members_are_looked_at() -> None:
    for field, members in (
        ("expressions", [1] * 100_000),
        ("bounds", [[1]] * 9_000),
        ("nodes", ["x"] * 100_000),
    ):
        body = json.dumps({"name": "i", "bucket": "b", field: members}).encode()
        with pytest.raises(Exception, match="at most") as caught:
            reading.read(body, CreateIndexBody)
        assert len(str(caught.value)) < 2_000


# -- work beside the loop -----------------------------------------------------------------------


def test_only_so_much_work_waits() -> None:
    async def run() -> None:
        work = Aside("test", 2)
        held = asyncio.Event()
        loop = asyncio.get_running_loop()
        release = asyncio.Event()

        def block() -> int:
            loop.call_soon_threadsafe(held.set)
            asyncio.run_coroutine_threadsafe(release.wait(), loop).result(20)
            return 1

        waiting = [asyncio.create_task(work.run(block)) for _ in range(2)]
        await held.wait()
        with pytest.raises(ApiError) as caught:
            await work.run(block)
        assert (caught.value.code, caught.value.status) == ("overloaded", 503)
        release.set()
        assert await asyncio.gather(*waiting) == [1, 1]
        assert await work.run(lambda: 2) == 2

    asyncio.run(run())


def test_large_requests_take_turns_and_do_not_wait_for_ever() -> None:
    async def run() -> None:
        turns = Turns(2, 0.05)
        inside = 0

        async def take() -> None:
            nonlocal inside
            async with turns.one():
                inside += 1
                assert inside == 1
                await asyncio.sleep(0)
                inside -= 1

        await asyncio.gather(take(), take())
        async with turns.one():
            first, second = (asyncio.create_task(take()) for _ in range(2))
            await asyncio.sleep(0)
            with pytest.raises(ApiError, match="wait: retry"):
                await take()
            for late in (first, second):
                with pytest.raises(ApiError, match="take all the time"):
                    await late
        await take()

    asyncio.run(run())


def test_only_so_many_reads_wait_for_the_node(monkeypatch: pytest.MonkeyPatch) -> None:
    seats = Seats(1)
    with seats.one(), pytest.raises(ApiError, match="retry"), seats.one():
        pass
    with seats.one():
        pass
    monkeypatch.setattr(apps, "READS", Seats(0))

    async def check(shell: LoneShell, http: Any) -> None:
        assert refusal(await http.get("/v1/state")) == (503, "overloaded")
        ahead = await http.get("/v1/state?consistency=local&at_least=999")
        assert refusal(ahead) == (503, "overloaded")
        assert (await http.get("/v1/state?consistency=local")).status_code == 200

    ask(check)


def test_the_bounds_of_work_beside_the_loop_have_names() -> None:
    for one in (aside.BODIES, aside.VIEWS, aside.DEFINITIONS):
        assert 1 <= one._waiting_max <= 64


@pytest.mark.parametrize(
    "value",
    [1, [], {}, {"a": []}, [1, [2], {"b": None}], {"a": {"b": {"c": [1.5]}}}, ["é\ud800"] * 40],
)
def test_pieces_make_the_same_json(value: Any) -> None:
    whole = json.dumps(value, separators=(",", ":"), ensure_ascii=False)
    assert encoded(value) == whole.encode("utf-8", "backslashreplace")


def test_text_that_is_json_is_put_in_as_it_is() -> None:
    assert encoded({"a": Raw("[1, 2]"), "b": {"c": Raw("1.50")}}) == b'{"a":[1, 2],"b":{"c":1.50}}'


def test_a_seat_is_free_again_whatever_becomes_of_who_had_it() -> None:
    seats = Seats(1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError), seats.one():
            raise ZeroDivisionError


def test_a_turn_is_over_whatever_becomes_of_who_had_it() -> None:
    async def take() -> None:
        turns = Turns(2, 0.2)
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                async with turns.one():
                    raise ZeroDivisionError

    asyncio.run(take())
