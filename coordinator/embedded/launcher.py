"""A tiny program that ties itself to its parent and then becomes the command that it was given.

Run as a script, `launcher.py PARENT_PID COMMAND…`. On Linux it asks the kernel for SIGKILL when
its parent dies, which lasts across exec, so that not even a SIGKILL of the parent leaves the
command running. Elsewhere it only becomes the command. It must import nothing of this project: it
is run without site-packages, to cost some 10 ms.
"""

from __future__ import annotations

import os
import signal
import sys

PR_SET_PDEATHSIG = 1
EXIT_CANNOT_RUN = 127


def die_with_parent(parent_pid: int) -> None:
    """Ask for SIGKILL at the parent's death; exit if it is dead already."""
    if not sys.platform.startswith("linux"):
        return
    import ctypes

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent_pid:
        os._exit(EXIT_CANNOT_RUN)


def main(arguments: list[str]) -> None:
    """Become the command; say why not on stderr and exit with 127 if that fails."""
    parent_pid, command = int(arguments[0]), arguments[1:]
    die_with_parent(parent_pid)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"cannot run {command[0]}: {error.strerror}", file=sys.stderr)
        os._exit(EXIT_CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
