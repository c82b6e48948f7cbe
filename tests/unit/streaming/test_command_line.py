"""What the applications on Spark are told on their command lines, and say before Spark starts."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from coordinator.runtime.errors import EmbeddedError
from streaming.__main__ import main, parser
from streaming.spark.session import SparkOptions, require_master, start

NEEDED = ("--cluster", "c", "--bootstrap-servers", "127.0.0.1:1", "--data-dir", "d")


@pytest.mark.parametrize("command", ["timestamps", "archive"])
@pytest.mark.parametrize(
    "master",
    ["local", "local[*]", "local[2,4]", "spark://a:7077,b:7077", "yarn", "k8s://https://h:1"],
)
def test_masters_of_spark(command: str, master: str) -> None:
    found = parser().parse_args([command, *NEEDED, "--spark-master", master])
    assert found.spark_master == master


@pytest.mark.parametrize("command", ["timestamps", "archive"])
@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--spark-master", "spork://x", "'spork://x' is no master of Spark"),
        ("--spark-master", "spark://host", "'spark://host' is no master of Spark"),
        ("--spark-conf", "foo", "'foo' is no NAME=VALUE"),
    ],
)
def test_what_spark_would_not_take_is_refused_at_once(
    command: str, option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as refused:
        parser().parse_args([command, *NEEDED, option, value])
    assert refused.value.code == 2
    assert said in capsys.readouterr().err


def test_a_master_that_spark_submit_names_is_not_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert parser().parse_args(["timestamps", *NEEDED]).spark_master == ""


def test_a_standalone_master_has_to_answer() -> None:
    with socket.create_server(("127.0.0.1", 0)) as master:
        port = master.getsockname()[1]
        require_master(f"spark://127.0.0.1:{port}")
        require_master(f"spark://127.0.0.1:1,127.0.0.1:{port}")
    for nowhere in ("spark://127.0.0.1:1", "spark://127.0.0.1:no"):
        with pytest.raises(EmbeddedError) as refused:
            require_master(nowhere)
        assert refused.value.code == "spark_unreachable"
    for other in ("", "local[2]", "yarn", "k8s://https://127.0.0.1:1"):
        require_master(other)


def test_a_data_folder_that_is_a_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(EmbeddedError) as refused:
        start(SparkOptions("c", "local[2]", file))
    assert refused.value.code == "data_folder_unusable"


@pytest.mark.parametrize("command", ["timestamps", "archive"])
def test_without_a_master_it_ends_before_spark_and_says_why(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = (*NEEDED[:-1], str(tmp_path), "--spark-master", "spark://127.0.0.1:1")
    assert main([command, *options]) == 1
    said = capsys.readouterr().err.splitlines()[-1]
    assert said.startswith(command)
    assert said.endswith("no master of Spark answers at spark://127.0.0.1:1 [spark_unreachable]")
