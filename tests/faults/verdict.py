"""Whether what clients were told, and what is left in the logs and on the nodes, is right.

`Evidence` is everything that was heard and read, as plain values; each check is a function of it
that yields what is wrong, so that a forged history can prove that it sees it. `collect` gathers
the evidence from a cluster that is healed and quiet.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from coordinator import codec
from coordinator.client.client import Client
from coordinator.core.catalog import state as states
from coordinator.core.consensus import authority as authorities
from coordinator.core.model import digest as digests
from coordinator.core.model.entities import DROPPING, INIT
from coordinator.core.model.records import (
    Event,
    MasterClaimed,
    TransactionCommitted,
    TransactionRolledBack,
)
from coordinator.kafka.log_reader import decode_event
from coordinator.kafka.topics import COMMIT, DDL_PARTITIONS, DDL_REPLIES, DEAD_LETTER, STATECONTEXT
from tests.faults.load import Load, Record, Sent
from tests.integration.cluster import CAS_BASE, Cluster, shown, summary, value_of, wait_until
from tests.support.linearizability import NameSpace, Ok, Operation, Register, TooHard, check

SETTLE_S = 120.0
CONFIGURATIONS_MAX = 500_000
EFFECTS = ("IndexProposed", "IndexDropped", "SettingWritten", "SettingDeleted")
EFFECT_OF = dict(zip(("create", "drop", "put", "delete"), EFFECTS, strict=True))
LIVES = {
    "": {"IndexProposed"},
    "IndexProposed": {"IndexReady", "IndexUndone"},
    "IndexReady": {"IndexDropped"},
    "IndexUndone": {"IndexForgotten"},
    "IndexDropped": {"IndexForgotten"},
}
"""The events of an index, each with those that may follow it; `ShardsMoved` changes none."""

Shown = tuple[int, str]


@dataclass
class Evidence:
    """What was heard, and what the logs, the nodes and their disks hold in the end."""

    record: Record
    history: Sequence[Event] = ()
    statecontext: Sequence[Event] = ()
    commit: Sequence[tuple[int, Any]] = ()
    nodes: Mapping[int, Shown] = field(default_factory=dict)
    disks: Mapping[int, Shown] = field(default_factory=dict)
    indexes: Sequence[Mapping[str, Any]] = ()
    indexers: Sequence[Mapping[str, Any]] = ()
    dead_letters: Sequence[Any] = ()
    unanswered: Sequence[str] = ()
    exits: Sequence[str] = ()
    undetected: Sequence[str] = ()


# -- what clients were told -----------------------------------------------------------------------


def linearizable(evidence: Evidence) -> Iterator[str]:
    """Each setting and each name space could have been one copy.

    What became of an operation whose caller heard nothing, the log knows by now: it took effect at
    some time after its invocation, or never. That spares the search from trying both.
    """
    operations = list(_resolved(evidence))
    settings = [o for o in operations if o.target[0] == "setting"]
    names = [o for o in operations if o.target[0] == "bucket"]
    settings += _rewrites(evidence, settings)
    for history, model in ((settings, Register()), (names, NameSpace())):
        try:
            violation = check(history, model, CONFIGURATIONS_MAX)
        except TooHard as error:
            yield f"not decided: {error}"
        else:
            if violation is not None:
                yield str(violation)


def _resolved(evidence: Evidence) -> Iterator[Operation]:
    """Yield the operations whose outcome is known, from a client or from the log."""
    effects = {(event.mutation.request, event.mutation.event): event for event in evidence.history}
    ready = {e.mutation.key for e in evidence.history if e.mutation.event == "IndexReady"}
    operations = [sent.operation for sent in evidence.record.sent]
    end = max((o.returned or o.invoked for o in operations), default=0.0)
    for sent in evidence.record.sent:
        operation = sent.operation
        if operation.returned is not None:
            yield operation
            continue
        event = effects.get((sent.request, EFFECT_OF.get(operation.call, "")))
        if event is None or (operation.call == "create" and event.mutation.key not in ready):
            continue
        result = Ok(cas=event.cas)
        if operation.call == "create":
            result = Ok(int(event.mutation.key.removeprefix("index/")))
        yield replace(operation, result=result, returned=end)


def _rewrites(evidence: Evidence, settings: list[Operation]) -> Iterator[Operation]:
    """Yield what a new master wrote again: the same value at another CAS, at some time."""
    targets = {o.target for o in settings}
    times = [t for o in settings for t in (o.invoked, o.returned) if t is not None]
    for event in evidence.history:
        target = ("setting", event.mutation.key.removeprefix("config/"))
        if event.mutation.event == "EntityRewritten" and target in targets:
            yield Operation(
                "master", target, "rewrite", None, Ok(cas=event.cas), min(times), max(times)
            )


def effective(evidence: Evidence) -> Iterator[str]:
    """What was acknowledged is in the log once, at its CAS; what was refused is not."""
    by_request: dict[str, list[Event]] = defaultdict(list)
    by_key: dict[str, list[Event]] = defaultdict(list)
    for event in evidence.history:
        by_key[event.mutation.key].append(event)
        if event.mutation.request and event.mutation.event in EFFECTS:
            by_request[event.mutation.request].append(event)
    for request, events in by_request.items():
        if len(events) > 1:
            yield f"request {request} was executed {len(events)} times: {_brief(events)}"
    for sent in evidence.record.sent:
        if sent.is_acknowledged:
            yield from _acknowledged(sent, by_request.get(sent.request, []), by_key)
        elif sent.is_write and sent.is_refused:
            yield from _refused(sent, by_request.get(sent.request, []), by_key)


def _acknowledged(
    sent: Sent, found: list[Event], by_key: Mapping[str, list[Event]]
) -> Iterator[str]:
    call = sent.operation.call
    effects = [e for e in found if e.mutation.event == EFFECT_OF[call]]
    if len(effects) != 1:
        yield f"acknowledged, and {len(effects)} times in history: {sent.operation}"
        return
    final = effects[0]
    if call == "create":
        ready = [e for e in by_key[final.mutation.key] if e.mutation.event == "IndexReady"]
        if len(ready) != 1:
            yield f"acknowledged, and {len(ready)} times ready: {sent.operation}"
            return
        final = ready[0]
        if final.mutation.key != f"index/{sent.operation.result.value}":
            yield f"acknowledged as another index than {final.mutation.key}: {sent.operation}"
    if final.cas != sent.cas:
        yield f"acknowledged at CAS {sent.cas}, in history at {final.cas}: {sent.operation}"
    if sent.txn and str(final.txn) != sent.txn:
        yield f"acknowledged in {sent.txn}, in history in {final.txn}: {sent.operation}"


def _refused(sent: Sent, found: list[Event], by_key: Mapping[str, list[Event]]) -> Iterator[str]:
    for event in found:
        life = [e.mutation.event for e in by_key[event.mutation.key]]
        if event.mutation.event != "IndexProposed" or "IndexReady" in life:
            yield f"refused, and in history at CAS {event.cas}: {sent.operation}"


def expected_answers(evidence: Evidence) -> Iterator[str]:
    """No client was told what this load cannot lead to; every command on `ddl` has a reply."""
    yield from evidence.record.unexpected
    for request in evidence.unanswered:
        yield f"command {request} is on the ddl topic and has no reply"


# -- the logs -------------------------------------------------------------------------------------


def history_ascends(evidence: Evidence) -> Iterator[str]:
    """CAS only go up, transactions are whole, and every index lives a legal life."""
    last = 0
    members: Counter[Any] = Counter()
    lives: dict[str, str] = defaultdict(str)
    for event in evidence.history:
        if event.cas <= last:
            yield f"CAS {event.cas} follows {last} in history"
        last = event.cas
        members[event.txn, event.count] += 1
        key, name = event.mutation.key, event.mutation.event
        if not key.startswith("index/") or name in ("ShardsMoved", "EntityRewritten"):
            continue
        if name not in LIVES.get(lives[key], ()):
            yield f"{name} follows {lives[key] or 'nothing'} for {key} at CAS {event.cas}"
        lives[key] = name
    for (txn, count), found in members.items():
        if found != count:
            yield f"transaction {txn} has {found} of {count} events in history"


def one_state(evidence: Evidence) -> Iterator[str]:
    """All nodes, their disks, `history` and the compacted `statecontext` are one state."""
    truth = replayed(evidence.history)
    latest = {event.mutation.key: event for event in evidence.statecontext}
    compacted = summary_of(sorted(latest.values(), key=lambda event: event.cas))
    for what, found in (
        ("the compacted statecontext gives", compacted),
        *((f"node {node} shows", found) for node, found in evidence.nodes.items()),
        *((f"the disk of node {node} holds", held) for node, held in evidence.disks.items()),
    ):
        if found != truth:
            yield f"{what} {found}, history gives {truth}"


def replayed(events: Sequence[Event]) -> Shown:
    """Return CAS and digest after all of `events`."""
    return summary_of(events)


def summary_of(events: Sequence[Event]) -> Shown:
    state = states.evolve(states.EMPTY, [(event.mutation, event.cas) for event in events])
    return state.cas, digests.text(states.recomputed_digest(state))


def reads_are_of_the_log(evidence: Evidence) -> Iterator[str]:
    """Whatever a node showed at any time is the state after a whole committed transaction."""
    known = {0: {digests.text(digests.EMPTY)}}
    state, group = states.EMPTY, []
    for event in evidence.history:
        group.append((event.mutation, event.cas))
        if event.index == event.count - 1:
            state, group = states.evolve(state, group), []
            known[state.cas] = {digests.text(state.digest)}
    for seen in sorted(evidence.record.seen):
        if seen.digest not in known.get(seen.cas, ()):
            yield f"node {seen.node} showed {seen.digest} at CAS {seen.cas}: never committed"


def commit_topic(evidence: Evidence) -> Iterator[str]:
    """Epochs and CAS ascend; a transaction has one terminal status; nothing alarming, or open."""
    state, epoch, cas = None, 0, 0
    ended: dict[Any, list[str]] = defaultdict(list)
    committed: dict[Any, tuple[int, ...]] = {}
    for offset, record in evidence.commit:
        before, (state, void) = state, authorities.fold(state, offset, record)
        if isinstance(record, TransactionCommitted):
            ended[record.txn].append(f"commit@{offset}")
            committed[record.txn] = record.cas
            if void:
                yield f"a void commit at offset {offset}: {void}"
            if record.txn.epoch < epoch:
                yield f"{record.txn} is committed at offset {offset}, in epoch {epoch}"
            if record.cas[0] <= cas or list(record.cas) != sorted(set(record.cas)):
                yield f"{record.txn} has the CAS {list(record.cas)} after {cas}"
            cas = record.cas[-1]
        elif isinstance(record, TransactionRolledBack) and not void:
            ended[record.txn].append(f"rollback@{offset}")
        elif isinstance(record, MasterClaimed) and not void:
            if record.epoch != epoch + 1 and before is not None:
                yield f"epoch {record.epoch} follows {epoch} at offset {offset}"
            epoch = record.epoch
    for txn, statuses in ended.items():
        if len(statuses) > 1:
            yield f"{txn} has {len(statuses)} terminal statuses: {', '.join(statuses)}"
    if state is not None and state.open is not None:
        yield f"{state.open.txn} is still open"
    yield from _same_transactions(evidence.history, committed)


def _same_transactions(history: Sequence[Event], committed: Mapping[Any, Any]) -> Iterator[str]:
    """`history` holds what is committed, and nothing else."""
    held: dict[Any, list[int]] = defaultdict(list)
    for event in history:
        held[event.txn].append(event.cas)
    for txn in held.keys() | committed.keys():
        if held.get(txn, []) != list(committed.get(txn, ())):
            yield f"{txn}: history has {held.get(txn)}, commit says {committed.get(txn)}"


# -- indexers, dead letters, processes ------------------------------------------------------------


def indexers_agree(evidence: Evidence) -> Iterator[str]:
    """Every index is allocated where it belongs, in the committed shard, and nothing else is."""
    wanted: Counter[int] = Counter()
    for index in evidence.indexes:
        if index["state"] in (INIT, DROPPING):
            yield f"index {index['id']} is still in state {index['state']}"
        hosts = {h for s in index["topology"]["slices"] for h in (s["master"], *s["replicas"])}
        for piece in index["topology"]["slices"]:
            wanted.update((piece["master"], *piece["replicas"]))
        lacking = sorted(hosts - {int(host) for host in index["topology"]["shards"]})
        if lacking:
            yield f"index {index['id']} has no committed shard on {lacking}"
    for row in evidence.indexers:
        if not row["alive"]:
            yield f"indexer {row['id']} is not alive"
        handshake = row["handshake"]
        if not handshake or not handshake["agreed"]:
            yield f"indexer {row['id']} and the master do not agree: {handshake}"
        if row["allocated"] != wanted[row["id"]]:
            yield f"indexer {row['id']} holds {row['allocated']} slices, not {wanted[row['id']]}"


def no_dead_letters(evidence: Evidence) -> Iterator[str]:
    """Nothing on any topic could not be used."""
    for letter in evidence.dead_letters:
        yield f"dead letter: {letter.topic}/{letter.partition}@{letter.offset}: {letter.reason}"


def processes(evidence: Evidence) -> Iterator[str]:
    """No process gave up for good, and all certain damage was noticed."""
    yield from evidence.exits
    yield from evidence.undetected


CHECKS: tuple[Callable[[Evidence], Iterator[str]], ...] = (
    linearizable,
    effective,
    expected_answers,
    history_ascends,
    one_state,
    reads_are_of_the_log,
    commit_topic,
    indexers_agree,
    no_dead_letters,
    processes,
)


def violations(evidence: Evidence) -> list[str]:
    """Return everything that is wrong, each with the name of its check."""
    found: list[str] = []
    for one in CHECKS:
        try:
            found += [f"{one.__name__}: {text}" for text in one(evidence)]
        except AssertionError as error:
            found.append(f"{one.__name__}: what was read cannot be folded: {error}")
    return found


def _brief(events: Sequence[Event]) -> str:
    return ", ".join(f"{e.mutation.event} of {e.mutation.key} at CAS {e.cas}" for e in events)


# -- from a cluster -------------------------------------------------------------------------------


def collect(cluster: Cluster, load: Load) -> Evidence:
    """Wait until a healed cluster agrees and serves, and read all that there is to judge.

    A new master is asked for, so that it compares afresh what each indexer holds. Raises
    AssertionError where the cluster does not become quiet.
    """
    evidence = Evidence(load.record)
    cluster.settled(deadline_s=SETTLE_S)
    with cluster.client() as client:
        client.put_config("round-ended", load.prefix)
        _hand_over(client)
    state = cluster.settled(deadline_s=SETTLE_S)
    evidence.indexers = _settled_indexers(cluster, evidence)
    state = cluster.settled(deadline_s=SETTLE_S)
    evidence.indexes = list(state["indexes"].values())
    evidence.nodes = {node: shown(cluster.state(node)) for node in cluster.nodes}
    evidence.history = cluster.history()
    evidence.statecontext = [
        decode_event(message, CAS_BASE) for message in cluster.read(STATECONTEXT)
    ]
    evidence.commit = [(m.offset() or 0, codec.decode(value_of(m))) for m in cluster.read(COMMIT)]
    replied = {reply.request for reply in cluster.records(DDL_REPLIES, DDL_PARTITIONS)}
    evidence.unanswered = [r for r in load.publisher.unanswered() if r not in replied]
    evidence.dead_letters = cluster.records(DEAD_LETTER)
    evidence.disks = {node: _on_disk(cluster, node, shown(state)) for node in cluster.nodes}
    return evidence


def _hand_over(client: Client) -> None:
    epoch = client.members()["epoch"]
    client.step_down(epoch=epoch, reason="the round is over")


def _settled_indexers(cluster: Cluster, evidence: Evidence) -> list[dict[str, Any]]:
    """Return the rows of the indexers once they agree, or as they are after a while."""
    rows: list[dict[str, Any]] = []

    def agreed() -> bool:
        state = cluster.settled(deadline_s=SETTLE_S)
        rows[:] = cluster.get(state["master"], "/v1/indexers")["indexers"]
        trial = Evidence(
            evidence.record, indexes=list(state["indexes"].values()), indexers=list(rows)
        )
        return not list(indexers_agree(trial))

    try:
        wait_until(agreed, "the indexers agree", SETTLE_S / 2)
    except AssertionError:
        if not rows:
            raise
    return rows


def _on_disk(cluster: Cluster, node: int, wanted: Shown) -> Shown:
    """Return what a node's store holds, once that is what it shows, or after a while."""
    found: list[Shown] = []

    def held() -> bool:
        restored = cluster.nodes[node].restored()
        if restored is None:
            return False
        found[:] = [summary(restored.state)]
        return found[0] == wanted

    try:
        wait_until(held, "the store", 10.0)
    except AssertionError:
        if not found:
            return 0, "nothing"
    return found[0]
