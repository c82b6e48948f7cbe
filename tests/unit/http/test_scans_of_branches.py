"""Which scans ask where `failover-log` ends, and that indexers are told."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest

from coordinator.http import scan
from coordinator.http.calls import Calls, Reply
from coordinator.http.scatter import ScanFailed, Scatter
from tests.support.lone_shell import LoneShell
from tests.support.scatters import make_asked

INDEX = {"name": "i", "bucket": "b", "expressions": ["a"]}
ENDS = (5, 0, 0, 1)


class Ends:
    """Kafka, which says where the log ends, or does not."""

    def __init__(self, ends: tuple[int, ...] | None) -> None:
        self.ends = ends

    async def now(self, within_s: float) -> tuple[int, ...] | None:
        assert within_s == 7.5, "no longer than the scan may take"
        return self.ends


class Failing:
    """A scan that fails."""

    def __init__(self, **_: Any) -> None:
        pass

    async def rows(self) -> None:
        raise ScanFailed("index_rolling_back", "no")


@pytest.mark.parametrize(
    ("consistency", "ends", "named"),
    [
        ("any", ENDS, ()),
        ("consistent", ENDS, ENDS),
        ("last_good", ENDS, ENDS),
        ({"consistent": 7}, ENDS, ENDS),
        ({"at_least": {"vbuckets": {"0": ["1", "2"]}}}, ENDS, ENDS),
        ("consistent", None, ()),
    ],
    ids=repr,
)
def test_a_scan_that_promises_something_names_the_end_of_the_log(
    monkeypatch: pytest.MonkeyPatch, consistency: Any, ends: Any, named: tuple[int, ...]
) -> None:
    seen: list[Any] = []

    async def plan(shell: Any, body: Any, began: float, failover_log: Any) -> Any:
        seen.append(failover_log)
        index = shell.node.state.index_named("b", "i").entity
        return SimpleNamespace(asked=SimpleNamespace(index=index, slices=(), deadline=0), cas=1)

    async def run() -> None:
        shell = LoneShell()
        shell.failover_log_ends = Ends(ends)
        monkeypatch.setattr(scan, "Scatter", Failing)
        monkeypatch.setattr(scan, "_plan", plan)
        body = {"bucket": "b", "name": "i", "consistency": consistency, "timeout_ms": 7_500}
        async with shell.client() as http:
            made = await http.post("/v1/indexes", json=INDEX)
            assert made.is_success, made.text
            await http.post("/v1/scan", json=body)

    asyncio.run(run())
    assert seen == [named]


class Noting(Calls):
    """Calls that are noted, and refused."""

    def __init__(self) -> None:
        super().__init__()
        self.bodies: list[dict[str, Any]] = []

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, is_last: bool = False
    ) -> Reply:
        self.bodies.append(json.loads(body))
        return Reply(503, "application/json", b"{}")


def test_indexers_are_told_how_far_they_must_have_read() -> None:
    asked = make_asked(consistency={"consistent": 0}, failover_log=ENDS)
    calls = Noting()
    with pytest.raises(ScanFailed):
        asyncio.run(Scatter(calls=calls, asked=asked, address=str, is_heard=bool).rows())
    assert [body["failover_log"] for body in calls.bodies] == [[*ENDS], [*ENDS]]
