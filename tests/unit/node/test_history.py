"""What a node tells of the past, with a log in memory: pages, moments, copies on the way."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coordinator.core.catalog import state as states
from coordinator.core.catalog.state import StateContext
from coordinator.core.history.predicates import Predicate
from coordinator.core.model.records import Event
from coordinator.core.model.types import Cas
from coordinator.node import history as histories
from coordinator.node import state_copies
from coordinator.node.history import CompactedError, History, StillReadingError
from tests.support.changes import MemoryLog, a_transaction, deleted, written

ALL = Predicate()
STEP = 2
SPACING = 200


@pytest.fixture(autouse=True)
def _near_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copies, "SPACING_MIN", SPACING)


class Past:
    """A history of many transactions, each of two changes, and the state after each of them."""

    def __init__(self, folder: Path, count: int, oldest_cas: int = 0) -> None:
        self.events: list[Event] = []
        self.states: dict[int, StateContext] = {0: states.EMPTY}
        state = states.EMPTY
        for number in range(count):
            cas = 1 + number * (STEP + 1)
            made = a_transaction(number, cas, written(f"k{number % 7}", f"{number}"), deleted("x"))
            state = states.evolve(state, [(event.mutation, event.cas) for event in made])
            self.states[state.cas] = state
            self.events += made
        self.newest = state
        self.log = MemoryLog(lambda: self.events, oldest_cas)
        self.folder = folder
        self.history = self.open()

    def open(self) -> History:
        return History(lambda _: self.log, self.folder)

    def expected(self, cas: int) -> StateContext:
        return self.states[max(at for at in self.states if at <= cas)]


@pytest.fixture
def past(tmp_path: Path) -> Past:
    return Past(tmp_path, 50)


def test_the_state_of_every_cas_is_that_of_the_last_transaction(past: Past) -> None:
    for cas in [*range(past.newest.cas + 3), 75, 3, 74]:
        assert past.history.state_at(Cas(cas), past.newest) == past.expected(cas)


@pytest.mark.parametrize("limit", [1, 2, 3, 1_000])
def test_pages_have_each_change_once_whatever_their_length(past: Past, limit: int) -> None:
    found: list[Event] = []
    after: Cas | None = Cas(0)
    while after is not None:
        page = past.history.page(after, None, ALL, limit, past.newest)
        assert len(page.changes) <= limit
        found += [change.event for change in page.changes]
        after = page.next
    assert found == past.events


# -- bounds in bytes -----------------------------------------------------------------------------

LARGE = '"' + "x" * 100_000 + '"'
MANY = 100


class Large(Past):
    """A history of one small transaction, of a large one, of a small one, and so on."""

    def __init__(self, folder: Path, count: int = 6) -> None:
        super().__init__(folder, 0)
        state = states.EMPTY
        for number in range(count):
            names = [f"k{n}" for n in range(MANY)] if number % 2 else ["k0", "k1"]
            value = LARGE if number % 2 else "1"
            cas = state.cas + 2
            made = a_transaction(number, cas, *(written(name, value) for name in names))
            state = states.evolve(state, [(event.mutation, event.cas) for event in made])
            self.states[state.cas] = state
            self.events += made
        self.newest = state


@pytest.mark.thorough
@pytest.mark.parametrize("predicate", [ALL, Predicate(keys=frozenset({"config/k3"}))])
def test_a_page_has_a_bound_in_bytes_and_the_next_one_goes_on_there(
    tmp_path: Path, predicate: Predicate
) -> None:
    past = Large(tmp_path)
    found: list[Event] = []
    after: Cas | None = Cas(0)
    while after is not None:
        page = past.history.page(after, None, predicate, 1_000, past.newest)
        assert 0 < sum(map(len, page.texts)) <= histories.PAGE_BYTES_MAX
        found += [change.event for change in page.changes]
        for change in page.changes:
            before = past.expected(change.event.cas - 1).get(change.key)
            assert (change.before and change.before.entity) == (before and before.entity)
        after = page.next
    keys = predicate.keys
    assert found == [event for event in past.events if not keys or event.mutation.key in keys]


def test_a_change_that_is_larger_than_a_page_is_a_page_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "PAGE_BYTES_MAX", 10)
    past = Past(tmp_path, 4)
    found: list[Event] = []
    after: Cas | None = Cas(0)
    while after is not None:
        page = past.history.page(after, None, ALL, 1_000, past.newest)
        assert len(page.changes) == len(page.texts) == 1
        found.append(page.changes[0].event)
        after = page.next
    assert found == past.events


@pytest.mark.thorough
@pytest.mark.parametrize(("limit", "pages"), [(1, 6), (3, 3), (1_000, 3)])
def test_a_page_of_whole_transactions_divides_none_and_ends_with_the_first_that_fills_it(
    tmp_path: Path, limit: int, pages: int
) -> None:
    past = Large(tmp_path)
    found: list[Event] = []
    after: Cas | None = Cas(0)
    while after is not None:
        page = past.history.whole_page(after, ALL, limit, past.newest)
        last = page.changes[-1].event
        assert last.index + 1 == last.count
        assert page.next in (last.cas, None)
        found += [change.event for change in page.changes]
        after, pages = page.next, pages - 1
    assert (found, pages) == (past.events, 0)


def test_a_page_of_whole_transactions_that_takes_long_says_where_to_go_on(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "SCAN_S", -1.0)
    nothing = Predicate(keys=frozenset({"config/none"}))
    page = past.history.whole_page(Cas(0), nothing, 10, past.newest)
    assert (page.changes, page.next) == ((), 2)
    assert past.history.whole_page(past.newest.cas, ALL, 10, past.newest) == ((), (), None)


@pytest.mark.parametrize(("after", "until"), [(4, 20), (5, 21), (20, 5), (0, 1), (148, 900)])
def test_a_page_has_what_is_above_one_cas_and_up_to_another(
    past: Past, after: int, until: int
) -> None:
    page = past.history.page(Cas(after), Cas(until), ALL, 1_000, past.newest)
    cas = [change.event.cas for change in page.changes]
    assert cas == [event.cas for event in past.events if after < event.cas <= until]
    assert page.next is None


def test_each_change_has_the_value_before_it_wherever_a_page_begins(past: Past) -> None:
    for after in (0, 20, 21, 22):
        page = past.history.page(Cas(after), None, ALL, 1_000, past.newest)
        change = next(change for change in page.changes if change.event.cas == 25)
        assert change.before == past.expected(24).get("config/k1")
        assert change.before is not None
        assert change.before.cas == 4


def test_what_is_committed_after_now_is_not_told_of(past: Past) -> None:
    now = past.expected(60)
    page = past.history.page(Cas(0), None, ALL, 1_000, now)
    assert page.changes[-1].event.cas == now.cas
    assert past.history.state_at(Cas(999), now) is now


def test_a_page_that_takes_long_ends_with_where_to_go_on(
    past: Past, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(histories, "SCAN_S", -1.0)
    nothing = Predicate(keys=frozenset({"config/none"}))
    page = past.history.page(Cas(0), None, nothing, 10, past.newest)
    assert (page.changes, page.next) == ((), 2)


def test_a_long_way_is_gone_in_several_tries(past: Past, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(histories, "READ_S", -1.0)
    tries = 0
    while True:
        try:
            assert past.history.state_at(Cas(20), past.newest) == past.expected(20)
        except StillReadingError:
            tries += 1
        else:
            break
    assert tries > 1


def test_copies_on_the_way_make_the_next_question_short_also_after_a_restart(
    tmp_path: Path,
) -> None:
    past = Past(tmp_path, 2 * SPACING)
    last = Cas(past.newest.cas - 1)
    past.history.state_at(last, past.newest)
    read, past.log.read = past.log.read, 0
    assert read >= 2 * SPACING - 1
    again = past.open()
    assert again.state_at(last, past.newest) == past.expected(last)
    assert past.log.read <= 1 + SPACING // (STEP + 1)


def test_what_is_gone_is_said_to_be_gone_unless_a_copy_has_it(tmp_path: Path) -> None:
    past = Past(tmp_path, 2 * SPACING, oldest_cas=2 * SPACING)
    with pytest.raises(CompactedError) as caught:
        past.history.state_at(Cas(2 * SPACING + 5), past.newest)
    assert caught.value.oldest == 2 * SPACING
    kept = past.expected(2 * SPACING + 50)
    past.history.keep(kept)
    wanted = Cas(2 * SPACING + 90)
    assert past.history.state_at(wanted, past.newest) == past.expected(wanted)


class CutLog(MemoryLog):
    """A topic whose beginning is deleted between the question and the first record."""

    def __init__(self, past: Past) -> None:
        super().__init__(lambda: [event for event in past.events if event.cas >= self.oldest_cas])
        self.oldest_cas = 0
        self.cut = 70

    def oldest(self, newest: Cas) -> Cas:
        return Cas(self.oldest_cas)

    def transactions(self, above: Cas, up_to: Cas) -> Iterator[tuple[Event, ...]]:
        self.oldest_cas = self.cut
        return super().transactions(above, up_to)


def test_no_state_is_made_of_what_is_left_when_the_rest_goes_as_it_is_read(past: Past) -> None:
    """Another node lets old changes go: what was there when it was looked for may be gone."""
    cut = CutLog(past)
    history = History(lambda _: cut, past.folder)
    for ask in (
        lambda: history.state_at(Cas(100), past.newest),
        lambda: history.page(Cas(0), None, ALL, 10, past.newest),
        lambda: history.whole_page(Cas(0), ALL, 10, past.newest),
    ):
        cut.oldest_cas = 0
        with pytest.raises(CompactedError) as caught:
            ask()
        assert caught.value.oldest == cut.cut


def test_a_copy_of_now_is_kept_when_it_is_due(past: Past) -> None:
    assert not past.history.is_due(past.newest)
    far = past.newest._replace(cas=Cas(SPACING))
    assert past.history.is_due(far)
    past.history.keep(far)
    assert not past.history.is_due(far)


def test_a_restored_history_begins_with_the_state_that_was_restored_with_it(past: Past) -> None:
    cut = past.expected(60)
    begun = past.events.index(next(e for e in past.events if e.cas > cut.cas))
    oldest = past.events[begun].cas
    log = MemoryLog(lambda: past.events[begun:], oldest, before=cut)
    history = History(lambda _: log, past.folder)
    for cas in (cut.cas, oldest, past.newest.cas - 1):
        assert history.state_at(cas, past.newest) == past.expected(cas)
    page = history.page(cut.cas, None, ALL, 1_000, past.newest)
    assert [change.event for change in page.changes] == past.events[begun:]
    assert page.changes[0].before == cut.get(page.changes[0].key)
    with pytest.raises(CompactedError):
        history.page(Cas(cut.cas - 1), None, ALL, 1_000, past.newest)


def test_a_watcher_is_told_of_the_past_only_what_the_topic_has(past: Past) -> None:
    past.log.archived_below = oldest = Cas(40)
    for after in (Cas(0), Cas(39)):
        with pytest.raises(CompactedError) as caught:
            past.history.missed(after, ALL, 10, past.newest)
        assert caught.value.oldest == oldest
        assert past.history.page(after, None, ALL, 10, past.newest).changes
    for after in (Cas(40), Cas(75)):
        assert past.history.missed(after, ALL, 10, past.newest) == (
            past.history.page(after, None, ALL, 10, past.newest)
        )
    assert past.history.missed(past.newest.cas, ALL, 10, past.newest).changes == ()
