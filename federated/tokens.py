"""Admin tokens of a coordinator's folder: made, handed over in a file, and taken back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.authn import make_token, read_digests, token_digest
from distlfm.federated.homes import LinkHome, check_name, write_secret
from distlfm.store.files import put_all


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
    put_all({home.tokens: json.dumps(dict(digests)).encode()})
    home.tokens.chmod(0o600)
