"""The token that a browser must show: in a file that its owner alone can read, never on a command line."""

from __future__ import annotations

import hmac
import os
import secrets
import stat
from pathlib import Path

from distlfm.errors import UsageError

SHORTEST = 16
"""Letters of a token that somebody chose; shorter ones can be guessed."""


def open_token(path: Path) -> str:
    """The token in a file. If there is no such file, it is made with a random one, for its owner alone."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return _read(path)
    except OSError as error:
        raise UsageError(f"Cannot make the token file {path}: {error.strerror}.", "Choose another place.") from None
    token = secrets.token_urlsafe(24)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(token + "\n")
    except OSError as error:
        path.unlink(missing_ok=True)  # an empty one would be refused next time
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
        reason = getattr(error, "strerror", None) or "it is no plain text"
        raise UsageError(
            f"Cannot read the token file {path}: {reason}.", "Give another; one is made for you."
        ) from None
    if len(token) < SHORTEST or not token.isprintable() or " " in token:
        raise UsageError(
            f"The token in {path} is no single word of at least {SHORTEST} letters.",
            "Remove the file: a new one is made with a random token.",
        )
    return token
