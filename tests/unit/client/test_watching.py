"""How a watch goes on from node to node, without I/O."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest

from coordinator.client.errors import CoordinatorError
from coordinator.client.watching import (
    FIRST_PAUSE_S,
    PAUSE_MAX_S,
    Receiving,
    StateWait,
    Watch,
    refusal_of,
)


@dataclass(frozen=True)
class Sent:
    """An event as a node sends it."""

    event: str
    data: str


def sent(name: str, **body: Any) -> Sent:
    return Sent(name, json.dumps(body))


def test_each_change_is_told_once_though_nodes_send_it_again() -> None:
    watching = Watch(5, {})
    events = [sent("change", cas=cas) for cas in (6, 7, 6, 7, 9)]
    told = [watching.receive(event) for event in events]
    assert [event and event["cas"] for event in told] == [6, 7, None, None, 9]
    assert watching.query == {"after": 9}


def test_it_goes_on_after_the_last_cas_that_it_was_told() -> None:
    watching = Watch("now", {"kind": ["index"], "bucket": None})
    assert watching.query == {"after": "now", "kind": ["index"]}
    assert watching.receive(sent("bookmark", cas=40)) == {"type": "bookmark", "cas": 40}
    assert watching.query == {"after": 40, "kind": ["index"]}
    assert watching.receive(sent("lagged", cas=44)) is None
    assert watching.position == 44
    watching.receive(sent("bookmark", cas=41))
    assert watching.position == 44, "it never goes back"
    watching.receive(sent("stability", bucket="travel", number=3))
    assert watching.position == 44


def test_a_snapshot_that_was_cut_off_begins_again_and_a_whole_one_does_not() -> None:
    watching = Watch("snapshot", {})
    assert watching.begin() is None
    watching.receive(sent("snapshot", cas=3, key="config/a"))
    assert watching.query == {"after": "snapshot"}
    assert watching.begin() == {"type": "snapshot_restart"}
    watching.receive(sent("snapshot", cas=3, key="config/a"))
    watching.receive(sent("snapshot_end", cas=9))
    assert watching.begin() is None
    assert watching.query == {"after": 9}


def test_what_is_gone_is_an_error() -> None:
    with pytest.raises(CoordinatorError) as caught:
        Watch(1, {}).receive(sent("compacted", oldest=30))
    assert (caught.value.code, caught.value.details) == ("compacted", {"oldest": 30})


def test_pauses_grow_until_something_is_heard() -> None:
    watching = Watch("now", {})
    pauses = [watching.pause_s() for _ in range(8)]
    assert pauses[:3] == [FIRST_PAUSE_S, 2 * FIRST_PAUSE_S, 4 * FIRST_PAUSE_S]
    assert pauses[-1] == PAUSE_MAX_S
    watching.receive(sent("bookmark", cas=1))
    assert watching.pause_s() == FIRST_PAUSE_S


@pytest.mark.parametrize(
    ("status", "code", "is_final"),
    [
        (400, "invalid_request", True),
        (410, "compacted", True),
        (404, "not_found", True),
        (503, "not_ready", False),
        (503, "overloaded", False),
        (500, "internal", False),
        (504, "timeout", False),
        (408, "timeout", False),
    ],
)
def test_only_what_asking_again_cannot_mend_is_final(
    status: int, code: str, is_final: bool
) -> None:
    error = {"code": code, "message": "no", "details": {"n": 1}}
    found = refusal_of(status, json.dumps({"error": error}).encode())
    assert (found is not None) == is_final
    if found is not None:
        assert (found.code, found.message, found.details) == (code, "no", {"n": 1})


@pytest.mark.parametrize("content", [b"", b"<html>", b"[]", b'{"error": 3}'])
def test_an_answer_of_something_else_is_final_where_it_is_a_refusal(content: bytes) -> None:
    found = refusal_of(404, content)
    assert found is not None
    assert found.code == "bad_response"
    assert refusal_of(502, content) is None


# -- waiting for an index ------------------------------------------------------------------------


def an_index(state: str, reason: str | None = None) -> dict[str, Any]:
    return {"id": "7", "state": state, "reason": reason}


def changed(cas: int, index: dict[str, Any] | None) -> dict[str, Any]:
    return {"type": "change", "cas": cas, "dropped": index is None, "value": index}


def test_it_waits_until_the_index_has_the_state_and_tells_its_version() -> None:
    waiting = StateWait(7, "maintenance", None)
    assert waiting.filters == {"key": "index/7"}
    assert waiting.check(an_index("ready"), 3) is None
    assert waiting.receive(changed(5, an_index("backfill"))) is None
    assert waiting.receive({"type": "bookmark", "cas": 6}) is None
    done = an_index("maintenance")
    assert waiting.receive(changed(9, done)) == {"index": done, "cas": 9}


@pytest.mark.parametrize(
    ("index", "code"),
    [
        (an_index("error", "disk full"), "index_failed"),
        (an_index("dropping"), "index_not_found"),
        (None, "index_not_found"),
    ],
)
def test_it_does_not_wait_for_what_cannot_come_any_more(
    index: dict[str, Any] | None, code: str
) -> None:
    waiting = StateWait(7, "maintenance", None)
    with pytest.raises(CoordinatorError) as caught:
        waiting.receive(changed(5, index))
    assert caught.value.code == code


def test_an_end_may_be_waited_for_as_well() -> None:
    assert StateWait(7, "dropping", None).receive(changed(5, an_index("dropping"))) is not None
    assert StateWait(7, "error", None).receive(changed(5, an_index("error", "why"))) is not None


def test_it_gives_up_after_its_time_and_says_what_it_saw() -> None:
    waiting = StateWait(7, "maintenance", -1.0)
    assert waiting.check(an_index("backfill"), 3) is None
    with pytest.raises(CoordinatorError) as caught:
        waiting.receive(None)
    assert (caught.value.code, caught.value.details) == ("timeout", {"state": "backfill"})


def bookmark(cas: int) -> dict[str, Any]:
    return {"type": "bookmark", "cas": cas}


def test_what_no_node_took_is_acknowledged_again_with_the_next_bookmark() -> None:
    """Where nothing happens any more, there is no higher CAS that would stand for it."""
    receiving = Receiving("/v1/topics/t/subscriptions/a", acknowledges=True)
    assert receiving.handled(bookmark(7)) == 7
    assert receiving.handled(bookmark(7)) == 7
    receiving.acknowledged(7)
    assert receiving.handled(bookmark(7)) is None
    assert receiving.handled(bookmark(9)) == 9


def test_an_end_leaves_nothing_to_acknowledge() -> None:
    receiving = Receiving("/v1/topics/t/subscriptions/a", acknowledges=True)
    receiving.handled({"type": "change", "cas": 7})
    assert receiving.unacknowledged() == 7
    assert receiving.handled({"type": "expired", "cas": 9}) is None
    assert (receiving.unacknowledged(), receiving.has_ended) == (None, True)


def test_who_keeps_what_it_was_told_acknowledges_nothing() -> None:
    receiving = Receiving("/v1/topics/t/subscriptions/a", acknowledges=False)
    assert receiving.handled(bookmark(7)) is None
    assert receiving.unacknowledged() is None
