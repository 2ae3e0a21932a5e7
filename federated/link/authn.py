"""Who may do what at the link: holders of a token, each with a role and an end. The link keeps digests alone.

Flower's own link asks nobody: whoever reached its port could start runs. `TokenPlugin` is put into it instead, and
`Rights` stands before it, in the gate. Tokens are made in the coordinator's folder, handed over in a file, and taken
back by dropping their digest. One of version 0.1 has neither role nor end, and may do all.
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
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Literal

from flwr.common.constant import ACCESS_TOKEN_KEY, NOOP_FLWR_AID
from flwr.supercore.auth.typing import AccountAuthCredentials, AccountAuthLoginDetails, AccountInfo
from flwr.supercore.error import ApiErrorCode, FlowerError
from flwr.superlink.auth_plugin import ControlAuthnPlugin
from pydantic import TypeAdapter, ValidationError

from distlfm.config import Config
from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.link.gate import DENIED, LOOKING, START, UNKNOWN, Denied
from distlfm.federated.setup.homes import LinkHome, check_name, check_secret, replace_secret, write_secret
from distlfm.store.files import unreadable

TOKEN_BYTES = 32
WRITTEN = re.compile(rb"[A-Za-z0-9_-]+")
Role = Literal["run", "query", "read"]
ROLES: dict[Role, str] = {
    "run": "start and stop rounds, ask questions, look",
    "query": "ask questions of the federation, look",
    "read": "look at sites, runs and their logs",
}
HOW_TO_GET = "The coordinator makes one: distlfm federated provision token LINK_FOLDER NAME"


class Held(Config):
    """What the link keeps of a token. until: its last day (UTC); None for one that does not end."""

    digest: str
    role: Role = "run"
    until: date | None = None

    def has_ended(self) -> bool:
        """Whether its last day is over."""
        return self.until is not None and datetime.now(UTC).date() > self.until


TOKENS = TypeAdapter(dict[str, Held | str])


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


def read_tokens(path: Path) -> dict[str, Held]:
    """What is kept of the tokens, by holder; nothing if there is no file yet."""
    try:
        found = TOKENS.validate_json(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise unreadable(path, error) from None
    except ValidationError:
        raise UsageError(f"{path} is damaged: it is not a list of tokens.", "Put a saved copy of it back.") from None
    return {holder: Held(digest=one) if isinstance(one, str) else one for holder, one in found.items()}


def tokens_now(path: Path) -> dict[str, Held]:
    """The same for a link that runs: empty if the file is broken, so that nobody gets in."""
    with suppress(UsageError):
        return read_tokens(path)
    return {}


def digests_now(path: Path) -> dict[str, str]:
    """Digests by holder of the tokens that have not ended."""
    return {holder: one.digest for holder, one in tokens_now(path).items() if not one.has_ended()}


class Rights:
    """What the gate asks before a request of a holder goes to Flower. tokens: read anew each time."""

    def __init__(self, tokens: Callable[[], Mapping[str, Held]]) -> None:
        self._tokens = tokens

    def __call__(self, token: str | None, what: str, kind: str | None) -> Denied | None:
        """Why a request is not let in, or None. what: the name of the request. kind: of the programme, once known."""
        mine = "" if token is None else token_digest(token)
        found = [one for one in self._tokens().items() if hmac.compare_digest(mine, one[1].digest)]
        if not found:
            return Denied(UNKNOWN, "no admin token", HOW_TO_GET)
        [(holder, held), *_] = found
        if held.has_ended():
            why = f"the token of {holder} has ended: its last day was {held.until}"
            return Denied(DENIED, why, _another(holder, held.role))
        asks = held.role == "query" and what == START and kind in (None, "query")
        if held.role == "run" or what in LOOKING or asks:
            return None
        why = f"the token of {holder} has the role {held.role!r}, which may {ROLES[held.role]}, and not {what}"
        return Denied(DENIED, why, _another(holder, "query" if kind == "query" else "run"))


def _another(holder: str, role: Role) -> str:
    return (
        "If that is agreed on, the coordinator drops it and makes another one: distlfm federated provision token "
        f"LINK_FOLDER {holder} --role {role}"
    )


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


def add_token(path: Path, holder: str, role: Role = "run", days: int | None = None) -> Path:
    """Make a token for somebody, in a file to be handed over. The link keeps its digest alone.

    days: how many days it is of use; without end if None, which suits the coordinator's own.
    """
    home = LinkHome(path)
    file = path / f"{check_name(holder)}.token"
    token, others = make_token(), read_tokens(home.tokens)
    until = None if days is None else datetime.now(UTC).date() + timedelta(days)
    held = Held(digest=token_digest(token), role=role, until=until)
    write_secret(file, token.encode())
    try:
        AuditLog(home.audit).append("token made", "", holder=holder, role=role, until=str(until or "no end"))
        _write_tokens(home, others | {holder: held})
    except BaseException:  # it opens nothing
        file.unlink(missing_ok=True)
        raise
    return file


def drop_token(path: Path, holder: str) -> None:
    """Let a token open nothing any more; a running link follows at once."""
    home = LinkHome(path)
    tokens = read_tokens(home.tokens)
    if holder not in tokens:
        raise UsageError(f"There is no token of {holder!r}.", f"There are: {', '.join(tokens) or 'none'}.")
    AuditLog(home.audit).append("token dropped", "", holder=holder)
    _write_tokens(home, {name: one for name, one in tokens.items() if name != holder})


def _write_tokens(home: LinkHome, tokens: Mapping[str, Held]) -> None:
    replace_secret(
        home.tokens, json.dumps({name: one.model_dump(mode="json") for name, one in tokens.items()}).encode()
    )
