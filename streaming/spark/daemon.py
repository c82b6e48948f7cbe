"""The process that forks Spark's Python workers: `spark.python.daemon.module`.

Spark puts its own archives on the workers' path. Python reads their directories anew for each task,
which takes longer than a small task: they are left out where their content is installed. What tasks
of ours need is loaded once, before the first worker is forked. It is then kept out of the sight of
the garbage collector, which a worker runs after each task.
"""

from __future__ import annotations

import gc
import importlib
import runpy
import sys
from importlib.machinery import PathFinder

ARCHIVES = (".zip", ".jar")
ARCHIVED = ("pyspark", "py4j")
LOADED = ("pandas", "pyspark.worker", "streaming.timestamps.rows")


def main() -> None:
    """Run Spark's own daemon, on a path without archives where that has what they have."""
    shorter = [place for place in sys.path if not place.endswith(ARCHIVES)]
    if all(PathFinder.find_spec(name, shorter) for name in ARCHIVED):
        sys.path[:] = shorter
        for place in [place for place in sys.path_importer_cache if place.endswith(ARCHIVES)]:
            del sys.path_importer_cache[place]
    for name in LOADED:
        importlib.import_module(name)
    gc.freeze()
    runpy.run_module("pyspark.daemon", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
