"""What stands before every request: who is called, from where, with which token; and what a browser may do with it.

A page elsewhere in the same browser could try to reach this one: by a name that it lets point to 127.0.0.1 (DNS
rebinding), by forms and images. So a name in `Host` must be one of ours, and a request of another origin is refused.

The token is in the link that is printed, behind its #, which no browser sends anywhere; the page shows it with each
request. It is not a cookie: a browser sends those of 127.0.0.1 to every port, so to servers of other accounts too.
"""

from __future__ import annotations

import hmac
import ipaddress
import os
import re
import secrets
import stat
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from distlfm.errors import UsageError
from distlfm.runs.settings import ServeConfig


def check_exposure(config: ServeConfig) -> None:
    """Refuse a page that others could reach, unless that was asked for explicitly and a token guards it."""
    if config.no_token and config.token_file is not None:
        raise UsageError("A page without a token has no --token-file.", "Give --token-file FILE or --no-token.")
    if config.is_local:
        return
    if not config.expose_unencrypted:
        raise UsageError(
            f"{config.host} can be reached by other machines, and what they send and see is not encrypted.",
            "Stay with 127.0.0.1 and come through `ssh -L`; or accept that with --expose-unencrypted.",
        )
    if config.no_token:
        raise UsageError(
            f"{config.host} can be reached by other machines, and nothing would keep them out.",
            "Leave --no-token out.",
        )


SHORTEST = 16
"""Letters of a token that somebody chose; shorter ones can be guessed."""


def token_of(config: ServeConfig) -> str | None:
    """Return what opens the page: a token of this session alone unless a file keeps one; None if it is open to all."""
    if config.no_token:
        return None
    return new_token() if config.token_file is None else open_token(config.token_file)


def new_token() -> str:
    """Return a token that nobody can guess."""
    return secrets.token_urlsafe(24)


def open_token(path: Path) -> str:
    """The token in a file. If there is no such file, it is made with a random one, for its owner alone."""
    token = new_token()
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as file:
                file.write(token + "\n")
        except OSError:
            path.unlink(missing_ok=True)  # an empty one would be refused next time
            raise
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise UsageError(f"Cannot make the token file {path}: {error.strerror}.", "Choose another place.") from None
    return token


def shown(token: str | None, header: str) -> bool:
    """Whether an Authorization header has the token; any will do where none is asked for."""
    if token is None:
        return True
    kind, _, given = header.partition(" ")
    return kind.lower() == "bearer" and hmac.compare_digest(given.strip().encode(), token.encode())


def _read(path: Path) -> str:
    try:
        if not path.is_dir() and stat.S_IMODE(path.stat().st_mode) & 0o077:
            raise UsageError(f"{path} can be read by others.", f"Close it: chmod 600 {path}")
        token = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not plain text"
        raise UsageError(
            f"Cannot read the token file {path}: {reason}.", "Give another; one is made for you."
        ) from None
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise UsageError(
            f"The token in {path} is not a single word of at least {SHORTEST} letters.",
            "Remove the file: a new one is made with a random token.",
        )
    return token


POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob:; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}
GUARDED = "/api/"
"""What is below needs the token; the page itself holds no data."""

_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^:\[\]]+)(:\d{1,5})?")


class Guard:
    """Wraps an application. local: only addresses of this machine itself are called. names: others that are ours."""

    def __init__(self, app: ASGIApp, token: str | None, local: bool, names: Sequence[str] = ()) -> None:
        self._app, self._token, self._local = app, token, local
        self._names = {"localhost", *(name.lower().rstrip(".") for name in names)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
            await send(message)

        status, refusal = self._refusal(scope["path"], Headers(scope=scope))
        inner: ASGIApp = JSONResponse({"error": refusal}, status) if status else self._app
        await inner(scope, receive, guarded)

    def _refusal(self, path: str, headers: Headers) -> tuple[int, str]:
        """Status and sentence of a refusal; status 0 for a request that may pass."""
        host = headers.get("host", "")
        if not self.is_ours(host):
            sentence = "This page was called by a name that is not its own."
            return 421, f"{sentence} Open it by the address that `distlfm serve` printed."
        site, origin = headers.get("sec-fetch-site", "none"), headers.get("origin")
        foreign = origin is not None and origin not in (f"http://{host}", f"https://{host}")
        if path.startswith(GUARDED) and (site not in ("none", "same-origin") or foreign):
            return 403, "Another page asked for this. Open the page of distlfm itself."
        if path.startswith(GUARDED) and not shown(self._token, headers.get("authorization", "")):
            return (
                401,
                "The token is missing or wrong. Open the link that `distlfm serve` printed, or see --token-file.",
            )
        return 0, ""

    def is_ours(self, host: str) -> bool:
        """Whether a Host header is an address, which nobody can make point elsewhere, or a name of ours.

        The port is free: behind `ssh -L` it is another one.
        """
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = match[1].strip("[]").lower().rstrip(".")
        if name in self._names:
            return True
        with suppress(ValueError):
            return ipaddress.ip_address(name).is_loopback or not self._local
        return False
