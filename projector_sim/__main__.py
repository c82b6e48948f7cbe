"""`python -m projector_sim kv …` and `python -m projector_sim projector …`: the two processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence

USAGE = "usage: python -m projector_sim {kv,projector} …"
EX_USAGE = 2


def main(argv: Sequence[str]) -> int:
    """Run one of the processes until it is stopped, and return its exit code."""
    if argv[:1] == ["kv"]:
        from projector_sim.kv import server as kv_server

        return kv_server.main(argv[1:])
    if argv[:1] == ["projector"]:
        from projector_sim.projector import process as projector_process

        return projector_process.main(argv[1:])
    asked = argv[:1] in (["-h"], ["--help"])
    print(USAGE, file=sys.stdout if asked else sys.stderr)
    return 0 if asked else EX_USAGE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
