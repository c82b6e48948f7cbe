"""Types of arguments that several command lines have."""

from __future__ import annotations

import argparse

import pytest

from coordinator.runtime.arguments import duration_ms


@pytest.mark.parametrize(
    ("text", "ms"), [("1s", 1_000), ("90m", 5_400_000), ("12h", 43_200_000), ("30d", 2_592_000_000)]
)
def test_a_duration_is_a_number_and_a_unit(text: str, ms: int) -> None:
    assert duration_ms(text) == ms


@pytest.mark.parametrize(
    "text", ["", "d", "30", "0s", "-1d", "1.5h", "1w", " 1d", "1d ", "1d1h", "1e3s", "9" * 30 + "d"]
)
def test_anything_else_is_none(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        duration_ms(text)
