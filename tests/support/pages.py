"""The pages of the documentation, for the tests that hold them against the source."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
PAGES += [ROOT / "benchmarks" / "README.md", ROOT / "docker" / "README.md"]


def quoted(text: str) -> list[str]:
    """Return what stands between single backticks."""
    return re.findall(r"`([^`\n]+)`", text)
