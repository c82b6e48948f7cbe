"""The data plane in the simulator: one world with a store, projectors, `mutations` and indexers.

Real are the coordinator's nodes, the projector's `Desk` and `Router`, and of the indexer all that
makes something of what it reads: `Tracker`, `Bucket`, `Applier` and the desk for its storage.
Simulated are the key-value store, Kafka, the disks and the shells.
"""
