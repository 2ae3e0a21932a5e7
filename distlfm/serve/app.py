"""The page and what it asks for, as an ASGI application.

Requests take and give JSON; a dropped file is the body of its request. What goes wrong is {"error": sentence}.
"""

from __future__ import annotations

import json
import logging
import re
import secrets
from collections.abc import Callable
from functools import partial
from html import escape
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from distlfm.errors import DistlfmError, UsageError
from distlfm.report.words import CAUTION, WHY_DOUBT
from distlfm.serve.guard import Guard
from distlfm.serve.session import Session
from distlfm.serve.sizes import MEGABYTE, too_large
from distlfm.serve.sources import UnknownKey, safe_name
from distlfm.store.files import storing, unexpected

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/show.js": ("show.js", "text/javascript; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
TYPES = {"svg": "image/svg+xml", "png": "image/png", "csv": "text/csv; charset=utf-8"}
MOST_ASKED = 4096
"""Bytes of a request that is not a file."""

_SIZE = re.compile("[0-9]{1,18}")

_LOG = logging.getLogger(__name__)


class PlainJSON(JSONResponse):
    """JSON in plain letters: an instance id may hold lone surrogates, which have no UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class TooLarge(UsageError):
    """A request with more in it than is taken."""


def make_app(session: Session, token: str | None = None) -> ASGIApp:
    """The application of a session, guarded. Requests come from several threads, and have the session one at a time."""

    def json_route(path: str, call: Callable[..., Any], method: str = "GET", status: int = 200, **given: str) -> Route:
        """A request for what a call gives, by the names in its path and those of a query, `given` by default."""

        def give(request: Request) -> Response:
            more = {name: request.query_params.get(name, default) for name, default in given.items()}
            return PlainJSON(session.alone(call, **request.path_params, **more) or {}, status)

        return Route(path, give, methods=[method])

    def sent(path: str, call: Callable[..., tuple[str, bytes]]) -> Route:
        return Route(path, lambda request: _sent(*session.alone(call, **request.path_params)))

    routes = [Route(path, _page(*what)) for path, what in PAGE.items()]
    routes += [
        Route("/api/about", lambda _: PlainJSON(session.alone(session.about))),
        Route("/api/sources", partial(_add, session), methods=["POST"]),
        json_route("/api/sources/{key}", session.forget, "DELETE"),
        json_route("/api/sources/{key}/patients", session.patients, search=""),
        Route("/api/answers", partial(_answer, session), methods=["POST"]),
        json_route("/api/answers/{key}/fit", session.start_fit, "POST", 201),
        sent("/api/answers/{key}/{name}", session.answer_file),
        json_route("/api/fits/{key}", session.fit_about),
        json_route("/api/fits/{key}", session.cancel_fit, "DELETE"),
        sent("/api/fits/{key}/{name}", session.fit_file),
    ]
    handlers: Any = {DistlfmError: _error_response, HTTPException: _refused, Exception: _unexpected}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, token, session.config.is_local, session.config.names)


async def _add(session: Session, request: Request) -> Response:
    """Take a dropped file in."""
    name = safe_name(request.query_params.get("name", "file"))
    draft = session.folder / f"{secrets.token_hex(8)}.draft"
    try:
        await _receive(request, draft, name, session.config.max_megabytes)
        settings = [line.strip() for line in request.query_params.getlist("setting") if line.strip()]
        added = await run_in_threadpool(session.alone, session.library.add, draft, name, settings)
    finally:
        draft.unlink(missing_ok=True)
    return PlainJSON(added.about())


async def _receive(request: Request, draft: Path, name: str, limit: float) -> None:
    """The body into a file, as far as it has no more than `limit` megabytes."""
    refused = TooLarge(str(too_large(name, limit)))
    for size in (request.headers.get("content-length", ""), request.query_params.get("size", "")):
        if size and not _SIZE.fullmatch(size):
            raise UsageError("The size of the file is not a number of bytes.", "Send it in digits, or leave it out.")
        if size and int(size) > limit * MEGABYTE:
            raise refused
    with storing("a dropped file", draft.parent), draft.open("xb") as file:
        async for part in request.stream():
            if file.tell() + len(part) > limit * MEGABYTE:
                raise refused
            file.write(part)


async def _answer(session: Session, request: Request) -> Response:
    asked = await _read_request(request)
    source, place = asked.get("source"), asked.get("place")
    if not isinstance(source, str) or not isinstance(place, int):
        raise UsageError("A request for an answer needs a source and a place.", "Send both as JSON.")
    shown = await run_in_threadpool(session.alone, session.answer, source, place)
    return PlainJSON(shown.content())


async def _read_request(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_ASKED:
            raise TooLarge("The request is too large.", "Send a source and a place.")
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        content = None
    return content if isinstance(content, dict) else {}


def page_file(name: str) -> str:
    """A file of the page as it is sent, with the caution that reports have."""
    text = resources.files("distlfm.serve").joinpath("page", name).read_text(encoding="utf-8")
    return text.replace("{{ caution }}", escape(CAUTION)).replace("{{ why_doubt }}", escape(WHY_DOUBT))


def _page(name: str, kind: str) -> Any:
    content = page_file(name).encode()
    return lambda _: Response(content, headers={"Content-Type": kind})


def _sent(name: str, content: bytes) -> Response:
    kind = TYPES[name.rpartition(".")[2]]
    headers = {"Content-Type": kind, "Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, headers=headers)


def _error_response(_: Request, error: Exception) -> Response:
    status = 404 if isinstance(error, UnknownKey) else 413 if isinstance(error, TooLarge) else 400
    return PlainJSON({"error": str(error)}, status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return PlainJSON({"error": f"{request.url.path}: {error.detail}."}, error.status_code)


def _unexpected(_: Request, error: Exception) -> Response:
    _LOG.debug("a request failed", exc_info=error)
    return PlainJSON({"error": unexpected(error, "-vv")}, 500)
