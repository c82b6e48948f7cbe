"""Supervision: start units in order, keep them running, stop them in order, leave nothing behind.

The brokers come first and go last; the children start together once topics are there. Brokers
start and stop together, because a majority of them must run before any is ready. A unit
that dies is started again with backoff. Two things end a run: a signal (SIGINT, SIGTERM, SIGHUP;
a second one kills), and a fault that a restart cannot mend (a child that ends with `EX_CONFIG`, a
start that fails). Whatever ends it, everything is stopped before `supervise` returns or raises.
Only the main thread can supervise: signals go there.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from coordinator.embedded.backoff import Backoff, BackoffPolicy
from coordinator.embedded.broker import Broker
from coordinator.embedded.children import ChildSpec
from coordinator.embedded.units import BrokerUnit, ProcessUnit, Unit, in_thread
from coordinator.runtime.errors import EmbeddedError

EX_CONFIG = 78
EXIT_INTERRUPTED = 130
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
PROBE_EVERY_S = 0.1
LAST_LINES = 3
DEFAULT_BACKOFF = BackoffPolicy()


def print_line(line: str) -> None:
    """Print a line now, also into a pipe."""
    with contextlib.suppress(BrokenPipeError):
        print(line, flush=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to run: brokers or none, then `prepare` (may block), then the children."""

    brokers: Sequence[Broker]
    prepare: Callable[[], Sequence[ChildSpec]]
    summary: Callable[[float], str]
    """Text for people once all is ready; given the seconds that it took."""
    finish: Callable[[], None] = lambda: None
    """What is left to do when all is ready; may block."""
    start_timeout_s: float = 90.0
    stop_grace_s: float = 8.0
    broker_stop_grace_s: float = 6.0
    backoff: BackoffPolicy = DEFAULT_BACKOFF


def supervise(plan: Plan, *, began: float | None = None) -> int:
    """Run `plan` until a signal; return 0, or 130 if a second signal had to kill.

    `began` is the `time.monotonic()` that the summary counts from. Raises what made a start fail,
    or EmbeddedError `child_refused`.
    """
    return asyncio.run(_Supervisor(plan, time.monotonic() if began is None else began).serve())


class _Supervisor:
    """One run of a plan."""

    def __init__(self, plan: Plan, began: float) -> None:
        self._plan, self._began = plan, began
        self._units: list[Unit] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._signals_seen = 0
        self._stop = asyncio.Event()
        self._killed = False

    async def serve(self) -> int:
        """Live until a signal or a fault, then stop everything."""
        self._fault: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._listen()
        life = asyncio.create_task(self._live())
        signalled = asyncio.create_task(self._stop.wait())
        ends: set[asyncio.Future[object]] = {life, signalled, self._fault}  # type: ignore[arg-type]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
        finally:
            await self._cancel([life, signalled, *self._keepers])
            await self._stop_all()
        for end in (self._fault, life):
            if end.done() and not end.cancelled() and end.exception() is not None:
                end.result()
        return EXIT_INTERRUPTED if self._killed else 0

    # -- Signals ---------------------------------------------------------------------------

    def _listen(self) -> None:
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGCHLD, self._on_child)
        for number in STOP_SIGNALS:
            if number == signal.SIGHUP and signal.getsignal(number) == signal.SIG_IGN:
                continue  # Under nohup it shall go on.
            loop.add_signal_handler(number, self._on_stop_signal)

    def _on_child(self) -> None:
        for unit in self._units:
            unit.reap()

    def _on_stop_signal(self) -> None:
        self._signals_seen += 1
        self._stop.set()
        if self._signals_seen > 1 and not self._killed:
            self._killed = True
            print_line("killing what still runs")
            for unit in self._units:
                unit.kill()

    # -- Living ----------------------------------------------------------------------------

    async def _live(self) -> None:
        """Start everything, tell when it is ready, and go on until cancelled."""
        await self._launch_together(broker_units(self._plan.brokers))
        specs = await in_thread(self._plan.prepare)
        units = [ProcessUnit(spec) for spec in specs]
        for unit in units:
            await self._launch(unit)
        await asyncio.gather(*(self._until_ready(unit) for unit in units))
        await in_thread(self._plan.finish)
        print_line(self._plan.summary(time.monotonic() - self._began))
        await asyncio.Event().wait()

    async def _launch_together(self, units: Sequence[Unit]) -> None:
        """Start `units` at once; return when all have started, or raise when one does not."""
        launches = [asyncio.create_task(self._launch(unit)) for unit in units]
        try:
            await asyncio.gather(*launches)
        finally:
            await self._cancel(launches)

    async def _launch(self, unit: Unit) -> None:
        """Start `unit` for the first time; a task keeps it running from then on."""
        self._units.append(unit)
        await unit.start()
        keeper = asyncio.create_task(self._keep(unit))
        keeper.add_done_callback(self._on_keeper_end)
        self._keepers.append(keeper)
        unit.reap()

    def _on_keeper_end(self, keeper: asyncio.Task[None]) -> None:
        error = None if keeper.cancelled() else keeper.exception()
        if error is not None and not self._fault.done():
            self._fault.set_exception(error)

    async def _until_ready(self, unit: ProcessUnit) -> None:
        timeout_s = self._plan.start_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                while not await unit.spec.ready():
                    await asyncio.sleep(PROBE_EVERY_S)
        except TimeoutError:
            words = " | ".join(unit.last_words(LAST_LINES)) or "it logged nothing"
            raise EmbeddedError(
                "start_timeout",
                f"{unit.name} was not ready within {timeout_s:g} s: {words} (see {unit.log})",
            ) from None

    async def _keep(self, unit: Unit) -> None:
        """Start `unit` again whenever it ends, until cancelled or it refuses to run."""
        backoff = Backoff(self._plan.backoff, time.monotonic())
        while True:
            status = await unit.ended()
            if status == EX_CONFIG:
                raise _refusal(unit)
            await self._start_again(unit, backoff, f"{unit.name} {describe_exit(status)}")

    async def _start_again(self, unit: Unit, backoff: Backoff, reason: str) -> None:
        """Start `unit` once its time has come, as often as it takes; say each time why."""
        while True:
            delay_s = backoff.died(time.monotonic())
            print_line(f"{reason}; starting it again in {delay_s:.1f} s (see {unit.log})")
            await asyncio.sleep(delay_s)
            backoff.started(time.monotonic())
            try:
                await unit.start()
            except (EmbeddedError, OSError) as error:
                reason = f"{unit.name} did not start: {getattr(error, 'message', error)}"
                continue
            print_line(f"{unit.name} was started again")
            unit.reap()
            return

    # -- Ending ----------------------------------------------------------------------------

    async def _cancel(self, tasks: Sequence[asyncio.Task[object]]) -> None:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _stop_all(self) -> None:
        """Stop the children together, then the brokers together."""
        if self._units:
            print_line("stopping")
        brokers = [unit for unit in self._units if isinstance(unit, BrokerUnit)]
        children = [unit for unit in self._units if unit not in brokers]
        await asyncio.gather(*(unit.stop(self._plan.stop_grace_s) for unit in children))
        await asyncio.gather(*(unit.stop(self._plan.broker_stop_grace_s) for unit in brokers))


def broker_units(brokers: Sequence[Broker]) -> list[BrokerUnit]:
    """Return the brokers as units: `kafka` if there is one, else `kafka-1` and so on."""
    alone = len(brokers) == 1
    return [BrokerUnit(one, "kafka" if alone else f"kafka-{one.node}") for one in brokers]


def _refusal(unit: Unit) -> EmbeddedError:
    words = unit.last_words(1)
    return EmbeddedError(
        "child_refused",
        f"{unit.name} refuses to run: {words[0] if words else 'it did not say why'} "
        f"(see {unit.log})",
    )


def describe_exit(status: int) -> str:
    """Return how a process ended, for people."""
    if status >= 0:
        return f"ended with exit code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"
