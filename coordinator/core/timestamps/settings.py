"""How a bucket's timestamps are made: the setting `timestamps`, and `timestamps/<bucket>` over it.

Pure. A setting is a JSON object; a field that is left out keeps what it was: the bucket's own
setting lies over the one of all buckets, and that over the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import Any

from coordinator.core.model import json_text

PREFIX = "timestamps"
PROMOTION, HEARTBEAT = ALGORITHMS = ("promotion", "heartbeat")
LIMIT_MS_MIN, LIMIT_MS_MAX = 10, 3_600_000


@dataclass(frozen=True, slots=True)
class TimestampSettings:
    """The algorithm, and its period and limits in milliseconds of ticks.

    `consolidate`: the stability timestamps of several buckets may go out as one message.
    """

    algorithm: str = PROMOTION
    period_ms: int = 1_000
    begin_held_ms: int = 3_000
    end_unmatched_ms: int = 3_000
    sync_missing_ms: int = 60_000
    heartbeat_stale_ms: int = 5_000
    consolidate: bool = False


DEFAULTS = TimestampSettings()
NAMES = tuple(field.name for field in fields(TimestampSettings))


def parse(value_json: str, base: TimestampSettings = DEFAULTS) -> TimestampSettings:
    """Return `base` with the fields that a setting has. ValueError: says what is wrong."""
    given = json_text.parse_fields(value_json, NAMES)
    for name, value in given.items():
        _check(name, value)
    return replace(base, **given)


def _check(name: str, value: Any) -> None:
    if name == "algorithm":
        if value not in ALGORITHMS:
            raise ValueError(f"algorithm is {' or '.join(ALGORITHMS)}, not {value!r}")
    elif name == "consolidate":
        if type(value) is not bool:
            raise ValueError(f"consolidate is true or false, not {value!r}")
    elif type(value) is not int or not LIMIT_MS_MIN <= value <= LIMIT_MS_MAX:
        raise ValueError(f"{name} is {LIMIT_MS_MIN} to {LIMIT_MS_MAX}, not {value!r}")


def setting_name(bucket: str) -> str:
    """Return the name of a bucket's own setting."""
    return f"{PREFIX}/{bucket}"


def is_setting(name: str) -> bool:
    """Tell whether a setting is of this kind: then its value has to be one that `parse` takes."""
    return name == PREFIX or name.startswith(f"{PREFIX}/")


@lru_cache(maxsize=4_096)
def merged(default_json: str | None, bucket_json: str | None) -> TimestampSettings:
    """Return what holds for a bucket; None is a setting that is not there.

    A setting that cannot be read counts as if it were not there: what is running goes on.
    """
    return _or_base(bucket_json, _or_base(default_json, DEFAULTS))


def _or_base(value_json: str | None, base: TimestampSettings) -> TimestampSettings:
    if value_json is None:
        return base
    try:
        return parse(value_json, base)
    except ValueError:
        return base
