"""The options that define an index, for the commands that make one and that change one."""

from typing import Annotated

import typer

Bucket = Annotated[str | None, typer.Option("--bucket", "-b", help="The bucket.")]
Expressions = Annotated[
    list[str] | None,
    typer.Option("--on", "-e", metavar="EXPR", help="A component of the key; repeat for more."),
]
Where = Annotated[str | None, typer.Option(help="Index the documents for which this is TRUE.")]
Replicas = Annotated[
    int | None, typer.Option(min=0, help="Replicas of each slice besides its master copy.")
]
Nodes = Annotated[
    list[int] | None,
    typer.Option("--node", metavar="ID", min=0, help="Place it on this indexer; repeat for more."),
]
