"""What a process writes is for its own user: folders 0700, files 0600."""

from __future__ import annotations

import os
from pathlib import Path

UMASK = 0o077
FOLDER_MODE = 0o700


def keep_private(folder: Path | None = None) -> str:
    """Make all that this process creates private, and its data folder, if it is there already.

    Call it first of all. Return why the folder could not be made private; empty: it is. A path that
    is no folder is left as it is.
    """
    os.umask(UMASK)
    if folder is None or not folder.is_dir():
        return ""
    try:
        folder.chmod(FOLDER_MODE)
    except OSError as error:
        return f"{folder} may be open to others: {error.strerror}"
    return ""
