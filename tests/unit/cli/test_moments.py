"""Moments as people write them: a time in any zone, or an age."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from coordinator.cli.moments import cas_in, moment, moment_utc, ms_of
from coordinator.cli.output import CommandError


@pytest.fixture(params=["UTC", "Asia/Tokyo", "America/New_York"])
def _zone(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("zone", "text"),
    [
        ("Asia/Tokyo", "0001-01-01"),
        ("Asia/Tokyo", "9999-12-31T23:59:59"),
        ("UTC", "9" * 5_000 + "d"),
        ("UTC", ""),
    ],
    ids=["first", "last", "age", "empty"],
)
def test_what_no_clock_shows_is_a_usage_error(
    monkeypatch: pytest.MonkeyPatch, zone: str, text: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setenv("TZ", zone)
        time.tzset()
        with pytest.raises(CommandError) as caught:
            ms_of(text, "--at")
    time.tzset()
    assert caught.value.code == "usage"


@pytest.mark.usefixtures("_zone")
def test_a_time_with_a_zone_is_the_same_everywhere() -> None:
    assert ms_of("1970-01-01T01:00+01:00", "--at") == ms_of("1970-01-01T00:00Z", "--at") == 0
    assert ms_of("1970-01-02T00:00Z", "--at") == 86_400_000


@pytest.mark.parametrize("text", ["999999999d", "99999999999999d", "9999999999999999999h"])
def test_an_age_before_all_times_is_the_first_moment(text: str) -> None:
    assert ms_of(text, "--at") == 0


def test_a_number_without_an_end_is_no_cas() -> None:
    assert (cas_in("12", "A"), cas_in("12h", "A"), cas_in("", "A")) == (12, None, None)
    with pytest.raises(CommandError) as caught:
        cas_in("9" * 5_000, "A")
    assert caught.value.code == "usage"


@pytest.mark.parametrize("at_ms", [253_402_400_000_000, 2**62, -(2**62)])
def test_a_time_that_no_calendar_has_is_shown_in_ms(at_ms: int) -> None:
    assert moment(at_ms) == moment_utc(at_ms) == f"{at_ms} ms"


@pytest.mark.usefixtures("_zone")
def test_a_time_in_utc_is_the_same_everywhere_and_says_so() -> None:
    assert moment_utc(1_795_602_936_153) == "2026-11-25 10:35:36 UTC"
