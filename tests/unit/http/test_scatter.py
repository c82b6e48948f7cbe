"""What a scan tells where no indexer of a slice answers."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from coordinator.http.calls import Calls, Reply
from coordinator.http.scatter import ScanFailed, Scatter
from tests.support.scatters import make_asked


class Refusing(Calls):
    """Calls to indexers that refuse, each with a code of its own: the host is the port."""

    def __init__(self, codes: dict[str, str]) -> None:
        super().__init__()
        self._codes = codes

    async def post(
        self, url: str, body: bytes, timeout_s: float, *, is_last: bool = False
    ) -> Reply:
        error = {"error": {"code": self._codes[url.split("/")[2]], "message": "no"}}
        return Reply(503, "application/json", json.dumps(error).encode())


def failure(**codes: str) -> ScanFailed:
    """Return how a scan fails of an index with one slice on `a` and a replica on `b`."""
    asked = make_asked()
    address: Any = {1: "http://a", 2: "http://b"}.get
    scatter = Scatter(calls=Refusing(codes), asked=asked, address=address)
    with pytest.raises(ScanFailed) as caught:
        asyncio.run(scatter.rows())
    return caught.value


@pytest.mark.parametrize("other", ["index_recovering", "index_building", "slice_not_here"])
def test_an_index_that_one_has_released_may_be_replaced_whatever_the_other_says(other: str) -> None:
    """Its storage is given up there as well, and may say until then that it opens again."""
    assert failure(a="index_not_found", b=other).is_gone
    assert failure(a=other, b="index_not_found").is_gone


def test_a_slice_that_one_has_released_may_have_moved() -> None:
    found = failure(a="index_recovering", b="slice_not_here")
    assert (found.code, found.is_gone) == ("index_recovering", True)


def test_an_index_that_nobody_has_released_is_not_replaced() -> None:
    found = failure(a="index_recovering", b="unreachable")
    assert (found.code, found.is_gone) == ("index_recovering", False)
