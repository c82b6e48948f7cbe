"""Scans of what an indexer holds."""
