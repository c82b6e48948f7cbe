"""Plots of the lag: what is read of a recording, and what a picture of it shows."""

from __future__ import annotations

import json
import math
import re
import sys
import xml.etree.ElementTree as ET
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from coordinator.cli import plot, timestamps
from coordinator.cli.main import app
from coordinator.cli.output import CommandError

AT_MS = 1_700_000_000_000
BACKSLASHED = "a_b$x^2$"


def indexctl(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def bucket(name: str, seqnos: int | None, ms: int | None = 500) -> dict[str, Any]:
    lag = None if seqnos is None else {"high": 9, "seqnos": seqnos, "ms": ms, "indexers": []}
    return {"bucket": name, "stability": {"number": 1}, "lag": lag}


def body(second: int, *buckets: dict[str, Any]) -> str:
    return json.dumps({"at_ms": AT_MS + second * 1000, "node": 1, "buckets": buckets}) + "\n"


def error(second: int) -> str:
    away = {"code": "no_master", "message": "nobody"}
    return json.dumps({"at_ms": AT_MS + second * 1000, "error": away}) + "\n"


@pytest.fixture
def recording(tmp_path: Path) -> Path:
    """Ten minutes of two buckets, in which a node was away once."""
    file = tmp_path / "lag.jsonl"
    lines = [body(n, bucket("travel", n), bucket(BACKSLASHED, 2 * n)) for n in range(0, 600, 10)]
    lines[20] = error(200)
    file.write_text("".join(lines) + '{"at_ms": 17')
    return file


def texts(svg: Path) -> set[str]:
    return {
        "".join(one.itertext()) for one in ET.parse(svg).iter("{http://www.w3.org/2000/svg}text")
    }


@pytest.mark.thorough
def test_a_plot_names_its_axes_and_buckets(recording: Path, tmp_path: Path) -> None:
    svg = tmp_path / "lag.svg"
    done = indexctl("plot", str(recording), "-o", str(svg), "--json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "plot": str(svg),
        "refreshes": 60,
        "buckets": [BACKSLASHED, "travel"],
    }
    shown = texts(svg)
    assert {"lag in seqnos", "lag in seconds", "travel", BACKSLASHED} <= shown
    assert "minutes since 2023-11-14 22:13:20 UTC" in shown
    assert "1,000" in shown


@pytest.mark.thorough
def test_the_same_recording_gives_the_same_picture(recording: Path, tmp_path: Path) -> None:
    for suffix in ("svg", "png"):
        pictures = [tmp_path / f"{n}.{suffix}" for n in range(2)]
        for picture in pictures:
            assert indexctl("plot", str(recording), "-o", str(picture)).exit_code == 0
        assert pictures[0].read_bytes() == pictures[1].read_bytes()


@pytest.mark.thorough
def test_a_png_fits_a_page_in_print(recording: Path, tmp_path: Path) -> None:
    png = tmp_path / "lag.png"
    assert indexctl("plot", str(recording), "-o", str(png)).exit_code == 0
    data = png.read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    size = [int.from_bytes(data[at : at + 4], "big") for at in (16, 20)]
    assert size == [round(plot.WIDTH_IN * plot.DPI), round(plot.HEIGHT_IN * plot.DPI)]


@pytest.mark.thorough
def test_only_chosen_buckets_are_drawn(recording: Path, tmp_path: Path) -> None:
    svg = tmp_path / "lag.svg"
    assert indexctl("plot", str(recording), "-o", str(svg), "-b", "travel").exit_code == 0
    assert "travel" in texts(svg)
    assert BACKSLASHED not in texts(svg)


def test_a_line_is_interrupted_where_nothing_was_known() -> None:
    found = plot.read(
        [
            body(0, bucket("a", 5)),
            error(1),
            body(2, bucket("a", None)),
            body(3, {**bucket("a", 1), "stability": None}),
            body(4, bucket("a", 7, None), bucket("b", 1)),
        ]
    )
    a, b = found.series
    assert [n for n, one in enumerate(a.seqnos) if math.isfinite(one)] == [0, 4]
    assert [n for n, one in enumerate(a.seconds) if math.isfinite(one)] == [0]
    assert [n for n, one in enumerate(b.seqnos) if math.isfinite(one)] == [4]
    assert found.at_ms[1] == AT_MS + 1000


@pytest.mark.thorough
def test_many_buckets_and_a_single_refresh_can_be_drawn(tmp_path: Path) -> None:
    found = plot.read([body(0, *(bucket(f"b{n:02}", n) for n in range(40)))])
    plot.save(plot.draw(found), tmp_path / "lag.svg")
    assert any(re.search("and 12 more", text) for text in texts(tmp_path / "lag.svg"))


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("", "nothing_to_plot"),
        (error(0), "nothing_to_plot"),
        (body(0, bucket("a", None)), "nothing_to_plot"),
        (body(0, bucket("a", 1)) + "what\n", "bad_recording"),
        ('{"buckets": []}\n', "bad_recording"),
        ("[]\n", "bad_recording"),
    ],
)
def test_what_cannot_be_drawn_is_refused(tmp_path: Path, text: str, code: str) -> None:
    file = tmp_path / "lag.jsonl"
    file.write_text(text)
    done = indexctl("plot", str(file), "-o", str(tmp_path / "lag.svg"))
    assert done.exit_code == 1
    assert f"[{code}]" in done.stderr


@pytest.mark.thorough
def test_files_that_cannot_be_used_are_refused(recording: Path, tmp_path: Path) -> None:
    assert indexctl("plot", str(recording), "-o", "lag.pdf").exit_code == 2
    assert "[unreadable]" in indexctl("plot", str(tmp_path), "-o", "lag.svg").stderr
    missing = str(tmp_path / "none" / "lag.svg")
    assert "[unwritable]" in indexctl("plot", str(recording), "-o", missing).stderr


def test_without_matplotlib_it_says_what_to_install(
    recording: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    done = indexctl("plot", str(recording), "-o", str(tmp_path / "lag.svg"))
    assert done.exit_code == 1
    assert "index-coordinator[plots]" in done.stderr
    assert "[plots_missing]" in done.stderr


def test_each_refresh_is_appended_with_its_time(tmp_path: Path) -> None:
    file = tmp_path / "lag.jsonl"
    bodies = [json.loads(body(n, bucket("a", n))) for n in range(3)]
    for one in bodies:
        del one["at_ms"]
    assert list(timestamps._recorded(iter(bodies[:2]), file)) == bodies[:2]
    assert list(timestamps._recorded(iter(bodies[2:]), file)) == bodies[2:]
    found = [json.loads(line) for line in file.read_text().splitlines()]
    times = [one.pop("at_ms") for one in found]
    assert found == bodies
    assert times == sorted(times)
    assert plot.read(file.read_text().splitlines(keepends=True)).series[0].seqnos == [0, 1, 2]
    with pytest.raises(CommandError, match="directory"):
        next(timestamps._recorded(iter(bodies), tmp_path))
