"""The command `indexctl` as a process, from its first moment."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ENTRY = "from coordinator.cli.entry import main; main()"
INTERRUPTS = "import os, signal; os.kill(os.getpid(), signal.SIGINT)\n"
COMMAND = "def main(): print('the command')\n"


def entered(folder: Path, *, ignored: bool = False) -> subprocess.CompletedProcess[str]:
    """Run the entry with commands that get Ctrl-C while they are being imported."""
    (folder / "stub.py").write_text(
        "import sys, types\n"
        "class Finder:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name == 'coordinator.cli.main':\n"
        "            from importlib.util import spec_from_file_location\n"
        f"            return spec_from_file_location(name, {str(folder / 'commands.py')!r})\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    (folder / "commands.py").write_text(INTERRUPTS + COMMAND)
    answer = "SIG_IGN" if ignored else "default_int_handler"
    # A shell in the background would have it ignored.
    ignoring = f"import signal; signal.signal(signal.SIGINT, signal.{answer}); "
    paths = os.pathsep.join([str(folder), *filter(None, sys.path)])
    return subprocess.run(
        [sys.executable, "-c", f"import stub; {ignoring}{ENTRY}"],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PYTHONPATH": paths},
    )


def test_ctrl_c_while_the_commands_are_being_loaded_ends_quietly(tmp_path: Path) -> None:
    done = entered(tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_who_ignores_ctrl_c_goes_on(tmp_path: Path) -> None:
    done = entered(tmp_path, ignored=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "the command\n", "")


@pytest.mark.thorough
@pytest.mark.parametrize("argument", ["--help", "lisst"])
def test_the_entry_runs_the_command_that_the_arguments_name(argument: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ENTRY, argument], capture_output=True, text=True, check=False
    )
    assert done.returncode == (0 if argument == "--help" else 2)
