"""An index as a person names it: by its id, its name, or `bucket.name`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from coordinator.cli.output import CommandError

if TYPE_CHECKING:
    from coordinator.client.client import Client, Consistency


def refuse_statement(command: str, *names: str) -> None:
    """Raise CommandError `usage` for a whole statement, where only names and ids are taken."""
    if any(name.split()[1:] for name in names):
        text = f"{command} takes names and ids: a statement is for `indexctl apply`"
        raise CommandError("usage", text)


def find_index(
    client: Client,
    index: str,
    bucket: str | None,
    *,
    consistency: Consistency | None = None,
    needs_bucket: bool = False,
) -> dict[str, Any]:
    """Return `{"index", "cas"}` of the index that is meant.

    A name may contain dots. `a.b` means the index b of bucket a, if there is one; else the index
    named `a.b`, if no bucket is required. CommandError `index_not_found`; `usage`: the name is
    ambiguous.
    """
    if bucket is None and index.isdecimal():
        return client.get_index(index, consistency=consistency)
    # The API cannot be asked for `bucket.name`: where a dot divides the two is not said.
    name = None if bucket is None and "." in index else index
    listed = client.list_indexes(bucket, name, consistency=consistency)["indexes"]
    found = [i for i in listed if index == f"{i['bucket']}.{i['name']}"]
    if not found and (bucket is not None or not needs_bucket):
        found = [i for i in listed if index == i["name"]]
    if not found:
        where = f" on {bucket}" if bucket else ""
        raise CommandError("index_not_found", f"there is no index {index}{where}")
    if len(found) > 1:
        # One that is being dropped has no name any more; one that replaces another has none yet.
        named = [i for i in found if i["state"] != "dropping" and not i.get("replaces")]
        found = named or found
    if len(found) > 1:
        buckets = ", ".join(sorted(i["bucket"] for i in found))
        raise CommandError("usage", f"several buckets have {index}; give --bucket: {buckets}")
    entry = dict(found[0])
    return {"cas": entry.pop("cas", None), "index": entry}
