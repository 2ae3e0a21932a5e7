"""`distlfm serve`: open the port, say where the page is, and clean up at the end.

A session has a folder for its owner alone; what a killed session left is swept by the next one.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from html import escape
from pathlib import Path
from urllib.parse import urlencode

import torch
import uvicorn

from distlfm.errors import UsageError
from distlfm.report.words import CAUTION
from distlfm.runs.settings import ServeConfig
from distlfm.runtime.process import Stop
from distlfm.runtime.reporting import Reporter
from distlfm.serve.app import make_app
from distlfm.serve.guard import check_exposure, token_of
from distlfm.serve.session import Session
from distlfm.store.files import storing

PREFIX = "distlfm-serve-"
_NAME = re.compile(rf"{PREFIX}(\d+)-.+")


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """An empty folder with mode 0700 that is gone afterwards."""
    parent = Path(tempfile.gettempdir())
    sweep(parent)
    with storing("the session's folder", parent):
        folder = tempfile.TemporaryDirectory(prefix=f"{PREFIX}{os.getpid()}-", ignore_cleanup_errors=True)
    with folder as path:
        yield Path(path)


def sweep(parent: Path) -> None:
    """Remove folders of our own whose process has ended."""
    try:
        folders = list(parent.iterdir())
    except OSError:  # one may write there, and not look
        return
    for folder in folders:
        match = _NAME.fullmatch(folder.name)
        with suppress(OSError):  # somebody else removes it
            mine = not folder.is_symlink() and folder.stat().st_uid == os.getuid()
            if match is not None and mine and not _runs(int(match[1])):
                shutil.rmtree(folder, ignore_errors=True)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except OSError as error:
        return not isinstance(error, ProcessLookupError)
    return True


BACKLOG = 64
KEEP_ALIVE = 5


def serve(config: ServeConfig, reporter: Reporter, ready: Callable[[str], object] | None = None) -> None:
    """Serve the page until a signal ends it. ready: called with what a browser opens once the page can be seen."""
    check_exposure(config)
    token = token_of(config)
    torch.set_num_threads(config.threads)
    with open_port(config) as port, scratch_folder() as folder, Stop() as stop:
        session = Session(config, folder)
        try:
            for one in session.open().library:
                for sentence in one.set_aside:
                    reporter.warn(f"set aside: {sentence}")
            address = page_address(port)
            tell(config, reporter, address if config.token_file is not None else link_to(address, token))
            if ready is not None:
                ready(address if token is None else str(redirect(folder, link_to(address, token))))
            if not stop.requested:
                run(session, token, port)
        finally:
            session.close()
    reporter.say("The page is closed; nothing of its session is kept.")


def run(session: Session, token: str | None, port: socket.socket) -> None:
    """Answer requests until a signal comes; uvicorn hands the signal on to the handlers that it found."""
    # Requests are not logged: addresses of a page hold names of files. What fails is said to the client, and by -vv.
    settings = uvicorn.Config(
        make_app(session, token),
        log_config=None,
        log_level="critical",
        access_log=False,
        lifespan="off",
        ws="none",
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=KEEP_ALIVE,
        proxy_headers=False,
    )
    uvicorn.Server(settings).run(sockets=[port])


def open_port(config: ServeConfig) -> socket.socket:
    """A socket that listens where the config says."""
    family = socket.AF_INET6 if ":" in config.address else socket.AF_INET
    port = socket.socket(family, socket.SOCK_STREAM)
    try:
        port.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        port.bind((config.address, config.port))
        port.listen(BACKLOG)
    except OSError as error:
        port.close()
        if error.errno == errno.EADDRINUSE:
            raise UsageError(
                f"Port {config.port} of {config.host} is in use.",
                "Give another one with --port, or --port 0 for any that is free.",
            ) from None
        if error.errno == errno.EACCES:
            raise UsageError(f"Port {config.port} is for the system.", "Give --port 1024 or higher.") from None
        raise UsageError(f"Cannot listen on {config.host}: {error.strerror}.", "Give --host 127.0.0.1.") from None
    return port


def page_address(port: socket.socket) -> str:
    host, number = port.getsockname()[:2]
    return f"http://[{host}]:{number}/" if ":" in host else f"http://{host}:{number}/"


def link_to(address: str, token: str | None) -> str:
    """Return the page's address with its token."""
    return address if token is None else f"{address}#{urlencode({'token': token})}"


def redirect(folder: Path, link: str) -> Path:
    """Write a file that leads a browser to a link: on the browser's command line, others could read the token."""
    path = folder / "open.html"
    page = f'<!doctype html><meta charset="utf-8"><meta http-equiv="refresh" content="0; url={escape(link)}">'
    with storing("the link", folder):
        path.write_text(page, encoding="utf-8")
    return path


def tell(config: ServeConfig, reporter: Reporter, link: str) -> None:
    """Where the page is, and who can open it."""
    reporter.say(f"page: {link} (Ctrl-C closes it)")
    if config.token_file is not None:
        reporter.say(f"token: the page asks for what is in {config.token_file}")
    elif config.no_token:
        reporter.warn("without a token, everybody with an account on this machine can open the page and see its data")
    else:
        reporter.say("The link opens the page for whoever has it, until the page is closed.")
    if not config.is_local:
        reporter.warn("other machines can reach the page, and what goes over the network is not encrypted")
    reporter.say(f"{CAUTION} A latent force is inferred through an assumed equation, never measured.")
