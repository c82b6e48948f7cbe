"""Where the command `indexctl` begins: Ctrl-C ends it quietly also while it is being loaded.

Typer and the commands take some tenths of a second to import. A KeyboardInterrupt that is raised
there would print a traceback, so until the commands are there, the signal ends the process.
"""

import os
import signal

INTERRUPTED = 130


def main() -> None:
    """Load the commands, and run the one that the arguments name."""
    listens = signal.getsignal(signal.SIGINT) == signal.default_int_handler
    if listens:  # Else whoever started this process has it ignore Ctrl-C.
        signal.signal(signal.SIGINT, lambda *_: os._exit(INTERRUPTED))
    from coordinator.cli.main import main as run

    if listens:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run()
