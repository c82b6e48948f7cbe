"""The thread of a machine that owns the cluster's one transactional producer.

It carries out its orders one after the other. Each call to the broker crosses a network that may
lose it, or its answer, or be slow; what a call returns is only ever what the broker said.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordinator.core import effects as fx
from coordinator.core import inputs as inp
from tests.simulation.broker import ABORTED, COMMITTED, Fenced, Session

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

PATIENCE_MS = 2_800
"""After this the client library gives a call up."""

Back = Callable[[Any], None]


class ProducerThread:
    """Orders for the transactional producer, in line."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.clock = machine.clock
        self.broker = machine.broker
        self.session: Session | None = None
        self._generation = 0
        self._work: deque[Callable[[], None]] = deque()
        self._working = False
        self._stalled = False

    def drop(self) -> None:
        """Forget the producer; calls under way may still reach the broker."""
        self._generation += 1
        self.session = None
        self._work.clear()
        self._working = self._stalled = False

    def resume(self) -> None:
        """The process runs again."""
        if self._stalled:
            self._stalled = False
            self._next()

    # -- the orders --------------------------------------------------------------------------

    def open(self, effect: fx.OpenProducer) -> None:
        def opened(session: Session) -> None:
            self.session = session
            self.machine.feed(inp.ProducerOpened(effect.token))

        def work() -> None:
            number = self.machine.number
            self._call(effect.token, lambda back: self.broker.initialise(number, back), opened)

        self._enqueue(work)

    def write_events(self, effect: fx.WriteEvents) -> None:
        world = self.machine.world

        def write(session: Session, back: Back) -> None:
            send = self.broker.send
            back(tuple(send(session, "statecontext", event) for event in effect.events))
            if self.clock.hit(world.faults.end_late):
                self.clock.at(self.clock.delay(), world.end_late)

        def written(offsets: tuple[int, ...]) -> None:
            self.machine.feed(inp.Written(effect.token, offsets))

        self._in_transaction(effect.token, write, written)

    def write_history(self, effect: fx.WriteHistory) -> None:
        def write(session: Session, back: Back) -> None:
            for event in effect.events:
                self.broker.send(session, "history", event)
            back(None)

        self._in_transaction(0, write, lambda result: None)

    def conclude(self, effect: fx.Conclude) -> None:
        """Send the records, then end the transaction: two calls, and anything in between."""

        def send(session: Session, back: Back) -> None:
            self.broker.check(session)
            self.machine.world.judge.concluding(self.machine, session, effect)
            for record in effect.records:
                self.broker.send(session, "commit", record)
            for reply in effect.replies:
                self.broker.send(session, "ddl-replies", reply)
            for letter in effect.dead_letters:
                self.broker.send(session, "dead-letter", letter)
            back(None)

        def end(session: Session, back: Back) -> None:
            self.broker.end(session, COMMITTED, lambda: back(None))

        self._in_transaction(effect.token, send, lambda result: None)
        ended = inp.Ended(effect.token)
        self._in_transaction(effect.token, end, lambda result: self.machine.feed(ended), True)

    def abandon(self, effect: fx.Abandon) -> None:
        def abandon(session: Session, back: Back) -> None:
            self.broker.end(session, ABORTED, lambda: back(None))

        self._in_transaction(
            effect.token, abandon, lambda result: self.machine.feed(inp.Ended(effect.token))
        )

    # -- the thread --------------------------------------------------------------------------

    def _enqueue(self, work: Callable[[], None]) -> None:
        """Have the thread do this after all before it."""
        self._work.append(work)
        if not self._working:
            self._working = True
            self._next()

    def _next(self) -> None:
        if self.machine.paused:
            self._stalled = True
        elif self._work:
            self._work.popleft()()
        else:
            self._working = False

    def _go_on(self, generation: int) -> None:
        if generation == self._generation:
            self._next()

    def _in_transaction(
        self,
        token: int,
        what: Callable[[Session, Back], None],
        answer: Back,
        second: bool = False,
    ) -> None:
        """Enqueue a call; a `second` one of the same order is not made if the first failed."""

        def work() -> None:
            session = self.session
            if session is None:
                if not second:
                    self.machine.later(1, inp.ProducerFailed(token, "there is no producer"))
                self._next()
                return
            self._call(token, lambda back: what(session, back), answer)

        self._enqueue(work)

    def _call(self, token: int, what: Callable[[Back], None], answer: Back) -> None:
        """Make one call; `what` runs at the broker and calls back with its result.

        A fault or `Fenced` ends in `ProducerFailed`, after which the thread goes on with what
        comes next.
        """
        machine, clock = self.machine, self.clock
        generation = self._generation
        settled = False

        def fail(reason: str) -> None:
            nonlocal settled
            if not settled and generation == self._generation:
                settled = True
                self.session = None
                machine.feed(inp.ProducerFailed(token, reason))
                self._go_on(generation)

        def back(result: Any) -> None:
            if machine.deaf or machine.loses(faults.answer_lost):
                if clock.hit(0.5):
                    clock.at(clock.delay(), fail, "disconnected")
                return
            clock.at(clock.delay() + machine.slow(), arrive, result)

        def arrive(result: Any) -> None:
            nonlocal settled
            if not settled and generation == self._generation:
                settled = True
                answer(result)
                self._go_on(generation)

        def there() -> None:
            if machine.mute:
                return
            self.broker.when_complete(perform)

        def perform() -> None:
            try:
                what(back)
            except Fenced as error:
                clock.at(clock.delay(), fail, str(error))

        faults = machine.world.faults
        lost_there = machine.mute or machine.loses(faults.call_lost)
        if not lost_there:
            slow = 0
            if clock.hit(faults.call_slow):
                slow = clock.chance.randint(1, 1_500)
                machine.met("delay")
            clock.at(clock.delay() + slow + machine.slow(), there)
        clock.at(PATIENCE_MS, fail, "the broker does not answer")
