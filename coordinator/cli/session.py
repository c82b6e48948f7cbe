"""What all commands share: `--url`, `--timeout`, `--json`, and how errors end a command."""

import functools
import inspect
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer

from coordinator.cli.output import fail, print_json

if TYPE_CHECKING:
    from coordinator.client.client import Client

TIMEOUT_S = 30.0
TIMEOUT_S_MAX = 1_000_000.0
FIRST_CONTACT_S = 2.0
SLOW_HINT = "a node has answered before; give it longer with --timeout"
NOBODY_HINT = "start one with `indexctl run`, or set INDEXCTL_URL to live nodes"
DEFAULT_URLS = "http://127.0.0.1:8600,http://127.0.0.1:8601,http://127.0.0.1:8602"
"""The nodes of `indexctl run`: a command must find the others when the first one is dead."""

Url = Annotated[
    str | None,
    typer.Option(
        "--url",
        metavar="URL",
        help="One node, or several with commas (default: INDEXCTL_URL, or local ports 8600-8602).",
        rich_help_panel="Connection and output",
    ),
]
Timeout = Annotated[
    float | None,
    typer.Option(
        "--timeout",
        metavar="SECONDS",
        min=0.001,
        max=TIMEOUT_S_MAX,
        help=f"Deadline (default: {TIMEOUT_S:g}, or {FIRST_CONTACT_S:g} if no node answers).",
        rich_help_panel="Connection and output",
    ),
]
AsJson = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Print JSON; errors as JSON on standard error.",
        rich_help_panel="Connection and output",
    ),
]


@dataclass(frozen=True)
class Session:
    """The common options of one command."""

    url: str | None
    timeout_s: float | None
    json: bool

    def connect(self, deadline_s: float | None = None) -> "Client":
        """Return a client. Without `--timeout` it gives up soon where nothing listens."""
        from coordinator.client.client import Client

        deadline_s = deadline_s or self.timeout_s or TIMEOUT_S
        first_s = self.timeout_s or FIRST_CONTACT_S
        url = self.url or os.environ.get("INDEXCTL_URL") or DEFAULT_URLS
        return Client(
            url,
            deadline_s=deadline_s,
            first_contact_s=min(first_s, deadline_s),
            principal=os.environ.get("INDEXCTL_PRINCIPAL"),
        )

    def probe(self) -> "Client":
        """Return a client for asking single nodes, which may be dead: it does not wait for long."""
        from coordinator.cli.survey import PROBE_DEADLINE_S

        return self.connect(min(self.timeout_s or PROBE_DEADLINE_S, PROBE_DEADLINE_S))


def explained(code: str, message: str, details: dict[str, Any]) -> str:
    """Return `message`, with what to do where no node answers."""
    if code != "unreachable":
        return message
    return f"{message}: {SLOW_HINT if details.get('answered') else NOBODY_HINT}"


def command(
    app: typer.Typer, name: str | None, *, local: bool = False, **settings: Any
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Make a function `f(session, …)` the command `name`, with the common options.

    Expected errors are those with `code` and `message`; they become one line (or JSON) and an
    exit code. `local` commands talk to no node and have no `--url` and `--timeout`. Without a
    name, it is what a group does when none of its commands is given.
    """
    common: dict[str, tuple[Any, Any]] = {"as_json": (AsJson, False)}
    if not local:
        common = {"url": (Url, None), "timeout": (Timeout, None), **common}

    def register(function: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(function)
        def run(context: typer.Context, **given: Any) -> None:
            if context.invoked_subcommand is not None:
                return
            root: dict[str, Any] = context.find_root().obj or {}
            session = Session(
                given.pop("url", None) or root.get("url"),
                given.pop("timeout", None) or root.get("timeout"),
                given.pop("as_json") or root.get("as_json", False),
            )
            try:
                function(session, **given)
            except UnicodeEncodeError as error:
                if error.object[error.start : error.end].isprintable():
                    raise  # It is the terminal that cannot show a character.
                text = ascii(error.object[max(0, error.start - 20) : error.end + 20])
                fail("usage", f"an argument is not text: {text}", as_json=session.json)
            except Exception as error:
                code, message = getattr(error, "code", None), getattr(error, "message", None)
                if not isinstance(code, str) or not isinstance(message, str):
                    raise
                details = _details_of(error)
                fail(
                    code,
                    explained(code, message, details),
                    details,
                    excerpt=getattr(error, "excerpt", ""),
                    as_json=session.json,
                )

        own = list(inspect.signature(function).parameters.values())[1:]
        shared = [
            inspect.Parameter(key, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=kind)
            for key, (kind, default) in common.items()
        ]
        context = inspect.Parameter(
            "context", inspect.Parameter.KEYWORD_ONLY, annotation=typer.Context
        )
        own = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in own]
        parameters = [context, *own, *shared]
        del run.__wrapped__
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {p.name: p.annotation for p in parameters}
        if name is None:
            app.callback(invoke_without_command=True, **settings)(run)
        else:
            app.command(name, **settings)(run)
        return function

    return register


def _details_of(error: Exception) -> dict[str, Any]:
    details = getattr(error, "details", None)
    if isinstance(details, dict):
        return details
    return {key: getattr(error, key) for key in ("line", "column") if hasattr(error, key)}


def tell(session: Session, answer: Any, text: str) -> None:
    """Print what a command was answered: a line for people, or the whole of it as JSON."""
    if session.json:
        print_json(answer)
    else:
        typer.echo(text)
