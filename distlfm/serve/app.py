"""The page and what it asks for, as an ASGI application.

Requests take and give JSON; a dropped file is the body of its request. What goes wrong is {"error": sentence}.
"""

from __future__ import annotations

import json
import logging
import secrets
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
from distlfm.serve.session import File, Session
from distlfm.serve.sources import MEGABYTE, Unknown, safe_name, too_large
from distlfm.store.files import storing, unexpected

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/show.js": ("show.js", "text/javascript; charset=utf-8"),
    "/favicon.svg": ("favicon.svg", "image/svg+xml"),
}
MOST_ASKED = 4096
"""Bytes of a request that is no file."""

_LOG = logging.getLogger(__name__)


class Told(JSONResponse):
    """JSON in plain letters: an instance id may hold lone surrogates, which have no UTF-8."""

    def render(self, content: Any) -> bytes:
        return json.dumps(content, allow_nan=False, separators=(",", ":")).encode("ascii")


class TooLarge(UsageError):
    """A request with more in it than is taken."""


def make_app(session: Session, token: str | None = None) -> ASGIApp:
    """The application of a session, guarded."""
    here = _Here(session)
    routes = [Route(path, _page(*what)) for path, what in PAGE.items()]
    routes += [
        Route("/api/about", here.about),
        Route("/api/sources", here.add, methods=["POST"]),
        Route("/api/sources/{key}", here.forget, methods=["DELETE"]),
        Route("/api/sources/{key}/patients", here.patients),
        Route("/api/answers", here.answer, methods=["POST"]),
        Route("/api/answers/{key}/fit", here.start_fit, methods=["POST"]),
        Route("/api/answers/{key}/{name}", here.answer_file),
        Route("/api/fits/{key}", here.fit, methods=["GET"]),
        Route("/api/fits/{key}", here.cancel_fit, methods=["DELETE"]),
        Route("/api/fits/{key}/{name}", here.fit_file),
    ]
    handlers: Any = {DistlfmError: _told, HTTPException: _refused, Exception: _unexpected}
    app = Starlette(routes=routes, exception_handlers=handlers)
    return Guard(app, token, session.config.is_local, session.config.names)


class _Here:
    """The requests of a session."""

    def __init__(self, session: Session) -> None:
        self._session = session

    def about(self, request: Request) -> Response:
        del request
        return Told(self._session.about())

    async def add(self, request: Request) -> Response:
        name = safe_name(request.query_params.get("name", "file"))
        draft = self._session.folder / f"{secrets.token_hex(8)}.draft"
        try:
            await self._receive(request, draft, name)
            settings = [line.strip() for line in request.query_params.getlist("setting") if line.strip()]
            found = await run_in_threadpool(self._session.add, draft, name, settings)
        finally:
            draft.unlink(missing_ok=True)
        return Told(found.about())

    async def _receive(self, request: Request, draft: Path, name: str) -> None:
        """The body into a file, as far as it is not too large."""
        limit, count = self._session.config.max_megabytes, 0
        sizes = (request.headers.get("content-length", ""), request.query_params.get("size", ""))
        if any(size.isdecimal() and int(size) > limit * MEGABYTE for size in sizes):
            raise TooLarge(str(too_large(name, limit)))
        with storing("a dropped file", draft.parent), draft.open("xb") as file:
            async for part in request.stream():
                count += len(part)
                if count > limit * MEGABYTE:
                    raise TooLarge(str(too_large(name, limit)))
                file.write(part)

    def forget(self, request: Request) -> Response:
        self._session.forget(request.path_params["key"])
        return Told({})

    def patients(self, request: Request) -> Response:
        return Told(self._session.patients(request.path_params["key"], request.query_params.get("search", "")))

    async def answer(self, request: Request) -> Response:
        asked = await _asked(request)
        source, place = asked.get("source"), asked.get("place")
        if not isinstance(source, str) or not isinstance(place, int):
            raise UsageError("A request for an answer needs a source and a place.", "Send both as JSON.")
        shown = await run_in_threadpool(self._session.answer, source, place)
        return Told(shown.content())

    def answer_file(self, request: Request) -> Response:
        return _sent(self._session.answer_file(request.path_params["key"], request.path_params["name"]))

    def start_fit(self, request: Request) -> Response:
        return Told(self._session.start_fit(request.path_params["key"]).about(), 201)

    def fit(self, request: Request) -> Response:
        return Told(self._session.fit_about(request.path_params["key"]))

    def cancel_fit(self, request: Request) -> Response:
        return Told(self._session.cancel_fit(request.path_params["key"]))

    def fit_file(self, request: Request) -> Response:
        return _sent(self._session.fit_file(request.path_params["key"], request.path_params["name"]))


async def _asked(request: Request) -> dict[str, Any]:
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > MOST_ASKED:
            raise TooLarge("The request is too large.", "Send a source and a place.")
    try:
        content = json.loads(body)
    except ValueError:
        content = None
    return content if isinstance(content, dict) else {}


def page_file(name: str) -> str:
    """A file of the page as it is sent, with the caution that reports have."""
    text = resources.files("distlfm.serve").joinpath("page", name).read_text(encoding="utf-8")
    return text.replace("{{ caution }}", escape(CAUTION)).replace("{{ why_doubt }}", escape(WHY_DOUBT))


def _page(name: str, kind: str) -> Any:
    content = page_file(name).encode()

    def give(request: Request) -> Response:
        del request
        return Response(content, headers={"Content-Type": kind})

    return give


def _sent(file: File) -> Response:
    headers = {"Content-Type": file.type, "Content-Disposition": f'attachment; filename="{file.name}"'}
    return Response(file.content, headers=headers)


def _told(request: Request, error: Exception) -> Response:
    del request
    status = 404 if isinstance(error, Unknown) else 413 if isinstance(error, TooLarge) else 400
    return Told({"error": str(error)}, status)


def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return Told({"error": f"{request.url.path}: {error.detail}."}, error.status_code)


def _unexpected(request: Request, error: Exception) -> Response:
    del request
    _LOG.debug("a request failed", exc_info=error)
    return Told({"error": unexpected(error, "-vv")}, 500)
