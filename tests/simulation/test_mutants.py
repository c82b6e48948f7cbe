"""The simulator finds bugs: each mutant breaks one rule of the protocol, and some world shows it.

A mutant that no world catches means that the invariant is not watched, or that the fault which
would show it never strikes. Each is caught under the name of an invariant that stands outside the
code that it breaks.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.simulation.alters import REST as ALTER_REST
from tests.simulation.alters import SHARE as ALTER_SHARE
from tests.simulation.kernel.world import FAULTS_FROM_MS
from tests.simulation.planted import alters as x
from tests.simulation.planted import authority as a
from tests.simulation.planted import builds as b
from tests.simulation.planted import commits as c
from tests.simulation.planted import requests as r
from tests.simulation.planted import subscriptions as s
from tests.simulation.planted import transactions as t
from tests.simulation.planted.search import cases, search
from tests.simulation.schedule import directed
from tests.simulation.subscribers import REST as TOPIC_REST
from tests.simulation.subscribers import SHARE as TOPIC_SHARE
from tests.simulation.transactions import REST, SHARE
from tests.simulation.world import World

pytestmark = pytest.mark.worlds

Plant = Callable[[pytest.MonkeyPatch], None]
Worlds = Callable[[int], World]

WORLDS_MAX = 150


def focus(*faults: str) -> Worlds:
    """Return worlds in which only these faults strike."""
    return lambda number: World(number, focus=faults)


def at(*pairs: tuple[str, str]) -> Worlds:
    """Return worlds made for these pairs of step and fault, in turn."""
    return lambda number: World(directed(pairs[number % len(pairs)], number // len(pairs)))


def without_timeout(worlds: Worlds) -> Worlds:
    """Return the same worlds, where the broker never ends a transaction by itself."""

    def make(number: int) -> World:
        world = worlds(number)
        world.broker.transaction_timeout_ms = 10**9
        return world

    return make


def unheard(worlds: Worlds) -> Worlds:
    """Return the same worlds, where answers of the broker get lost, or come too late."""

    def make(number: int) -> World:
        world = worlds(number)
        world.broker.marker_spread_ms = 3_000
        for machine in world.machines.values():
            machine.producer.end_patience_ms = 300
        world.clock.at(FAULTS_FROM_MS, setattr, world.faults, "answer_lost", 0.3)
        return world

    return make


def published(worlds: Worlds) -> Worlds:
    """Return the same worlds, where many commands are published, all in one line."""

    def make(number: int) -> World:
        world = worlds(number)
        del world.broker.ddl[1:]
        for writer in world.writers:
            writer.commands = 40
        return world

    return make


def busy(worlds: Worlds) -> Worlds:
    """Return the same worlds, where clients hardly pause, and go on for longer."""

    def make(number: int) -> World:
        world = worlds(number)
        for client in world.clients:
            client.think_ms, client.left = 20, 40
        return world

    return make


def transacting(number: int) -> World:
    """Return worlds whose clients ask for transactions."""
    return World(SHARE * number + REST)


def subscribing(number: int) -> World:
    """Return worlds that have topics, and who subscribes to them."""
    return World(TOPIC_SHARE * number + TOPIC_REST)


def altering(number: int) -> World:
    """Return worlds whose clients alter indexes."""
    return World(ALTER_SHARE * number + ALTER_REST)


def read(worlds: Worlds) -> Worlds:
    """Return the same worlds, where clients mostly read, at any node."""

    def make(number: int) -> World:
        world = worlds(number)
        for client in world.clients:
            client.think_ms, client.left = 200, 40
            client.reads, client.wandering = 0.7, 1.0
        return world

    return make


def configured(**more: int) -> Worlds:
    """Return any worlds, with these values in the configuration of the nodes."""
    return lambda number: World(number, **more)


anywhere: Worlds = World

MUTANTS: list[tuple[Plant, Worlds, int, set[str]]] = [
    (c.reply_before_the_commit_is_read_back, anywhere, 0, {"acknowledged-is-effective-once"}),
    (c.reply_before_the_last_acknowledgement, anywhere, 0, {"acknowledged-is-effective-once"}),
    (c.reply_from_the_producers_return_code, anywhere, 2, {"acknowledged-is-effective-once"}),
    (c.install_without_a_verdict, anywhere, 0, {"a-node-shows-what-is-committed"}),
    (c.commit_without_missing_answers, anywhere, 0, {"every-participant-has-it"}),
    (c.accept_before_it_is_durable, anywhere, 0, {"accepted-is-durable"}),
    (
        c.ambiguous_commit_is_called_a_refusal,
        unheard(focus("answer_lost")),
        0,
        {"refused-never-takes-effect"},
    ),
    (c.applied_offset_ahead_of_changes, anywhere, 0, {"a-disk-holds-one-offset"}),
    (c.digest_is_ignored, anywhere, 2, {"a-node-shows-what-is-committed"}),
    (
        c.rollback_is_the_end_of_a_request_only_once,
        focus("full_disk", "cut"),
        1,
        {"one-answer-a-call"},
    ),
    (
        c.stray_events_are_left,
        focus("end_late", "full_disk", "crash_the_master"),
        0,
        {"compacted-state-suffices", "converges"},
    ),
    (c.holes_are_left, at(("events placed", "late abort")), 1, {"compacted-state-suffices"}),
    (
        c.repeated_end_of_a_transaction_is_believed,
        at(("verdict written", "repeated EndTxn"), ("events placed", "repeated EndTxn")),
        6,
        {"events-in-the-same-transaction"},
    ),
    (
        c.unsynced_batches_are_trusted_after_a_failed_sync,
        focus("fail_sync", "power_cut"),
        36,
        {"a-disk-holds-one-offset"},
    ),
    (c.log_is_trimmed_too_early, configured(snapshot_bytes=960), 5, {"what-is-trimmed-is-durable"}),
    (c.outcomes_are_trimmed_away, configured(snapshot_bytes=960), 0, {"outcomes-outlive-no-trim"}),
    (
        c.synchronised_without_a_digest,
        focus("crash_and_wipe"),
        2,
        {"a-node-shows-what-is-committed"},
    ),
    (
        c.cas_as_a_maximum_over_records,
        focus("crash_and_wipe", "compact"),
        23,
        {"a-node-shows-what-is-committed"},
    ),
    (c.silent_damage_is_believed, focus("flip"), 3, {"nodes-agree", "digest-of-the-log"}),
    (c.groups_have_no_bound, configured(group_bytes_max=3_000), 1945, {"a-group-is-bounded"}),
    (
        a.act_before_the_claim_is_read_back,
        anywhere,
        0,
        {"only-the-claimed-master-writes", "participants-are-the-members"},
    ),
    (
        a.one_epoch_over_two_producers,
        at(("verdict written", "transaction timeout")),
        0,
        {"only-the-claimed-master-writes"},
    ),
    (
        a.claim_without_fencing,
        at(("verdict written", "cut from heartbeat")),
        8,
        {"no-commit-is-void", "only-the-claimed-master-writes"},
    ),
    (
        a.look_waits_for_ever,
        without_timeout(at(("verdict written", "crash between effects"))),
        0,
        {"converges"},
    ),
    (a.late_proposal_is_accepted, focus("append_doubled", "full_disk", "cut"), 1, {"folds-agree"}),
    (a.admitted_behind, focus("crash", "crash_and_wipe"), 23, {"folds-agree"}),
    (a.join_inside_a_transaction, focus("crash"), 23, {"folds-agree"}),
    (a.anybody_may_claim, focus("cut", "crash_the_master", "slow_network"), 3, {"folds-agree"}),
    (a.membership_counts_before_it_is_read_back, anywhere, 1, {"participants-are-the-members"}),
    (a.second_terminal_status_is_accepted, focus("compact"), 0, {"statuses-agree"}),
    (
        a.resignation_inside_a_transaction,
        at(("proposal sent", "hand-over")),
        0,
        {"no-resignation-inside-a-transaction"},
    ),
    (r.refusal_without_a_barrier, focus("cut_the_master", "few_writes"), 5, {"linearizable"}),
    (
        r.read_without_a_barrier,
        read(focus("cut_the_master")),
        5,
        {"linearizable-reads", "linearizable-history"},
    ),
    (r.outcomes_are_forgotten, anywhere, 10, {"a-request-id-executes-once"}),
    (r.request_id_is_not_recorded, anywhere, 10, {"a-request-id-executes-once"}),
    (r.outcome_is_evicted_too_early, anywhere, 39, {"a-request-id-executes-once"}),
    (r.expired_request_id_is_taken_for_new, anywhere, 2, {"an-expired-id-is-never-executed"}),
    (
        r.later_ddl_overtakes_a_parked_command,
        published(focus("indexer_dies", "crash_the_master")),
        2,
        {"ddl-is-consumed-in-order"},
    ),
    (
        r.one_partition_of_ddl_is_read_twice,
        focus("crash_the_master"),
        89,
        {"one-dead-letter-each", "a-request-id-executes-once"},
    ),
    (r.names_are_decided_apart, busy(anywhere), 15, {"unique-names"}),
    (t.a_transaction_takes_the_wrong_branch, transacting, 5, {"a-transaction-is-whole"}),
    (t.a_comparison_is_left_out, transacting, 2, {"a-transaction-is-whole"}),
    (
        t.a_transaction_loses_its_last_operation,
        transacting,
        2,
        {"a-transaction-is-whole", "no-crash"},
    ),
    (
        t.a_transaction_is_answered_at_its_first_index,
        transacting,
        0,
        {"acknowledged-is-effective-once"},
    ),
    (t.an_undo_creates_another_index, transacting, 57, {"an-undo-leads-back"}),
    (t.a_comparison_is_decided_apart, busy(transacting), 48, {"a-transaction-is-whole"}),
    (s.the_end_of_a_subscription_is_not_seen, subscribing, 0, {"nothing-comes-after-the-end"}),
    (
        s.an_end_that_no_filter_fits_is_not_handed_over,
        subscribing,
        0,
        {"nothing-comes-after-the-end"},
    ),
    (s.an_expired_subscription_goes_on, subscribing, 53, {"nothing-comes-after-the-end"}),
    (
        s.a_topic_and_its_subscriptions_are_decided_apart,
        busy(subscribing),
        15,
        {"a-subscription-has-a-topic"},
    ),
    (
        s.deliveries_are_counted_for_each_topic_alone,
        busy(subscribing),
        104,
        {"deliveries-have-a-bound"},
    ),
    (
        s.silence_is_counted_although_the_log_is_not_read,
        subscribing,
        7,
        {"who-is-heard-of-in-time-does-not-expire"},
    ),
    (
        s.a_sign_of_life_is_not_heard,
        subscribing,
        6,
        {"who-is-heard-of-in-time-does-not-expire"},
    ),
    (
        s.a_subscription_has_the_number_of_the_one_before_it,
        subscribing,
        3,
        {"a-subscription-brings-each-change-once"},
    ),
    (
        s.a_subscription_begins_too_late,
        subscribing,
        0,
        {"a-subscription-begins-where-it-was-decided"},
    ),
    (s.an_id_is_taken_twice, subscribing, 3, {"a-subscriber-id-is-taken-once"}),
    (x.an_index_is_replaced_before_the_other_is_built, altering, 8, {"a-switch-loses-nothing"}),
    (x.an_index_that_is_replaced_stays, altering, 8, {"a-name-has-one-index"}),
    (x.a_drop_forgets_what_is_to_replace, altering, 124, {"a-name-has-one-index"}),
    (x.a_promised_name_is_given_away, altering, 271, {"a-name-has-one-index"}),
    (x.an_alter_is_answered_at_ready, altering, 8, {"acknowledged-is-effective-once"}),
    (x.a_repeat_does_not_wait_for_the_build, altering, 18, {"refused-never-takes-effect"}),
    (
        x.an_alter_that_fails_takes_the_old_index_along,
        altering,
        29,
        {"a-switch-loses-nothing"},
    ),
    (r.ready_without_every_indexer, anywhere, 0, {"ready-needs-every-indexer"}),
    (r.expected_cas_is_not_compared, anywhere, 0, {"compare-and-set", "linearizable-history"}),
    (r.dropped_index_keeps_its_name, busy(anywhere), 6, {"linearizable"}),
    (b.built_without_every_indexer, anywhere, 5, {"built-needs-every-indexer"}),
    (b.backfill_without_a_router, anywhere, 2, {"backfill-needs-a-router"}),
    (
        b.lost_storage_is_not_built_again,
        focus("indexer_loses_storage"),
        2,
        {"what-takes-scans-was-built"},
    ),
    (b.stream_is_renewed_under_its_old_number, focus("projector_disconnects"), 2, {"converges"}),
    (
        b.generations_are_counted,
        focus("end_late", "crash_the_master", "projector_dies"),
        10,
        {"stream-numbers-ascend", "one-connection-a-number"},
    ),
    (
        b.answer_about_an_older_build_counts,
        focus("indexer_loses_storage", "slow_network"),
        19,
        {"built-needs-every-indexer", "what-takes-scans-was-built"},
    ),
    (b.renewal_does_not_say_what_it_answers, anywhere, 14, {"converges"}),
    (b.answer_is_waited_for_without_end, focus("projector_disconnects"), 46, {"converges"}),
]
"""A mutant, worlds that can show it, one that does, who may name it."""

SLOW = {
    b.stream_is_renewed_under_its_old_number,
    b.renewal_does_not_say_what_it_answers,
    b.answer_is_waited_for_without_end,
}
"""Worlds that never come to rest take long."""


@pytest.mark.thorough
@pytest.mark.parametrize(("plant", "worlds", "first", "names"), cases(MUTANTS, SLOW))
def test_a_planted_bug_is_caught(
    plant: Plant, worlds: Worlds, first: int, names: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch)
    search(plant.__name__, lambda number: worlds(number).run(), first, WORLDS_MAX, names)
