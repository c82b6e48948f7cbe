"""The optional parts (extras) of an installation: a plain one has the client only."""

from __future__ import annotations

import re
from importlib import metadata

from coordinator.cli.output import CommandError

DISTRIBUTION = "index-coordinator"


def require(*extras: str) -> None:
    """Do nothing if all that these extras ask for is installed.

    CommandError `not_installed` otherwise, with what is missing and what to do.
    """
    missing = sorted({name for extra in extras for name in _missing(extra)})
    if not missing:
        return
    wanted = ",".join(extras)
    raise CommandError(
        "not_installed",
        "a plain installation is the client and leaves this out: "
        f"pip install '{DISTRIBUTION}[{wanted}]'",
        {"missing": missing, "extras": list(extras)},
    )


def _missing(extra: str) -> list[str]:
    return [name for name in _wanted(extra) if not _is_installed(name)]


def _wanted(extra: str) -> list[str]:
    """Return the names of what an extra asks for, as the project's metadata says.

    Nothing, where the project is not installed: who put it on the path knows what is there.
    """
    try:
        lines = metadata.requires(DISTRIBUTION) or ()
    except metadata.PackageNotFoundError:
        return []
    found = []
    for line in lines:
        requirement, _, marker = line.partition(";")
        if f'extra == "{extra}"' in marker:
            name = re.match(r"[\w.-]+", requirement)
            assert name is not None, requirement
            found.append(name.group())
    return found


def _is_installed(name: str) -> bool:
    try:
        metadata.distribution(name)
    except metadata.PackageNotFoundError:
        return False
    return True
