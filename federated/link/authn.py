"""Who may start runs: holders of an admin token. The link keeps digests of tokens, never the tokens.

Flower's own link asks nobody: whoever reached its port could start runs. `TokenPlugin` is put into it instead. Tokens
are made in the coordinator's folder, handed over in a file, and taken back by dropping their digest.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import re
import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from pydantic import TypeAdapter, ValidationError

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.setup.homes import LinkHome, check_name, check_secret, replace_secret, write_secret
from distlfm.store.files import unreadable

TOKEN_BYTES = 32
WRITTEN = re.compile(rb"[A-Za-z0-9_-]+")
DIGESTS = TypeAdapter(dict[str, str])
HOW_TO_GET = "The coordinator makes one: distlfm federated provision token LINK_FOLDER NAME"


def make_token() -> str:
    """A new token: 43 characters that nobody can guess."""
    return secrets.token_urlsafe(TOKEN_BYTES)


def token_digest(token: str) -> str:
    """What the link keeps. A token has 256 bits of chance, so a plain hash is enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class TokenError(UsageError):
    """There is no token that a link would take."""


def read_token(path: Path, fix: str = HOW_TO_GET) -> str:
    """The token in a file that nobody else can read. fix: what to do where there is none in it."""
    if not os.path.lexists(path):
        raise TokenError(f"There is no {path}.", fix)
    if path.is_dir():
        raise TokenError(f"{path} is a folder.", fix)
    try:
        content = check_secret(path).read_bytes()
    except UsageError as error:
        raise TokenError(error.cause, error.fix) from None
    except OSError as error:
        refusal = unreadable(path, error)
        raise TokenError(refusal.cause, refusal.fix) from None
    token = content.strip()
    if not token:
        raise TokenError(f"{path} is empty.", fix)
    if not WRITTEN.fullmatch(token):
        raise TokenError(f"{path} holds no token, which is one word of letters, digits, - and _.", fix)
    return token.decode()


def read_digests(path: Path) -> dict[str, str]:
    """Digests by holder; none if there is no file yet."""
    try:
        return DIGESTS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error) from None
    except ValidationError:
        raise UsageError(f"{path} is damaged: it is not a list of tokens.", "Put a saved copy of it back.") from None


def digests_now(path: Path) -> dict[str, str]:
    """The same for a link that runs: empty if the file is broken, so that nobody gets in."""
    with suppress(UsageError):
        return read_digests(path)
    return {}


class TokenPlugin(ControlAuthnPlugin):
    """Lets a request in if its bearer token has one of the digests; they are read anew each time.

    refused: called for a request that is not let in, for the audit log.
    """

    def __init__(self, digests: Callable[[], Mapping[str, str]], refused: Callable[[], None]) -> None:
        self._digests, self._refused = digests, refused

    def validate_tokens_in_metadata(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[bool, AccountInfo | None]:
        """Whether to let in, and as whom."""
        given = [value for key, value in metadata if key == ACCESS_TOKEN_KEY]
        if len(given) == 1 and isinstance(given[0], str):
            mine = token_digest(given[0])
            for holder, digest in self._digests().items():
                if hmac.compare_digest(mine, digest):
                    # Flower's open version knows one account, and asks for its id; the name is ours.
                    return True, AccountInfo(flwr_aid=NOOP_FLWR_AID, account_name=holder)
        self._refused()
        return False, None

    def get_login_details(self) -> AccountAuthLoginDetails | None:
        """There is no login: tokens are handed over by the coordinator."""
        return None

    def get_auth_tokens(self, device_code: str) -> AccountAuthCredentials | None:
        """No token is ever given out by the link."""
        del device_code
        raise FlowerError(ApiErrorCode.NO_ACCOUNT_AUTH, "Tokens are handed over by the coordinator.")

    def refresh_tokens(
        self, metadata: Sequence[tuple[str, str | bytes]]
    ) -> tuple[Sequence[tuple[str, str | bytes]] | None, AccountInfo | None]:
        """Tokens are not refreshed."""
        del metadata
        return None, None


def add_token(path: Path, holder: str) -> Path:
    """Make an admin token for somebody, in a file to be handed over. The link keeps its digest alone."""
    home = LinkHome(path)
    file = path / f"{check_name(holder)}.token"
    token, others = make_token(), read_digests(home.tokens)
    write_secret(file, token.encode())
    try:
        AuditLog(home.audit).append("token made", "", holder=holder)
        _write_digests(home, others | {holder: token_digest(token)})
    except BaseException:  # it opens nothing
        file.unlink(missing_ok=True)
        raise
    return file


def drop_token(path: Path, holder: str) -> None:
    """Let a token open nothing any more; a running link follows at once."""
    home = LinkHome(path)
    digests = read_digests(home.tokens)
    if holder not in digests:
        raise UsageError(f"There is no token of {holder!r}.", f"There are: {', '.join(digests) or 'none'}.")
    AuditLog(home.audit).append("token dropped", "", holder=holder)
    _write_digests(home, {name: digest for name, digest in digests.items() if name != holder})


def _write_digests(home: LinkHome, digests: Mapping[str, str]) -> None:
    replace_secret(home.tokens, json.dumps(dict(digests)).encode())
