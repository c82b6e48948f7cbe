"""Keeps the current version of every schema under its fingerprint: `python -m schemas.release`.

Run it when a schema changed, and commit what it writes. It never touches what is there already:
records that were written with a version must stay readable for ever.
"""

from __future__ import annotations

import json
from typing import Any

from schemas.registry import FOLDER, registry


def main() -> None:
    folder = FOLDER / "released"
    folder.mkdir(exist_ok=True)
    for schema in registry().current.values():
        path = folder / f"{schema.name}.{schema.fingerprint}.avsc"
        if not path.exists():
            path.write_text(json.dumps(_plain(schema.parsed), indent=2) + "\n")
            print(f"kept {path.name}")


def _plain(parsed: Any) -> Any:
    """Return a parsed schema without what the library adds to it."""
    if isinstance(parsed, dict):
        return {k: _plain(v) for k, v in parsed.items() if not k.startswith("__")}
    if isinstance(parsed, list):
        return [_plain(item) for item in parsed]
    return parsed


if __name__ == "__main__":
    main()
