"""`/v1/rebalance` on a node without processes: what is answered of one that is long over."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from coordinator.core.catalog.rebalances import KNOWN_MAX
from coordinator.http.models import RebalanceAnswer
from tests.support.lone_api import LoneApi


class Api(LoneApi):
    """The API of a node, and rebalances of nothing."""

    def rebalance(self, key: str) -> dict[str, Any]:
        answer = self.ask("POST", "/v1/rebalance", {}, **{"Idempotency-Key": key})
        assert answer.status_code == 200, answer.text
        RebalanceAnswer.model_validate_json(answer.content)
        found: dict[str, Any] = answer.json()
        return found


@pytest.fixture
def api() -> Iterator[Api]:
    made = Api()
    yield made
    made.close()


def test_a_repeat_is_answered_as_the_document_says_also_when_nothing_is_kept(api: Api) -> None:
    """The fuzzer found it: with what the command had said then, which is no whole rebalance."""
    first = api.rebalance("first")
    assert api.rebalance("first") == first
    assert first["rebalance"]["state"] == "done"
    for number in range(KNOWN_MAX):
        api.rebalance(f"later {number}")
    again = api.rebalance("first")
    assert again["rebalance"] == {
        **first["rebalance"],
        "state": "forgotten",
        "began_ms": None,
        "ended_ms": None,
        "load_before": {},
        "load_after": {},
    }
    assert (again["cas"], again["txn"]) == (first["cas"], first["txn"])
