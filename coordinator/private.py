"""Folders that only their owner can look into: what is in them is everybody's documents."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_MODE = 0o700
UMASK = 0o077
"""What this process and its children make from now on is the owner's alone: files are 0600."""


def private_folder(path: Path) -> None:
    """Make a folder, if it is missing, that only its owner can look into; likewise whatever this
    process makes from now on. OSError: it cannot be made, or is somebody else's."""
    os.umask(UMASK)
    path.mkdir(mode=FOLDER_MODE, parents=True, exist_ok=True)
    path.chmod(FOLDER_MODE)
