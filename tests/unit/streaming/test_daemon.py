"""The daemon of Spark's Python workers: what it leaves of the path, where Spark is and is not."""

from __future__ import annotations

import importlib
import runpy
import sys
from pathlib import Path

import pytest

from streaming.spark import daemon

ARCHIVES = ["/spark/pyspark.zip", "/spark/py4j-src.zip", "/spark/spark-core.jar"]


@pytest.mark.parametrize("installed", [(), ("pyspark",), ("pyspark", "py4j")])
def test_archives_stay_on_the_path_where_nothing_else_has_what_they_have(
    installed: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A packed environment may be without Spark, which sends its own to every executor."""
    for name in installed:
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    monkeypatch.setattr(sys, "path", [*ARCHIVES, str(tmp_path)])
    monkeypatch.setattr(sys, "path_importer_cache", dict.fromkeys(ARCHIVES))
    ran: list[list[str]] = []
    monkeypatch.setattr(daemon.gc, "freeze", lambda: ran.append(["freeze", *sys.path]))
    monkeypatch.setattr(importlib, "import_module", lambda name: ran.append([name, *sys.path]))
    monkeypatch.setattr(runpy, "run_module", lambda name, **_: ran.append([name, *sys.path]))
    daemon.main()
    left = [] if len(installed) == 2 else ARCHIVES
    names = (*daemon.LOADED, "freeze", "pyspark.daemon")
    assert ran == [[name, *left, str(tmp_path)] for name in names]
    assert [place for place in sys.path_importer_cache if place in ARCHIVES] == left
