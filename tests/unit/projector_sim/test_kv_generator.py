"""Laws of the documents that are made up, and those of the airports."""

from __future__ import annotations

import json
from collections import Counter
from itertools import islice

import pytest

from projector_sim.kv.airports import airports
from projector_sim.kv.generator import Generator
from projector_sim.kv.layout import KEY_BYTES_MAX


def test_the_same_seed_gives_the_same_bytes_and_another_one_others() -> None:
    assert Generator(1, 10).document(3, 2) == Generator(1, 99).document(3, 2)
    assert Generator(1, 10).document(3, 2) != Generator(2, 10).document(3, 2)
    for skew in (0.0, 1.1):
        one, same, other = (
            list(Generator(seed, 50, skew=skew).changes(100, 0.1)) for seed in (7, 7, 8)
        )
        assert one == same != other


def test_a_document_is_the_same_on_every_machine() -> None:
    """What was measured with these documents stays comparable: a change of them is a decision."""
    assert Generator(42, 1).document(0, 0).decode() == EXAMPLE


@pytest.mark.parametrize("size_bytes", [400, 500, 5000])
def test_documents_are_json_of_about_the_size_that_was_asked_for(size_bytes: int) -> None:
    generator = Generator(1, 300, size_bytes)
    for number, change in enumerate(generator.load()):
        assert change.value is not None
        assert abs(len(change.value) - size_bytes) <= 2
        document = json.loads(change.value)
        assert document["number"] == number
        assert 18 <= document["age"] <= 90
        assert 0 <= document["price"] < 1000
        assert len(set(document["tags"])) == 2


def test_a_size_below_that_of_the_fields_gives_the_fields_alone() -> None:
    assert max(len(change.value or b"") for change in Generator(1, 300, 0).load()) < 350


def test_a_field_has_its_few_values_or_is_missing_now_and_then() -> None:
    documents = [json.loads(change.value or b"") for change in Generator(1, 2000).load()]
    cities = Counter(document["city"] for document in documents)
    assert len(cities) > 30
    assert max(cities.values()) < 120
    assert 500 < sum("nickname" not in document for document in documents) < 850


def test_a_skew_prefers_few_documents_and_none_prefers_no_one() -> None:
    hottest = []
    for skew in (0.0, 1.0):
        changed = Counter(change.key for change in Generator(1, 100, skew=skew).changes(10_000))
        hottest.append(changed.most_common(1)[0][1])
        assert len(changed) == 100
    assert hottest[0] < 160
    assert 1700 < hottest[1] < 2200  # 1 of the sum of 1/n up to 100, which is 5.19


def test_the_share_of_deletions_is_as_asked_for() -> None:
    changes = list(Generator(1, 100).changes(2000, deletions=0.25))
    assert 400 < sum(change.value is None for change in changes) < 600


@pytest.mark.thorough
def test_the_airports_have_one_document_each() -> None:
    documents = {change.key: json.loads(change.value or b"") for change in airports()}
    assert len(documents) > 20_000
    assert all(len(key) <= KEY_BYTES_MAX for key in documents)
    kennedy = documents[b"airport::KJFK"]
    assert (kennedy["iata"], kennedy["country"]) == ("JFK", "US")
    assert abs(kennedy["lat"] - 40.64) < 0.01
    assert any("iata" not in document for document in documents.values())


@pytest.mark.thorough
def test_the_airports_come_in_the_same_order_each_time() -> None:
    keys = [change.key for change in islice(airports(), 100)]
    assert keys == sorted(keys)


EXAMPLE = (
    '{"type":"user","number":0,"version":0,"name":"Grace Knuth","email":"grace.0@example.com"'
    ',"city":"Boston","country":"US","age":60,"price":698.25,"active":false,"tags":["news","c'
    'ars"],"nickname":"Gr50","joined_ms":1639363330580,"text":"the quick brown fox jumps over'
    " the lazy dog and runs away through the silent forest the quick brown fox jumps over the"
    " lazy dog and runs away through the silent forest the quick brown fox jumps over the laz"
    'y dog and runs away through the silent forest the quick br"}'
)
