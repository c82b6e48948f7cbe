"""The traffic of `indexctl mutate`: which documents it chooses, and what it does to them."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coordinator.cli.kv import parse_vbuckets
from coordinator.cli.mutate import Mix, Traffic, zipf
from coordinator.cli.output import CommandError

ALL = Mix(updates=0.6, deletes=0.2, inserts=0.2)


def documents(count: int) -> list[tuple[str, Any]]:
    return [(f"user::{n}", {"number": n, "city": f"c{n % 3}", "age": n % 50}) for n in range(count)]


def made(traffic: Traffic, count: int) -> list[dict[str, Any]]:
    return [json.loads(line) for line in traffic.lines(count).splitlines()]


@given(
    st.floats(0, 1, exclude_max=True),
    st.integers(1, 10**6),
    st.sampled_from([0.0, 0.5, 1.0, 1.1, 3.0]),
)
def test_a_choice_is_always_one_of_those_that_there_are(
    chance: float, count: int, skew: float
) -> None:
    assert 0 <= zipf(chance, count, skew) < count


def test_the_more_skew_the_more_of_it_goes_to_few() -> None:
    shares = [
        sum(zipf(n / 10_000, 1000, skew) < 10 for n in range(10_000)) for skew in (0, 0.5, 1, 1.5)
    ]
    assert 80 < shares[0] < 120
    assert shares == sorted(shares)
    assert shares[-1] > 5000


def test_the_same_seed_makes_the_same_traffic() -> None:
    first, second, other = (
        Traffic(documents(50), ALL, skew=1.1, seed=seed).lines(300) for seed in ("1", "1", "2")
    )
    assert first == second != other


def test_traffic_changes_documents_that_are_there_and_tells_what_it_did() -> None:
    there = dict(documents(40))
    traffic = Traffic(documents(40), ALL, skew=1.1, seed="1")
    counts: Counter[str] = Counter()
    for line in made(traffic, 400):
        if "deleted" in line:
            del there[line["id"]]
            counts["deleted"] += 1
            continue
        counts["updated" if line["id"] in there else "inserted"] += 1
        there[line["id"]] = line["doc"]
    assert counts == traffic.done
    assert min(counts.values()) > 0


def test_what_the_id_says_of_a_document_stays_and_values_are_such_as_there_were() -> None:
    traffic = Traffic(documents(60), Mix(1, 0, 0), skew=0.0, seed="1")
    changed = 0
    for line in made(traffic, 300):
        number = int(line["id"].removeprefix("user::"))
        assert line["doc"]["number"] == number
        assert line["doc"]["city"] in ("c0", "c1", "c2")
        assert line["doc"]["age"] < 50
        changed += line["doc"] != dict(documents(60))[line["id"]]
    assert changed > 100


def test_where_everything_is_deleted_the_traffic_ends() -> None:
    traffic = Traffic(documents(5), Mix(0, 1, 0), skew=1.0, seed="1")
    assert len(made(traffic, 100)) == 5
    assert traffic.lines(1) == b""


def test_a_mix_of_nothing_is_refused() -> None:
    with pytest.raises(CommandError):
        Mix(0, 0, 0)


def test_vbuckets_are_named_by_numbers_and_ranges() -> None:
    assert parse_vbuckets("0-3, 7,2") == [0, 1, 2, 3, 7]
    assert parse_vbuckets(None) is None
    for text in ("", "x", "1-", "-1", "99999"):
        with pytest.raises(CommandError):
            parse_vbuckets(text)
