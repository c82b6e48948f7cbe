"""`indexctl plot`: the lag of the timestamps over time, from what `timestamps --record` wrote.

Two panels over the same time: how many seqnos and how many seconds the stability timestamp of each
bucket is behind. Where nothing was known, a line is interrupted. The same recording gives the same
picture.
"""

import json
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from coordinator.cli.output import CommandError, plain, print_json
from coordinator.cli.session import Session, command
from coordinator.cli.timestamps import lag_of

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = (".png", ".svg")
WIDTH_IN, HEIGHT_IN = 6.3, 4.8
"""The text width of a printed page."""

DPI = 300
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
"""Okabe and Ito's: told apart by the colour-blind."""

STYLES = ("-", "--", "-.", ":")
"""The next one with each line: told apart without colour, too."""

STYLE: Any = {
    "font.size": 9.0,
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "grid.color": "#dddddd",
    "grid.linewidth": 0.6,
    "lines.linewidth": 1.6,
    "legend.frameon": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "lag",
}
LEGEND_COLUMNS, LEGEND_MAX = 4, 28


class Series(NamedTuple):
    """The lag of one bucket: a value for each refresh, not a number where it was not known."""

    bucket: str
    seqnos: list[float]
    seconds: list[float]


class Recording(NamedTuple):
    """What was recorded: when each refresh was, in milliseconds since 1970, and every bucket."""

    at_ms: list[int]
    series: list[Series]


def add_to(root: typer.Typer) -> None:
    """Add it to the root command."""
    command(root, "plot", local=True)(plot)


def plot(
    session: Session,
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A recording of `timestamps --record`.")
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", help="The picture: .png or .svg.")
    ],
    bucket: Annotated[
        list[str] | None,
        typer.Option("--bucket", "-b", help="Only this one; repeat for more (default: all)."),
    ] = None,
) -> None:
    """Draw the lag of the stability timestamps over time, in seqnos and in seconds.

    indexctl timestamps --watch --record lag.jsonl

    indexctl plot lag.jsonl -o lag.png
    """
    if output.suffix.lower() not in FORMATS:
        raise CommandError("usage", f"{output} ends with neither {' nor '.join(FORMATS)}")
    try:
        with file.open(encoding="utf-8", errors="replace") as lines:
            found = read(lines, bucket)
    except OSError as error:
        raise CommandError("unreadable", f"{file}: {error.strerror}") from error
    figure = draw(found)
    try:
        save(figure, output)
    except OSError as error:
        raise CommandError("unwritable", f"{output}: {error.strerror}") from error
    if session.json:
        print_json(
            {
                "plot": str(output),
                "refreshes": len(found.at_ms),
                "buckets": [one.bucket for one in found.series],
            }
        )
    else:
        typer.echo(plain(f"{output}: {len(found.series)} buckets, {len(found.at_ms)} refreshes"))


def read(lines: Iterable[str], buckets: list[str] | None = None) -> Recording:
    """Return what was recorded of some buckets, or of all. A last line may be cut off.

    CommandError `bad_recording`: a line that is none; `nothing_to_plot`.
    """
    refreshes = _refreshes(lines)
    names = sorted({name for _, known in refreshes for name in known})
    if buckets is not None:
        names = [name for name in names if name in buckets]
    unknown = (math.nan, math.nan)
    series = []
    for name in names:
        both = [known.get(name, unknown) for _, known in refreshes]
        series.append(Series(name, [one for one, _ in both], [one for _, one in both]))
    if not any(math.isfinite(value) for one in series for value in one.seqnos):
        raise CommandError("nothing_to_plot", "no lag of any of the buckets was recorded")
    return Recording([at_ms for at_ms, _ in refreshes], series)


def _refreshes(lines: Iterable[str]) -> list[tuple[int, dict[str, tuple[float, float]]]]:
    """Return of each refresh its time, and the lag of each bucket: in seqnos, and in seconds."""
    found: list[tuple[int, dict[str, tuple[float, float]]]] = []
    for number, line in enumerate(lines, 1):
        if not line.endswith("\n"):
            break  # It was being written when the recording ended.
        try:
            body = json.loads(line)
            at_ms = int(body["at_ms"])
            known = {str(one["bucket"]): _lag(one) for one in body.get("buckets", [])}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            text = f"line {number} is no refresh of `indexctl timestamps --record`"
            raise CommandError("bad_recording", text, {"line": number}) from error
        found.append((at_ms, known))
    return sorted(found, key=lambda one: one[0])


def _lag(bucket: dict[str, Any]) -> tuple[float, float]:
    """Return the lag of a bucket in seqnos and in seconds, if anything is known."""
    seqnos, ms = lag_of(bucket)
    return math.nan if seqnos is None else float(seqnos), math.nan if ms is None else ms / 1000


def draw(found: Recording) -> "Figure":
    """Return the picture. CommandError `plots_missing`: there is no matplotlib."""
    try:
        import matplotlib
    except ImportError as error:
        text = "plots need matplotlib: pip install 'index-coordinator[plots]'"
        raise CommandError("plots_missing", text) from error
    matplotlib.use("Agg")
    from matplotlib.figure import Figure

    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH_IN, HEIGHT_IN), layout="constrained")
        upper, lower = figure.subplots(2, 1, sharex=True)
        unit, size_ms = _unit(found.at_ms[-1] - found.at_ms[0])
        times = [(at_ms - found.at_ms[0]) / size_ms for at_ms in found.at_ms]
        for place, one in enumerate(found.series):
            # No marker, unless a line has no length.
            drawn: dict[str, Any] = {
                "color": COLOURS[place % len(COLOURS)],
                "linestyle": STYLES[place % len(STYLES)],
                "marker": "o" if len(times) == 1 else None,
            }
            upper.plot(times, one.seqnos, label=one.bucket, **drawn)
            lower.plot(times, one.seconds, **drawn)
        _label(upper, "seqnos")
        _label(lower, "seconds")
        began = datetime.fromtimestamp(found.at_ms[0] / 1000, UTC)
        lower.set_xlabel(f"{unit} since {began:%Y-%m-%d %H:%M:%S} UTC")
        upper.set_title("Lag of the stability timestamps", loc="left", fontsize=10)
        figure.align_ylabels()
        _add_legend(figure, len(found.series))
    return figure


def _label(axes: "Axes", unit: str) -> None:
    """Name the vertical axis; it begins at 0."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.set_ylabel(f"lag in {unit}")
    top = axes.get_ylim()[1]
    axes.set_ylim(0, top if top > 0 else 1)
    axes.margins(x=0.01)
    if unit == "seqnos":
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _add_legend(figure: "Figure", count: int) -> None:
    """Add a legend below; of very many buckets, of the first ones."""
    # Not by itself: it would leave out a name that begins with an underscore.
    handles = list(figure.axes[0].lines)[:LEGEND_MAX]
    names = [str(line.get_label()) for line in handles]
    if count > LEGEND_MAX:
        names[-1] += f" … and {count - LEGEND_MAX} more"
    columns = min(LEGEND_COLUMNS, len(names))
    legend = figure.legend(handles, names, loc="outside lower center", ncols=columns)
    for text in legend.get_texts():
        text.set_parse_math(False)


def _unit(span_ms: int) -> tuple[str, int]:
    """Return the unit in which a span of time is read best, and its milliseconds."""
    for unit, size_ms in (("hours", 3_600_000), ("minutes", 60_000)):
        if span_ms >= 3 * size_ms:
            return unit, size_ms
    return "seconds", 1_000


def save(figure: "Figure", output: Path) -> None:
    """Write the picture, in the format that the file's name says. Raises OSError."""
    import matplotlib

    kind = output.suffix.lower()[1:]
    with matplotlib.rc_context(STYLE):
        figure.savefig(
            output,
            format=kind,
            dpi=DPI,
            metadata={"Date": None} if kind == "svg" else {"Software": None},
        )
