"""The folder of a role: where a coordinator's and a site's keys, settings, logs and state lie.

Folders are readable by their owner alone (0700), and so is every secret in them (0600). Names of hosts are checked here
too: they stand in certificates, and in the addresses that sites call.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, Field

from distlfm.config import Config, Model, load
from distlfm.errors import UsageError
from distlfm.store.files import flush, naming, partial, storing, unreadable

LONGEST = 253
LABEL = r"[A-Za-z0-9_]([A-Za-z0-9_-]{0,61}[A-Za-z0-9_])?"
HOST_NAME = re.compile(rf"{LABEL}(\.{LABEL})*")
"""By the book the underscore is not a letter of such names; in those of containers it is."""


def check_host(host: str) -> str:
    """The name or address itself, or a refusal."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        if len(host) > LONGEST or not HOST_NAME.fullmatch(host):
            raise UsageError(
                f"{host!r} is not a name or address of a host.",
                "Give one such as link.example.org or 10.0.0.3, without a port: letters, digits and hyphens, up to 63 "
                f"between dots and {LONGEST} in all; other letters in their xn-- form.",
            ) from None
    return host


NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
"""Names of sites and runs: they become names of files, and stand in logs."""

LOOPBACK = ("127.0.0.1", "localhost", "::1")
EVERYWHERE = ("0.0.0.0", "::")  # noqa: S104
"""Addresses to listen on that mean all of a machine's."""


def check_name(name: str) -> str:
    """The name itself, or a refusal."""
    if not NAME.fullmatch(name):
        fix = "Use up to 40 small letters, digits and hyphens, such as ward-3."
        raise UsageError(f"{name!r} is not a name of a site or run.", fix)
    return name


def near_address(bind: str) -> str:
    """Where processes of this machine reach whoever listens on an address; that of all addresses cannot be called."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1", "localhost": "127.0.0.1"}.get(bind, bind)  # noqa: S104


def joined(host: str, port: int) -> str:
    """HOST:PORT, with the brackets that an address of IPv6 needs."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def refuse_unless_loopback(host: str) -> None:
    """Plain text never leaves the machine."""
    if host not in LOOPBACK:
        raise UsageError(
            f"--insecure is for this machine alone, and the address is {host}.",
            "Leave --insecure out: TLS and node keys are made by `distlfm federated provision`.",
        )


Name = Annotated[str, AfterValidator(check_name)]
Host = Annotated[str, AfterValidator(check_host)]
Port = Annotated[int, Field(ge=1, le=65535)]


Logs = Literal["plain", "json", "syslog"]
"""Where a role says what it does: sentences, lines of JSON on standard output, or these in the system's log."""


class LinkConfig(Config):
    """link.yaml: where the coordinator listens, and under which names it is known."""

    federation: Name = "federation"
    bind: Host = "127.0.0.1"
    """Address that the link listens on. The default is reached from this machine alone."""
    host: Host = "127.0.0.1"
    """Name or address under which the sites reach it; the server's certificate holds it."""
    port: Port = 8443
    sites: tuple[str, ...] = ()
    logs: Logs = "plain"


class NodeConfig(Config):
    """node.yaml: how a site reaches its coordinator."""

    federation: str
    name: str
    host: str
    port: Port
    runtime_port: int = Field(0, ge=0, le=65535)
    """Port on 127.0.0.1 between the site's own processes; 0 takes a free one."""
    heartbeat: float = Field(10.0, ge=10.0, le=1800.0)
    """Seconds. A site that was silent for twice as long counts as lost."""
    logs: Logs = "plain"

    @property
    def address(self) -> str:
        return joined(self.host, self.port)


class Inside:
    """A file or folder of a role, by its place in the role's folder."""

    def __init__(self, place: str) -> None:
        self._place = place

    def __get__(self, home: Home, kind: type[Home]) -> Path:
        return home.path / self._place


@dataclass(frozen=True)
class Home:
    """What both roles have."""

    path: Path

    ca = Inside("ca.pem")
    secret = Inside("superexec.secret")
    """Shared by the processes of this role on this machine; whoever lacks it gets no task."""
    audit = Inside("audit.jsonl")
    state = Inside("state")
    status = Inside("state/status.json")
    flower = Inside("state/flower")
    """FLWR_HOME."""

    def log(self, process: str) -> Path:
        return self.state / f"{process}.log"

    def _config(self, model: type[Model], file: Path, whose: str, fix: str) -> Model:
        if not file.exists():
            raise UsageError(f"{self.path} is not a {whose} folder: it has no {file.name}.", f"Make one{fix}")
        return load(model, file)


@dataclass(frozen=True)
class LinkHome(Home):
    """The coordinator's folder."""

    config_file = Inside("link.yaml")
    ca_key = Inside("ca.key")
    """Signs server certificates; needed by `provision` alone, so it may be kept elsewhere afterwards."""
    certificate = Inside("server.pem")
    key = Inside("server.key")
    tokens = Inside("tokens.json")
    """Digests of the admin tokens, by their holder's name."""
    admin_token = Inside("admin.token")
    roster = Inside("roster.json")
    """Public keys of the sites, and who was revoked."""
    peers = Inside("peers.json")
    kits = Inside("kits")
    database = Inside("state/link.db")
    runs = Inside("runs")

    def config(self) -> LinkConfig:
        fix = ": distlfm federated provision link FOLDER --sites a,b,c"
        return self._config(LinkConfig, self.config_file, "coordinator's", fix)


@dataclass(frozen=True)
class SiteHome(Home):
    """A site's folder."""

    config_file = Inside("node.yaml")
    node_key = Inside("node.key")
    node_public = Inside("node.pub")
    signing_key = Inside("signing.key")
    policy = Inside("policy.yaml")
    node = Inside("state/node.json")
    """Says which process the link has let in."""

    def config(self) -> NodeConfig:
        fix = " from the coordinator's kit: distlfm federated provision site KIT FOLDER"
        return self._config(NodeConfig, self.config_file, "site's", fix)


def make_folder(path: Path) -> None:
    """Make a folder that only its owner can enter; an existing one is closed to others."""
    try:
        path.mkdir(parents=True, exist_ok=True, mode=0o700)
        path.chmod(0o700)
    except OSError as error:
        raise UsageError(f"Cannot make the folder {path}: {error.strerror}.", "Choose another place.") from None


def write_secret(path: Path, content: bytes) -> None:
    """Write a new file with mode 0600 from its first byte on. An existing one is never replaced."""
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise UsageError(
            f"{path} is there already, and keys are not replaced.", "Choose another folder, or move the old one away."
        ) from None
    try:
        with naming(path), os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:  # a part of a key is none, and would never be replaced
        path.unlink(missing_ok=True)
        raise


def replace_secret(path: Path, content: bytes) -> None:
    """Write a file with mode 0600, whole or not at all, in the place of an older one."""
    draft = partial(path)
    draft.unlink(missing_ok=True)
    write_secret(draft, content)
    draft.replace(path)
    flush(path.parent)


@contextmanager
def locked(path: Path, what: str) -> Iterator[int]:
    """Hold the only lock of a file, made with mode 0600 if it is missing; give its descriptor. what: its name."""
    with storing(what, path.parent):
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def whole_or_not(path: Path) -> Iterator[None]:
    """Take back what was made in a folder if its making is broken off, so that it can be tried again."""
    before = set(path.iterdir()) if path.is_dir() else set()
    is_new = not path.exists()
    try:
        with naming(path):
            yield
    except BaseException:
        made = [path] if is_new else set(path.iterdir()) - before if path.is_dir() else []
        for one in made:
            with suppress(OSError):  # what cannot be taken back is reported at the next try
                shutil.rmtree(one) if one.is_dir() else one.unlink()
        raise


def check_secret(path: Path) -> Path:
    """A secret that is there and that nobody else can read, or a refusal."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        raise UsageError(f"There is no {path}.", "Make it with: distlfm federated provision") from None
    except OSError as error:
        raise unreadable(path, error) from None
    if mode & 0o077:
        raise UsageError(f"{path} can be read by others.", f"Close it: chmod 600 {path}")
    check_readable(path)
    return path


def check_readable(*paths: Path) -> None:
    """Refuse files that may not be read: a process that needs them would end, and be started, again and again."""
    for path in paths:
        if path.exists() and not os.access(path, os.R_OK):
            raise unreadable(path, PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path)))


def check_log(path: Path) -> None:
    """Refuse to begin what could not be logged."""
    check_readable(path)
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise UsageError(
            f"Cannot write {path}: {os.strerror(errno.EACCES)}.", "Give yourself the right to write there."
        )
