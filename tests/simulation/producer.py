"""The thread of a machine that owns the cluster's one transactional producer.

It carries out its orders one after the other. Each call to the broker crosses a network that may
lose it, or its answer, or be slow; what a call returns is only ever what the broker said.

The client library repeats the request that ends a transaction by itself, when it loses its
connection, and says nothing of it. The first copy may be under way still, and arrive much later.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from coordinator.core.consensus import effects as fx
from coordinator.core.consensus import inputs as inp
from coordinator.kafka import end_txn
from tests.simulation.kernel.broker import ABORTED, COMMITTED, Fenced, Misplaced, Session

if TYPE_CHECKING:
    from tests.simulation.machine import Machine

PATIENCE_MS = 2_800
"""After this the client library gives a call up."""

END_PATIENCE_MS = 2_500
"""After this it gives the end of a transaction up."""

LATE_MS_MAX = 4_000
"""So long the first copy of a repeated request may be under way."""

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
        self._history: tuple[Any, ...] = ()
        self.end_patience_ms = END_PATIENCE_MS
        self.patience = end_txn.Patience()
        self.cut_at_the_end = False
        """The next end of a transaction is delayed on its way, and its connection is cut."""
        self.calls_lost = 0
        """So many questions, or answers to them, were lost on the way."""

    def drop(self) -> None:
        """Forget the producer; calls under way may still reach the broker."""
        self._generation += 1
        self.session = None
        self._history = ()
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
            self.patience.begin()
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
        """Keep it for the end of the transaction, with whose records it is sent."""
        self._history = effect.events

    def conclude(self, effect: fx.Conclude) -> None:
        """Send the records, then end the transaction: two calls, and anything in between."""

        history, self._history = self._history, ()

        def send(session: Session, back: Back) -> None:
            self.broker.check(session)
            self.machine.world.judge.concluding(self.machine, session, effect)
            for event in history:
                self.broker.send(session, "history", event)
            for record in effect.records:
                self.broker.send(session, "commit", record)
            for reply in effect.replies:
                self.broker.send(session, "ddl-replies", reply)
            for letter in effect.dead_letters:
                self.broker.send(session, "dead-letter", letter)
            back(None)

        self._in_transaction(effect.token, send, lambda result: None)
        self._enqueue(lambda: self._end(effect.token, COMMITTED))

    def abandon(self, effect: fx.Abandon) -> None:
        self._history = ()
        self._enqueue(lambda: self._end(effect.token, ABORTED))

    def _end(self, token: int, status: str) -> None:
        """End the transaction, unless what came before it has failed."""
        session = self.session
        if session is None:
            if status == ABORTED:
                self.machine.later(1, inp.ProducerFailed(token, "there is no producer"))
            self._next()
        else:
            Ending(self, session, token, status, self._generation).send()

    def ended(self, generation: int, token: int, problem: str) -> None:
        """The end of a transaction was answered, or given up for a reason."""
        if generation != self._generation:
            return
        if problem:
            self.session = None
            self.machine.feed(inp.ProducerFailed(token, problem))
        else:
            self.machine.feed(inp.Ended(token))
        self._go_on(generation)

    def under_way(self, there: Callable[[], None]) -> None:
        """Let a call reach the broker, after some time."""
        machine, clock = self.machine, self.clock
        slow = 0
        if clock.hit(machine.world.faults.call_slow):
            slow = clock.chance.randint(1, 1_500)
            machine.met("delay")
        clock.at(clock.delay() + slow + machine.slow(), there)

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
        self, token: int, what: Callable[[Session, Back], None], answer: Back
    ) -> None:
        """Enqueue a call."""

        def work() -> None:
            session = self.session
            if session is None:
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
                self.calls_lost += 1
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
                self.calls_lost += 1
                return
            self.broker.when_complete(perform)

        def perform() -> None:
            try:
                what(back)
            except Fenced as error:
                clock.at(clock.delay(), fail, str(error))

        faults = machine.world.faults
        lost_there = machine.mute or machine.loses(faults.call_lost)
        self.calls_lost += lost_there
        if not lost_there:
            self.under_way(there)
        clock.at(PATIENCE_MS, fail, "the broker does not answer")


class Ending:
    """One EndTxn, with all its copies, as the client library sends it."""

    def __init__(
        self, thread: ProducerThread, session: Session, token: int, status: str, generation: int
    ) -> None:
        self._thread = thread
        self._machine = thread.machine
        self._clock = thread.clock
        self._session = session
        self._token = token
        self._status = status
        self._generation = generation
        self._began_ms = self._machine.mono_ms
        self._pause_ms = thread.patience.pause_ms
        self._settled = False
        self._clock.at(thread.end_patience_ms, self._settle, "the broker does not answer")

    def send(self) -> None:
        """Send a copy. A connection that breaks meanwhile has another one sent after a pause."""
        machine, clock = self._machine, self._clock
        if self._settled:
            return
        faults = machine.world.faults
        cut, self._thread.cut_at_the_end = self._thread.cut_at_the_end, False
        if cut or machine.mute or machine.loses(faults.call_lost):
            if cut or clock.hit(0.7):
                clock.at(clock.chance.randint(1, LATE_MS_MAX), self._arrive)
            self._disconnected(cut)
            return
        self._thread.under_way(self._arrive)

    def _disconnected(self, surely: bool = False) -> None:
        """The client notices at once, or never."""
        if surely or self._clock.hit(0.5):
            pause = self._pause_ms * (1 + end_txn.JITTER * (2 * self._clock.chance.random() - 1))
            shortest = self._pause_ms * (1 - end_txn.JITTER)
            self._machine.after(int(max(pause, shortest)), self.send)

    def _arrive(self) -> None:
        """A copy has reached the broker, whatever has become of who sent it."""
        self._thread.broker.when_complete(self._perform)

    def _perform(self) -> None:
        try:
            self._thread.broker.end(self._session, self._status)
        except (Fenced, Misplaced) as error:
            self._clock.at(self._clock.delay(), self._settle, str(error))
        else:
            self._answer()

    def _answer(self) -> None:
        machine, clock = self._machine, self._clock
        if machine.deaf or machine.loses(machine.world.faults.answer_lost):
            self._disconnected()
        else:
            clock.at(clock.delay() + machine.slow(), self._settle, "")

    def _settle(self, problem: str) -> None:
        """The call returns, once."""
        if self._settled:
            return
        self._settled = True
        took_s = (self._machine.mono_ms - self._began_ms) / 1000
        if self._thread.patience.ended(took_s) and not problem:
            problem = f"the end of a transaction took {took_s:.3f} s"
        self._thread.ended(self._generation, self._token, problem)
