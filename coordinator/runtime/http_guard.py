"""Who may speak to a process over HTTP, as far as a browser can be told from other clients.

There is no authentication: whoever reaches the port may do everything. A browser reaches it on
behalf of any page that its user has open, so it is the browser that is kept from doing so:

* A page of another site can send a POST without being asked only with the content types of forms.
  A POST needs another one here. Before PUT, PATCH and DELETE a browser asks, and is not told yes.
* A browser says of which site the page is. `Origin` has to be the address that was asked for.
* A page may have its own name lead to this machine (DNS rebinding), so that it is of the same site.
  `Host` has to be a name or address that this process knows to be its own.

Other clients send no `Origin`, and name the host that they were told.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import logging
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import unquote_to_bytes, urlsplit

from starlette.types import ASGIApp, Receive, Scope, Send

LOCAL_NAME = "localhost"
JSON = "application/json"
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._\-]+)(?::([0-9]{1,5}))?")
NAME_LENGTH_MAX = 253

STATUS = {
    "invalid_request": 400,
    "unknown_host": 421,
    "foreign_origin": 403,
    "unsupported_media_type": 415,
}


def error_body(code: str, message: str, details: dict[str, Any]) -> dict[str, Any]:
    """Return the body of an answer that is an error, alike for every process."""
    return {"error": {"code": code, "message": message, "details": details}}


class Guard:
    """ASGI middleware that refuses what only a browser on behalf of another site would send.

    `hosts` are names and addresses of this process, beside those of loopback and the one at which
    a connection has arrived. `media_types` are what the body of a POST may be.
    """

    def __init__(
        self, app: ASGIApp, hosts: Iterable[str] = (), media_types: Iterable[str] = (JSON,)
    ) -> None:
        self._app = app
        self._hosts = frozenset(host.lower() for host in hosts)
        self._media_types = frozenset(media_types)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or (refusal := self._refusal(scope)) is None:
            await self._app(scope, receive, send)
            return
        code, message = refusal
        body = json.dumps(error_body(code, message, {})).encode()
        headers = [
            (b"content-type", JSON.encode()),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),  # Its body was not read, and may have no end.
        ]
        await send({"type": "http.response.start", "status": STATUS[code], "headers": headers})
        await send({"type": "http.response.body", "body": body})

    def _refusal(self, scope: Scope) -> tuple[str, str] | None:
        """Return code and message of what is wrong with a request, or None."""
        hosts: list[bytes] = []
        origins: list[bytes] = []
        media_types: list[bytes] = []
        for name, value in scope["headers"]:
            if name == b"host":
                hosts.append(value)
            elif name == b"origin":
                origins.append(value)
            elif name == b"content-type":
                media_types.append(value)
        own = hosts[0].decode("latin-1").lower() if len(hosts) == 1 else ""
        if not self._is_known(own, scope):
            text = f"{own[:100]!r} is no host of this process: see --allowed-host"
            return "unknown_host", text
        for origin in origins:
            if not _is_of(origin.decode("latin-1").lower(), own):
                text = f"pages of {origin[:100].decode('latin-1')!r} are not of this site"
                return "foreign_origin", text
        if scope["method"] == "POST":
            given = media_types[0].decode("latin-1") if len(media_types) == 1 else ""
            if given.partition(";")[0].strip().lower() not in self._media_types:
                wanted = " or ".join(sorted(self._media_types))
                return "unsupported_media_type", f"a POST needs Content-Type: {wanted}"
        if not _is_text(scope.get("raw_path", b"")):
            return "invalid_request", "the path is no UTF-8"
        return None

    def _is_known(self, host: str, scope: Scope) -> bool:
        """Tell whether a `Host` header names this process; its port says nothing."""
        found = HOST.fullmatch(host)
        if found is None:
            return False
        name = found[1].strip("[]")
        if name in self._hosts or is_local(name):
            return True
        arrived = scope.get("server") or ("", 0)
        return is_address(name) and name == str(arrived[0]).lower()


def _is_text(raw_path: bytes) -> bool:
    """Tell whether a path names what it seems to: the server puts one and the same character for
    all that is no UTF-8, and so two documents would be one."""
    if b"%" not in raw_path:
        return True
    try:
        unquote_to_bytes(raw_path).decode()
    except UnicodeDecodeError:
        return False
    return True


def _is_of(origin: str, host: str) -> bool:
    """Tell whether an `Origin` is the address that a `Host` header names."""
    try:
        parts = urlsplit(origin)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and parts.netloc == host


def is_address(name: str) -> bool:
    """Tell whether a host is an IP address: nobody can have that lead elsewhere."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_local(name: str) -> bool:
    """Tell whether a host is this machine, as only itself sees it."""
    return name == LOCAL_NAME or (is_address(name) and ipaddress.ip_address(name).is_loopback)


def host_of(url: str) -> str:
    """Return the host of a URL, without brackets; an empty text if it has none."""
    try:
        return (urlsplit(url).hostname or "").lower()
    except ValueError:
        return ""


def own_hosts(*hosts: str) -> frozenset[str]:
    """Return those of a process's hosts that others can name: not "any address"."""
    return frozenset(
        host.lower()
        for host in hosts
        if host and not (is_address(host) and ipaddress.ip_address(host).is_unspecified)
    )


# -- command lines -------------------------------------------------------------------------------


def add_allowed_host(parser: argparse.ArgumentParser) -> None:
    """Add `--allowed-host`."""
    parser.add_argument(
        "--allowed-host",
        type=host_name,
        action="append",
        default=[],
        metavar="NAME",
        help="a further host name or address of this process; repeat for more",
    )


def host_name(text: str) -> str:
    """Return the name or address of a host: no port, and no URL."""
    found = HOST.fullmatch(text)
    name = text.strip("[]")
    bare = found is not None and found[2] is None and len(name) <= NAME_LENGTH_MAX
    if not bare and not is_address(name):
        raise argparse.ArgumentTypeError("the name or address of a host, without a port")
    return name.lower()


def warn_unless_local(host: str, log: logging.Logger) -> None:
    """Say it, if a process can be reached from elsewhere: nobody is asked who he is."""
    if not is_local(host.lower()):
        log.warning(
            "--host %s: whoever reaches this port can change everything, "
            "there is no authentication [no_authentication]",
            host,
        )
