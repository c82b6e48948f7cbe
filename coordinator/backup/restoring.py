"""Writes a backup to the empty topics of a new cluster, in one Kafka transaction.

The transaction has everything: the history, the state on `statecontext` with the CAS of each
entity, two copies on `snapshots`, and the Authority on `commit`. So readers see all of it or
nothing, and a node starts from the whole or from nothing. It is written under the id of the
masters: whichever is first, a node that forms a cluster or a restore, fences the other.

The first CAS that the new cluster gives is `CAS_GAP` above the last one of the backup: what was
committed after the backup, and is lost, has its CAS between them.
"""

from __future__ import annotations

import secrets
import time
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, BinaryIO

from confluent_kafka import KafkaError, KafkaException, Producer

from coordinator import codec
from coordinator.backup.contents import BASE_COPY, STATE_COPY, Backup, read_changes
from coordinator.backup.errors import BackupError
from coordinator.core.catalog.snapshots import chunks
from coordinator.core.catalog.state import StateContext, Versioned, evolve
from coordinator.core.model import authority_state as statuses
from coordinator.core.model.authority_state import (
    AuthorityState,
    SnapshotInfo,
    TransactionStatus,
)
from coordinator.core.model.records import AuthoritySnapshot, Event, Mutation
from coordinator.core.model.types import CAS_MAX, Cas, Epoch, Offset, TxnId
from coordinator.kafka.delivery import UNKNOWN, offset_of
from coordinator.kafka.errors import clients_error, explain
from coordinator.kafka.log_reader import read_to_end
from coordinator.kafka.producers import statecontext_record
from coordinator.kafka.readers import written_end
from coordinator.kafka.settings import BASE_HEADER, Base, plain_settings
from coordinator.kafka.topics import (
    COMMIT,
    HISTORY,
    SNAPSHOTS,
    STATECONTEXT,
    SYNC_PARTITIONS,
    topic_name,
    transactional_id,
)

CAS_GAP = 1_000_000_000
"""More than are given between two backups: at 500 changes a second, in three weeks. Up to as much
again, at random, is added: the same backup may be restored twice."""

CAS_ROOM = 2**40
"""So many CAS a restored cluster must be able to give."""

EVENT = "ClusterRestored"
"""What a change is called that a restore makes."""

TRANSACTION_TIMEOUT_MS = 900_000
"""The most that Kafka allows by default. A restore that takes longer fails."""

FENCED = frozenset(
    {
        KafkaError._FATAL,
        KafkaError._FENCED,
        KafkaError.PRODUCER_FENCED,
        KafkaError.INVALID_PRODUCER_EPOCH,
    }
)
"""What the client says once another producer has taken the transactional id; the first code is what
every call says after that."""

OPEN_TIMEOUT_S = 30.0
DELIVERY_S = 60.0
END_TIMEOUT_S = 60.0
VISIBLE_S, VISIBLE_POLL_S = 30.0, 0.05
QUEUED_KBYTES = 32 * 1024
TOLD_EVERY = 10_000

Progress = Callable[[int], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """The cluster that is to be: where its topics are, and which nodes form it."""

    servers: str
    cluster: str
    roster: tuple[int, ...]
    minimum: int
    principal: str = ""
    sync_partitions: int = SYNC_PARTITIONS

    def topic(self, name: str) -> str:
        return topic_name(self.cluster, name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restored:
    """What was written: the new cluster, its state, and the CAS above which its own begin."""

    authority: AuthorityState
    state: StateContext
    next_cas: Cas


def restore_backup(file: BinaryIO, backup: Backup, target: Target, progress: Progress) -> Restored:
    """Write a backup that was found to be right; return what the cluster begins with.

    Raises BackupError `not_empty`, `restore_failed`, `cas_exhausted`; KafkaRefusal; OSError.
    """
    if backup.state.cas + 2 * CAS_GAP + CAS_ROOM > CAS_MAX:
        text = f"above CAS {backup.state.cas} there are too few for a cluster to go on"
        raise BackupError("cas_exhausted", text)
    try:
        return _Restore(backup, target).run(file, progress)
    except KafkaException as error:
        raise explain(error, target.servers) from error


class _Restore:
    """One attempt."""

    def __init__(self, backup: Backup, target: Target) -> None:
        self._backup, self._target = backup, target
        self._gap = CAS_GAP + secrets.randbelow(CAS_GAP)
        self._failure: KafkaError | None = None
        self._copies: dict[int, Offset] = {}
        self._producer = Producer(
            plain_settings(
                target.servers,
                **{
                    "transactional.id": transactional_id(target.cluster),
                    "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                    "message.timeout.ms": int(DELIVERY_S * 1_000),
                    "queue.buffering.max.kbytes": QUEUED_KBYTES,
                    "linger.ms": 20,
                },
            )
        )

    def run(self, file: BinaryIO, progress: Progress) -> Restored:
        # Fences what another restore has left, or a node; only then is it sure what is there.
        self._producer.init_transactions(OPEN_TIMEOUT_S)
        refuse_what_is_there(self._target)
        self._producer.begin_transaction()
        try:
            restored = self._write(file, progress)
            self._flush()
        except BaseException as error:
            with suppress(KafkaException, SystemError):
                self._producer.abort_transaction(END_TIMEOUT_S)
            meant = clients_error(error)
            if isinstance(meant, KafkaException) and meant.args[0].code() in FENCED:
                text = "a node, or another restore, has taken the cluster meanwhile"
                raise BackupError("restore_failed", f"{text}: nothing was restored") from error
            if meant is not error:
                raise meant from error
            raise
        self._conclude(restored.authority.cluster_id)
        return restored

    def _write(self, file: BinaryIO, progress: Progress) -> Restored:
        backup, target = self._backup, self._target
        base = written_end(target.servers, target.topic(STATECONTEXT))
        for number, state in ((BASE_COPY, backup.base), (STATE_COPY, backup.state)):
            self._copy(number, state)
        self._flush()
        state, own = self._history(file, progress)
        self._state(state)
        cas_base = state.cas + self._gap - base
        copied = ((BASE_COPY, backup.base), (STATE_COPY, backup.state))
        authority = authority_of(
            backup,
            target,
            state=state,
            own=own,
            cas_base=cas_base,
            copies=tuple(
                SnapshotInfo(
                    number,
                    one.cas,
                    one.digest,
                    self._copies[number],
                    written_end(target.servers, target.topic(COMMIT)),
                    _wall_ms(),
                )
                for number, one in copied
                if one.cas
            ),
        )
        record = AuthoritySnapshot(authority.epoch, authority)
        self._send(COMMIT, codec.encode(record))
        return Restored(authority=authority, state=state, next_cas=Cas(state.cas + self._gap))

    def _copy(self, number: int, state: StateContext) -> None:
        """Write a copy to `snapshots`; where it begins is known once it is delivered."""

        def delivered(error: KafkaError | None, message: Any) -> None:
            self._failure = self._failure or error
            if error is None:
                self._copies.setdefault(number, offset_of(message))

        for chunk in chunks(number, state):
            self._send(SNAPSHOTS, codec.encode(chunk), str(number).encode(), delivered=delivered)

    def _history(self, file: BinaryIO, progress: Progress) -> tuple[StateContext, TxnId | None]:
        """Write the changes of the backup, and the restore's own; return the state after them."""
        base = Base(self._backup.base.cas, BASE_COPY, self._copies[BASE_COPY])
        headers: dict[str, Any] | None = {BASE_HEADER: base.encode()}
        for count, (raw, event) in enumerate(read_changes(file), 1):
            self._send(HISTORY, raw, event.mutation.key.encode(), headers=headers)
            headers = None
            if count % TOLD_EVERY == 0:
                progress(count)
        changes = own_changes(self._backup, self._target.principal)
        for event in changes:
            self._send(HISTORY, codec.encode(event), event.mutation.key.encode(), headers=headers)
            headers = None
        state = evolve(self._backup.state, ((e.mutation, e.cas) for e in changes))
        return state, changes[0].txn if changes else None

    def _state(self, state: StateContext) -> None:
        """Write each entity with its CAS, in order of CAS."""
        txn = self._backup.authority.last_txn
        held = sorted(state.entities.items(), key=lambda pair: pair[1].cas)
        for key, versioned in held:
            value, headers = statecontext_record(_as_event(key, versioned, txn))
            self._send(STATECONTEXT, value, key.encode(), headers=headers)

    # -- Kafka -------------------------------------------------------------------------------

    def _send(
        self,
        topic: str,
        value: bytes | None,
        key: bytes | None = None,
        *,
        headers: dict[str, Any] | None = None,
        delivered: Callable[[KafkaError | None, Any], None] | None = None,
    ) -> None:
        """Send a record; waits while too many are on their way. Raises KafkaException."""
        while True:
            self._check()
            try:
                self._producer.produce(
                    self._target.topic(topic),
                    value,
                    key,
                    partition=0,
                    headers=headers,
                    on_delivery=delivered or self._delivered,
                )
            except BufferError:
                self._producer.poll(0.1)
            else:
                self._producer.poll(0)
                return

    def _delivered(self, error: KafkaError | None, _: Any) -> None:
        self._failure = self._failure or error

    def _check(self) -> None:
        if self._failure is not None:
            raise KafkaException(self._failure)

    def _flush(self) -> None:
        left = self._producer.flush(DELIVERY_S)
        self._check()
        if left or UNKNOWN in self._copies.values():
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, "not all was delivered"))

    def _conclude(self, cluster_id: str) -> None:
        """Commit. What stands in the log tells whether it was, not what the client says."""
        problem = ""
        try:
            self._producer.commit_transaction(END_TIMEOUT_S)
        except KafkaException as error:
            problem = str(error.args[0])
        # The end of a transaction is acknowledged before its markers are there to be read.
        until_s = time.monotonic() + VISIBLE_S
        while not self._is_there(cluster_id):
            if time.monotonic() > until_s:
                text = f"Kafka does not show it as committed ({problem or 'no reason was given'})"
                more = "try it again: where it was committed after all, that is `not_empty`"
                raise BackupError("restore_failed", f"{text}: {more}")
            time.sleep(VISIBLE_POLL_S)

    def _is_there(self, cluster_id: str) -> bool:
        for message in read_to_end(self._target.servers, self._target.topic(COMMIT), "restore"):
            with suppress(ValueError):
                record = codec.decode(message.value() or b"")
                if isinstance(record, AuthoritySnapshot):
                    return record.snapshot.cluster_id == cluster_id
        return False


# -- what is there -------------------------------------------------------------------------------


def refuse_what_is_there(target: Target) -> None:
    """Refuse topics that have committed records: BackupError `not_empty`. Raises KafkaException."""
    for name in (COMMIT, STATECONTEXT, HISTORY, SNAPSHOTS):
        for _ in read_to_end(target.servers, target.topic(name), "restore"):
            raise BackupError(
                "not_empty",
                f"the topic {target.topic(name)} has records: a backup is restored into a cluster "
                "that was never started. Give a new name with --cluster, or another --data-dir",
            )


# -- what is written -----------------------------------------------------------------------------


def own_changes(backup: Backup, principal: str) -> list[Event]:
    """Return the changes that a restore makes: what was decided of `ddl` is forgotten.

    The topic `ddl` of the new cluster begins anew, and its commands have other offsets.
    """
    keys = sorted(key for key in backup.state.entities if key.startswith("consumed/"))
    txn = TxnId(Epoch(backup.authority.epoch + 1), 1)
    now_ms = _wall_ms()
    return [
        Event(
            Mutation(EVENT, key, None, None, "", principal, now_ms),
            txn,
            number,
            len(keys),
            Cas(backup.state.cas + 1 + number),
        )
        for number, key in enumerate(keys)
    ]


def authority_of(
    backup: Backup,
    target: Target,
    *,
    state: StateContext,
    own: TxnId | None,
    cas_base: int,
    copies: tuple[SnapshotInfo, ...],
) -> AuthorityState:
    """Return the Authority that the new cluster begins with: nobody is master or active.

    Indexers and projectors register anew. Of no request that was made up to the newest change is
    anything known any more: a repeat of one is refused, and not executed twice.
    """
    was = backup.authority
    log, next_ = was.log, was.log_next
    if next_ - 1 in log and log[next_ - 1].status == statuses.INITIAL:
        log = log.set(next_ - 1, replace(log[next_ - 1], status=statuses.ROLLBACK, reason=EVENT))
    if own is not None:
        log = log.set(next_, TransactionStatus(own, statuses.COMMIT, state.cas, (), EVENT))
        log = log.delete(next_ - was.log_capacity) if len(log) > was.log_capacity else log
        next_ += 1
    return AuthorityState(
        cluster_id=uuid.uuid4().hex,
        cas_base=cas_base,
        roster=target.roster,
        minimum=target.minimum,
        log_capacity=was.log_capacity,
        request_window_ms=was.request_window_ms,
        sync_partitions=target.sync_partitions,
        epoch=Epoch(was.epoch + 1),
        last_seq=1 if own is not None else 0,
        last_txn=own or was.last_txn,
        last_cas=state.cas,
        digest=state.digest,
        log=log,
        log_next=next_,
        snapshots=copies,
        outcomes_forgotten_ms=max(was.outcomes_forgotten_ms, backup.newest_ms),
    )


def _as_event(key: str, versioned: Versioned, txn: TxnId) -> Event:
    mutation = Mutation(EVENT, key, versioned.value, versioned.entity)
    return Event(mutation, txn, 0, 1, versioned.cas)


def _wall_ms() -> int:
    return time.time_ns() // 1_000_000
