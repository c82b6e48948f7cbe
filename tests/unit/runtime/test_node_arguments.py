"""The command line of a node: what no node can be is refused before anything is done."""

from __future__ import annotations

import pytest

from coordinator.core.consensus.peers import impossible
from coordinator.process import NODES_MAX, options
from tests.support.lone_node import other_beat

GIVEN = {
    "--node": "1",
    "--roster": "3,1,2",
    "--cluster": "c",
    "--bootstrap-servers": "h:1",
    "--data-dir": "d",
    "--port": "8600",
}


def parsed(**changed: str) -> object:
    given = {**GIVEN, **{f"--{name.replace('_', '-')}": text for name, text in changed.items()}}
    return options().parse_args([word for pair in given.items() for word in pair])


def test_a_roster_is_told_in_any_order() -> None:
    assert vars(parsed())["roster"] == (1, 2, 3)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("node", text) for text in ("0", "-1", "251", "x", "1.0", "9" * 5_000)),
        *(("roster", text) for text in ("", "0", "1,1", "1,,2", "251", "1;2")),
        *(("port", text) for text in ("0", "-1", "65536", "99999999999999999999")),
        *(("heartbeat_ms", text) for text in ("0", "-5", "nan", "1e3", "99999999999999999999")),
        *(("snapshot_bytes", text) for text in ("0", "-1")),
        *(("replication_factor", text) for text in ("0", "99999")),
        *(("cluster", text) for text in ("", "a/b", "a b", "é")),
    ],
)
def test_what_no_node_can_be_is_refused(
    name: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        parsed(**{name: text})
    assert ended.value.code == 2
    assert f"--{name.replace('_', '-')}" in capsys.readouterr().err


def test_every_node_that_can_be_started_is_heard() -> None:
    """A node that does not hear its own heartbeats ends itself, again and again."""
    assert not impossible(other_beat(NODES_MAX))
    assert impossible(other_beat(NODES_MAX + 1))
