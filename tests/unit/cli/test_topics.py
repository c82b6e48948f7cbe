"""`indexctl topics`: how subscriptions are shown."""

from __future__ import annotations

import pytest

from coordinator.cli import topics


@pytest.mark.parametrize(
    ("filters", "text"),
    [({}, "all"), ({"kind": ["index"], "bucket": ["a", "b"]}, "bucket=a,b kind=index")],
)
def test_a_filter_says_what_it_lets_through(filters: dict[str, list[str]], text: str) -> None:
    assert topics._shown(filters) == text
