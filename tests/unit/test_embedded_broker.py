"""What the broker is told, and what is reported of its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from coordinator.embedded import broker_config
from coordinator.embedded.broker import new_cluster_id, useful_line
from coordinator.embedded.files import last_lines

INFO = "2026-01-01 10:00:00,000 INFO Formatting (StorageTool)"
ERROR = "2026-01-01 10:00:01,000 ERROR Exiting Kafka due to fatal exception (Kafka$)"
CAUSE = "Caused by: java.net.BindException: Address already in use"


@pytest.mark.parametrize(
    ("lines", "useful"),
    [
        ([], ""),
        ([INFO], INFO),
        ([INFO, ERROR, INFO], ERROR),
        ([ERROR, CAUSE, "\tat sun.nio.ch.Net.bind(Net.java:1)", "\t... 7 more"], CAUSE),
    ],
)
def test_the_last_line_that_tells_of_an_error_is_reported(lines: list[str], useful: str) -> None:
    assert useful_line(lines) == useful


def test_only_the_lines_of_this_start_are_reported(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert last_lines(log, 5) == []
    log.write_text("old\n")
    assert last_lines(log, 5, since_byte=4) == []
    log.write_text("old\nnew\n\nnewer\n")
    assert last_lines(log, 5, since_byte=4) == ["new", "newer"]
    assert last_lines(log, 1) == ["newer"]
    assert last_lines(log, 5, since_byte=1000) == ["old", "new", "newer"], "it was rotated"


def test_the_broker_listens_on_loopback_only_and_keeps_what_it_acknowledged() -> None:
    settings = broker_config.server_properties(1, 2, {"num.io.threads": "8"})
    assert settings["listeners"] == "PLAINTEXT://127.0.0.1:1,CONTROLLER://127.0.0.1:2"
    assert settings["unclean.leader.election.enable"] == "false"
    assert settings["auto.create.topics.enable"] == "false"
    assert settings["num.io.threads"] == "8"


@pytest.mark.parametrize("value", ["a\\b", "a\nb", "ä"])
def test_a_setting_that_the_format_would_change_is_a_bug(value: str) -> None:
    with pytest.raises(AssertionError):
        broker_config.properties_text({"key": value})


def test_a_cluster_id_is_never_taken_for_an_option() -> None:
    ids = {new_cluster_id() for _ in range(500)}
    assert len(ids) == 500
    assert all(len(one) == 22 and not one.startswith("-") for one in ids)
