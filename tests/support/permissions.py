"""Who may read what is in a folder."""

from __future__ import annotations

import stat
from pathlib import Path


def open_to_others(folder: Path) -> list[str]:
    """Return what others may do anything with, of a folder and all that is in it."""
    everything = (folder, *folder.rglob("*"))
    return [str(p) for p in everything if stat.S_IMODE(p.lstat().st_mode) & 0o077]
