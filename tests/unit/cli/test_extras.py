"""A plain installation is the client: it imports nothing of what nodes and Spark need."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib import metadata

import pytest

from coordinator.cli import extras
from coordinator.cli.extras import DISTRIBUTION, require
from coordinator.cli.output import CommandError

CLIENT = (
    "coordinator.client.client",
    "coordinator.client.kafka_watch",
    "coordinator.client.publisher",
    "coordinator.codec",
    "coordinator.kafka.topics",
    "coordinator.kafka.readers",
    "coordinator.kafka.settings",
    "coordinator.language.ddl_commands",
    "coordinator.cli.main",
    *(f"coordinator.cli.{name}" for name in ("apply", "build", "kv_client", "mutate", "status")),
)
HEAVY = {"pyspark", "faust", "rocksdict", "airportsdata", "pyarrow", "fastapi", "uvicorn", "duckdb"}

BLOCKED = """
import importlib, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in BLOCKED:
            raise ModuleNotFoundError(f"{name} is not installed here", name=name)

BLOCKED = set(sys.argv[1].split(","))
sys.meta_path.insert(0, Blocked())
for name in sys.argv[2:]:
    importlib.import_module(name)
"""


def closure(distribution: str) -> set[str]:
    """Return what comes with a plain installation of a distribution, by normal names."""
    found: set[str] = set()
    waiting = [distribution]
    while waiting:
        name = re.sub(r"[-_.]+", "-", waiting.pop()).lower()
        if name in found:
            continue
        found.add(name)
        try:
            lines = metadata.requires(name) or []
        except metadata.PackageNotFoundError:
            continue  # Of another platform or Python.
        plain = (line for line in lines if "extra ==" not in line)
        waiting += [re.match(r"[\w.-]+", line).group() for line in plain]  # type: ignore[union-attr]
    return found


def blocked() -> set[str]:
    """Return the modules that a plain installation does not bring."""
    brought = closure(DISTRIBUTION)
    return {
        module
        for module, owners in metadata.packages_distributions().items()
        if not any(re.sub(r"[-_.]+", "-", owner).lower() in brought for owner in owners)
    }


@pytest.mark.thorough
def test_the_client_imports_nothing_that_a_plain_installation_leaves_out() -> None:
    names = blocked()
    assert names >= HEAVY
    argv = [sys.executable, "-c", BLOCKED, ",".join(names), *CLIENT]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # The hook does what it is for.
    argv = [sys.executable, "-c", BLOCKED, ",".join(names), "coordinator.node.store"]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert "rocksdict is not installed here" in done.stderr


def test_what_is_missing_is_said_with_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    require("server", "streaming", "plots")
    monkeypatch.setattr(extras, "_is_installed", lambda name: name not in ("rocksdict", "pyspark"))
    with pytest.raises(CommandError) as raised:
        require("server", "streaming")
    assert raised.value.code == "not_installed"
    assert "pip install 'index-coordinator[server,streaming]'" in raised.value.message
    assert raised.value.details["missing"] == ["pyspark", "rocksdict"]
    require("plots")
