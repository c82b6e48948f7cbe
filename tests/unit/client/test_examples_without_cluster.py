"""The examples where no cluster answers: one line that says so, and no success."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[3] / "examples"
NOBODY = "127.0.0.1:9"

BEFORE = """
import runpy, sys
from coordinator.client.client import AsyncClient, Client
from coordinator.client.kafka_watch import KafkaWatch
from coordinator.client.publisher import Publisher

for made in (Client, AsyncClient):
    made.__init__.__kwdefaults__["deadline_s"] = 0.3
for made in (KafkaWatch, Publisher):
    made.__init__.__kwdefaults__["first_contact_s"] = 0.3
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs an example with short default deadlines, and as the shell does otherwise."""

COMMANDS = {
    "auditor": ["5"],
    "kafka_watch": [NOBODY, "a-cluster", "FILE"],
    "lock": ["nightly", "ada"],
    "orders": [NOBODY],
    "publish_ddl": [NOBODY],
    "topology_copy": ["FILE"],
}


def test_every_example_is_run() -> None:
    assert {file.stem for file in EXAMPLES.glob("*.py")} == set(COMMANDS)


@pytest.mark.thorough
@pytest.mark.parametrize("name", COMMANDS)
def test_an_example_says_in_one_line_that_no_cluster_answers(name: str, tmp_path: Path) -> None:
    arguments = [str(tmp_path / "file") if one == "FILE" else one for one in COMMANDS[name]]
    command = [sys.executable, "-c", BEFORE, str(EXAMPLES / f"{name}.py"), *arguments]
    environment = {**os.environ, "INDEXCTL_URL": f"http://{NOBODY}"}
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env=environment
    )
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert "answers at" in line
    assert NOBODY in line
    assert line.endswith(" [unreachable]")
