"""What the headers of records tell."""

from __future__ import annotations

import pytest

from coordinator.core.model.types import Cas, Offset
from coordinator.kafka.settings import Base, decode_base


def test_a_base_comes_back() -> None:
    base = Base(Cas(7), 1, Offset(2**62))
    assert decode_base(base.encode()) == base


@pytest.mark.parametrize("text", [b"", b"1 2", b"1 2 x", b"1 2 -3", b"1 2 " + b"9" * 5_000])
def test_a_header_that_is_no_base_is_none(text: bytes) -> None:
    assert decode_base(text) is None
