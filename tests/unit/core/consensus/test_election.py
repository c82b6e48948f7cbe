"""An election, step by step: who waits for how long, what a claim needs, where it is given up.

The part alone: inputs in, results out. `docs/protocol.md` has the same steps in words ("Becoming
master: claim and read-back", "Without a master", "Stepping down", "Reform").
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from coordinator.core.consensus import authority as authorities
from coordinator.core.consensus.effects import (
    CloseProducer,
    Conclude,
    Halt,
    Note,
    OpenProducer,
    Reply,
)
from coordinator.core.consensus.election import (
    CLAIMING,
    CLAIMS_COUNTED_MAX,
    LOOKING,
    OPENING,
    READING,
    Election,
    Mastership,
)
from coordinator.core.consensus.inputs import MembershipRequested, ProducerFailed, ProducerOpened
from coordinator.core.consensus.signals import Elected, ExamineLog, LoseMastership, SendBarrier
from coordinator.core.consensus.view import CATCHING_UP, SYNCHRONISING, Tokens
from coordinator.core.model.commands import OK, Outcome, Reform, refused, unknown
from coordinator.core.model.records import (
    ClusterFormed,
    ClusterReformed,
    MasterClaimed,
    MasterResigned,
)
from tests.support.views import (
    AUTHORITY,
    INCARNATIONS,
    MONO_MS,
    OWN_AUTHORITY,
    STATE,
    WALL_MS,
    a_beat,
    a_proposal,
    a_state,
    a_view,
    members,
    opened,
    some_peers,
)

TIMEOUT_MS = STAGGER_MS = 1_500
BEAT_MS, LOOK_MS, VERDICT_MS, OPEN_MS = 250, 500, 8_000, 20_000
TOKEN = 1
"""That of the first claim of a node's life."""

CLAIMING_NOTE = Note("no master is alive: claiming the mastership")
SECOND = {"node": 2, "incarnation": INCARNATIONS[2], "address": "n2"}
"""The settings of node 2."""

MASTERLESS = replace(AUTHORITY, master=0, incarnation=0, address="")
"""Somebody has resigned, and named nobody."""


def silent(clock_ms: int = TIMEOUT_MS + 1, alive: Any = (), silent: Any = (), **fields: Any) -> Any:
    """Return a view of node 1 that has heard heartbeats for so long, and none of the master."""
    return a_view(peers=some_peers(clock_ms, alive, silent), **fields)


def heard(**fields: Any) -> Any:
    """Return a view of node 1 that has heard the master just now."""
    return silent(0, **fields)


def claim(epoch: int = 5, node: int = 1, **fields: Any) -> MasterClaimed:
    known = {
        "incarnation": INCARNATIONS.get(node, 10 * node),
        "address": f"n{node}",
        "at_ms": WALL_MS,
    }
    more = {"cas": STATE.cas, "digest": STATE.digest, "snapshot": AUTHORITY}
    return MasterClaimed(epoch=epoch, node=node, **(known | more | fields))


def candidate(step: str, view: Any = None) -> Election:
    """Return the election of a node whose claim has come to this step."""
    election, view = Election(Tokens()), view or silent()
    assert election.tick(view) == [SendBarrier()]
    if step != LOOKING:
        assert election.barrier_read(view) == [CLAIMING_NOTE, OpenProducer(TOKEN)]
    if step in (READING, CLAIMING):
        assert election.producer_opened(ProducerOpened(TOKEN)) == [SendBarrier()]
    if step == CLAIMING:
        (written,) = election.barrier_read(view)
        assert isinstance(written, Conclude)
    assert election.candidacy is not None
    assert election.candidacy.step == step
    return election


def given_up(why: str) -> list[Any]:
    return [Note(f"claim given up: {why}"), CloseProducer()]


STEPS = (LOOKING, OPENING, READING, CLAIMING)
FENCED = (OPENING, READING, CLAIMING)
"""The steps in which this node may have fenced somebody."""


# -- whose patience ends when --------------------------------------------------------------------


def waits_for(ms: int, election: Election, view_at: Callable[[int], Any]) -> None:
    """Node 2 does not claim after so long, and does a millisecond later."""
    assert election.tick(view_at(ms)) == []
    assert election.tick(view_at(ms + 1)) == [SendBarrier()]


def second(alive: Any = (), dead: Any = (), **fields: Any) -> Callable[[int], Any]:
    """Return what node 2 sees after such a silence. The master of epoch 4 was node 3."""
    was = {"authority": replace(AUTHORITY, master=3, incarnation=30), "settings": SECOND}
    return lambda ms: silent(ms, alive, dead, **(was | fields))


ONLY_NEW = members(n1=10, n2=19, n3=30)
WITHOUT_1 = replace(AUTHORITY, master=3, incarnation=30, acceptors=(2, 3))

PATIENCE: list[tuple[str, int, Callable[[int], Any]]] = [
    ("alone", 1_500, second()),
    ("the master itself is heard again, as a replica", 1_500, second([a_beat(3)])),
    ("a lower id at the same cas goes first", 3_000, second([a_beat(1)])),
    ("a higher cas goes first", 3_000, second([a_beat(3, cas=51)])),
    ("a lower cas does not, whatever its id", 1_500, second([a_beat(1, cas=49)])),
    ("two go first", 4_500, second([a_beat(1), a_beat(3, cas=51)])),
    ("the dead are not waited for", 1_500, second([], [a_beat(1, cas=51)])),
    ("nor who may not claim", 1_500, second([a_beat(1, cas=51)], authority=WITHOUT_1)),
    ("nor a life that has just begun", 1_500, second([a_beat(1, incarnation=11, cas=51)])),
    (
        "a life that has just begun waits for those that are active, also behind it",
        3_000,
        second([a_beat(3, cas=49)], authority=replace(WITHOUT_1, members=ONLY_NEW)),
    ),
    ("there is no cluster: only heartbeats are waited for", 500, second(authority=None)),
    ("there is no cluster, and a lower id", 2_000, second([a_beat(1)], authority=None)),
    (
        "there is a cluster that nobody has claimed",
        1_500,
        second(authority=replace(MASTERLESS, epoch=0)),
    ),
    ("the master resigned before this node was there", 500, second(authority=MASTERLESS)),
    (
        "the successor comes first, whatever its cas and id",
        500,
        second([a_beat(1, cas=99)], authority=replace(MASTERLESS, successor=2)),
    ),
    (
        "who is not the successor comes after it",
        2_000,
        second([a_beat(3, cas=1)], authority=replace(MASTERLESS, successor=3)),
    ),
    (
        "a successor that is dead is not waited for",
        500,
        second([], [a_beat(3)], authority=replace(MASTERLESS, successor=3)),
    ),
]


@pytest.mark.parametrize(("ms", "view_at"), [p[1:] for p in PATIENCE], ids=[p[0] for p in PATIENCE])
def test_the_newest_live_active_node_claims_first_then_the_lowest_id(
    ms: int, view_at: Callable[[int], Any]
) -> None:
    waits_for(ms, Election(Tokens()), view_at)


@pytest.mark.parametrize(
    ("epoch", "node", "phase", "ms"),
    [
        (4, 3, "following", 0),
        (4, 3, CATCHING_UP, 2 * BEAT_MS),
        (3, 3, "following", 2 * BEAT_MS),
        (4, 2, "following", 2 * TIMEOUT_MS),
        (3, 2, "following", 2 * BEAT_MS),
    ],
    ids=["read-as-it-happened", "read-at-a-start", "of-an-older-epoch", "its-own", "its-own-older"],
)
def test_nobody_waits_for_a_master_that_was_seen_to_resign_but_itself(
    epoch: int, node: int, phase: str, ms: int
) -> None:
    election, view_at = Election(Tokens()), second(authority=MASTERLESS)
    resignation = MasterResigned(epoch, node, 0, "upgrade", 0)
    election.resigned(second(authority=MASTERLESS, phase=phase)(0), resignation)
    waits_for(ms, election, view_at)


def test_a_resignation_begins_the_patience_anew() -> None:
    election, view_at = Election(Tokens()), second([a_beat(1)], authority=MASTERLESS)
    election.resigned(view_at(5_000), MasterResigned(4, 3, 0, "upgrade", 0))
    waits_for(5_000 + STAGGER_MS, election, view_at)


def test_a_master_that_brought_nothing_about_waits_for_all_others_and_once_more() -> None:
    """Also for one that is older and higher; and only as long as the epoch is that one."""
    for alive, ms in (((), 1_500), ((a_beat(3, cas=1),), 1_500 + 2 * STAGGER_MS)):
        election, view_at = Election(Tokens()), second(alive)
        election.failed(view_at(0))
        waits_for(ms, election, view_at)
    election, view_at = Election(Tokens()), second()
    election.failed(view_at(5_000))
    waits_for(5_000 + 1_500, election, view_at)
    election = Election(Tokens())
    election.failed(view_at(0))
    later = replace(AUTHORITY, epoch=5, master=3, incarnation=30)
    waits_for(1_500, election, second([a_beat(3, cas=1)], authority=later))


def test_a_master_whose_producer_broke_waits_for_nobody() -> None:
    """It is fenced, and the fold shows no newer claim: it claims anew, and says so meanwhile."""
    election = Election(Tokens())
    mastering = heard(authority=OWN_AUTHORITY, is_master=True)
    assert election.producer_failed(mastering, ProducerFailed(0, "fenced")) == [
        LoseMastership("fenced")
    ]
    view = silent(5_000, authority=OWN_AUTHORITY)
    election.lost(view)
    assert election.not_master(view) == unknown("no_master", "the master is changing: retry")
    assert election.tick(silent(5_001, authority=OWN_AUTHORITY)) == [SendBarrier()]


@pytest.mark.parametrize(
    ("fields", "counts"),
    [
        ({}, True),
        ({"node": 3, "incarnation": 30}, False),
        ({"state": "replica"}, False),
        ({"state": "bootstrap"}, False),
        ({"epoch": 3}, False),
        ({"epoch": 5}, False),
        ({"incarnation": 21}, False),
    ],
)
def test_only_the_master_of_now_in_its_life_is_heard_as_one(
    fields: dict[str, Any], counts: bool
) -> None:
    election, view = Election(Tokens()), silent()
    election.beat(view, a_beat(**({"node": 2, "state": "master"} | fields)))
    assert election.master_alive(view) is counts
    assert election.tick(view) == ([] if counts else [SendBarrier()])


def test_before_there_is_a_cluster_nobody_is_heard_as_its_master() -> None:
    election, view = Election(Tokens()), silent(authority=None)
    election.beat(view, a_beat(2, state="master"))
    assert election.tick(view) == [SendBarrier()]


def test_a_master_counts_as_alive_for_the_timeout_and_no_longer() -> None:
    election = Election(Tokens())
    assert election.master_alive(silent(TIMEOUT_MS))
    assert not election.master_alive(silent(TIMEOUT_MS + 1))
    assert election.master_alive(silent(TIMEOUT_MS + 1, is_master=True))
    assert not election.master_alive(silent(0, authority=MASTERLESS))
    assert not election.master_alive(silent(0, authority=None))


# -- who may claim -------------------------------------------------------------------------------

LATER = 10 * TIMEOUT_MS

UNABLE: dict[str, dict[str, Any]] = {
    "it did not accept the last transaction": {"authority": replace(AUTHORITY, acceptors=(2, 3))},
    "it is not of the roster": {"authority": replace(AUTHORITY, acceptors=(), roster=(2, 3))},
    "it has not read the log to its end": {"phase": CATCHING_UP},
    "it does not have the state": {"phase": SYNCHRONISING},
    "its store refuses writes": {"sick": "full"},
    "it is master": {"is_master": True},
}


@pytest.mark.parametrize("fields", UNABLE.values(), ids=list(UNABLE))
def test_who_may_not_or_cannot_does_not_claim(fields: dict[str, Any]) -> None:
    assert Election(Tokens()).tick(silent(LATER, **fields)) == []


def test_who_is_being_stopped_does_not_claim() -> None:
    election = Election(Tokens())
    election.stopping = True
    assert election.tick(silent(LATER)) == []


def test_before_any_transaction_all_of_the_roster_may_claim() -> None:
    unused = replace(AUTHORITY, acceptors=())
    assert Election(Tokens()).tick(silent(LATER, authority=unused)) == [SendBarrier()]
    assert Election(Tokens()).tick(silent(LATER, authority=None)) == [SendBarrier()]


@pytest.mark.parametrize("fields", [f for n, f in UNABLE.items() if n != "it is master"])
def test_who_cannot_claim_any_more_stops_looking_without_fencing_anybody(
    fields: dict[str, Any],
) -> None:
    election = candidate(LOOKING)
    assert election.barrier_read(silent(**fields)) == []
    assert election.candidacy is None


# -- a claim, step by step -----------------------------------------------------------------------


def test_a_claim_looks_fences_reads_again_writes_and_is_read_back() -> None:
    election, view = Election(Tokens()), silent()
    assert election.tick(view) == [SendBarrier()]
    assert election.tick(view) == [ExamineLog()]
    assert election.barrier_read(view) == [CLAIMING_NOTE, OpenProducer(TOKEN)]
    assert election.barrier_read(view) == [], "the barrier of before the fence says nothing"
    assert election.producer_opened(ProducerOpened(TOKEN + 1)) == [], "another one's"
    assert election.producer_opened(ProducerOpened(TOKEN)) == [SendBarrier()]
    assert election.barrier_read(view) == [Conclude(TOKEN, (claim(),))]
    assert election.barrier_read(view) == [], "it is written once"
    after = authorities.fold(AUTHORITY, 200, claim())
    assert not after.void
    assert election.claimed(silent(authority=after.state), claim()) == [Elected(5)]
    assert (election.candidacy, election.claim_token) == (None, TOKEN)
    assert election.master_alive(silent(authority=after.state))


def test_the_claim_of_an_empty_log_forms_the_cluster_first() -> None:
    view = silent(authority=None, state=a_state(0))
    election = candidate(READING, view)
    (written,) = election.barrier_read(view)
    formed = ClusterFormed(
        cluster_id="c",
        cas_base=1,
        roster=(1, 2, 3),
        minimum=2,
        log_capacity=1_000,
        request_window_ms=600_000,
        at_ms=WALL_MS,
    )
    snapshot = authorities.fold(None, 0, formed).state
    assert snapshot is not None
    first = claim(epoch=1, cas=0, digest=0, snapshot=snapshot)
    assert written == Conclude(TOKEN, (formed, first))
    assert election.claimed(view, first) == [Elected(1)]


def test_a_look_takes_no_longer_than_its_bound() -> None:
    """A master that died in a Kafka transaction holds back what committed readers see."""
    election = candidate(LOOKING)
    assert election.tick(silent(mono_ms=MONO_MS + LOOK_MS)) == [ExamineLog()]
    assert election.tick(silent(mono_ms=MONO_MS + LOOK_MS + 1)) == [
        CLAIMING_NOTE,
        OpenProducer(TOKEN),
    ]


@pytest.mark.parametrize("step", STEPS)
def test_only_a_look_ends_where_an_open_transaction_holds_the_log_back(step: str) -> None:
    found = candidate(step).blocked_at_stable_offset(silent())
    assert found == ([CLAIMING_NOTE, OpenProducer(TOKEN)] if step == LOOKING else [])


def test_without_a_claim_under_way_nothing_is_gone_on_with() -> None:
    election, view = Election(Tokens()), silent()
    assert election.barrier_read(view) == []
    assert election.blocked_at_stable_offset(view) == []
    assert election.producer_opened(ProducerOpened(0)) == []
    assert election.producer_failed(view, ProducerFailed(0, "broken")) == []
    assert election.claim_is_void(view, claim(), "late") == []
    assert election.claimed(view, claim(node=3)) == []


def test_a_master_that_turns_up_while_one_looks_is_not_fenced() -> None:
    election = candidate(LOOKING)
    election.beat(silent(), a_beat(2, state="master"))
    assert election.barrier_read(silent()) == []
    assert election.candidacy is None
    assert election.tick(silent(2 * TIMEOUT_MS + 1)) == [], "it is waited for as any master is"
    assert election.tick(silent(2 * TIMEOUT_MS + 2)) == [SendBarrier()]


# -- where a claim is given up -------------------------------------------------------------------


def test_a_claim_that_another_one_precedes_is_given_up() -> None:
    """Whoever only looked has fenced nobody, and has no producer to give up."""
    for step in STEPS:
        election = candidate(step)
        why = "node 3 claimed epoch 5"
        found = election.claimed(silent(), claim(node=3))
        assert found == ([] if step == LOOKING else given_up(why)), step
        assert election.candidacy is None


@pytest.mark.parametrize("step", [READING, CLAIMING])
def test_what_is_not_read_back_within_the_limit_is_given_up(step: str) -> None:
    election = candidate(step)
    assert election.tick(silent(mono_ms=MONO_MS + VERDICT_MS)) == []
    late = silent(mono_ms=MONO_MS + VERDICT_MS + 1)
    assert election.tick(late) == given_up(f"no progress while {step}")
    assert election.candidacy is None


def test_a_producer_has_longer_to_open_and_is_given_up_then() -> None:
    election = candidate(OPENING)
    assert election.tick(silent(mono_ms=MONO_MS + OPEN_MS)) == []
    late = silent(mono_ms=MONO_MS + OPEN_MS + 1)
    assert election.tick(late) == given_up("no progress while opening")


def opens_never(election: Election, clock_ms: int, is_reading: bool) -> tuple[int, list[Any]]:
    """Let a node claim once more, without its producer opening; return the clock, and the end."""
    clock_ms += LATER
    began = silent(clock_ms)
    assert election.tick(began) == [SendBarrier()]
    election.barrier_read(began)
    late = silent(clock_ms, mono_ms=MONO_MS + OPEN_MS + 1, is_reading=is_reading)
    return clock_ms, election.tick(late)


def test_a_producer_that_twice_does_not_open_although_kafka_answers_has_stopped() -> None:
    election = Election(Tokens())
    clock_ms, first = opens_never(election, 0, True)
    _, then = opens_never(election, clock_ms, True)
    assert first == given_up("no progress while opening")
    assert then == [Halt("producer_stalled", "the transactional producer does not open")]


def test_while_kafka_is_away_no_producer_is_blamed() -> None:
    election, clock_ms = Election(Tokens()), 0
    for _ in range(4):
        clock_ms, found = opens_never(election, clock_ms, False)
        assert found == given_up("no progress while opening")


def test_a_producer_that_opened_meanwhile_begins_anew() -> None:
    election = Election(Tokens())
    clock_ms, _ = opens_never(election, 0, True)
    view = silent(clock_ms + LATER)
    election.tick(view)
    election.barrier_read(view)
    assert election.producer_opened(ProducerOpened(2)) == [SendBarrier()]
    election.producer_failed(view, ProducerFailed(0, "broken"))
    _, found = opens_never(election, clock_ms + LATER, True)
    assert found == given_up("no progress while opening")


@pytest.mark.parametrize("step", STEPS)
def test_a_producer_that_breaks_takes_the_claim_with_it(step: str) -> None:
    election = candidate(step)
    assert election.producer_failed(silent(), ProducerFailed(TOKEN + 1, "another")) == []
    found = election.producer_failed(silent(), ProducerFailed(TOKEN, "broken"))
    assert found == ([] if step == LOOKING else given_up("broken"))
    assert (election.candidacy is None) is (step != LOOKING)


@pytest.mark.parametrize("step", FENCED)
def test_a_producer_that_breaks_whichever_takes_the_claim_with_it(step: str) -> None:
    assert candidate(step).producer_failed(silent(), ProducerFailed(0, "broken")) == given_up(
        "broken"
    )


@pytest.mark.parametrize("token", [0, TOKEN, TOKEN + 5])
def test_a_mastership_ends_with_its_producer(token: int) -> None:
    """Whatever that was asked to do: a transaction has a token of its own, above the claim's."""
    election = candidate(CLAIMING)
    election.claimed(silent(), claim())
    view = heard(authority=OWN_AUTHORITY, is_master=True)
    found = election.producer_failed(view, ProducerFailed(token, "broken"))
    assert found == [LoseMastership("broken")]


def test_a_producer_of_an_earlier_claim_ends_no_mastership() -> None:
    election = candidate(OPENING)
    election.producer_failed(silent(), ProducerFailed(TOKEN, "broken"))
    view = silent(LATER)
    election.tick(view)
    election.barrier_read(view)
    election.producer_opened(ProducerOpened(TOKEN + 1))
    election.barrier_read(view)
    assert election.claimed(view, claim()) == [Elected(5)]
    mastering = heard(authority=OWN_AUTHORITY, is_master=True)
    assert election.producer_failed(mastering, ProducerFailed(TOKEN, "late")) == []
    assert election.producer_failed(mastering, ProducerFailed(TOKEN + 1, "broken")) == [
        LoseMastership("broken")
    ]


CHANGED: dict[str, tuple[dict[str, Any], str]] = {
    "it did not see the last commit": (
        {"state": a_state(49, k="1")},
        "this node is not at the last committed transaction",
    ),
    "it has another digest": (
        {"state": STATE._replace(digest=STATE.digest + 1)},
        "this node is not at the last committed transaction",
    ),
    "it is not among those that accepted it": (
        {"authority": replace(AUTHORITY, acceptors=(2, 3))},
        "this node did not accept the last committed transaction",
    ),
}


@pytest.mark.parametrize(("fields", "why"), CHANGED.values(), ids=list(CHANGED))
def test_behind_the_fence_a_node_that_may_not_claim_any_more_gives_up(
    fields: dict[str, Any], why: str
) -> None:
    """The predecessor's last commit was before the fence: now it is read."""
    election = candidate(READING)
    assert election.barrier_read(silent(**fields)) == given_up(why)
    assert election.candidacy is None


@pytest.mark.parametrize(
    ("step", "record", "ends"),
    [
        (CLAIMING, claim(), True),
        (CLAIMING, claim(epoch=4), False),
        (CLAIMING, claim(node=3), False),
        (CLAIMING, claim(incarnation=9), False),
        (READING, claim(), False),
    ],
    ids=["its-own", "of-another-epoch", "of-another-node", "of-another-life", "before-it-wrote"],
)
def test_a_claim_that_the_fold_finds_void_ends_the_candidacy_that_wrote_it(
    step: str, record: MasterClaimed, ends: bool
) -> None:
    election = candidate(step)
    found = election.claim_is_void(silent(), record, "late")
    assert found == (given_up("the claim is void: late") if ends else [])
    assert (election.candidacy is None) is ends


@pytest.mark.parametrize("step", [LOOKING, OPENING, READING])
def test_a_claim_that_was_given_up_elects_nobody_when_it_is_read_back(step: str) -> None:
    """The producer of now is not that of the claim's epoch; and it ends no newer candidacy."""
    election = candidate(step)
    assert election.claimed(silent(), claim()) == []
    assert election.candidacy is not None


def test_the_claim_of_an_earlier_life_elects_nobody() -> None:
    election = candidate(CLAIMING)
    found = election.claimed(silent(), claim(incarnation=9))
    assert found == given_up("node 1 claimed epoch 5")


def test_each_claim_that_failed_makes_a_node_wait_longer_up_to_a_bound() -> None:
    election, clock_ms = Election(Tokens()), 0
    for failed in range(CLAIMS_COUNTED_MAX + 2):
        patience_ms = TIMEOUT_MS + min(failed, CLAIMS_COUNTED_MAX) * 2 * BEAT_MS
        assert election.tick(silent(clock_ms + patience_ms)) == [], failed
        clock_ms += patience_ms + 1
        assert election.tick(silent(clock_ms)) == [SendBarrier()], failed
        election.barrier_read(silent(clock_ms))
        election.producer_failed(silent(clock_ms), ProducerFailed(0, "broken"))


def test_a_claim_that_counted_makes_the_failed_ones_forgotten() -> None:
    election = candidate(OPENING)
    election.producer_failed(silent(), ProducerFailed(TOKEN, "broken"))
    view = silent(LATER)
    election.tick(view)
    election.barrier_read(view)
    election.producer_opened(ProducerOpened(TOKEN + 1))
    election.barrier_read(view)
    assert election.claimed(view, claim()) == [Elected(5)]
    assert election.tick(silent(LATER + TIMEOUT_MS)) == []
    assert election.tick(silent(LATER + TIMEOUT_MS + 1)) == [SendBarrier()]


def test_who_only_looked_has_not_failed() -> None:
    election = candidate(LOOKING)
    election.claimed(silent(), claim(node=3))
    began_ms = TIMEOUT_MS + 1
    assert election.tick(silent(began_ms + TIMEOUT_MS)) == []
    assert election.tick(silent(began_ms + TIMEOUT_MS + 1)) == [SendBarrier()]


# -- what is told while there is no master -------------------------------------------------------

TWO_ACTIVE = members(n1=10, n2=20)
NOBODY = "no eligible node is alive: waiting for one of the nodes that "

STANDINGS: dict[str, tuple[Any, Mastership]] = {
    "the master is heard": (heard(), Mastership("elected", "")),
    "it is this node": (silent(is_master=True), Mastership("elected", "")),
    "too few are active": (
        heard(authority=replace(AUTHORITY, minimum=3, members=TWO_ACTIVE)),
        Mastership("elected", "2 nodes are active, 3 copies are needed"),
    ),
    "just enough are active": (
        heard(authority=replace(AUTHORITY, members=TWO_ACTIVE)),
        Mastership("elected", ""),
    ),
    "the log is being read": (
        heard(authority=None, phase=CATCHING_UP),
        Mastership("unknown", "this node is catching-up"),
    ),
    "no master is heard while the state is looked for": (
        silent(phase=SYNCHRONISING),
        Mastership("unknown", "no master was heard; this node is synchronising"),
    ),
    "this node may claim": (
        silent(),
        Mastership("electing", "no master is alive: an election is under way"),
    ),
    "another one may that is alive": (
        silent(alive=[a_beat(3)], sick="full"),
        Mastership("electing", "no master is alive: an election is under way"),
    ),
    "nobody may who is alive": (
        silent(
            alive=[a_beat(2)], silent=[a_beat(3)], authority=replace(AUTHORITY, acceptors=(1, 3)),
            sick="full",
        ),
        Mastership("no_eligible_node", f"{NOBODY}accepted transaction 4-7 (1, 3)", (1, 3)),
    ),
    "there is no cluster, and nobody to form it": (
        silent(authority=None, settings={"roster": (2, 3)}),
        Mastership("no_eligible_node", f"{NOBODY}form the cluster (2, 3)", (2, 3)),
    ),
}  # fmt: skip


@pytest.mark.parametrize(("view", "standing"), STANDINGS.values(), ids=list(STANDINGS))
def test_how_the_mastership_stands_is_said_with_whom_it_waits_for(
    view: Any, standing: Mastership
) -> None:
    assert Election(Tokens()).mastership(view) == standing


def no_master(message: str, state: str, waiting_for: list[int]) -> Outcome:
    return unknown("no_master", message, mastership=state, waiting_for=waiting_for)


SENT_AWAY: dict[str, tuple[Any, Outcome]] = {
    "to the master": (
        heard(),
        unknown("not_master", "node 2 is the master", node=2, address="n2"),
    ),
    "to nobody yet": (
        silent(),
        no_master("no master is alive: an election is under way", "electing", []),
    ),
    "to nobody after a resignation": (
        heard(authority=MASTERLESS),
        no_master("no master is alive: an election is under way", "electing", []),
    ),
    "to nobody for long": (
        silent(sick="full", authority=replace(AUTHORITY, acceptors=(1,))),
        no_master(f"{NOBODY}accepted transaction 4-7 (1)", "no_eligible_node", [1]),
    ),
    "to this node, which was it": (
        heard(authority=OWN_AUTHORITY),
        unknown("no_master", "the master is changing: retry"),
    ),
}


@pytest.mark.parametrize(("view", "answer"), SENT_AWAY.values(), ids=list(SENT_AWAY))
def test_a_writer_is_sent_to_the_master_or_told_to_repeat(view: Any, answer: Outcome) -> None:
    assert Election(Tokens()).not_master(view) == answer


def test_who_asked_for_a_step_down_hears_of_the_next_claim_once() -> None:
    election = Election(Tokens())
    election.await_successor(7, MONO_MS + 100)
    answer = {"epoch": 5, "master": 3, "address": "n3"}
    assert election.tick(heard(mono_ms=MONO_MS + 99)) == []
    assert election.claimed(heard(), claim(node=3)) == [Reply(7, Outcome(OK, answer=answer))]
    assert election.claimed(heard(), claim(6, node=2)) == []
    assert election.tick(heard(mono_ms=MONO_MS + 100)) == []


def test_who_asked_for_a_step_down_hears_at_the_deadline_that_nobody_has_claimed() -> None:
    election = Election(Tokens())
    election.await_successor(7, MONO_MS + 100)
    election.await_successor(8, MONO_MS + 101)
    message = "the mastership was given up, and nobody has claimed it yet"
    assert election.tick(heard(mono_ms=MONO_MS + 100)) == [Reply(7, unknown("timeout", message))]
    answer = {"epoch": 5, "master": 3, "address": "n3"}
    assert election.claimed(heard(), claim(node=3)) == [Reply(8, Outcome(OK, answer=answer))]


# -- a claim that an operator forces -------------------------------------------------------------

ALONE = replace(AUTHORITY, acceptors=(2, 3))
"""Node 1 may not claim: it is at the last CAS, but it is not known to have accepted it."""

ASKED = MembershipRequested(17, 99, Reform(1, (2, 3), "two are lost"), "me")
REFORMED = ClusterReformed(
    epoch=5,
    node=1,
    cas=STATE.cas,
    digest=STATE.digest,
    minimum=1,
    roster=(1,),
    principal="me",
    reason="two are lost",
    at_ms=WALL_MS,
)

NOT_READY = {
    "no log was read": (
        silent(authority=None, phase=CATCHING_UP),
        refused("not_ready", "this node is catching-up"),
    ),
    "it has no state": (
        silent(phase=SYNCHRONISING),
        refused("not_ready", "this node is synchronising"),
    ),
    "its store refuses": (
        silent(sick="full"),
        refused("not_ready", "the store refuses writes: full"),
    ),
    "there is a master": (
        heard(),
        unknown("not_master", "node 2 is the master", node=2, address="n2"),
    ),
    "it is behind": (
        silent(authority=replace(ALONE, last_cas=51)),
        refused("reform_impossible", "node 1 stands at 50, not 51"),
    ),
}


@pytest.mark.parametrize(("view", "answer"), NOT_READY.values(), ids=list(NOT_READY))
def test_a_reform_is_refused_by_who_could_not_make_it_count(view: Any, answer: Outcome) -> None:
    election = Election(Tokens())
    assert election.reform_requested(view, ASKED) == [Reply(17, answer)]
    assert election.candidacy is None


def test_a_reform_that_forgets_a_node_that_is_not_there_is_refused() -> None:
    asked = replace(ASKED, command=Reform(1, (2, 9), "two are lost"))
    roster = ", ".join(map(str, ALONE.roster))
    answer = refused("member_not_found", f"node 9 is not in the roster: {roster}")
    assert Election(Tokens()).reform_requested(silent(authority=ALONE), asked) == [
        Reply(17, answer)
    ]


def test_a_reform_is_refused_by_who_is_being_stopped_or_claims() -> None:
    election = Election(Tokens())
    election.stopping = True
    stopping = refused("not_ready", "this node is stopping")
    assert election.reform_requested(silent(), ASKED) == [Reply(17, stopping)]
    under_way = unknown("no_master", "an election is under way: retry")
    assert candidate(LOOKING).reform_requested(silent(), ASKED) == [Reply(17, under_way)]


def test_a_forced_claim_goes_the_same_way_with_the_reform_in_front_of_it() -> None:
    election, view = Election(Tokens()), silent(authority=ALONE)
    assert election.reform_requested(view, ASKED) == [SendBarrier()]
    assert election.barrier_read(view) == [CLAIMING_NOTE, OpenProducer(TOKEN)]
    assert election.producer_opened(ProducerOpened(TOKEN)) == [SendBarrier()]
    reformed = authorities.fold(ALONE, 0, REFORMED)
    assert reformed.state is not None
    written = claim(snapshot=reformed.state)
    assert election.barrier_read(view) == [Conclude(TOKEN, (REFORMED, written))]
    after = authorities.fold(reformed.state, 0, written).state
    told = {"epoch": 5, "master": 1, "address": "n1"}
    shape = {"roster": [1], "active": [1], "minimum": 1}
    assert election.claimed(silent(authority=after), written) == [
        Reply(17, Outcome(OK, answer=told | shape)),
        Elected(5),
    ]


def test_a_forced_claim_does_not_fence_a_master_that_turned_up() -> None:
    election, view = Election(Tokens()), silent(authority=ALONE)
    election.reform_requested(view, ASKED)
    election.beat(view, a_beat(2, state="master"))
    answer = unknown("unavailable", "not reformed: a master is alive")
    assert election.barrier_read(view) == [Reply(17, answer)]
    assert election.candidacy is None


def test_a_forced_claim_that_the_log_has_overtaken_is_told_to_who_asked() -> None:
    for authority, why in (
        (replace(ALONE, last_cas=51), "this node is not at the last committed transaction"),
        (replace(ALONE, roster=(2, 3)), "the roster [] is not one of what [2, 3] leaves"),
    ):
        election, view = Election(Tokens()), silent(authority=ALONE)
        election.reform_requested(view, ASKED)
        election.barrier_read(view)
        election.producer_opened(ProducerOpened(TOKEN))
        answer = unknown("unavailable", f"not reformed: {why}")
        found = election.barrier_read(silent(authority=authority))
        assert found == [Reply(17, answer), *given_up(why)]


def test_a_claim_closes_what_its_predecessor_left_open() -> None:
    """The fold does: the claim says nothing of it, and builds on the last committed state."""
    open_ = replace(AUTHORITY, open=opened(a_proposal(8), 150), last_seq=8, log_next=1)
    view = silent(authority=open_)
    (written,) = candidate(READING, view).barrier_read(view)
    assert isinstance(written, Conclude)
    (record,) = written.records
    assert record == claim(snapshot=open_)
