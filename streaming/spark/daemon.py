"""The process that forks Spark's Python workers: `spark.python.daemon.module`.

Spark puts its own archives on the workers' path. Python reads their directories anew for each task,
which takes longer than a small task: whatever they have is installed here anyway. What tasks of
ours need is loaded once, before the first worker is forked. It is then kept out of the sight of the
garbage collector, which a worker runs after each task.
"""

from __future__ import annotations

import gc
import importlib
import runpy
import sys

ARCHIVES = (".zip", ".jar")
LOADED = ("pandas", "pyspark.worker", "streaming.timestamps.rows")


def main() -> None:
    """Run Spark's own daemon on a path without archives."""
    sys.path[:] = [place for place in sys.path if not place.endswith(ARCHIVES)]
    for place in [place for place in sys.path_importer_cache if place.endswith(ARCHIVES)]:
        del sys.path_importer_cache[place]
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
