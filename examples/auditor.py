"""Who changed what between two moments: `python examples/auditor.py FROM [TO] [--json]`.

A moment is a CAS (`98`) or a time (`2026-11-24T10:54`); TO is now by default. It prints every
change with the one who asked for it, and then what is different in the end: a setting that was
changed and changed back is among the changes, and not among the differences. With `--json` each
change is a line of JSON, for `jq` and for databases. Set INDEXCTL_URL to any node.

The history names who the clients *said* they were (`Client(principal=…)`): the coordinator does not
check it. The master acts by itself as `coordinator`.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table

from coordinator.client.client import Client
from coordinator.client.errors import CoordinatorError

WHAT = {"setting", "index"}
"""What people change. The rest is the cluster's own: buckets that it knows, streams, positions."""


def moment(text: str, edge: str) -> dict[str, int]:
    """Return a moment as the history takes it: `after` or `until` a CAS, `from_ms` or `to_ms`."""
    if text.isdecimal():
        return {"after" if edge == "from" else "until": int(text)}
    return {f"{edge}_ms": int(datetime.fromisoformat(text).timestamp() * 1000)}


def cas_of(client: Client, text: str) -> int:
    """Return the CAS of a moment: that of the state of then."""
    if text.isdecimal():
        return int(text)
    at_ms = moment(text, "from")["from_ms"]
    return int(client.state(at_ms=at_ms, consistency="linearizable")["cas"])


def short(value: Any) -> str:
    """Return a value in few words: of an index its name and state."""
    if isinstance(value, dict) and "topology" in value:
        return f"{value['bucket']}.{value['name']} {value['state']}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 30 else f"{text[:29]}…"


def change_row(change: dict[str, Any]) -> list[str]:
    at = datetime.fromtimestamp(change["at_ms"] / 1000).isoformat(" ", "seconds")
    before = short(change["before"]) if change["before_cas"] else "-"
    after = "-" if change["dropped"] else short(change["value"])
    who = change["principal"] or "?"
    return [str(change["cas"]), at, who, change["event"], change["key"], before, after]


def difference_row(one: dict[str, Any]) -> list[str]:
    before = short(one["before"]) if one["before_cas"] else "-"
    after = short(one["after"]) if one["after_cas"] else "-"
    return [one["key"], before, after]


def table(title: str, columns: str, rows: list[list[str]]) -> Table:
    made = Table(*columns.split(), title=f"{title}: {len(rows)}", title_justify="left", box=None)
    for row in rows:
        made.add_row(*row)
    return made


def main(begin: str, end: str = "", *, as_json: bool = False) -> None:
    with Client() as client:
        # Any node answers. `linearizable`: with everything that was acknowledged until now.
        between = {**moment(begin, "from"), **(moment(end, "to") if end else {})}
        changes = client.history_all(**between, kind=sorted(WHAT), consistency="linearizable")
        if as_json:
            for change in changes:  # As many as there are: nothing is collected.
                print(json.dumps(change))
            return
        rows = [change_row(change) for change in changes]
        last = cas_of(client, end) if end else None
        found = client.diff(cas_of(client, begin), last, consistency="linearizable")["changes"]
    differences = [difference_row(one) for one in found if one["kind"] in WHAT]
    console = Console()
    console.print(table("Changes", "CAS time who event key before after", rows))
    console.print(table("\nDifferent in the end", "key before after", differences))


if __name__ == "__main__":
    arguments = [argument for argument in sys.argv[1:] if argument != "--json"]
    if len(arguments) not in (1, 2):
        sys.exit(__doc__)
    try:
        main(*arguments, as_json="--json" in sys.argv)
    except (CoordinatorError, ValueError) as refused:
        sys.exit(str(refused))
