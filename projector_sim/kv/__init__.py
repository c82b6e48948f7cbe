"""A simulated key-value store: buckets, documents, vbuckets, streams."""
