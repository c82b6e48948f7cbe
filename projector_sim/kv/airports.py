"""The airports of the world as documents: the example that everybody knows where to look up."""

from __future__ import annotations

import json
from collections.abc import Iterator

import airportsdata

from projector_sim.kv.layout import Change


def airports() -> Iterator[Change]:
    """Yield one document an airport, by its ICAO code; what is not known of it is missing."""
    for icao, airport in sorted(airportsdata.load("ICAO").items()):
        document: dict[str, object] = {"type": "airport"}
        document |= {name: value for name, value in airport.items() if value != ""}
        text = json.dumps(document, ensure_ascii=False, separators=(",", ":"))
        yield Change(f"airport::{icao}".encode(), text.encode())
