"""The indexes that tests of the data plane build."""

from __future__ import annotations

from typing import Any

from tests.support.oracle import ABSENT, Spec, compare, get


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value if value is ABSENT else None


BY_CITY = Spec("by_city", ("country", "city"), lambda name, d: (get(d, "country"), get(d, "city")))


BY_NAME = Spec(
    "by_name",
    ("LOWER(name)",),
    lambda name, d: (_lower(get(d, "name")),),
    options={"slices": 3, "replicas": 1},
)


HIGH = Spec(
    "high",
    ("elevation DESC", "country"),
    lambda name, d: (get(d, "elevation"), get(d, "country")),
    "elevation > 5000",
    lambda d: get(d, "elevation") not in (ABSENT, None) and compare(get(d, "elevation"), 5000) > 0,
    (True, False),
)
