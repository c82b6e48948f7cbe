"""What an indexer holds of one bucket: slices, entries, snapshots, and its progress."""
