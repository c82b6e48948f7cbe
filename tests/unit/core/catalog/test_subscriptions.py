"""What commands about topics yield, as tables: each case is one decision."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coordinator.core.catalog import ddl, subscriptions
from coordinator.core.catalog.decisions import Accepted, Unchanged
from coordinator.core.catalog.subscriptions import (
    DELIVERIES_MAX,
    FILTER_BYTES_MAX,
    SUBSCRIPTIONS_MAX,
)
from coordinator.core.model.commands import (
    AddTopic,
    Command,
    ExpireSubscription,
    PutSetting,
    RemoveTopic,
    Subscribe,
    Unsubscribe,
)
from coordinator.core.model.entities import Subscription, subscription_key
from coordinator.core.model.types import Cas
from tests.support.catalog_bench import Bench

ADD = AddTopic("cities", '{"kind":["index"]}')
SUBSCRIBE = Subscribe(topic="cities", subscriber="a")


@pytest.fixture
def topic(bench: Bench) -> Bench:
    """There is a topic."""
    bench.apply(ADD)
    return bench


def held(bench: Bench, subscriber: str = "a") -> Subscription:
    found = bench.state.get(subscription_key("cities", subscriber))
    assert found is not None
    assert isinstance(found.entity, Subscription)
    return found.entity


def test_a_subscription_without_a_cas_begins_above_the_state_that_it_was_decided_against(
    topic: Bench,
) -> None:
    topic.apply(PutSetting("a", "1"))
    before = topic.state.cas
    topic.apply(SUBSCRIBE)
    assert held(topic).after == before
    topic.apply(replace(SUBSCRIBE, subscriber="b", after=Cas(0)))
    assert held(topic, "b").after == 0


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (ADD, "topic_exists"),
        (AddTopic("9"), "invalid_request"),
        (AddTopic("x", f'{{"key":["{"k" * FILTER_BYTES_MAX}"]}}'), "invalid_request"),
        (RemoveTopic("none"), "topic_not_found"),
        (replace(SUBSCRIBE, topic="none"), "topic_not_found"),
        (replace(SUBSCRIBE, subscriber="a/b"), "invalid_request"),
        (replace(SUBSCRIBE, after=Cas(1_000)), "invalid_request"),
        (replace(SUBSCRIBE, deliver_to="a b"), "invalid_request"),
        (replace(SUBSCRIBE, deliver_to="__transaction_state"), "invalid_request"),
        (replace(SUBSCRIBE, deliver_to="."), "invalid_request"),
        (replace(SUBSCRIBE, deliver_to="out", expires_after_ms=5_000), "invalid_request"),
        (replace(SUBSCRIBE, expires_after_ms=999), "invalid_request"),
        (replace(SUBSCRIBE, expires_after_ms=2**62), "invalid_request"),
        (Unsubscribe("cities", "none"), "subscription_not_found"),
    ],
)
def test_what_cannot_be_is_refused(topic: Bench, command: Command, code: str) -> None:
    assert topic.refusal(command) == code


def test_an_id_is_taken_until_its_subscription_ends_or_expires(topic: Bench) -> None:
    topic.apply(SUBSCRIBE)
    first = held(topic)
    assert topic.refusal(SUBSCRIBE) == "subscriber_exists"
    topic.apply(ExpireSubscription("cities", "a", first.number))
    assert held(topic).state == "expired"
    topic.apply(SUBSCRIBE)
    assert held(topic).state == "active"
    assert held(topic).number > first.number
    topic.apply(Unsubscribe("cities", "a"))
    assert topic.state.get(first.key) is None
    topic.apply(SUBSCRIBE)


def test_an_expiry_that_comes_late_ends_no_other_subscription(topic: Bench) -> None:
    topic.apply(SUBSCRIBE)
    old = held(topic).number
    topic.apply(Unsubscribe("cities", "a"))
    topic.apply(SUBSCRIBE)
    assert topic.refusal(ExpireSubscription("cities", "a", old)) == ""
    assert held(topic).state == "active"


def test_a_topic_goes_with_its_subscriptions_only_if_that_is_asked_for(topic: Bench) -> None:
    for name in ("a", "b"):
        topic.apply(replace(SUBSCRIBE, subscriber=name))
    topic.apply(AddTopic("other"))
    topic.apply(replace(SUBSCRIBE, topic="other"))
    assert topic.refusal(RemoveTopic("cities")) == "topic_in_use"
    for name, told in (("cities", "2 subscriptions"), ("other", "1 subscription")):
        refused = topic.decide(RemoveTopic(name))
        assert isinstance(refused, Unchanged)
        assert refused.outcome.message == f"topic {name} has {told}"
    decision = topic.apply(RemoveTopic("cities", with_subscriptions=True))
    assert [c.event for c in decision.changes] == ["Unsubscribed", "Unsubscribed", "TopicRemoved"]
    assert {v.entity.key for v in topic.state.of_kind("subscription")} == {"subscription/other/a"}


def test_removing_a_topic_and_subscribing_to_it_never_share_a_group(topic: Bench) -> None:
    one, other = RemoveTopic("cities", with_subscriptions=True), SUBSCRIBE
    assert not ddl.footprint(topic.state, one).isdisjoint(ddl.footprint(topic.state, other))


def test_subscriptions_of_one_topic_share_no_group_so_that_their_number_has_a_bound(
    topic: Bench,
) -> None:
    other = replace(SUBSCRIBE, subscriber="b")
    assert not ddl.footprint(topic.state, SUBSCRIBE).isdisjoint(ddl.footprint(topic.state, other))


def test_a_topic_has_so_many_subscriptions_and_the_cluster_so_many_deliveries(
    topic: Bench,
) -> None:
    for number in range(DELIVERIES_MAX):
        topic.apply(replace(SUBSCRIBE, subscriber=f"k{number}", deliver_to="out"))
    more = replace(SUBSCRIBE, subscriber="more", deliver_to="out")
    assert topic.refusal(more) == "too_many_subscriptions"
    for number in range(SUBSCRIPTIONS_MAX - DELIVERIES_MAX):
        topic.apply(replace(SUBSCRIBE, subscriber=f"s{number}"))
    assert topic.refusal(SUBSCRIBE) == "too_many_subscriptions"
    removed = topic.apply(RemoveTopic("cities", with_subscriptions=True))
    assert len(removed.changes) == SUBSCRIPTIONS_MAX + 1


def test_who_expired_may_come_back_where_no_more_may_come(
    topic: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is one of those that are counted."""
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_MAX", 2)
    for name in ("a", "b"):
        topic.apply(replace(SUBSCRIBE, subscriber=name))
    topic.apply(ExpireSubscription("cities", "a", held(topic).number))
    assert topic.refusal(replace(SUBSCRIBE, subscriber="c")) == "too_many_subscriptions"
    topic.apply(SUBSCRIBE)
    assert held(topic).state == "active"


def test_all_topics_together_have_so_many_subscriptions(
    topic: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "SUBSCRIPTIONS_TOTAL_MAX", 2)
    topic.apply(AddTopic("other"))
    topic.apply(SUBSCRIBE)
    topic.apply(replace(SUBSCRIBE, topic="other"))
    assert topic.refusal(replace(SUBSCRIBE, subscriber="b")) == "too_many_subscriptions"


def test_there_are_so_many_topics_however_they_are_grouped(
    topic: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subscriptions, "TOPICS_MAX", 2)
    topic.apply(AddTopic("other"))
    one, more = AddTopic("more"), AddTopic("yet-another")
    assert topic.refusal(more) == "too_many_topics"
    assert not ddl.footprint(topic.state, one).isdisjoint(ddl.footprint(topic.state, more))


def test_a_subscription_may_begin_at_the_newest_change(topic: Bench) -> None:
    newest = topic.state.cas
    assert topic.refusal(replace(SUBSCRIBE, after=Cas(newest + 1))) == "invalid_request"
    topic.apply(replace(SUBSCRIBE, after=newest))
    assert held(topic).after == newest


def test_a_removal_is_answered_with_the_cas_at_which_the_topic_is_gone(topic: Bench) -> None:
    topic.apply(SUBSCRIBE)
    decision = topic.apply(RemoveTopic("cities", with_subscriptions=True))
    assert decision.changes[decision.subject].event == "TopicRemoved"


def test_what_is_removed_is_what_was_expected(topic: Bench) -> None:
    topic.apply(SUBSCRIBE)
    for key, command in (
        ("topic/cities", RemoveTopic("cities", with_subscriptions=True)),
        ("subscription/cities/a", Unsubscribe("cities", "a")),
    ):
        cas = topic.state.cas_of(key)
        assert topic.refusal(command, expected_cas=cas - 1) == "cas_mismatch"
        assert isinstance(topic.decide(command, expected_cas=cas), Accepted)


def test_a_repeat_gets_what_its_first_try_was_answered(topic: Bench) -> None:
    terms = {"id": "r", "recorded": True, "fingerprint": 1}
    first = topic.apply(SUBSCRIBE, **terms)
    again = topic.decide(SUBSCRIBE, **terms)
    assert getattr(again, "outcome", None) is not None
    assert again.outcome.answer == first.answer  # type: ignore[union-attr]
