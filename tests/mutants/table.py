"""Bugs that a tired person could write: each a change of a line or two, and who must notice it.

Each stands for a rule that durability or correctness rests on. `make mutants` plants them one by
one in a copy of the tree and runs the tests that are named; none may survive. A test of `make test`
sees to it that each of them can still be planted. Bugs of the protocol as a whole, which take a
world to show, are planted by the simulator: `tests/simulation/planted`.
"""

from __future__ import annotations

from typing import NamedTuple


class Mutant(NamedTuple):
    """Where `old` stands, once, `new` is put; then one of the `tests` must fail."""

    name: str
    path: str
    old: str
    new: str
    tests: str


STORE, DURABILITY = "coordinator/node/store.py", "coordinator/core/consensus/durability.py"
FOLLOWER, MASTER = "coordinator/core/consensus/follower.py", "coordinator/core/leader/master.py"
AUTHORITY, DDL = "coordinator/core/consensus/authority.py", "coordinator/core/catalog/ddl.py"
ELECTION = "coordinator/core/consensus/election.py"
COMMITTER = "coordinator/core/leader/committer.py"
FEED = "coordinator/core/history/feed.py"
GROUPS = "coordinator/core/leader/group_commit.py"
ALTER, STATE = "coordinator/core/catalog/alter.py", "coordinator/core/catalog/state.py"
OUTCOMES = "coordinator/core/catalog/outcomes.py"
FULL_SYNC = "coordinator/core/consensus/full_sync.py"
SYNCHRONISER = "coordinator/core/consensus/synchroniser.py"
SCRUBBER = "coordinator/core/consensus/scrubber.py"
PRODUCERS, TOPICS = "coordinator/kafka/producers.py", "coordinator/kafka/topics.py"
SOURCES, SHELL = "coordinator/kafka/state_sources.py", "coordinator/node/shell.py"
FAUST = "coordinator/kafka/faust_transport.py"

RETENTION, ARCHIVE = (
    "coordinator/kafka/history_retention.py",
    "coordinator/kafka/history_archive.py",
)
SEGMENTS, MAY_GO = "coordinator/kafka/archive_segments.py", "coordinator/core/history/retention.py"

ON_RETENTION = "tests/integration/test_history_retention.py"
UNIT_MAY_GO = "tests/unit/core/history/test_retention.py"
UNIT_ARCHIVE = "tests/unit/kafka/test_history_archive.py"
SYNCS = "tests/unit/node/test_store_syncs.py"
ROCKSDB = "tests/unit/runtime/test_rocksdb.py"
LONE = "tests/unit/core/test_lone_master.py"
UNIT_ELECTION = "tests/unit/core/consensus/test_election.py"
UNIT_FEED = "tests/unit/core/history/test_feed.py"
UNIT_COMMITTER = "tests/unit/core/leader/test_committer.py"
UNIT_GROUPS = "tests/unit/core/leader/test_group_commit.py"
UNIT_REQUESTS = "tests/unit/core/leader/test_request_table.py"
RULES = "tests/unit/core/consensus/test_authority.py"
UNIT_DDL = "tests/unit/core/catalog/test_ddl.py"
UNIT_ALTER = "tests/unit/core/catalog/test_alter.py"
WINDOW = "tests/unit/core/catalog/test_outcomes.py"
PORTS = "tests/integration/test_store_ports.py"
LATE = "tests/integration/test_late_end_txn.py"
ON_TOPICS = "tests/integration/test_topics.py"
ON_SOURCES = "tests/integration/test_sources.py"
ISOLATION = "tests/integration/test_isolation.py"
ON_FAUST = "tests/integration/test_faust_transport.py"
SCENARIOS = "tests/simulation/test_scenarios.py"
CONSISTENCY = "tests/unit/http/test_consistency.py"

SETTLE = "\n        await _settle(shell, consistency, at_least)"
LOCALLY = SETTLE.replace("consistency", '"local"')
AT_ANY_CAS = SETTLE.replace("at_least", "0")

SUBSCRIBING = "coordinator/core/history/subscribing.py"
UNIT_SUBSCRIBING = "tests/unit/core/history/test_subscribing.py"
ON_TOPICS = (
    "tests/integration/test_topics_of_changes.py"
    "::test_changes_are_delivered_to_kafka_each_once_whatever_master_dies"
)
MUTANTS: tuple[Mutant, ...] = (
    # -- what must be on the disk --------------------------------------------------------------
    Mutant("sync-means-nothing", STORE, "self._sync.sync = True", "self._sync.sync = False", SYNCS),
    Mutant(
        "the-folder-of-a-node-is-not-synced",
        STORE,
        "make_durably(self.folder)",
        "self.folder.mkdir(parents=True, exist_ok=True)",
        ROCKSDB,
    ),
    Mutant(
        "a-refused-batch-leaves-the-database-open",
        "coordinator/runtime/rocksdb.py",
        """            self.let_go()
            raise self.failure(WRITING, error) from error""",
        """            raise self.failure(WRITING, error) from error""",
        ROCKSDB,
    ),
    Mutant(
        "a-batch-is-never-synced",
        STORE,
        "self._db.write(batch, self._sync if effect.sync else self._plain)",
        "self._db.write(batch, self._plain)",
        SYNCS,
    ),
    Mutant(
        "every-batch-is-synced",
        STORE,
        "self._db.write(batch, self._sync if effect.sync else self._plain)",
        "self._db.write(batch, self._sync)",
        SYNCS,
    ),
    Mutant(
        "a-wipe-is-not-synced",
        STORE,
        '            batch.delete_range(prefix, prefix[:-1] + b"0")\n'
        "        self._db.write(batch, self._sync)",
        '            batch.delete_range(prefix, prefix[:-1] + b"0")\n'
        "        self._db.write(batch, self._plain)",
        SYNCS,
    ),
    Mutant(
        "whose-folder-it-is-is-not-synced",
        STORE,
        "self._db.put(IDENTITY, identity.encode(), self._sync)",
        "self._db.put(IDENTITY, identity.encode(), self._plain)",
        SYNCS,
    ),
    Mutant(
        "a-rebuild-is-not-synced",
        STORE,
        'self._db.put(REBUILD, b"1", self._sync)',
        'self._db.put(REBUILD, b"1", self._plain)',
        SYNCS,
    ),
    Mutant(
        "a-probe-does-not-sync",
        STORE,
        'self._db.put(b"probe", b"x" * 4096, self._sync)\n'
        '            self._db.delete(b"probe", self._sync)',
        'self._db.put(b"probe", b"x" * 4096, self._plain)\n'
        '            self._db.delete(b"probe", self._plain)',
        SYNCS,
    ),
    Mutant(
        "a-proposal-is-saved-without-a-sync",
        DURABILITY,
        "saved = self.save(checkpoint(view, view.prepared), sync=True)",
        "saved = self.save(checkpoint(view, view.prepared))",
        SCENARIOS,
    ),
    Mutant(
        "refusals-of-a-replica-add-up-for-ever",
        COMMITTER,
        "            self._refusals.pop(node, None)",
        "            self._refusals.get(node, None)",
        SCENARIOS,
    ),
    Mutant(
        "who-looked-claims-though-the-master-is-back",
        ELECTION,
        "if not self._able(view) or not self._out_of_patience(view):",
        "if not self._able(view):",
        SCENARIOS,
    ),
    Mutant(
        "what-is-installed-is-never-synced",
        DURABILITY,
        "sync=sync or len(self._in_flight) >= UNSYNCED_SAVES_MAX",
        "sync=sync",
        LONE,
    ),
    Mutant(
        "accepted-before-the-store-has-it",
        SHELL,
        "            self._store.save(effect)\n        except StoreError as error:",
        "            if effect.sync:\n"
        "                self.feed(inputs.Stored(effect.token))\n"
        "            self._loop.call_soon(self._store.save, effect)\n"
        "        except StoreError as error:",
        "tests/integration/test_power_cut.py",
    ),
    Mutant(
        "forgotten-outcomes-stay-in-the-store",
        STORE,
        "batch.delete(GROUP + NUMBER.pack(cas))",
        "pass",
        PORTS,
    ),
    Mutant(
        "a-wipe-leaves-the-outcomes",
        STORE,
        "for prefix in (ENTITY, GROUP, ROW):",
        "for prefix in (ENTITY, ROW):",
        PORTS,
    ),
    # -- what a node refuses to believe --------------------------------------------------------
    Mutant(
        "installed-without-comparing-the-digest",
        FOLLOWER,
        "wrong = differs(after.digest, record.state_digest, str(record.txn))",
        "wrong = []",
        LONE,
    ),
    Mutant(
        "outcomes-are-not-compared",
        FOLLOWER,
        "if self.outcomes.agrees(digest):",
        "if self.outcomes.agrees(digest) or True:",
        LONE,
    ),
    Mutant(
        "a-store-is-believed",
        FOLLOWER,
        'differs(self.state.digest, authority.digest, "the store")',
        "[]",
        LONE,
    ),
    Mutant(
        "outcomes-in-the-store-are-believed",
        FOLLOWER,
        'self.outcomes.digest, authority.outcomes_digest, "outcomes in the store"',
        'self.outcomes.digest, self.outcomes.digest, "outcomes in the store"',
        LONE,
    ),
    Mutant(
        "a-void-commit-is-no-alarm",
        AUTHORITY,
        "return isinstance(record, TransactionCommitted)",
        "return False",
        LONE,
    ),
    Mutant(
        "a-claim-at-any-cas-and-digest",
        AUTHORITY,
        "    if (record.cas, record.digest) != (state.last_cas, state.digest):\n"
        "        return AuthorityUpdate(\n"
        '            state, f"node {record.node} stands at {record.cas}, not {state.last_cas}"\n'
        "        )\n    if state.open is not None:",
        "    if state.open is not None:",
        RULES,
    ),
    Mutant(
        "anybody-claims",
        AUTHORITY,
        "if record.node not in state.eligible:",
        "if record.node not in state.roster:",
        RULES,
    ),
    Mutant(
        "a-commit-of-any-offset",
        AUTHORITY,
        "if (opened.txn, opened.offset) != (txn, offset):",
        "if opened.txn != txn:",
        RULES,
    ),
    Mutant(
        "a-commit-with-any-cas",
        AUTHORITY,
        "if not record.cas or len(record.cas) != opened.count or record.cas[0] <= state.last_cas:",
        "if not record.cas:",
        RULES,
    ),
    Mutant(
        "a-resignation-leaves-the-transaction-open",
        AUTHORITY,
        '        state = _close(state, ROLLBACK, Cas(0), f"node {record.node} resigned")',
        "        pass",
        RULES,
    ),
    Mutant(
        "an-admission-inside-a-transaction",
        AUTHORITY,
        "        _of_another_epoch(state, record.epoch)\n"
        '        or (f"{state.open.txn} is open" if state.open else "")\n'
        '        or (\n            ""\n'
        "            if (record.cas, record.digest) == (state.last_cas, state.digest)\n"
        '            else f"node {record.node} stands',
        "        _of_another_epoch(state, record.epoch)\n"
        '        or (\n            ""\n'
        "            if (record.cas, record.digest) == (state.last_cas, state.digest)\n"
        '            else f"node {record.node} stands',
        RULES,
    ),
    Mutant(
        "accepted-at-another-cas",
        DURABILITY,
        "if answer == ACCEPTED and at != builds_on:",
        "if answer == REFUSED and at != builds_on:",
        LONE,
    ),
    Mutant(
        "any-process-under-a-number-is-a-copy",
        "coordinator/core/leader/transaction.py",
        "if self.lives.get(answer.node) != answer.incarnation:",
        "if self.lives.get(answer.node) is None:",
        LONE,
    ),
    # -- what is decided -----------------------------------------------------------------------
    Mutant(
        "a-drop-does-not-compare-its-cas",
        DDL,
        "    if other := clash(request, held):\n        return Unchanged(other)\n    dropping",
        "    dropping",
        UNIT_DDL,
    ),
    Mutant(
        "a-build-does-not-compare-its-cas",
        "coordinator/core/catalog/builds.py",
        "if cas != request.expected_cas:",
        "if cas < request.expected_cas:",
        UNIT_DDL,
    ),
    Mutant(
        "ids-come-from-any-future",
        DDL,
        "if born_ms > given.wall_ms + AHEAD_MS_MAX:",
        "if born_ms > given.wall_ms * 2:",
        UNIT_DDL,
    ),
    Mutant(
        "what-the-log-has-forgotten-is-taken-for-new",
        DDL,
        "oldest_ms = max(oldest_ms, given.forgotten_ms + 1)",
        "pass",
        UNIT_DDL,
    ),
    Mutant(
        "a-late-repeat-of-what-was-published-is-taken-for-new",
        DDL,
        "oldest_ms = max(oldest_ms, given.forgotten_ms + 1)",
        "pass",
        SCENARIOS,
    ),
    Mutant(
        "what-was-published-before-an-outage-is-refused",
        DDL,
        "may_be_old = request.position is not None and is_believed",
        "may_be_old = False",
        LONE,
    ),
    Mutant(
        "a-published-id-may-be-old-whatever-is-known",
        DDL,
        "may_be_old = request.position is not None and is_believed",
        "may_be_old = request.position is not None",
        UNIT_DDL,
    ),
    Mutant(
        "an-old-id-over-http-is-taken-for-published",
        DDL,
        "may_be_old = request.position is not None and is_believed",
        "may_be_old = is_believed",
        UNIT_DDL,
    ),
    Mutant(
        "a-new-master-forgets-at-once",
        OUTCOMES,
        "if led_ms < window_ms // LEADS_FIRST:",
        "if led_ms < 0:",
        WINDOW,
    ),
    Mutant(
        "what-stays-where-it-is-is-counted-again",
        "coordinator/core/catalog/state.py",
        "if _slices_of(before) != _slices_of(after):",
        "if True:",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "a-second-copy-lies-in-a-zone-of-the-first",
        "coordinator/core/catalog/placement.py",
        "if candidate.zone and candidate.zone in zones:",
        "if False:",
        "tests/unit/core/catalog/test_placement.py",
    ),
    Mutant(
        "outcomes-of-any-weight-are-kept",
        "coordinator/core/leader/master.py",
        "if adds and view.outcomes.size_bytes >= view.config.outcomes_bytes_max:",
        "if False:",
        LONE,
    ),
    Mutant(
        "ddl-is-read-whatever-outcomes-weigh",
        "coordinator/core/leader/master.py",
        "return self.requests.is_long or self._remembers_enough",
        "return self.requests.is_long",
        LONE,
    ),
    Mutant(
        "another-command-under-a-used-id",
        DDL,
        "if recorded.fingerprint != request.fingerprint:",
        "if not recorded.fingerprint:",
        UNIT_DDL,
    ),
    Mutant(
        "an-index-may-not-grow",
        GROUPS,
        "whole = size + _growth(view, mutations) if decision.waits_for else size",
        "whole = size",
        LONE,
    ),
    Mutant(
        "an-alter-may-be-too-large-to-end",
        GROUPS,
        "ddl.SHARD_BYTES * hosts + others",
        "ddl.SHARD_BYTES * hosts",
        LONE,
    ),
    Mutant(
        "an-index-is-replaced-before-the-other-is-built",
        ALTER,
        "(second.state == READY and first.state in (READY, ERROR))",
        "second.state == READY",
        UNIT_ALTER,
    ),
    Mutant(
        "a-name-is-free-between-two-indexes",
        ALTER,
        'return Change(event, after.key, after), Change("IndexReplaced", gone.key, gone)',
        'return Change("IndexReplaced", gone.key, gone), Change(event, after.key, after)',
        UNIT_ALTER,
    ),
    Mutant(
        "a-promised-name-is-given-away",
        ALTER,
        "state.names.get(key, state.claims.get(key, index.id))",
        "state.names.get(key, index.id)",
        UNIT_ALTER,
    ),
    Mutant(
        "what-is-altered-is-altered-again",
        ALTER,
        "if index.is_replacement or index.id in state.replacements:",
        "if index.is_replacement:",
        UNIT_ALTER,
    ),
    Mutant(
        "a-dry-run-is-carried-out",
        ALTER,
        "if command.dry_run or plan.change == NOTHING:",
        "if plan.change == NOTHING:",
        UNIT_ALTER,
    ),
    Mutant(
        "who-holds-nothing-keeps-a-shard",
        ALTER,
        "if s.indexer in hosts",
        "if True",
        UNIT_ALTER,
    ),
    Mutant(
        "a-second-index-takes-the-name-at-once",
        STATE,
        "after.state != DROPPING and not after.replaces",
        "after.state != DROPPING",
        UNIT_ALTER,
    ),
    Mutant(
        "a-second-index-waits-to-be-built",
        STATE,
        "index.defer_build and not index.is_replacement",
        "index.defer_build",
        UNIT_ALTER,
    ),
    Mutant(
        "a-drop-leaves-the-second-index",
        DDL,
        "changes.append(alter.given_up(second, reason))",
        "pass",
        UNIT_ALTER,
    ),
    Mutant(
        "a-rename-is-undone-by-a-new-index",
        "coordinator/core/history/undo.py",
        "renamed = _renamed(then, now)",
        "renamed: dict[int, Step] = {}",
        "tests/unit/core/history/test_undo.py",
    ),
    Mutant(
        "upkeep-is-dropped",
        GROUPS,
        "if too_large and not request.key:",
        "if too_large:",
        LONE,
    ),
    Mutant(
        "the-queue-has-no-bound-of-bytes",
        "coordinator/core/leader/request_table.py",
        "if self.callers >= config.queue_max or self.queue.size_bytes > config.queue_bytes_max:",
        "if self.callers >= config.queue_max:",
        LONE,
    ),
    Mutant(
        "the-queue-has-no-bound-of-callers",
        "coordinator/core/leader/request_table.py",
        "if self.callers >= config.queue_max or self.queue.size_bytes > config.queue_bytes_max:",
        "if self.queue.size_bytes > config.queue_bytes_max:",
        LONE,
    ),
    Mutant(
        "readers-have-no-bound",
        "coordinator/core/consensus/local_reads.py",
        "if len(self._waiters) >= view.config.readers_max:",
        "if len(self._waiters) < 0:",
        LONE,
    ),
    Mutant(
        "linearizable-readers-have-no-bound",
        "coordinator/core/leader/read_barriers.py",
        "if len(self._waiting) + len(self._next) >= view.config.readers_max:",
        "if len(self._waiting) < 0:",
        LONE,
    ),
    # -- outcomes ------------------------------------------------------------------------------
    Mutant(
        "the-window-ignores-the-clients-clock",
        OUTCOMES,
        "until_ms = max(group.at_ms, group.born_ms) + window_ms",
        "until_ms = group.at_ms + window_ms",
        WINDOW,
    ),
    Mutant(
        "the-window-trusts-the-wall-clock",
        OUTCOMES,
        "outlived = until_ms < now.wall_ms and held_ms > window_ms",
        "outlived = until_ms < now.wall_ms",
        WINDOW,
    ),
    Mutant(
        "a-clock-that-was-ahead-keeps-the-window-for-ever",
        OUTCOMES,
        "if not outlived and held_ms <= window_ms + AHEAD_MS_MAX:",
        "if not outlived:",
        WINDOW,
    ),
    Mutant(
        "an-id-of-any-year-keeps-the-window-for-ever",
        OUTCOMES,
        "born_ms = min(born_ms, group.at_ms + AHEAD_MS_MAX)",
        "pass",
        WINDOW,
    ),
    Mutant(
        "a-drop-overtakes-a-creation",
        DDL,
        "keys.add(name_key(command.bucket, command.name))\n            if state.bucket",
        "if state.bucket",
        LONE,
    ),
    Mutant(
        "who-waits-in-one-partition-holds-up-all",
        GROUPS,
        "left.append(request)\n                continue\n",
        "left.append(request)\n",
        LONE,
    ),
    Mutant(
        "a-window-is-whole-too-early",
        OUTCOMES,
        "self.is_whole = digest == digests.EMPTY",
        "self.is_whole = True",
        WINDOW,
    ),
    # -- finding the state ---------------------------------------------------------------------
    Mutant(
        "only-one-source",
        FULL_SYNC,
        "self._left = deque((Source(COMPACTED), *kept, Source(HISTORY), Source(COPY)))",
        "self._left = deque((Source(COMPACTED),))",
        "tests/simulation/test_sources.py",
    ),
    Mutant(
        "no-copy-is-asked-for",
        FULL_SYNC,
        "self._left = deque((Source(COMPACTED), *kept, Source(HISTORY), Source(COPY)))",
        "self._left = deque((Source(COMPACTED), *kept, Source(HISTORY)))",
        "tests/simulation/test_sources.py",
    ),
    Mutant(
        "a-stray-at-the-end-is-waited-for",
        SYNCHRONISER,
        "if self.settled or known[-1][0] >= self.seen_cas:",
        "if known[-1][0] >= self.seen_cas:",
        "tests/simulation/test_sources.py",
    ),
    Mutant(
        "the-tail-begins-too-late",
        SOURCES,
        "low = Offset(int(message.offset() or 0) + 1)",
        "low = Offset(int(message.offset() or 0) + 3)",
        ON_SOURCES,
    ),
    Mutant(
        "an-offset-that-was-not-said-makes-a-cas",
        "coordinator/kafka/producers.py",
        "if failures or left or UNKNOWN in offsets:",
        "if failures or left:",
        "tests/integration/test_late_end_txn.py::test_events_without_offsets_are_not_taken_for_written",
    ),
    Mutant(
        "a-copy-is-not-read-back",
        SOURCES,
        "if found.digest != state.digest:",
        "if found is None:",
        ON_SOURCES,
    ),
    Mutant(
        "foreign-bytes-stop-the-reading",
        "coordinator/kafka/log_reader.py",
        "            bad(message, str(problem))",
        "            raise KafkaException(KafkaError(KafkaError._FAIL)) from problem",
        ON_SOURCES,
    ),
    Mutant(
        "strays-are-not-seen",
        SCRUBBER,
        "(holes if held is not None and held.cas > cas else strays).append(key)",
        "holes.append(key) if held is not None and held.cas > cas else None",
        "tests/unit/core/consensus/test_scrubber.py",
    ),
    Mutant(
        "what-is-missing-altogether-is-not-seen",
        SCRUBBER,
        "holes += [key for key in self._state.entities if key not in known]",
        "holes += []",
        "tests/unit/core/consensus/test_scrubber.py",
    ),
    # -- Kafka ---------------------------------------------------------------------------------
    Mutant(
        "an-end-that-was-repeated-is-believed",
        PRODUCERS,
        "elif doubtful:",
        "elif took_s > 3_600:",
        LATE,
    ),
    Mutant(
        "an-abort-that-was-repeated-is-believed",
        PRODUCERS,
        "                self._end(effect.token, self._producer.abort_transaction)",
        "                self._producer.abort_transaction(END_TIMEOUT_S)\n"
        "                self._open = False\n"
        "                self._feed(inputs.Ended(effect.token))",
        LATE,
    ),
    Mutant(
        "the-clients-own-pause-is-short",
        PRODUCERS,
        '                    "retry.backoff.ms": pause_ms,\n',
        '                    "retry.backoff.ms": 50,\n',
        LATE,
    ),
    Mutant(
        "the-socket-gives-up-before-the-end-does",
        PRODUCERS,
        "END_TIMEOUT_S = 2.5",
        "END_TIMEOUT_S = 8.0",
        "tests/unit/kafka/test_producers.py",
    ),
    Mutant(
        "one-copy-is-enough",
        "coordinator/kafka/settings.py",
        '"acks": "all"',
        '"acks": "1"',
        "tests/unit/kafka/test_producers.py",
    ),
    Mutant(
        "messages-are-not-flushed",
        TOPICS,
        'config["flush.messages"] = "1"',
        'config["flush.messages"] = "1000"',
        ON_TOPICS,
    ),
    Mutant(
        "unclean-leaders-are-elected",
        TOPICS,
        'config["unclean.leader.election.enable"] = "false"',
        'config["unclean.leader.election.enable"] = "true"',
        ON_TOPICS,
    ),
    Mutant(
        "one-copy-in-sync-is-enough",
        TOPICS,
        "str(min_insync or max(1, replicas - 1))",
        "str(min_insync or 1)",
        "tests/integration/test_embedded_brokers.py::test_every_topic_has_three_copies_and_needs_two",
    ),
    # -- what is read --------------------------------------------------------------------------
    Mutant(
        "a-master-reads-locally-by-default",
        "coordinator/http/app.py",
        'consistency == "linearizable" or (consistency is None and node.master)',
        'consistency == "linearizable"',
        "tests/unit/core/test_reads.py",
    ),
    Mutant(
        "scans-take-the-oldest-common-timestamp",
        "coordinator/http/scatter.py",
        "max(common, default=0)",
        "min(common, default=0)",
        "tests/integration/test_scan.py"
        "::test_of_several_timestamps_that_all_hold_the_newest_is_read",
    ),
    Mutant(
        "readers-see-what-was-not-committed",
        "coordinator/kafka/readers.py",
        '"isolation.level": "read_committed"',
        '"isolation.level": "read_uncommitted"',
        ISOLATION,
    ),
    Mutant(
        "faust-agents-see-what-was-not-committed",
        FAUST,
        'isolation_level="read_committed"',
        'isolation_level="read_uncommitted"',
        ISOLATION,
    ),
    Mutant(
        "spark-sees-what-was-not-committed",
        "streaming/spark/kafka_source.py",
        '"kafka.isolation.level": "read_committed"',
        '"kafka.isolation.level": "read_uncommitted"',
        "tests/integration/test_streaming_batches.py",
    ),
    Mutant(
        "a-batch-of-spark-counts-twice",
        "streaming/timestamps/application.py",
        "if jump.found < jump.expected:",
        "if jump.found + 1 < jump.expected:",
        "tests/unit/streaming/test_starting.py",
    ),
    Mutant(
        "who-leaves-within-a-batch-is-not-heard-out",
        "streaming/stability/fold.py",
        "        self.positions.apply(heard)\n",
        "",
        "tests/unit/streaming/test_one_batch.py",
    ),
    Mutant(
        "a-clock-that-went-back-is-waited-for",
        "streaming/timestamps/clock.py",
        "gone_ms = max(0, said_ms - clock.said_ms)",
        "gone_ms = max(0, tick.at_ms - clock.now_ms)",
        "tests/unit/streaming/test_clock.py",
    ),
    Mutant(
        "who-ticked-before-is-another-one",
        "streaming/timestamps/ticker.py",
        "            older.add(tick.writer)\n",
        "            pass\n",
        "tests/unit/streaming/test_ticker.py",
    ),
    Mutant(
        "numbers-of-restarts-begin-again",
        "coordinator/core/timestamps/bucket_state.py",
        "if restart_number > state.restart_number:",
        "if False:",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "a-bucket-is-quiet-although-its-owner-is-silent",
        "streaming/stability/quiet.py",
        '    yield from _smallest(places["heard_ms"][silent] + settings.sync_missing_ms)\n',
        "",
        "tests/unit/streaming/test_quiet.py",
    ),
    Mutant(
        "a-bucket-is-quiet-although-a-question-waits",
        "streaming/stability/quiet.py",
        "        yield question.since_ms + settings.heartbeat_stale_ms\n",
        "        pass\n",
        "tests/unit/streaming/test_quiet.py",
    ),
    Mutant(
        "a-bucket-is-quiet-although-nobody-streams-it",
        "streaming/stability/quiet.py",
        '    yield from _smallest(lost["lost_ms"][first] + settings.begin_held_ms)\n',
        "",
        "tests/unit/streaming/test_quiet.py",
    ),
    Mutant(
        "a-bucket-stays-quiet-under-other-settings",
        "streaming/timestamps/query_state.py",
        "known.state is not state or known.settings != rules",
        "known.state is not state",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "a-bucket-stays-quiet-when-nobody-watched",
        "streaming/timestamps/query_state.py",
        "        if self.unwatched_ms or self.stepped_ms:\n            return False\n",
        "",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "who-divides-the-buckets-otherwise-is-not-fenced",
        "streaming/timestamps/state_store.py",
        "                self._fence(other)\n",
        "                pass\n",
        "tests/integration/test_streaming_batches.py",
    ),
    Mutant(
        "a-shard-takes-the-ticks-of-another",
        "streaming/timestamps/query_state.py",
        "if tick.shard != self.query_state.shard.name:",
        "if False:",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "every-shard-buries-what-belongs-to-no-bucket",
        "streaming/timestamps/query_state.py",
        "        if self.query_state.shard.number == 1:\n",
        "        if True:\n",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "a-shard-goes-on-where-the-fastest-was",
        "streaming/timestamps/query_state.py",
        "min(one.offset, offsets.get(where, one.offset))",
        "max(one.offset, offsets.get(where, one.offset))",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "a-reduced-sync-replaces-one-of-another-branch",
        "streaming/stability/reduction.py",
        "    if len(elsewhere):\n",
        "    if False:\n",
        "tests/unit/streaming/test_reduction.py",
    ),
    Mutant(
        "of-two-syncs-any-is-left",
        "streaming/stability/reduction.py",
        "    last = np.append(first[1:], True)\n    return np.sort(places[order[last]])",
        "    return np.sort(places[order[first]])",
        "tests/unit/streaming/test_reduction.py",
    ),
    Mutant(
        "what-a-task-has-read-is-not-told-to-the-driver",
        "streaming/timestamps/rows.py",
        "            self._extend(place, partition, first, after)\n",
        "            pass\n",
        "tests/unit/streaming/test_rows.py",
    ),
    Mutant(
        "buckets-of-another-task-are-taken-for-ours",
        "streaming/timestamps/rows.py",
        'part._replace(code=self._ours(said["names"])[part.code])',
        "part",
        "tests/unit/streaming/test_rows.py",
    ),
    Mutant(
        "what-is-never-written-is-tried-for-ever",
        "streaming/timestamps/application.py",
        "            if time.monotonic() > give_up_s:\n                raise doubt\n",
        "",
        "tests/unit/streaming/test_starting.py",
    ),
    Mutant(
        "an-end-comes-after-all-begins",
        "streaming/stability/turns.py",
        "if len({type(one) for one in turns}) < 2:",
        "if True:",
        "tests/unit/streaming/test_one_batch.py",
    ),
    Mutant(
        "what-is-known-of-a-group-is-believed-unchecked",
        STORE,
        "if held[:GROUP_CHECK_BYTES] != _check(key, held[GROUP_CHECK_BYTES:end]):",
        "if not held:",
        "tests/unit/node/test_store.py",
    ),
    Mutant(
        "a-dead-letter-that-cannot-be-sent-is-forgotten",
        PRODUCERS,
        """        if error is not None and error.code() in LATE:
            self._wait(letter)
        elif""",
        """        if""",
        "tests/unit/kafka/test_producers.py",
    ),
    # -- what a planter found that no test noticed ------------------------------------------------
    Mutant(
        "a-group-is-as-old-as-its-oldest-request",
        "coordinator/core/catalog/outcomes.py",
        "born_ms = max((time_of_uuid7(one) or 0 for one in ids), default=0)",
        "born_ms = min((time_of_uuid7(one) or 0 for one in ids), default=0)",
        "tests/unit/core/catalog/test_outcomes.py",
    ),
    Mutant(
        "an-id-in-capitals-has-no-time",
        "coordinator/core/catalog/outcomes.py",
        '-[0-9a-f]{12}", re.I)',
        '-[0-9a-f]{12}")',
        "tests/unit/core/catalog/test_outcomes.py",
    ),
    Mutant(
        "of-two-failed-batches-the-older-counts",
        "coordinator/core/consensus/durability.py",
        "for batch in reversed(self._in_flight):",
        "for batch in self._in_flight:",
        "tests/unit/core/consensus/test_durability.py",
    ),
    Mutant(
        "a-failed-wipe-is-forgotten",
        "coordinator/core/consensus/durability.py",
        "return Unsaved(older.changes, older.wipe, True, older.outcomes)",
        "return Unsaved(older.changes, newer.wipe, True, older.outcomes)",
        "tests/unit/core/consensus/test_durability.py",
    ),
    Mutant(
        "failed-rows-are-forgotten",
        "coordinator/core/consensus/durability.py",
        """        self._in_flight.clear()
        self._saved_rows = 0
""",
        """        self._in_flight.clear()
""",
        "tests/unit/core/consensus/test_durability.py",
    ),
    Mutant(
        "a-large-batch-is-torn",
        "coordinator/node/store.py",
        "if batch.size_in_bytes() > CHUNK_BYTES and effect.wipe:",
        "if batch.size_in_bytes() > CHUNK_BYTES:",
        "tests/unit/node/test_store_syncs.py",
    ),
    Mutant(
        "what-was-abandoned-goes-with-the-next",
        "coordinator/kafka/producers.py",
        """        elif isinstance(effect, effects.Abandon):
            self._history = ()
""",
        """        elif isinstance(effect, effects.Abandon):
""",
        "tests/unit/kafka/test_given_up_transaction.py",
    ),
    Mutant(
        "a-slow-broker-leaves-no-master",
        "coordinator/kafka/producers.py",
        "            doubtful = self._patience.ended(took_s)",
        "            doubtful = endings.may_be_repeated(took_s)",
        "tests/unit/kafka/test_given_up_transaction.py",
    ),
    Mutant(
        "transactions-with-one-copy-are-accepted",
        "coordinator/kafka/topics.py",
        "if state is not None and state.partitions:",
        "if state is not None and not state.partitions:",
        "tests/unit/kafka/test_topics.py",
    ),
    Mutant(
        "one-record-that-does-not-come-is-not-missed",
        "coordinator/kafka/stall_detector.py",
        "            if end <= reached:",
        "            if end <= reached + 1:",
        "tests/unit/kafka/test_stall_detector.py",
    ),
    Mutant(
        "a-reform-is-asked-of-the-node-that-has-the-least",
        "coordinator/client/client.py",
        'node = max(alive, key=lambda m: m["cas"])["address"] if alive else None',
        'node = min(alive, key=lambda m: m["cas"])["address"] if alive else None',
        "tests/unit/client/test_client.py",
    ),
    Mutant(
        "a-request-outlives-its-deadline",
        "coordinator/client/client.py",
        "share_s = min(left_s, limit_s or self._deadline_s * SHARE)",
        "share_s = limit_s or self._deadline_s * SHARE",
        "tests/unit/client/test_client.py",
    ),
    Mutant(
        "ctrl-c-is-not-heard",
        "coordinator/runtime/signals.py",
        "STOPS = (signal.SIGTERM, signal.SIGINT)",
        "STOPS = (signal.SIGTERM,)",
        "tests/unit/runtime/test_signals.py",
    ),
    Mutant(
        "a-second-signal-kills",
        "coordinator/runtime/signals.py",
        "        signal.signal(number, signal.SIG_IGN)",
        "        signal.signal(number, signal.SIG_DFL)",
        "tests/unit/runtime/test_signals.py",
    ),
    Mutant(
        "a-reader-shares-an-older-barrier",
        "coordinator/core/leader/read_barriers.py",
        "        self._next.append(PendingRead(token, outcome, deadline_ms))",
        """        (self._waiting if self._nonce else self._next).append(
            PendingRead(token, outcome, deadline_ms)
        )""",
        "tests/unit/core/test_lone_master.py",
    ),
    Mutant(
        "statecontext-is-compared-once",
        "coordinator/core/leader/scrubbing.py",
        """        self._token = 0
        self._due_ms = view.now""",
        "        self._due_ms = view.now",
        "tests/unit/core/test_lone_master.py",
    ),
    Mutant(
        "two-strays-on-one-key-are-one",
        "coordinator/core/consensus/synchroniser.py",
        "if event.cas > self.base_cas and mutation.key not in self.overwritten:",
        "if event.cas > self.base_cas:",
        "tests/unit/core/consensus/test_synchroniser.py",
    ),
    Mutant(
        "a-dead-life-holds-something",
        "coordinator/core/leader/build_coordinator.py",
        "if record is None or peer is None or peer.beat.incarnation != record.incarnation:",
        "if record is None or peer is None:",
        "tests/unit/core/leader/test_stream_restart.py",
    ),
    Mutant(
        "the-last-index-says-whether-a-host-holds",
        "coordinator/core/leader/build_coordinator.py",
        "sure[host] = sure.get(host, False) or certain",
        "sure[host] = certain",
        "tests/unit/core/leader/test_stream_restart.py",
    ),
    Mutant(
        "an-answer-of-spark-is-not-read",
        "coordinator/core/leader/stream_restart.py",
        "return StartPosition(restart([*vectors, _whole(answer, vectors[0])], logs).vector)",
        "return StartPosition(restart(vectors, logs).vector)",
        "tests/unit/core/leader/test_stream_restart.py",
    ),
    Mutant(
        "an-answer-is-taken-for-a-loss",
        "coordinator/core/leader/stream_restart.py",
        """            if read.record.round == 0:
""",
        """            if True:
""",
        "tests/unit/core/leader/test_stream_restart.py",
    ),
    Mutant(
        "an-old-leader-epoch-stays",
        "indexer_sim/bucket/bucket.py",
        """            self.epochs.pop(partition, None)
""",
        "",
        "tests/unit/indexer_sim/test_applier.py",
    ),
    Mutant(
        "what-was-absent-comes-back-in-a-batch",
        "indexer_sim/bucket/bucket.py",
        """                    buried[at] = seqno
""",
        "",
        "tests/unit/indexer_sim/test_applier.py",
    ),
    Mutant(
        "an-older-timestamp-counts",
        "streaming/timestamps/outputs.py",
        "if known is None or known.number <= one.number:",
        "if True:",
        "tests/unit/streaming/test_query_state.py",
    ),
    Mutant(
        "a-batch-of-the-archive-has-no-offset",
        "streaming/archive/delta.py",
        "session.conf.set(APP_VERSION, str(batch.next_offset))",
        "session.conf.set(APP_VERSION, str(batch.next_offset - 1))",
        "tests/integration/test_archive.py",
    ),
    Mutant(
        "an-archived-event-is-archived-again",
        "streaming/archive/delta.py",
        'same = " AND ".join(f"t.`{name}` = s.`{name}`" for name in (MONTH, *table.key))',
        'same = "false"',
        "tests/integration/test_archive.py",
    ),
    Mutant(
        "a-failed-reader-keeps-its-seat",
        "coordinator/http/aside.py",
        """        try:
            yield
        finally:
            self._free += 1""",
        """        yield
        self._free += 1""",
        "tests/unit/http/test_bodies.py",
    ),
    Mutant(
        "a-failed-body-keeps-its-turn",
        "coordinator/http/aside.py",
        """        try:
            yield
        finally:
            self._turn.release()""",
        """        yield
        self._turn.release()""",
        "tests/unit/http/test_bodies.py",
    ),
    Mutant(
        "who-was-refused-counts-as-waiting",
        "coordinator/core/leader/master.py",
        """            requests.callers -= 1
            self.barriers""",
        "            self.barriers",
        "tests/unit/core/test_lone_master.py",
    ),
    Mutant(
        "an-earlier-life-leaves-for-this-one",
        "coordinator/core/consensus/admission.py",
        "if (record.node, record.incarnation) != (view.config.node, view.config.incarnation):",
        "if record.node != view.config.node:",
        "tests/unit/core/test_lone_master.py",
    ),
    Mutant(
        "an-indexer-that-is-behind-agrees",
        "coordinator/core/leader/handshake.py",
        "held.agreed = not difference and not difference.unclear and report.cas >= held.asked_cas",
        "held.agreed = not difference and not difference.unclear",
        "tests/unit/core/leader/test_handshake.py",
    ),
    Mutant(
        "a-stranger-refuses-an-index",
        "coordinator/core/leader/prepare.py",
        "if wait is None or answer.indexer not in wait.hosts:",
        "if wait is None:",
        "tests/unit/core/leader/test_prepare.py",
    ),
    Mutant(
        "too-many-members-are-expired",
        "coordinator/core/leader/membership.py",
        "if reason and len(found) < spare:",
        "if reason and len(found) <= spare:",
        "tests/unit/core/leader/test_membership.py",
    ),
    Mutant(
        "who-leaves-leaves-too-few-heirs",
        "coordinator/core/leader/membership.py",
        "elif not why and node in authority.eligible and len(heirs) < authority.minimum:",
        "elif not why and node in authority.eligible and not heirs:",
        "tests/unit/core/leader/test_membership.py",
    ),
    Mutant(
        "who-has-left-is-admitted-again",
        "coordinator/core/leader/membership.py",
        """            self._gone.add((record.node, record.incarnation))
""",
        "",
        "tests/unit/core/leader/test_membership.py",
    ),
    Mutant(
        "an-operator-hears-ok-for-anothers-request",
        "coordinator/core/leader/membership.py",
        "ClusterReformed) and record.epoch == self._epoch",
        "ClusterReformed)",
        "tests/unit/core/leader/test_membership.py",
    ),
    Mutant(
        "an-old-heartbeat-renews-streams-again",
        "coordinator/core/leader/build_coordinator.py",
        "if sources.get((beat.projector, beat.incarnation), 0) == awaited.number:",
        "if sources.get((beat.projector, beat.incarnation), 0) >= awaited.number:",
        "tests/unit/core/leader/test_stream_restart.py",
    ),
    Mutant(
        "a-copy-lacks-what-was-asked-for",
        "coordinator/core/consensus/copies.py",
        "if meant and view.phase == FOLLOWING and view.state.cas >= question.cas:",
        "if meant and view.phase == FOLLOWING:",
        "tests/unit/core/consensus/test_copies.py",
    ),
    Mutant(
        "a-build-counts-from-below-its-owner",
        "indexer_sim/bucket/tracker.py",
        "mark.done = max(item.seqno, progress.reached, progress.seqno)",
        "mark.done = item.seqno",
        "tests/unit/indexer_sim/test_tracker.py",
    ),
    Mutant(
        "a-moment-is-told-below-where-an-index-is-carried-again",
        "indexer_sim/bucket/tracker.py",
        """            progress.floor = max(progress.floor, progress.seqno, progress.reached)
            progress.seqno = min(progress.seqno, lacks)""",
        "            progress.seqno = min(progress.seqno, lacks)",
        "tests/unit/indexer_sim/test_tracker.py",
    ),
    Mutant(
        "a-moment-is-told-below-where-an-index-was-attached",
        "indexer_sim/bucket/tracker.py",
        """            progress.floor = max(progress.floor, progress.seqno)
            progress.seqno = seqno
""",
        """            progress.seqno = seqno
""",
        "tests/unit/indexer_sim/test_tracker.py",
    ),
    Mutant(
        "a-moment-is-told-within-a-catch-up",
        "indexer_sim/bucket/tracker.py",
        """                if number > progress.floor:
                    progress.floor = number
                    self.dirty.progress.add(vbucket)
""",
        "",
        "tests/unit/indexer_sim/test_tracker.py",
    ),
    Mutant(
        "a-snapshot-of-an-older-build-is-shown",
        "indexer_sim/scans/reader.py",
        "if s.builds.get(index_id) == build}",
        "if index_id in s.builds}",
        "tests/unit/indexer_sim/test_reader.py",
    ),
    Mutant(
        "what-was-sent-of-one-index-counts-for-another",
        "projector_sim/projector/stream_planner.py",
        "if backfill is not None and (share is None or build[0] in share):",
        "if backfill is not None:",
        "tests/unit/projector_sim/test_stream_planner.py",
    ),
    Mutant(
        "a-broker-that-is-away-ends-all-streams",
        "projector_sim/projector/data_sink.py",
        '"message.timeout.ms": 0,',
        '"message.timeout.ms": 5_000,',
        "tests/unit/projector_sim/test_data_sink.py",
    ),
    Mutant(
        "a-dead-letter-is-read-again",
        "streaming/archive/delta.py",
        'asked = ("max(record_offset)"',
        'asked = ("max(if(reason is null, record_offset, null))"',
        "tests/integration/test_archive.py",
    ),
    # -- who streams ------------------------------------------------------------------------------
    Mutant(
        "a-stray-above-the-state-stays",
        "coordinator/core/leader/scrubbing.py",
        "strays = (*found.strays, *found.later) if quiet else found.strays",
        "strays = found.strays",
        "tests/unit/core/test_lone_master.py",
    ),
    # -- who streams ------------------------------------------------------------------------------
    Mutant(
        "a-lower-number-takes-over",
        "indexer_sim/bucket/tracker.py",
        """        if record.number < progress.number:
            return False
        progress.number, progress.owner = record.number, (record.projector, record.connection)
""",
        "        progress.number, progress.owner = record.number, "
        "(record.projector, record.connection)\n",
        "tests/unit/indexer_sim/test_tracker.py",
    ),
    Mutant(
        "a-stream-that-indexers-ignore-goes-on",
        "projector_sim/projector/stream_planner.py",
        "return set(kv.owned) - here or self._ignored(run, here & kv.owned, now_ms)",
        "return set(kv.owned) - here",
        "tests/unit/projector_sim/test_stream_planner.py",
    ),
    Mutant(
        "an-indexer-does-not-say-which-numbers-it-takes",
        "indexer_sim/pipeline/progress_reporter.py",
        """            read=published.read,
            taken=published.taken,
""",
        """            read=published.read,
""",
        "tests/integration/indexer/test_indexer_data.py",
    ),
    Mutant(
        "a-lost-acknowledgement-doubles-a-record",
        "projector_sim/projector/data_sink.py",
        """                "enable.idempotence": True,
                "enable.gapless.guarantee": True,
""",
        """                "enable.idempotence": False,
""",
        "tests/integration/test_data_sink.py",
    ),
    Mutant(
        "an-owner-passes-over-tombstones",
        "indexer_sim/bucket/tracker.py",
        "guarded = not whole or number <= progress.floor",
        "guarded = not whole",
        "tests/unit/indexer_sim/test_tracker.py",
    ),
    Mutant(
        "a-reader-that-dies-at-once-is-waited-for",
        "coordinator/core/consensus/liveness.py",
        "(1 if self._has_read else START_PATIENCE)",
        "(1 if self._read_at else START_PATIENCE)",
        "tests/unit/core/consensus/test_liveness.py",
    ),
    # -- how the log is read: each override of Faust's transport is needed ----------------------
    Mutant(
        "faust-starts-a-thread",
        FAUST,
        "await self._default_start()",
        "await super().start()",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-has-a-loop-of-its-own",
        FAUST,
        "loop=self.loop, thread_loop=self.loop",
        "loop=self.loop",
        "tests/unit/kafka/test_agents.py",
    ),
    Mutant(
        "faust-asks-a-thread-that-is-not-there",
        FAUST,
        "return await maybe_async(fun(*args, **kwargs))",
        "return await super().call_thread(fun, *args, **kwargs)",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-never-stops-its-consumer",
        FAUST,
        "await self._shutdown_thread()",
        "await super()._stop_children()",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-ends-where-no-offset-was-committed",
        FAUST,
        "except NoOffsetForPartitionError:",
        "except NotImplementedError:",
        f"{ON_FAUST}::test_a_fetch_that_comes_before_the_seek_ends_no_agent",
    ),
    Mutant(
        "faust-passes-over-what-commit-does-not-have",
        FAUST,
        "if not gone.keys() <= transport.forgetful:",
        "if False:",
        f"{ON_FAUST}::test_where_the_log_does_not_have_its_next_record_an_agent_fails",
    ),
    Mutant(
        "faust-goes-on-where-there-is-something",
        "coordinator/kafka/agents.py",
        'consumer_auto_offset_reset="none"',
        'consumer_auto_offset_reset="earliest"',
        f"{ON_FAUST}::test_where_the_log_does_not_have_its_next_record_an_agent_fails",
    ),
    Mutant(
        "faust-ends-where-records-were-forgotten",
        FAUST,
        "if not gone.keys() <= transport.forgetful:",
        "if True:",
        f"{ON_FAUST}::test_what_was_forgotten_is_passed_over_and_is_not_the_end",
    ),
    Mutant(
        "faust-forgets-what-agents-were-given",
        FAUST,
        "transport.delivered.update(",
        "dict(",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-waits-long-for-a-broker-that-hangs",
        FAUST,
        "request_timeout_ms=REQUEST_TIMEOUT_MS",
        "request_timeout_ms=int(conf.broker_request_timeout * 1000)",
        f"{ON_FAUST}::test_a_fetch_that_nobody_answers_is_given_up_soon",
    ),
    Mutant(
        "faust-commits-offsets",
        FAUST,
        "enable_auto_commit=False",
        "enable_auto_commit=True",
        f"{ON_FAUST}::test_after_another_assignment_reading_goes_on_where_it_was",
    ),
    Mutant(
        "faust-begins-where-its-group-committed",
        FAUST,
        "await self.seek(place, transport.begin_at[place])",
        "await super().perform_seek()",
        f"{ON_FAUST}::test_after_another_assignment_reading_goes_on_where_it_was",
    ),
    Mutant(
        "faust-drops-what-it-has-sought-back-to",
        FAUST,
        "await self.seek(place, transport.begin_at[place])",
        "await self._seek(place, transport.begin_at[place])",
        f"{ON_FAUST}::test_what_was_forgotten_is_passed_over_and_is_not_the_end",
    ),
    Mutant(
        "faust-asks-for-an-assignment-that-is-not-there",
        FAUST,
        "if inner is None or place not in inner.assignment():",
        "if inner is None:",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-asks-for-a-consumer-that-is-not-there",
        FAUST,
        "if inner is None or place not in inner.assignment():",
        "if place not in inner.assignment():",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-asks-for-a-position-that-is-not-there",
        FAUST,
        "return state.has_valid_position and state.lso",
        "return state.lso",
        f"{ON_FAUST}::test_what_was_forgotten_is_passed_over_and_is_not_the_end",
    ),
    Mutant(
        "faust-takes-an-unknown-end-for-the-end",
        FAUST,
        "state.lso is not None and state.position >= state.lso",
        "state.position >= (state.lso or 0)",
        f"{ON_FAUST}::test_all_that_a_topic_had_was_folded_once_it_is_whole",
    ),
    Mutant(
        "faust-reads-again-after-another-assignment",
        "coordinator/kafka/agents.py",
        "self._begin_at[self._place] = offset + 1",
        "pass",
        f"{ON_FAUST}::test_after_another_assignment_reading_goes_on_where_it_was",
    ),
    # -- what is let in ------------------------------------------------------------------------
    Mutant(
        "any-page-may-ask",
        "coordinator/runtime/http_guard.py",
        'if not _is_of(origin.decode("latin-1").lower(), own):',
        "if False:",
        "tests/unit/runtime/test_http_guard.py",
    ),
    Mutant(
        "json-of-one-level-more",
        "coordinator/core/model/json_text.py",
        "levels.max() > depth_max",
        "levels.max() > depth_max + 1",
        "tests/unit/core/model/test_json_text.py",
    ),
    Mutant(
        "a-body-is-read-to-its-end",
        "coordinator/runtime/request_bodies.py",
        "if size > limit_bytes:",
        "if False:",
        "tests/unit/http/test_bodies.py",
    ),
    Mutant(
        "folders-are-open-to-all",
        "coordinator/runtime/private_files.py",
        "UMASK = 0o077",
        "UMASK = 0o022",
        "tests/unit/runtime/test_private_files.py",
    ),
    Mutant(
        "a-hole-in-a-connection-is-the-next-record",
        "indexer_sim/bucket/chains.py",
        "            if record.previous != reached:\n                place = AFTER_A_HOLE\n",
        "",
        "tests/unit/indexer_sim/test_chains.py",
    ),
    Mutant(
        "a-record-that-was-read-counts-again",
        "indexer_sim/bucket/chains.py",
        "            if record.ordinal <= reached:\n                return READ_BEFORE\n",
        "",
        "tests/unit/indexer_sim/test_chains.py",
    ),
    # -- the parts, each alone ------------------------------------------------------------------
    Mutant(
        "the-dead-are-waited-for",
        ELECTION,
        "if other == config.node or peer is None or not peers.alive(peer):",
        "if other == config.node or peer is None:",
        UNIT_ELECTION,
    ),
    Mutant(
        "a-master-of-an-older-epoch-is-heard",
        ELECTION,
        "and (beat.node, beat.epoch) == (authority.master, authority.epoch)",
        "and beat.node == authority.master",
        UNIT_ELECTION,
    ),
    Mutant(
        "the-claim-of-an-earlier-life-elects",
        ELECTION,
        "return (record.node, record.incarnation) == (view.config.node, view.config.incarnation)",
        "return record.node == view.config.node",
        UNIT_ELECTION,
    ),
    Mutant(
        "a-claim-that-was-given-up-keeps-its-producer",
        ELECTION,
        'found += [Note(f"claim given up: {why}"), CloseProducer()]',
        'found += [Note(f"claim given up: {why}")]',
        UNIT_ELECTION,
    ),
    Mutant(
        "claimed-behind-the-last-digest",
        ELECTION,
        "elif (state.cas, state.digest) != (authority.last_cas, authority.digest):",
        "elif state.cas != authority.last_cas:",
        UNIT_ELECTION,
    ),
    Mutant(
        "the-silent-count-as-copies",
        COMMITTER,
        "if copies >= authority_of(view).minimum:",
        "if copies + len(silent) >= authority_of(view).minimum:",
        UNIT_COMMITTER,
    ),
    Mutant(
        "an-acceptance-that-was-spoiled-begins-anew",
        COMMITTER,
        """        attempt.move(ABANDONING)
""",
        """        attempt.move(ABANDONING)
        for node in attempt.accepted:
            self._refusals.pop(node, None)
""",
        UNIT_COMMITTER,
    ),
    Mutant(
        "a-dead-replica-shortens-the-patience-with-the-own-store",
        COMMITTER,
        "node == view.config.node or view.peers.node_alive(node) for node in missing",
        "view.peers.node_alive(node) for node in missing if node != view.config.node",
        UNIT_COMMITTER,
    ),
    Mutant(
        "an-echo-of-before-the-doubt-is-enough",
        COMMITTER,
        "if self._echoed_ms < attempt.doubted_ms and not lapsed:",
        "if self._echoed_ms < attempt.began_ms and not lapsed:",
        UNIT_COMMITTER,
    ),
    Mutant(
        "events-with-gaps-are-believed",
        COMMITTER,
        "contiguous = cas == tuple(range(first, first + len(mutations)))",
        "contiguous = len(cas) == len(mutations)",
        UNIT_COMMITTER,
    ),
    Mutant(
        "an-answer-for-another-offset-counts",
        "coordinator/core/leader/transaction.py",
        "elif answer.proposal_offset == self.offset and answer.node in self.proposal.participants:",
        "elif answer.node in self.proposal.participants:",
        "tests/unit/core/leader/test_transaction.py",
    ),
    Mutant(
        "decided-upon-what-its-own-group-writes",
        GROUPS,
        "        group.touched |= keys\n        if decision.waits_for:",
        "        if decision.waits_for:",
        UNIT_GROUPS,
    ),
    Mutant(
        "a-small-command-overtakes-what-does-not-fit",
        GROUPS,
        "            group.block(request, keys)\n            group.is_closed = True\n",
        "            group.block(request, keys)\n",
        UNIT_GROUPS,
    ),
    Mutant(
        "what-is-parked-stays-behind-those-that-are-tried-again",
        "coordinator/core/leader/request_table.py",
        "self.queue.push_front([*again, *self._unpark_published()])",
        "self.queue.push_front(again)",
        UNIT_REQUESTS,
    ),
    Mutant(
        "a-caller-in-flight-is-told-twice",
        "coordinator/core/leader/request_table.py",
        "                held.request = replace(held.request, token=0)",
        "                pass",
        UNIT_REQUESTS,
    ),
    Mutant(
        "a-barrier-of-another-epoch-answers-a-read",
        "coordinator/core/leader/read_barriers.py",
        "if record.nonce != self._nonce or record.epoch != self._epoch:",
        "if record.nonce != self._nonce:",
        "tests/unit/core/leader/test_read_barrier.py",
    ),
    Mutant(
        "a-batch-that-failed-leaves-the-proposal-behind-it",
        DURABILITY,
        "is_lost = bool(self._prepared_token) and self._prepared_token >= event.token",
        "is_lost = bool(self._prepared_token) and self._prepared_token == event.token",
        "tests/unit/core/consensus/test_durability.py",
    ),
    Mutant(
        "a-source-is-given-up-before-it-is-read",
        FULL_SYNC,
        "if self._synchroniser is None or not self._synchroniser.complete:",
        "if self._synchroniser is None:",
        "tests/unit/core/consensus/test_full_sync.py",
    ),
    Mutant(
        "a-feed-claims-what-it-does-not-keep",
        FEED,
        "return after >= newest or (bool(self._kept) and self._kept[0].before <= after)",
        "return after >= newest or bool(self._kept)",
        UNIT_FEED,
    ),
    Mutant(
        "a-resumed-watcher-hears-the-last-change-again",
        FEED,
        "if published.cas > self.position and self.predicate.fits(published.change)",
        "if published.cas >= self.position and self.predicate.fits(published.change)",
        UNIT_FEED,
    ),
    Mutant(
        "a-watcher-that-lagged-is-told-a-cas-beyond",
        FEED,
        "        elif not self.has_lagged:\n",
        "        else:\n",
        UNIT_FEED,
    ),
    Mutant(
        "who-lagged-is-handed-what-still-fits",
        FEED,
        "        if self.has_lagged:\n            return\n        found = [",
        "        found = [",
        UNIT_FEED,
    ),
    Mutant(
        "a-gap-in-the-feed-goes-unheard",
        FEED,
        "if self._kept and self._kept[-1].last != before.cas:",
        "if False:",
        UNIT_FEED,
    ),
    Mutant(
        "a-change-within-a-transaction-has-an-older-value-before-it",
        "coordinator/core/history/changes.py",
        "yield Change(event, made[key] if key in made else before.get(key))",
        "yield Change(event, before.get(key))",
        "tests/unit/core/history/test_changes.py",
    ),
    Mutant(
        "a-filter-looks-at-the-value-after-a-change-only",
        "coordinator/core/history/predicates.py",
        "any(map(self._fits_entity, change.sides))",
        "any(map(self._fits_entity, change.sides[-1:]))",
        "tests/unit/core/history/test_predicates.py",
    ),
    Mutant(
        "a-page-that-ends-inside-a-transaction-goes-on-after-it",
        "coordinator/node/history.py",
        "return Page(tuple(found), cas if cas < last else None)",
        "return Page(tuple(found), end if end < last else None)",
        "tests/unit/node/test_history.py",
    ),
    Mutant(
        "a-state-of-the-past-has-the-transaction-under-way",
        "coordinator/node/history.py",
        "            if changes[-1].event.cas > cas:\n",
        "            if changes[0].event.cas > cas:\n",
        "tests/unit/node/test_history.py",
    ),
    Mutant(
        "a-client-believes-a-change-that-it-had",
        "coordinator/client/watching.py",
        'if event.event == "change" and is_old:',
        "if False:",
        "tests/unit/client/test_watching.py",
    ),
    Mutant(
        "a-damaged-copy-of-a-past-state-is-believed",
        "coordinator/node/state_copies.py",
        "if not assembly.is_whole or state.digest != digest:",
        "if not assembly.is_whole:",
        "tests/unit/node/test_state_copies.py",
    ),
    Mutant(
        "a-transaction-changes-an-entity-twice",
        "coordinator/core/catalog/transactions.py",
        "    if clash is not None:\n",
        "    if False:\n",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "indexes-of-a-transaction-share-an-id",
        "coordinator/core/catalog/transactions.py",
        "circumstances = replace(given, fresh_id=given.fresh_id + len(branch.changes))",
        "circumstances = given",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "one-comparison-that-holds-is-enough",
        "coordinator/core/catalog/transactions.py",
        "    succeeded = all(\n",
        "    succeeded = any(\n",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "a-refused-operation-is-left-out",
        "coordinator/core/catalog/transactions.py",
        "        if outcome.status != OK:\n",
        "        if False:\n",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "the-copies-of-a-transaction-have-no-bound",
        "coordinator/core/catalog/transactions.py",
        "    if copies > COPIES_MAX:\n",
        "    if False:\n",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "the-names-of-a-transaction-have-no-bound",
        "coordinator/core/catalog/transactions.py",
        "    if _length_of_names(command) > NAMES_LENGTH_MAX:\n",
        "    if False:\n",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "what-is-remembered-weighs-nothing",
        GROUPS,
        "size = weight(mutations) + _weight_of_results(decision)",
        "size = weight(mutations)",
        "tests/unit/core/leader/test_group_commit.py",
    ),
    Mutant(
        "upkeep-keeps-a-large-command-waiting",
        GROUPS,
        "self._waits_for_all = group.is_closed and not self._waits_for_all",
        "self._waits_for_all = False",
        "tests/unit/core/leader/test_group_commit.py",
    ),
    Mutant(
        "a-transaction-is-answered-too-early",
        "coordinator/core/leader/request_table.py",
        "        if creator.left:\n",
        "        if False:\n",
        "tests/unit/core/leader/test_request_table.py",
    ),
    Mutant(
        "an-undo-builds-again-what-is-there",
        "coordinator/core/history/undo.py",
        "return other.id == index.id or _built_like(other) == _built_like(index)",
        "return other.id == index.id",
        "tests/unit/core/history/test_undo.py",
    ),
    Mutant(
        "a-name-that-a-step-frees-stays-guarded",
        "coordinator/core/history/undo.py",
        "            if name in dropped\n",
        "            if False\n",
        "tests/unit/core/history/test_undo.py",
    ),
    Mutant(
        "a-client-does-not-read-its-own-writes",
        "coordinator/client/client.py",
        "        if call.sees_own_writes and self._written_cas:\n",
        "        if False:\n",
        "tests/unit/client/test_client.py",
    ),
    Mutant(
        "a-backup-may-have-no-change",
        "coordinator/backup/contents.py",
        "        if state.cas and not self._changes:\n",
        "        if False:\n",
        "tests/unit/kafka/test_backup_file.py",
    ),
    # -- what leaves the topic history ---------------------------------------------------------
    Mutant(
        "history-goes-without-being-read-back",
        RETENTION,
        "            self._compare(reader, header.begin, low)\n",
        "",
        f"{ON_RETENTION}::test_a_segment_that_is_damaged_before_it_is_read_back_lets_nothing_go",
    ),
    Mutant(
        "what-is-read-back-is-not-compared",
        RETENTION,
        "        if [*map(encode, kept)] != [*map(encode, there)]:\n",
        "        if False:\n",
        f"{ON_RETENTION}::test_a_segment_with_another_record_than_the_topic_lets_nothing_go",
    ),
    Mutant(
        "history-goes-behind-a-copy-that-was-not-checked",
        RETENTION,
        "            if (found.cas, found.digest) == (info.cas, info.digest):\n",
        "            if True:\n",
        f"{ON_RETENTION}::test_a_copy_that_is_not_what_commit_says_lets_nothing_go",
    ),
    Mutant(
        "history-goes-above-the-copy",
        MAY_GO,
        "if one.end > low and one.last_cas < copy.cas]",
        "if one.end > low]",
        UNIT_MAY_GO,
    ),
    Mutant(
        "history-is-cut-in-a-transaction",
        MAY_GO,
        "            if ends:",
        "            if True:",
        UNIT_MAY_GO,
    ),
    Mutant(
        "the-newest-transaction-leaves-the-topic",
        MAY_GO,
        "            if event.cas == self._newest:\n",
        "            if False:\n",
        UNIT_MAY_GO,
    ),
    Mutant(
        "a-segment-is-replaced",
        SEGMENTS,
        "            os.link(half, final)",
        "            os.replace(half, final)",
        UNIT_ARCHIVE,
    ),
    Mutant(
        "a-half-written-name-is-written-through",
        SEGMENTS,
        """    half.unlink(missing_ok=True)
    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)""",
        """    descriptor = os.open(half, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)""",
        UNIT_ARCHIVE,
    ),
    Mutant(
        "a-segment-need-not-follow-the-one-before-it",
        ARCHIVE,
        "        if segment.header.previous != self._seal_before(begin):\n",
        "        if False:\n",
        UNIT_ARCHIVE,
    ),
    Mutant(
        "an-archive-may-end-before-the-topic-begins",
        ARCHIVE,
        "        if end < low:\n",
        "        if False:\n",
        UNIT_ARCHIVE,
    ),
    Mutant(
        "a-watcher-is-told-what-has-left-the-topic",
        "coordinator/node/history.py",
        "            if after < oldest:\n",
        "            if False:\n",
        "tests/unit/node/test_history.py",
    ),
    # -- how fresh a read is -------------------------------------------------------------------
    Mutant(
        "a-linearizable-read-has-no-barrier",
        "coordinator/http/app.py",
        "    if linearizable:",
        "    if linearizable and at_least < 0:",
        CONSISTENCY,
    ),
    Mutant(
        "a-read-at-the-master-is-local-by-default",
        "coordinator/http/app.py",
        "(consistency is None and node.master)",
        "(consistency is None and not node)",
        CONSISTENCY,
    ),
    Mutant(
        "a-local-read-waits-for-a-barrier",
        "coordinator/http/app.py",
        '    linearizable = consistency == "linearizable" or',
        "    linearizable = consistency is not None or",
        CONSISTENCY,
    ),
    Mutant(
        "at-least-is-not-waited-for",
        "coordinator/http/app.py",
        "    if at_least > node.state.cas:",
        "    if at_least < 0:",
        CONSISTENCY,
    ),
    Mutant(
        "a-reader-is-served-before-its-cas",
        "coordinator/core/consensus/local_reads.py",
        "served = [w for w in self._waiters if w.at_least <= cas]",
        "served = [*self._waiters]",
        CONSISTENCY,
    ),
    Mutant(
        "a-replica-answers-as-if-it-were-master",
        "coordinator/core/node.py",
        "        if not event.linearizable:",
        "        if not event.linearizable or self.master is None:",
        CONSISTENCY,
    ),
    Mutant(
        "the-list-of-indexes-is-read-locally",
        "coordinator/http/app.py",
        '        """List indexes, each with its CAS."""' + SETTLE,
        '        """List indexes, each with its CAS."""' + LOCALLY,
        CONSISTENCY,
    ),
    Mutant(
        "the-list-of-indexes-is-read-at-any-cas",
        "coordinator/http/app.py",
        '        """List indexes, each with its CAS."""' + SETTLE,
        '        """List indexes, each with its CAS."""' + AT_ANY_CAS,
        CONSISTENCY,
    ),
    Mutant(
        "the-index-is-read-locally",
        "coordinator/http/app.py",
        '        """Show one index, with its CAS."""' + SETTLE,
        '        """Show one index, with its CAS."""' + LOCALLY,
        CONSISTENCY,
    ),
    Mutant(
        "the-index-is-read-at-any-cas",
        "coordinator/http/app.py",
        '        """Show one index, with its CAS."""' + SETTLE,
        '        """Show one index, with its CAS."""' + AT_ANY_CAS,
        CONSISTENCY,
    ),
    Mutant(
        "the-list-of-settings-is-read-locally",
        "coordinator/http/app.py",
        '        """List every setting with its CAS."""' + SETTLE,
        '        """List every setting with its CAS."""' + LOCALLY,
        CONSISTENCY,
    ),
    Mutant(
        "the-list-of-settings-is-read-at-any-cas",
        "coordinator/http/app.py",
        '        """List every setting with its CAS."""' + SETTLE,
        '        """List every setting with its CAS."""' + AT_ANY_CAS,
        CONSISTENCY,
    ),
    Mutant(
        "the-setting-is-read-locally",
        "coordinator/http/app.py",
        '        """Read a setting and its CAS."""' + SETTLE,
        '        """Read a setting and its CAS."""' + LOCALLY,
        CONSISTENCY,
    ),
    Mutant(
        "the-setting-is-read-at-any-cas",
        "coordinator/http/app.py",
        '        """Read a setting and its CAS."""' + SETTLE,
        '        """Read a setting and its CAS."""' + AT_ANY_CAS,
        CONSISTENCY,
    ),
    Mutant(
        "the-topology-is-read-locally",
        "coordinator/http/app.py",
        '        """Show which indexers host the slices of every index."""' + SETTLE,
        '        """Show which indexers host the slices of every index."""' + LOCALLY,
        CONSISTENCY,
    ),
    Mutant(
        "the-topology-is-read-at-any-cas",
        "coordinator/http/app.py",
        '        """Show which indexers host the slices of every index."""' + SETTLE,
        '        """Show which indexers host the slices of every index."""' + AT_ANY_CAS,
        CONSISTENCY,
    ),
    Mutant(
        "the-state-is-read-locally",
        "coordinator/http/app.py",
        "await _settle(shell, consistency, max(at_least, cas or 0))",
        'await _settle(shell, "local", max(at_least, cas or 0))',
        CONSISTENCY,
    ),
    Mutant(
        "the-state-is-read-at-any-cas",
        "coordinator/http/app.py",
        "await _settle(shell, consistency, max(at_least, cas or 0))",
        "await _settle(shell, consistency, cas or 0)",
        CONSISTENCY,
    ),
    Mutant(
        "the-history-is-read-locally",
        "coordinator/http/history.py",
        "await settle(consistency, at_least)",
        'await settle("local", at_least)',
        CONSISTENCY,
    ),
    Mutant(
        "the-history-is-read-at-any-cas",
        "coordinator/http/history.py",
        "await settle(consistency, at_least)",
        "await settle(consistency, 0)",
        CONSISTENCY,
    ),
    Mutant(
        "differences-are-read-locally",
        "coordinator/http/history.py",
        "await settle(consistency, max(at_least, from_, to or 0))",
        'await settle("local", max(at_least, from_, to or 0))',
        CONSISTENCY,
    ),
    Mutant(
        "differences-are-read-at-any-cas",
        "coordinator/http/history.py",
        "await settle(consistency, max(at_least, from_, to or 0))",
        "await settle(consistency, max(from_, to or 0))",
        CONSISTENCY,
    ),
    # -- subscriptions -------------------------------------------------------------------------
    Mutant(
        "a-position-goes-back",
        SUBSCRIBING,
        "        elif self.reached(record.number) < record.cas:\n",
        "        else:\n",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "another-subscription-under-the-same-id-counts-as-this-one",
        SUBSCRIBING,
        "            and entity.number == self.number\n",
        "",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "time-without-the-master-counts",
        SUBSCRIBING,
        "unheard_ms = max(0, read_ms - self._read_ms - STEP_MAX_MS)",
        "unheard_ms = 0",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "a-sign-of-life-is-not-heard",
        SUBSCRIBING,
        "elif heard_ms is not None and before.heard_ms != heard_ms:",
        "elif False:",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "silence-counts-that-may-be-a-log-that-is-not-read",
        SUBSCRIBING,
        "read_ms = max(self._read_ms, positions.read_up_to_ms)",
        "read_ms = now_ms",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "a-subscriber-is-behind-though-nothing-waits",
        SUBSCRIBING,
        "if published.cas > after and selection.wants(published.change):",
        "if published.cas > after:",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "what-was-never-looked-at-does-not-wait",
        SUBSCRIBING,
        "kept[0].before > after or kept[-1].last < newest:",
        "kept[-1].last < newest:",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "a-deposed-master-forgets-what-it-has-not-seen",
        SUBSCRIBING,
        "    return {number for number in numbers if epoch_of(number) <= epoch} - there\n",
        "    return {*numbers} - there\n",
        UNIT_SUBSCRIBING,
    ),
    Mutant(
        "a-mastership-goes-on-from-the-one-before",
        "coordinator/node/subscriptions.py",
        "        if epoch != self._led:\n",
        "        if (epoch is None) is not (self._led is None):\n",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "a-lower-position-is-written-after-a-higher-one",
        "coordinator/node/positions.py",
        "        elif record.cas > highest.get(record.number, known.reached(record.number)):\n",
        "        elif True:\n",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "a-topic-goes-without-its-subscriptions",
        "coordinator/core/catalog/subscriptions.py",
        "    if subscriptions and not command.with_subscriptions:\n",
        "    if False:\n",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "subscriptions-are-counted-for-each-topic-alone",
        "coordinator/core/catalog/subscriptions.py",
        "            return keys | {SUBSCRIPTIONS} if isinstance(command, Subscribe) else keys\n",
        "            return keys\n",
        "tests/unit/core/leader/test_group_commit.py",
    ),
    Mutant(
        "an-expiry-ends-whoever-is-there",
        "coordinator/core/catalog/subscriptions.py",
        "    if subscription.number != command.number or subscription.state != ACTIVE:\n",
        "    if subscription.state != ACTIVE:\n",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "a-position-is-written-without-what-it-stands-for",
        "coordinator/kafka/subscription_log.py",
        "            self._producer.begin_transaction()\n            for change in changes:\n",
        "            self._producer.begin_transaction()\n            for change in changes[:-1]:\n",
        ON_TOPICS,
    ),
    Mutant(
        "a-position-is-written-before-what-it-stands-for-is-there",
        "coordinator/kafka/subscription_log.py",
        "            self._flush(failures, FLUSH_CHANGES_S)\n",
        "",
        "tests/integration/test_subscription_log.py",
    ),
    Mutant(
        "a-delivery-begins-before-it-knows-its-position",
        "coordinator/node/deliveries.py",
        "            after = await self._book.settle(subscription)\n",
        "            after = subscription.after\n",
        ON_TOPICS,
    ),
    Mutant(
        "what-is-at-the-position-waits",
        "coordinator/node/subscriptions.py",
        "position < c.event.cas <= newest",
        "position <= c.event.cas <= newest",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "a-lag-is-as-old-as-the-newest-change",
        "coordinator/node/subscriptions.py",
        "waiting[0].event",
        "waiting[-1].event",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "all-that-is-at-hand-is-not-enough",
        "coordinator/node/subscriptions.py",
        "kept[0].before > position",
        "kept[0].before >= position",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "every-node-shows-subscribers",
        "coordinator/node/subscriptions.py",
        "        leads = self._epoch is not None\n",
        "        leads = True\n",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "who-has-no-problem-is-shown-to-have-one",
        "coordinator/node/subscriptions.py",
        "one.number in problems",
        "one.number not in problems",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "all-expire-at-once",
        "coordinator/node/subscriptions.py",
        "overdue[:AT_ONCE_MAX]",
        "overdue",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "a-mark-is-written-with-each-look",
        "coordinator/node/subscriptions.py",
        "            self._catch_up_ms = now_ms + CATCH_UP_MS\n",
        "",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "an-expiry-is-late-when-it-is-asked-for",
        "coordinator/node/subscriptions.py",
        "now_ms + EXPIRE_MS",
        "EXPIRE_MS",
        "tests/unit/node/test_subscriptions.py",
    ),
    Mutant(
        "who-has-nothing-new-is-not-there",
        "coordinator/node/positions.py",
        "        else:\n            await self.note_presence(subscription)\n",
        "",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "who-stops-waiting-holds-up-those-behind",
        "coordinator/node/positions.py",
        "                if written.done():\n                    continue\n",
        "                if written.done():\n                    break\n",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "a-writer-fails-unheard",
        "coordinator/node/positions.py",
        "            except Exception as error:\n"
        "                # Whoever waits must hear of it, whatever it is.\n"
        '                failure = NotWrittenError(f"{type(error).__name__}: {error}")\n',
        "",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "a-book-that-is-closed-writes",
        "coordinator/node/positions.py",
        '        if self._is_closed:\n            raise NotWrittenError("this node is stopping")\n',
        "",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "what-waits-to-be-written-has-no-bound",
        "coordinator/node/positions.py",
        "if len(self._waiting) >= WAITING_MAX:",
        "if False:",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "a-mark-that-is-late-is-a-fault-of-the-node",
        "coordinator/node/positions.py",
        "        except TimeoutError:\n",
        "        except ZeroDivisionError:\n",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "what-was-removed-is-removed-again",
        "coordinator/node/positions.py",
        "        self.positions.forget(numbers)\n",
        "",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "a-mark-that-nobody-waits-for-counts",
        "coordinator/node/positions.py",
        "            self.positions.give_up(mark)\n",
        "",
        "tests/unit/node/test_positions.py",
    ),
    Mutant(
        "who-was-removed-is-not-delivered-what-came-before",
        "coordinator/node/deliveries.py",
        "        if found is None:\n"
        "            # Who was removed is still delivered what came before: that ends by itself.\n"
        "            for task in self._tasks.values():\n"
        "                task.cancel()\n",
        "        for number, task in self._tasks.items():\n"
        "            if number not in wanted:\n"
        "                task.cancel()\n",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-delivery-goes-on-for-another-subscription",
        "coordinator/node/deliveries.py",
        "if held is None or held.entity != subscription:",
        "if held is None:",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-delivery-that-fails-begins-again-at-once",
        "coordinator/node/deliveries.py",
        "            pause_s = min(PAUSE_MAX_S, 2 * pause_s)\n",
        "",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "changes-are-delivered-to-a-topic-of-the-cluster",
        "coordinator/node/deliveries.py",
        "        if is_own(self._cluster, subscription.deliver_to):\n",
        "        if False:\n",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-position-is-known-before-it-is-written",
        "coordinator/node/deliveries.py",
        "                    await run(_write, delivery, found, position)\n"
        "                    self._book.take([position])\n",
        "                    self._book.take([position])\n"
        "                    await run(_write, delivery, found, position)\n",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-problem-that-is-over-is-shown",
        "coordinator/node/deliveries.py",
        "                    self.problems.pop(subscription.number, None)\n",
        "",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "who-wants-few-changes-looks-late",
        "coordinator/node/deliveries.py",
        "if found or (place.position > after and time.monotonic() - told_s > IDLE_S):",
        "if found:",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-transaction-is-delivered-in-parts",
        "coordinator/node/deliveries.py",
        "while place.waiting and place.waiting[0].change.event.txn == _txn(found):",
        "while False:",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "the-beginning-of-a-transaction-is-lost-between-pages",
        "coordinator/node/deliveries.py",
        "                if len(changes) < len(page.changes):\n"
        "                    after = changes[-1].event.cas\n",
        "",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-whole-transaction-is-read-twice",
        "coordinator/node/deliveries.py",
        "last.index + 1 == last.count",
        "last.index == last.count",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-page-of-one-transaction-is-no-page",
        "coordinator/node/deliveries.py",
        "return whole or changes",
        "return whole",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-delivery-that-ends-keeps-its-place",
        "coordinator/node/deliveries.py",
        "            finally:\n                self._changes.unsubscribe(place)\n",
        "            finally:\n                pass\n",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-delivery-is-never-closed",
        "coordinator/node/deliveries.py",
        "        thread.submit(opening.result().close)\n",
        "        pass\n",
        "tests/unit/node/test_deliveries.py",
    ),
    Mutant(
        "a-forgotten-sign-of-life-is-a-dead-letter",
        "coordinator/kafka/subscription_log.py",
        '.partition(b"/")',
        '.partition(b"|")',
        "tests/unit/kafka/test_subscription_log.py",
    ),
    Mutant(
        "signs-of-life-are-kept-for-ever",
        "coordinator/kafka/subscription_log.py",
        'for key in (str(number), f"{number}/seen")',
        "for key in (str(number),)",
        "tests/unit/kafka/test_subscription_log.py",
    ),
    Mutant(
        "what-kafka-has-not-answered-is-written",
        "coordinator/kafka/subscription_log.py",
        "if left or failures:",
        "if failures:",
        "tests/unit/kafka/test_subscription_log.py",
    ),
    Mutant(
        "an-end-that-may-come-twice-is-no-doubt",
        "coordinator/kafka/subscription_log.py",
        " or self._disconnected:",
        ":",
        "tests/unit/kafka/test_subscription_log.py",
    ),
    Mutant(
        "a-position-is-written-after-changes-that-were-refused",
        "coordinator/kafka/subscription_log.py",
        "if self._producer.flush(timeout_s) or failures:",
        "if self._producer.flush(timeout_s) and failures:",
        "tests/unit/kafka/test_subscription_log.py",
    ),
    Mutant(
        "a-sign-of-life-is-as-late-as-the-look-at-it",
        "coordinator/core/history/subscribing.py",
        "_Quiet(heard_ms, heard_ms)",
        "_Quiet(heard_ms, now_ms)",
        "tests/unit/core/history/test_subscribing.py",
    ),
    Mutant(
        "who-expired-cannot-come-back-to-a-full-topic",
        "coordinator/core/catalog/subscriptions.py",
        "if is_new and sum(1",
        "if sum(1",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "nobody-subscribes-from-the-newest-change-on",
        "coordinator/core/catalog/subscriptions.py",
        "command.after > state.cas",
        "command.after >= state.cas",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "one-more-subscription-than-there-may-be",
        "coordinator/core/catalog/subscriptions.py",
        "len(there) >= SUBSCRIPTIONS_TOTAL_MAX",
        "len(there) > SUBSCRIPTIONS_TOTAL_MAX",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "one-more-topic-than-there-may-be",
        "coordinator/core/catalog/subscriptions.py",
        ">= TOPICS_MAX",
        "> TOPICS_MAX",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "topics-of-a-group-are-not-counted",
        "coordinator/core/catalog/subscriptions.py",
        "return {topic_key(command.name), TOPICS}",
        "return {topic_key(command.name)}",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "a-removal-is-answered-with-the-cas-of-an-unsubscription",
        "coordinator/core/catalog/subscriptions.py",
        "subject=len(changes) - 1",
        "subject=0",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "a-topic-is-removed-at-any-cas",
        "coordinator/core/catalog/subscriptions.py",
        "        return _no_topic(command.name)\n"
        "    if other := clash(request, held):\n"
        "        return Unchanged(other)\n",
        "        return _no_topic(command.name)\n",
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "an-unsubscription-holds-at-any-cas",
        "coordinator/core/catalog/subscriptions.py",
        '        return Unchanged(refused("subscription_not_found", text))\n'
        "    if other := clash(request, held):\n"
        "        return Unchanged(other)\n",
        '        return Unchanged(refused("subscription_not_found", text))\n',
        "tests/unit/core/catalog/test_subscriptions.py",
    ),
    Mutant(
        "an-index-that-is-hashed-keeps-its-bounds",
        "coordinator/core/catalog/alter.py",
        'bounds = index.bounds_json if partitioning == index.partitioning else "[]"',
        "bounds = index.bounds_json",
        "tests/unit/core/catalog/test_alter.py",
    ),
    Mutant(
        "an-index-stays-where-it-is-not-to-lie",
        "coordinator/core/catalog/alter.py",
        "set(after.nodes) == fewer.hosts",
        "set(after.nodes) <= fewer.hosts",
        "tests/unit/core/catalog/test_alter.py",
    ),
    Mutant(
        "a-second-index-is-placed-on-an-indexer-that-is-gone",
        "coordinator/core/catalog/alter.py",
        " and index.hosts <= {one.id for one in given.indexers}",
        "",
        "tests/unit/core/catalog/test_alter.py",
    ),
    Mutant(
        "a-second-index-begins-with-the-build-of-the-first",
        "coordinator/core/catalog/alter.py",
        "        build=0,\n",
        "",
        "tests/unit/core/catalog/test_alter.py",
    ),
    Mutant(
        "a-second-index-begins-with-the-shards-of-the-first",
        "coordinator/core/catalog/alter.py",
        "        shards=(),\n",
        "",
        "tests/unit/core/catalog/test_alter.py",
    ),
    Mutant(
        "a-second-index-ignores-the-load-of-its-group",
        "coordinator/core/catalog/alter.py",
        "state.load.get(i, 0) + given.extra_load.get(i, 0)",
        "state.load.get(i, 0)",
        "tests/unit/core/catalog/test_alter.py",
    ),
    Mutant(
        "the-other-branch-has-no-bounds",
        "coordinator/core/catalog/transactions.py",
        "*map(_too_much, branches)",
        "_too_much(command.then)",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "why-an-index-was-undone-is-remembered-at-any-length",
        "coordinator/core/catalog/transactions.py",
        "reason[:REASON_LENGTH_MAX]",
        "reason",
        "tests/unit/core/catalog/test_transactions.py",
    ),
    Mutant(
        "months-of-the-archive-are-not-ordered",
        "streaming/archive/rows.py",
        "{at.month:02}",
        "{at.month}",
        "tests/unit/streaming/test_archive.py",
    ),
    Mutant(
        "a-key-that-begins-as-a-kind-is-one",
        "streaming/archive/rows.py",
        "KIND.fullmatch(kind)",
        "KIND.match(kind)",
        "tests/unit/streaming/test_archive.py",
    ),
    Mutant(
        "a-value-that-is-nested-too-deeply-ends-the-archive",
        "streaming/archive/rows.py",
        "except (ValueError, RecursionError):",
        "except ValueError:",
        "tests/unit/streaming/test_archive.py",
    ),
    Mutant(
        "times-of-the-archive-have-no-zone",
        "streaming/archive/decoding.py",
        'pa.timestamp("us", tz="UTC")',
        'pa.timestamp("us")',
        "tests/unit/streaming/test_archive.py",
    ),
    Mutant(
        "timestamps-of-one-moment-are-one-row",
        "streaming/archive/tables.py",
        'key=("bucket", "number", "at_utc")',
        'key=("bucket", "at_utc")',
        "tests/unit/streaming/test_archive.py",
    ),
    Mutant(
        "the-wall-clock-is-followed-for-every-little-step",
        "streaming/timestamps/clock.py",
        "if late_ms <= STEP_MS and (same or late_ms <= 0):",
        "if late_ms <= 0:",
        "tests/unit/streaming/test_clock.py",
    ),
    Mutant(
        "a-third-column-of-one-name-replaces-another",
        "coordinator/cli/sql.py",
        "        while tried in found:\n",
        "        if tried in found:\n",
        "tests/unit/cli/test_sql.py",
    ),
    Mutant(
        "a-gap-makes-numbers-text",
        "coordinator/cli/sql.py",
        "any(isinstance(row[place]",
        "all(isinstance(row[place]",
        "tests/unit/cli/test_sql.py",
    ),
)
