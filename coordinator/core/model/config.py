"""The named bounds and periods of a node. Pure data; units are last in the names."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """Who a node is, and its timings. `incarnation` is new for each start of the process.

    Where nothing was read for `pulse_ms`, a node writes a barrier, to see that its reading goes
    on; one that stays unread for `stall_ms` makes it look for what has stopped. An indexer's
    holdings are asked for every `handshake_ms` until they agree with the state. A new master waits
    for all that it has to hear for `first_handshakes_ms`, at most, before it takes DDL; with 0 for
    nothing.

    Streams that some projectors wait for are renewed after `stream_hold_ms`, for all who wait by
    then; an indexer that does not say what it holds is waited for no longer than
    `stream_timeout_ms`. The application that computes timestamps is given `restart_wait_ms` to
    answer; what it tells of its own accord makes a bucket's streams begin again at most every
    `restart_pause_ms`. Of a projector that was silent for `lapsed_projector_ms` the master closes
    the connections.

    A copy of a slice that has moved is kept at its source for `drain_ms`, for the scans that it
    still has. An indexer that was silent for `lost_indexer_ms` is lost: nothing moves there, and
    no index that is dropped waits for it.

    So many callers and bytes may wait for a transaction, so many readers for an answer; so many
    commands are looked at to form one group.

    The master has the state copied after `snapshot_bytes` of the commit topic, or more where the
    state weighs more, and has `statecontext` compared with it every `scrub_ms`. A node without the
    state asks another peer for a copy after `copy_wait_ms`. The values from `cas_base` on are
    proposals for the genesis record: a cluster that exists keeps its own. A `minimum` of 0 means a
    majority of the roster.
    """

    node: int
    roster: tuple[int, ...]
    address: str
    pid: int
    incarnation: int
    cluster_id: str
    heartbeat_ms: int = 250
    election_timeout_ms: int = 1_500
    election_stagger_ms: int = 1_500
    look_ms: int = 500
    ack_timeout_ms: int = 500
    ack_retries_max: int = 3
    verdict_timeout_ms: int = 8_000
    open_timeout_ms: int = 20_000
    attempts_max: int = 3
    ddl_timeout_ms: int = 10_000
    admission_hold_ms: int = 150
    probe_ms: int = 1_000
    pulse_ms: int = 2_000
    stall_ms: int = 10_000
    handshake_ms: int = 1_000
    first_handshakes_ms: int = 1_000
    stream_hold_ms: int = 300
    stream_timeout_ms: int = 5_000
    restart_wait_ms: int = 2_000
    restart_pause_ms: int = 10_000
    lapsed_projector_ms: int = 5_000
    drain_ms: int = 10_000
    lost_indexer_ms: int = 300_000
    queue_max: int = 4_096
    queue_bytes_max: int = 64 * 1024 * 1024
    outcomes_bytes_max: int = 512 * 1024 * 1024
    readers_max: int = 4_096
    examined_max: int = 1_024
    group_mutations_max: int = 256
    group_bytes_max: int = 512 * 1024
    evictions_max: int = 64
    scrub_ms: int = 600_000
    copy_wait_ms: int = 5_000
    snapshot_bytes: int = 16 * 1024 * 1024
    cas_base: int = 1
    minimum: int = 0
    log_capacity: int = 1_000
    request_window_ms: int = 600_000
    sync_partitions: int = 4
    """How many partitions the topics of SYNC, STREAM_BEGIN and STREAM_END have on Kafka."""

    @property
    def quorum(self) -> int:
        """Return the minimum of copies that genesis fixes, the master's included."""
        return self.minimum or len(self.roster) // 2 + 1

    @property
    def liveness_ms(self) -> int:
        """How long a process counts as alive after its last heartbeat, if it says nothing else."""
        return 4 * self.heartbeat_ms
