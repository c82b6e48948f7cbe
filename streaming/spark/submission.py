"""Whether `spark-submit` has started this process. Imports nothing of Spark."""

from __future__ import annotations

import os


def is_submitted() -> bool:
    """Tell whether `spark-submit` has started this process, and its JVM before that."""
    return "PYSPARK_GATEWAY_PORT" in os.environ
