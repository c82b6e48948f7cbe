"""Fixtures for indexers: a cluster of topics without nodes, a process, and what drives it."""

from __future__ import annotations

from tests.integration.indexer_bench import bench
from tests.integration.indexer_process import cluster, start

__all__ = ["bench", "cluster", "start"]
