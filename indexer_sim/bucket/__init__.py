"""What an indexer holds of one bucket: slices, entries, snapshots, and how far it is."""
