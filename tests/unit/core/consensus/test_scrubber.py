"""What is wrong with `statecontext` is found, and nothing else."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import EMPTY
from coordinator.core.consensus.scrubber import Findings, Scrubber
from coordinator.core.model.records import Event, Mutation
from coordinator.core.model.types import TxnId
from tests.support.strategies import histories

History = list[tuple[Mutation, int]]


def events(history: History) -> list[Event]:
    return [Event(m, TxnId(1, cas), 0, 1, cas) for m, cas in history]


def compacted(history: History, upto: int, choose: st.DataObject) -> History:
    """Return the history as compaction may leave it: the last record of each key, and some more.

    Tombstones of drops after `upto` are too young to go. An old one goes only once all that came
    before it under its key is gone.
    """
    last = {mutation.key: cas for mutation, cas in history}
    gone = {
        mutation.key
        for mutation, cas in history
        if mutation.value is None
        and last[mutation.key] == cas <= upto
        and choose.draw(st.booleans())
    }
    return [
        (mutation, cas)
        for mutation, cas in history
        if mutation.key not in gone and (last[mutation.key] == cas or choose.draw(st.booleans()))
    ]


def scrub(history: History, topic: History, upto: int) -> Findings:
    state = states.evolve(EMPTY, [pair for pair in history if pair[1] <= upto])
    scrubber = Scrubber(state)
    scrubber.add(events(topic))
    return scrubber.findings()


@given(histories(), st.data())
def test_a_topic_that_says_what_was_committed_has_nothing_wrong(
    history: History, data: st.DataObject
) -> None:
    """However much of it was compacted, and however much was committed since."""
    upto = data.draw(st.sampled_from([0, *(cas for _, cas in history)]))
    found = scrub(history, compacted(history, upto, data), upto)
    assert found[:2] == Findings()[:2]
    assert set(found.later) == {mutation.key for mutation, cas in history if cas > upto}


@given(histories().filter(bool), st.data())
def test_an_entity_whose_last_record_is_missing_is_a_hole_or_a_stray(
    history: History, data: st.DataObject
) -> None:
    """A drop that is missing leaves something that nobody committed to be there."""
    state = states.evolve(EMPTY, history)
    last = {mutation.key: (mutation, cas) for mutation, cas in history}
    mutation, cas = data.draw(st.sampled_from(sorted(last.values(), key=lambda pair: pair[1])))
    topic = [pair for pair in history if pair[1] != cas]
    found = scrub(history, topic, history[-1][1])
    older = [m for m, _ in topic if m.key == mutation.key]
    if mutation.value is not None:
        assert found == Findings(holes=(mutation.key,))
    elif older and older[-1].value is not None:
        assert found == Findings(strays=(mutation.key,))
    else:
        assert found == Findings()
    assert state.digest == states.evolve(EMPTY, history).digest


@given(histories(), st.data())
def test_an_event_of_no_transaction_is_a_stray(history: History, data: st.DataObject) -> None:
    free = [cas for cas in range(1, 50) if cas not in {at for _, at in history}]
    stray_cas = data.draw(st.sampled_from(free))
    stray = data.draw(histories().filter(bool))[0][0]
    topic = sorted([*history, (stray, stray_cas)], key=lambda pair: pair[1])
    upto = max([stray_cas, *(cas for _, cas in history)])
    state = states.evolve(EMPTY, history)._replace(cas=upto)
    scrubber = Scrubber(state)
    scrubber.add(events(topic))
    found = scrubber.findings()
    later = any(m.key == stray.key and cas > stray_cas for m, cas in history)
    absent = stray.value is None and state.get(stray.key) is None
    assert found == (Findings() if later or absent else Findings(strays=(stray.key,)))
