"""Documents of the kinds that there are, and indexes on them, for tests of the data plane."""

from __future__ import annotations

import random
from typing import Any

from tests.integration.travel_specs import BY_CITY, BY_NAME, BY_TAG, HIGH
from tests.support.oracle import Document, Spec, get

PRIMARY = Spec("#primary", (), lambda name, d: (name,))
BY_COUNTRY = Spec(
    "by_country",
    ("country",),
    lambda name, d: (get(d, "country"),),
    options={"slices": 6, "partitioning": "range", "bounds": [["F"], ["R"]]},
)
SPECS = (PRIMARY, BY_CITY, BY_NAME, HIGH, BY_COUNTRY, BY_TAG)


def a_document(chance: random.Random) -> Document:
    """Return a document of the kinds that there are: whole, with holes, and of odd types."""
    odd: list[Any] = [None, True, 5, -2.5, "", "Zürich", [1, "a"], {"a": 1}]
    document: dict[str, Any] = {"country": chance.choice("ABFGRSZ"), "city": chance.choice("xyz")}
    document["name"] = f"Port {chance.randrange(50)}"
    document["elevation"] = chance.randrange(-100, 14_000)
    document["tags"] = chance.choices(["Hub", "hub", "Sea", "no", None, 7], k=chance.randrange(5))
    for field in list(document):
        dice = chance.random()
        if dice < 0.05:
            del document[field]
        elif dice < 0.15:
            document[field] = chance.choice(odd)
    return document if chance.random() < 0.98 else chance.choice(odd)


def some_documents(chance: random.Random, count: int, of: int) -> dict[str, Document]:
    return {f"d{chance.randrange(of)}": a_document(chance) for _ in range(count)}
