"""Where an archive is, and how its tables are found: no Spark is needed to know."""

from __future__ import annotations

from pathlib import Path

ARCHIVE = "archive"
"""The archive's folder in a data folder."""


def url_of(archive: str | Path) -> str:
    """Return where an archive is as a URL; what has no scheme is a folder of this machine."""
    text = str(archive)
    return text if "://" in text else f"file://{Path(text).resolve()}"


def folder_of(url: str) -> Path | None:
    """Return the local folder that a URL names, None if it is elsewhere."""
    if not url.startswith("file://"):
        return None
    return Path(url.removeprefix("file://").removeprefix("localhost"))
