"""Executes a node's effects in the real world, and feeds the results back as inputs.

One asyncio loop owns the node. Producers and readers run in threads, and pass inputs to the loop.
The loop itself writes the store, since nothing may overtake a batch. The protocol is not here: the
shell only feeds inputs, and executes effects in order.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from confluent_kafka import KafkaException, Message

from coordinator.core.catalog.state import StateContext
from coordinator.core.consensus import effects, inputs
from coordinator.core.consensus.scrubber import Findings, Scrubber
from coordinator.core.history.feed import Feed
from coordinator.core.model.authority_state import AuthorityState
from coordinator.core.model.commands import Outcome, Position, Request, unknown
from coordinator.core.model.records import AckRecord, Heartbeat
from coordinator.core.model.stream_records import FailoverLog, HwHeartbeat
from coordinator.core.model.types import Cas, Instant, Offset
from coordinator.core.node import Node
from coordinator.kafka.agents import Folds
from coordinator.kafka.archive_segments import ArchiveError
from coordinator.kafka.document_topics import TopicFacts, examined
from coordinator.kafka.errors import KafkaRefusal, is_away
from coordinator.kafka.failover_log_ends import FailoverLogEnds
from coordinator.kafka.history_archive import HistoryArchive
from coordinator.kafka.history_log import HistoryLog
from coordinator.kafka.history_retention import HistoryRetention
from coordinator.kafka.log_reader import decoded
from coordinator.kafka.producers import PlainProducer, TransactionalProducer
from coordinator.kafka.readers import BEGINNING, END, TOGETHER, LogProbe, TailReader, watermarks
from coordinator.kafka.stability_log import StabilityLog
from coordinator.kafka.state_sources import SnapshotLost, Sources
from coordinator.kafka.topics import (
    ACKS,
    COMMIT,
    DDL,
    DDL_PARTITIONS,
    FAILOVER_LOG,
    HEARTBEAT,
    HW,
    STREAM_PARTITIONS,
    delete_records,
    topic_name,
)
from coordinator.language.ddl_commands import read_command
from coordinator.language.examiner import Examiner
from coordinator.node.history import History
from coordinator.node.metrics import NodeMetrics, SubscriptionMetrics
from coordinator.node.repairs import Repairs
from coordinator.node.retention import Retention
from coordinator.node.stage_timer import Stages
from coordinator.node.store import Store, StoreError
from coordinator.node.subscriptions import Subscriptions
from coordinator.node.topic_positions import TopicPositions
from coordinator.node.watchdog import Watchdog

R = TypeVar("R")

log = logging.getLogger("coordinator")

TICK_S = 0.05

AWAY_PAUSE_S = 0.2
DDL_PAUSE_S = 0.01
DDL_PORTION = 16
"""So many commands are examined before the master is given them: those behind may take longer."""

EXAMINE_TIMEOUT_S = 2.0
HAND_OVER_S = 2.0
FOLD_STOP_S = 5.0
HISTORY_FOLDER = "history"
"""In the node's folder: copies of past states."""

EXIT_FAILED, EXIT_REFUSED = 1, 78
"""78 (EX_CONFIG): starting again would only fail again."""
STOPPING = unknown("no_master", "this node is stopping: retry")


class Shell:
    """A node with everything that it touches.

    Large because it carries out every effect: one method an effect, and one for each
    completion.
    """

    def __init__(
        self,
        node: Node,
        store: Store,
        bootstrap_servers: str,
        cluster: str,
        data_dir: str,
        *,
        history_archive: Path | None = None,
        history_retention_ms: int | None = None,
    ) -> None:
        """`history_archive` has what `history` has no more. With `history_retention_ms` a master
        moves there what is older than that.
        """
        self.node = node
        self.metrics = NodeMetrics(node)
        self.exit_code = 0
        self.stopped = asyncio.Event()
        self._store = store
        self._servers = bootstrap_servers
        self._cluster = cluster
        self._data_dir = data_dir
        self._loop = asyncio.get_running_loop()
        self._loop_thread = threading.get_ident()
        self._inbox: deque[inputs.Input] = deque()
        self._stepping = False
        self._callers: dict[int, asyncio.Future[Outcome]] = {}
        self._last_caller = 0
        self._stages = Stages(lambda s, t: self.metrics.stages.labels(s).observe(t))
        self._plain = PlainProducer(bootstrap_servers, cluster, self.feed)
        self._transactions = TransactionalProducer(bootstrap_servers, cluster, self.feed)
        self._probe_log = LogProbe(bootstrap_servers)
        self._reading = threading.Event()
        archive = self._archive_in(history_archive)
        self._sources = Sources(
            bootstrap_servers, cluster, self._reading, self._dead_letter_unreadable, archive
        )
        self.changes = Feed()
        self.history = History(
            partial(HistoryLog, bootstrap_servers, cluster, archive=archive),
            Path(data_dir) / HISTORY_FOLDER,
        )
        self.retention = self._retention_of(archive, history_retention_ms)
        self.metrics.retention = self.retention
        self.stability_log = StabilityLog(bootstrap_servers, cluster)
        self.positions = TopicPositions(bootstrap_servers)
        self.failover_log_ends = FailoverLogEnds(bootstrap_servers, cluster)
        self.subscriptions = Subscriptions(
            bootstrap_servers,
            cluster,
            node=node,
            changes=self.changes,
            history=self.history,
            ask=self.ask,
            dead_letter=self._dead_letter_unreadable,
            failed=self._reader_failed,
        )
        self._repairs = Repairs(node, self.ask, lambda: self.now().mono_ms)
        self.metrics.registry.register(SubscriptionMetrics(self.subscriptions.rows))
        self._keeping_copy = False
        self.examiner = Examiner()
        self._fold: Folds | None = None
        self._beats: TailReader | None = None
        self._acks: TailReader | None = None
        self._streams: TailReader | None = None
        self._ddl: TailReader | None = None
        self._ddl_reading = 0
        self._opening = 0
        self._tasks: set[asyncio.Task[Any]] = set()
        self._turns = 0
        self._watchdog: Watchdog | None = None

    def examine_topic(self, topic: str) -> TopicFacts:
        """Return a topic that can be a bucket, in any thread. Raises KafkaRefusal."""
        return examined(self._servers, self._cluster, topic)

    def _archive_in(self, folder: Path | None) -> HistoryArchive | None:
        def cluster_id() -> str:
            authority = self.node.authority
            return authority.cluster_id if authority is not None else ""

        return HistoryArchive(folder, self._cluster, cluster_id) if folder is not None else None

    def _retention_of(
        self, archive: HistoryArchive | None, retention_ms: int | None
    ) -> Retention | None:
        if archive is None or retention_ms is None:
            return None
        passes = HistoryRetention(
            self._servers,
            archive,
            retention_ms=retention_ms,
            writer=f"node-{self.node.config.node}",
            stopping=self._reading,
        )
        return Retention(passes, retention_ms, self._reading)

    # -- the loop ----------------------------------------------------------------------------

    def feed(self, event: inputs.Input) -> None:
        """Hand an input to the node, from any thread."""
        if threading.get_ident() == self._loop_thread:
            self._handle(event)
        else:
            # A thread may still hand something over while the loop is being closed.
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._handle, event)

    def _handle(self, event: inputs.Input) -> None:
        self._inbox.append(event)
        if self._stepping:
            return
        self._stepping = True
        try:
            while self._inbox and not self.stopped.is_set():
                item = self._inbox.popleft()
                self._stages.input(item)
                for effect in self.node.step(self.now(), item):
                    self._stages.effect(effect)
                    CARRY_OUT[type(effect)](self, effect)
        except Exception:
            # A broken invariant: nothing that this process still does could be trusted.
            log.exception("the node broke an invariant")
            self._stop(EXIT_FAILED)
        finally:
            self._stepping = False

    @staticmethod
    def now() -> Instant:
        return Instant(time.monotonic_ns() // 1_000_000, time.time_ns() // 1_000_000)

    async def run(self, started: inputs.Started) -> None:
        """Start with what the store held, and go on until the node halts or `stopped` is set."""
        try:
            patience_s = self.node.config.stall_ms / 1000
            self._watchdog = Watchdog(lambda: self._turns, patience_s)
            self._beats = self._follow_tail(HEARTBEAT, {(HEARTBEAT, 0): END}, **TOGETHER)
            self.feed(started)
            self._spawn(self.subscriptions.run())
            await self._tick()
        except Exception:
            log.exception("the node's clock stopped")
            self._stop(EXIT_FAILED)

    async def _tick(self) -> None:
        while not self.stopped.is_set():
            self._turns += 1
            self.feed(inputs.Tick())
            self._plain.serve()
            self._keep_copy()
            self._let_go_of_history()
            if self._repairs.is_due():
                self._spawn(self._repairs.run())
            if self._fold is not None and self._fold.failure:
                log.error("the Faust application crashed: %s", self._fold.failure)
                self._stop(EXIT_FAILED)
            if self.subscriptions.book.has_died or any(reader.has_died for reader in self._readers):
                log.error("a reader has died, and has not said why")
                self._stop(EXIT_FAILED)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self.stopped.wait(), TICK_S)

    def _keep_copy(self) -> None:
        """Keep a copy of the state now and then, for questions about the past."""
        state = self.node.state
        if self.node.is_following and not self._keeping_copy and self.history.is_due(state):
            self._keeping_copy = True
            self._spawn(self._write_past(state))

    async def _write_past(self, state: StateContext) -> None:
        try:
            await asyncio.to_thread(self.history.keep, state)
        finally:
            self._keeping_copy = False

    def _let_go_of_history(self) -> None:
        """Have a master move old records of `history` into the archive now and then."""
        master, authority = self.node.master, self.node.authority
        if self.retention is None or master is None or not master.active or authority is None:
            return
        if self.retention.is_due():
            self.retention.begun()
            self._spawn(self._let_go(self.retention, authority))

    async def _let_go(self, retention: Retention, authority: AuthorityState) -> None:
        if await asyncio.to_thread(retention.run, authority):
            self.feed(inputs.CopyWanted())

    async def close(self) -> None:
        """Stop every thread and task, then the store."""
        self.stopped.set()
        if self._watchdog is not None:
            await asyncio.to_thread(self._watchdog.stop)
        self._reading.set()
        await self.subscriptions.close()
        await asyncio.to_thread(self.history.close)
        await asyncio.to_thread(self.stability_log.close)
        self.positions.close()
        self.failover_log_ends.close()
        await asyncio.to_thread(self.examiner.close)
        for reader in self._readers:
            await asyncio.to_thread(reader.stop)
        for task in self._tasks:
            task.cancel()
        if self._fold is not None:
            await self._stop_fold(self._fold)
        await asyncio.to_thread(self._transactions.close)
        await asyncio.to_thread(self._probe_log.close)
        self._plain.close(1.0)
        self._store.close()

    @staticmethod
    async def _stop_fold(fold: Folds) -> None:
        """Have the agents stop, whatever comes of that: the store has to be closed after it.

        Faust may end by a cancellation of its own, and may swallow the one that ends its patience;
        `asyncio.wait_for` passes the first on, and waits for what swallowed the second.
        """
        stopping = asyncio.ensure_future(fold.stop())
        stopping.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait({stopping}, timeout=FOLD_STOP_S)
        stopping.cancel()

    def stop(self) -> None:
        """End with success, on a signal; an end that has begun keeps its exit code.

        A master hands the mastership over first, if somebody can take it; a second signal does
        not wait for that.
        """
        if self.stopped.is_set():
            return
        if self.node.election.stopping or self.node.master is None:
            self._stop(0)
            return
        self.feed(inputs.Stopping())
        self._spawn(self._stop_after_hand_over())

    async def _stop_after_hand_over(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(HAND_OVER_S):
                while self.node.master is not None and self.node.master.is_resigning:
                    await asyncio.sleep(TICK_S)
        if not self.stopped.is_set():
            self._stop(0)

    def _stop(self, exit_code: int) -> None:
        """Begin to end. What fails from then on, because all else ends, has nothing to say."""
        if self.stopped.is_set():
            return
        self.exit_code = exit_code
        self.changes.close()
        for caller in self._callers.values():
            if not caller.done():
                caller.set_result(STOPPING)
        self.stopped.set()

    def _spawn(self, work: Any) -> None:
        task = self._loop.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._task_ended)

    def _task_ended(self, task: asyncio.Task[Any]) -> None:
        """The node waits for what a task would have fed: one that failed must not go unheard."""
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a task of the node failed", exc_info=error)
            self._stop(EXIT_FAILED)

    # -- callers -----------------------------------------------------------------------------

    async def ask(self, make: Callable[[int], inputs.Input]) -> Outcome:
        """Feed an input that carries a fresh token, and wait for its answer."""
        if self.stopped.is_set():
            return STOPPING
        self._last_caller += 1
        token = self._last_caller
        future: asyncio.Future[Outcome] = self._loop.create_future()
        self._callers[token] = future
        try:
            self.feed(make(token))
            return await future
        finally:
            self._callers.pop(token, None)

    def _reply(self, effect: effects.Reply) -> None:
        caller = self._callers.get(effect.token)
        if caller is not None and not caller.done():
            caller.set_result(effect.outcome)

    # -- reading -----------------------------------------------------------------------------

    @property
    def _readers(self) -> list[TailReader]:
        """The readers that there are now: while one of them does not read, the node is deaf."""
        readers = (self._ddl, self._acks, self._streams, self._beats)
        return [reader for reader in readers if reader is not None]

    def _follow(self, effect: effects.Follow) -> None:
        config = self.node.config
        self._fold = Folds(
            bootstrap_servers=self._servers,
            cluster=self._cluster,
            group=f"{self._cluster}.node-{config.node}.{config.incarnation:x}",
            begin=effect.offset,
            fold_and_store=self._fold_and_store,
            data_dir=self._data_dir,
        )
        self._spawn(self._start_fold(self._fold))

    def _fold_and_store(self, read: inputs.CommitRead | inputs.TimestampsRead) -> None:
        """Have the node's followers fold what an agent has decoded, and store what they ask for.

        When this returns, `_save` has written it, synced where they asked for that: an agent runs
        in this loop, and never inside a step of the node.
        """
        self.feed(read)

    async def _start_fold(self, fold: Folds) -> None:
        try:
            await fold.start()
        except KafkaRefusal as refusal:
            log.error("%s [%s]", refusal.message, refusal.code)
            self._stop(EXIT_FAILED)
        except Exception:
            log.exception("the Faust application did not start")
            self._stop(EXIT_FAILED)

    def _follow_tail(
        self, name: str, places: Mapping[tuple[str, int], int], **more: Any
    ) -> TailReader:
        """Read partitions of topics from these offsets on, and feed what comes."""

        def hand_over(messages: list[Message]) -> None:
            self._tail_read(name, messages)

        return TailReader(
            self._servers,
            f"{self._cluster}.node-{self.node.config.node}.{name}",
            {(topic_name(self._cluster, t), p): begin for (t, p), begin in places.items()},
            hand_over,
            self._reader_failed,
            **more,
        )

    def _tail_read(self, name: str, messages: list[Message]) -> None:
        """Feed what came on a topic; what does not belong there is dead-lettered."""
        expected, made = TAILS[name]
        records = [
            record for _, record in decoded(messages, expected, self._dead_letter_unreadable)
        ]
        if records:
            self.feed(made(tuple(records)))

    def _reader_failed(self, reason: str) -> None:
        if not self.stopped.is_set():
            log.error("a reader failed: %s", reason)
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._stop, EXIT_FAILED)

    def _read_ddl(self, effect: effects.ReadDdl) -> None:
        self._stop_ddl(effects.StopDdl())
        self._spawn(self._start_ddl(self._ddl_reading, dict(effect.consumed)))

    async def _start_ddl(self, reading: int, consumed: dict[int, int]) -> None:
        topic = topic_name(self._cluster, DDL)
        positions: dict[tuple[str, int], int] = {}
        for partition in range(DDL_PARTITIONS):
            ask = partial(watermarks, self._servers, topic, partition)
            try:
                found = await self._once_there(ask, lambda: reading == self._ddl_reading)
            except Exception as error:
                # A master that does not read the topic would never be missed.
                self._reader_failed(f"{topic}/{partition}: {error}")
                return
            if found is None:
                return
            low, begin = found[0], consumed.get(partition, -1) + 1
            if begin < low:
                log.warning("%s/%d begins at %d, not at %d", topic, partition, low, begin)
            positions[(topic, partition)] = max(begin, low)
        if reading != self._ddl_reading:
            return
        self._ddl = TailReader(
            self._servers,
            f"{self._cluster}.ddl",
            positions,
            partial(self._ddl_read, reading),
            self._reader_failed,
            pause_while=self._ddl_is_behind,
        )

    async def _once_there(self, ask: Callable[[], R], is_wanted: Callable[[], bool]) -> R | None:
        """Return what Kafka answers, asked again while the broker is away; None if nobody wants it
        any more. Raises what else `ask` does.
        """
        while is_wanted() and not self.stopped.is_set():
            try:
                return await asyncio.to_thread(ask)
            except KafkaException as error:
                if not is_away(error):
                    raise
                await asyncio.sleep(AWAY_PAUSE_S)
        return None

    def _ddl_is_behind(self) -> bool:
        master = self.node.master
        return master is not None and master.is_behind

    def _ddl_read(self, reading: int, messages: list[Message]) -> None:
        """Read commands, and examine them, which may take a while: in the reader's thread."""
        for begin in range(0, len(messages), DDL_PORTION):
            requests = tuple(
                read_command(_bytes(message), _position(message), self.examiner.examine)
                for message in messages[begin : begin + DDL_PORTION]
            )
            while reading == self._ddl_reading and self._ddl_is_behind():
                time.sleep(DDL_PAUSE_S)
            if reading != self._ddl_reading:
                return
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._take_ddl, reading, requests)

    def _take_ddl(self, reading: int, requests: tuple[Request, ...]) -> None:
        """Feed what the reader of now has read: that of an earlier mastership was further on, and
        the commands between would count as taken."""
        if reading == self._ddl_reading:
            self.feed(inputs.DdlRead(requests))

    def _stop_ddl(self, effect: effects.StopDdl) -> None:
        self._ddl_reading += 1
        reader, self._ddl = self._ddl, None
        _stop_aside(reader)

    # -- the state, as Kafka has it ----------------------------------------------------------

    @property
    def _cas_base(self) -> int:
        authority = self.node.authority
        return authority.cas_base if authority else self.node.config.cas_base

    def _synchronise(self, effect: effects.Synchronise) -> None:
        self._spawn(self._read_source(effect))

    async def _read_source(self, effect: effects.Synchronise) -> None:
        """Read a source in a thread; one that cannot be read has nothing, and there are others."""

        def read() -> None:
            batches = self._sources.read(
                effect.source,
                cas_base=self._cas_base,
                at_least=effect.cas,
                offset=effect.offset,
                copy=effect.copy,
            )
            for batch in batches:
                self.feed(inputs.SyncRead(effect.token, batch.events, False, batch.held))

        try:
            await asyncio.to_thread(read)
        except (KafkaException, SnapshotLost, ArchiveError) as error:
            log.error("%s could not be read: %s", effect.source, error)
        self.feed(inputs.SyncRead(effect.token, (), True))

    def _read_tail(self, effect: effects.ReadTail) -> None:
        self._spawn(self._read_above(effect.token, effect.cas))

    async def _read_above(self, token: int, above: Cas) -> None:
        """Read the end of `statecontext`, once the broker is there.

        A master that cannot stops: it would wait for ever.
        """

        def read() -> tuple[Any, ...]:
            batches = self._sources.events(self._cas_base, above, Cas(0))
            return tuple(event for batch in batches for event in batch)

        try:
            events = await self._once_there(read, lambda: True)
        except KafkaException as error:
            log.error("statecontext could not be read: %s", error)
            self._stop(EXIT_FAILED)
            return
        if events is not None:
            self.feed(inputs.TailRead(token, events))

    def _take_snapshot(self, effect: effects.TakeSnapshot) -> None:
        self._spawn(self._write_copy(effect))

    async def _write_copy(self, effect: effects.TakeSnapshot) -> None:
        write = partial(self._sources.write_copy, effect.copy, effect.state)
        try:
            offset = await asyncio.to_thread(write)
        except (KafkaException, SnapshotLost, BufferError) as error:
            self.feed(inputs.SnapshotTaken(effect.token, Offset(-1), str(error)))
        else:
            self.feed(inputs.SnapshotTaken(effect.token, Offset(offset)))

    def _scrub(self, effect: effects.Scrub) -> None:
        self._spawn(self._compare(effect))

    async def _compare(self, effect: effects.Scrub) -> None:
        """Hold all of `statecontext` against a state, in a thread: neither changes meanwhile."""

        def compare() -> Findings:
            scrubber = Scrubber(effect.state)
            for events in self._sources.events(self._cas_base, Cas(0), effect.state.cas):
                scrubber.add(events)
            return scrubber.findings()

        try:
            findings = await asyncio.to_thread(compare)
        except KafkaException as error:
            self.feed(inputs.Scrubbed(effect.token, Findings(), str(error)))
        else:
            self.feed(inputs.Scrubbed(effect.token, findings))

    def _trim(self, effect: effects.Trim) -> None:
        self._spawn(self._delete_head(effect.offset))

    async def _delete_head(self, offset: Offset) -> None:
        topic = topic_name(self._cluster, COMMIT)
        try:
            await asyncio.to_thread(delete_records, self._servers, topic, offset)
        except (KafkaException, TimeoutError) as error:
            log.warning("%s could not be trimmed to %d: %s", topic, offset, error)

    def _dead_letter_unreadable(self, message: Message, reason: str) -> None:
        self._loop.call_soon_threadsafe(self._plain.dead_letter_message, message, reason)

    def has_read(self, name: str) -> bool:
        """Tell whether this node knows all that `stability` or `restart` said before its start."""
        return self._fold is not None and self._fold.is_whole(name)

    # -- the store ---------------------------------------------------------------------------

    def _save(self, effect: effects.Save) -> None:
        try:
            self._store.save(effect)
        except StoreError as error:
            self.feed(inputs.StoreFailed(effect.token, error.message))
        else:
            if effect.sync:
                self.feed(inputs.Stored(effect.token))

    def _probe(self, effect: effects.Probe) -> None:
        try:
            self._store.probe()
        except StoreError as error:
            self.feed(inputs.StoreFailed(effect.token, error.message))
        else:
            self.feed(inputs.Stored(effect.token))

    # -- the watch ---------------------------------------------------------------------------

    def _examine(self, effect: effects.Examine) -> None:
        self._spawn(self._ask_for_the_end(effect.token))

    async def _ask_for_the_end(self, token: int) -> None:
        """Find out where `commit` ends; out of reach is an answer, too."""
        try:
            end = await self._end_of(COMMIT)
        except KafkaException as error:
            self.feed(inputs.Examined(token, -1, self._plain.written, error.args[0].str()))
        else:
            self.feed(inputs.Examined(token, end, self._plain.written))

    async def _end_of(self, name: str) -> int:
        topic = topic_name(self._cluster, name)
        return await asyncio.to_thread(self._probe_log.end, topic, EXAMINE_TIMEOUT_S)

    # -- the rest ----------------------------------------------------------------------------

    def _append(self, effect: effects.Append) -> None:
        self._plain.append(effect)

    def _answer(self, effect: effects.Answer) -> None:
        self._plain.answer(effect)

    def _beat(self, effect: effects.Beat) -> None:
        self._plain.beat(effect)

    def _ask(self, effect: effects.Ask) -> None:
        self._plain.ask(effect)

    def _close_connection(self, effect: effects.CloseConnection) -> None:
        self._plain.close_connection(effect)

    def _send_dead_letter(self, effect: effects.SendDeadLetter) -> None:
        self._plain.send_dead_letter(effect)

    def _order(self, effect: effects.Effect) -> None:
        self._transactions.order(effect)

    def _open_producer(self, effect: effects.OpenProducer) -> None:
        """A candidate listens to `acks` before it can be master: no answer must be missed.

        From an offset that is known now: the reader may take a while to be connected.
        """
        self._opening += 1
        self._spawn(self._listen_and_open(self._opening, effect))

    async def _listen_and_open(self, opening: int, effect: effects.OpenProducer) -> None:
        try:
            end = await self._end_of(ACKS)
        except KafkaException as error:
            self.feed(inputs.ProducerFailed(effect.token, error.args[0].str()))
            return
        if opening != self._opening:
            return
        if self._acks is None:
            self._acks = self._follow_tail(ACKS, {(ACKS, 0): end})
            self._streams = self._follow_tail(HW, STREAM_PLACES)
        self._transactions.order(effect)

    def _close_producer(self, effect: effects.CloseProducer) -> None:
        """Only a master needs `acks`: every reader costs the broker a fetch a record."""
        self._opening += 1
        for reader in (self._acks, self._streams):
            _stop_aside(reader)
        self._acks = self._streams = None
        self._transactions.order(effect)

    def _publish(self, effect: effects.Publish) -> None:
        self.changes.publish(effect.before, effect.events)

    def _note(self, effect: effects.Note) -> None:
        log.info("%s", effect.message)

    def _halt(self, effect: effects.Halt) -> None:
        log.error("%s [%s]", effect.message, effect.code)
        if effect.rebuild:
            try:
                self._store.demand_rebuild()
            except Exception as error:
                log.error("the store could not be marked for a rebuild: %s", error)
        self._stop(EXIT_REFUSED if effect.final else EXIT_FAILED)


STREAM_PLACES = {
    **{(HW, partition): END for partition in range(STREAM_PARTITIONS)},
    **{(FAILOVER_LOG, partition): BEGINNING for partition in range(STREAM_PARTITIONS)},
}
"""What indexers hold is said again and again; histories are kept by compaction."""

TAILS: dict[str, tuple[Any, Callable[..., inputs.Input]]] = {
    HEARTBEAT: (Heartbeat, inputs.BeatsRead),
    ACKS: (AckRecord, inputs.AcksRead),
    HW: (HwHeartbeat | FailoverLog, inputs.StreamsRead),
}


def _stop_aside(reader: TailReader | None) -> None:
    """Stop a reader without waiting for it."""
    if reader is not None:
        threading.Thread(target=reader.stop, daemon=True).start()


def _bytes(message: Message) -> bytes:
    value: Any = message.value()
    return value or b""


def _position(message: Message) -> Position:
    return Position(message.partition() or 0, Offset(message.offset() or 0))


CARRY_OUT: dict[type, Callable[[Shell, Any], None]] = {
    effects.Follow: Shell._follow,
    effects.Append: Shell._append,
    effects.Answer: Shell._answer,
    effects.Beat: Shell._beat,
    effects.Save: Shell._save,
    effects.Probe: Shell._probe,
    effects.Examine: Shell._examine,
    effects.OpenProducer: Shell._open_producer,
    effects.CloseProducer: Shell._close_producer,
    effects.WriteEvents: Shell._order,
    effects.WriteHistory: Shell._order,
    effects.Conclude: Shell._order,
    effects.Abandon: Shell._order,
    effects.Synchronise: Shell._synchronise,
    effects.ReadTail: Shell._read_tail,
    effects.TakeSnapshot: Shell._take_snapshot,
    effects.Scrub: Shell._scrub,
    effects.Trim: Shell._trim,
    effects.ReadDdl: Shell._read_ddl,
    effects.StopDdl: Shell._stop_ddl,
    effects.Publish: Shell._publish,
    effects.Reply: Shell._reply,
    effects.Ask: Shell._ask,
    effects.CloseConnection: Shell._close_connection,
    effects.SendDeadLetter: Shell._send_dead_letter,
    effects.Note: Shell._note,
    effects.Halt: Shell._halt,
}
