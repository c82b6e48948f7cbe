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


def _tags(document: Any) -> list[Any]:
    tags = get(document, "tags")
    if not isinstance(tags, list):
        return [ABSENT if tags is ABSENT else None]
    return [_lower(tag) for tag in tags if tag is not None and tag != "no"]


BY_TAG = Spec(
    "by_tag",
    ("DISTINCT ARRAY LOWER(t) FOR t IN tags WHEN t <> 'no' END", "country"),
    lambda name, d: (get(d, "country"),),
    options={"slices": 3, "replicas": 1},
    each=_tags,
)


HIGH = Spec(
    "high",
    ("elevation DESC", "country"),
    lambda name, d: (get(d, "elevation"), get(d, "country")),
    "elevation > 5000",
    lambda d: get(d, "elevation") not in (ABSENT, None) and compare(get(d, "elevation"), 5000) > 0,
    (True, False),
)
