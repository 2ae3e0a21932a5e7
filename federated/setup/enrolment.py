"""How roles come to know each other's public keys: the coordinator enrols sites, and each site pins the others.

Who is enrolled is the coordinator's choice, kept in the link's roster: the public keys of the sites, and who was
revoked. A running link follows that file: an enrolled site is let in, and a revoked one is shut out, within a second.
Whom a site believes is the site's own choice, and no message changes it. Kits, public keys and lists of peers are the
files that coordinator and sites hand to each other when a federation is made; none of them is secret.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from distlfm.config import Config, Model, build
from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.secure.keys import is_signed, public_hex
from distlfm.federated.setup.homes import LinkConfig, LinkHome, Name, Port, SiteHome, check_name
from distlfm.federated.setup.identity import check_node_public, check_signing_public, fingerprint, load_signing_key
from distlfm.federated.site.policy import load_policy
from distlfm.store.files import put_all, unreadable

FOLLOW_SECONDS = 1.0


def _checked_node(line: str) -> str:
    check_node_public(line)
    return line.strip()


class Entry(Config):
    """A site's public keys."""

    node: Annotated[str, AfterValidator(_checked_node)]
    signing: Annotated[str, AfterValidator(check_signing_public)]
    status: Literal["active", "revoked"] = "active"


class Roster(Config):
    """All sites by name."""

    sites: dict[Name, Entry] = Field(default_factory=dict)

    def active(self) -> dict[str, Entry]:
        return {name: entry for name, entry in self.sites.items() if entry.status == "active"}


def read_roster(path: Path) -> Roster:
    """The list in a file; an empty one if there is none yet."""
    if not path.exists():
        return Roster()
    return read_handed(Roster, path, "Put a saved copy of it back.")


def follow(state: Any, roster: Roster, owner: str) -> list[tuple[str, str]]:
    """Make Flower's list of nodes the same as the roster's active sites.

    state: Flower's LinkState. Gives what was changed: "let in" or "shut out", and the site's name.
    """
    changes: list[tuple[str, str]] = []
    wanted = {check_node_public(entry.node): name for name, entry in roster.active().items()}
    known = {node.public_key: node for node in state.get_node_info(owner_aids=[owner], statuses=_PRESENT)}
    for key, node in known.items():
        if key not in wanted:
            state.delete_node(owner, node.node_id)
            changes.append(("shut out", node.name))
    for key, name in wanted.items():
        if key not in known:
            state.create_node(owner, name, key, 30.0, name=name)
            changes.append(("let in", name))
    return changes


_PRESENT = ["registered", "online", "offline"]


LABEL = "public keys of a site"
"""What a site's proof is a signature of, besides its keys."""


class Kit(Config):
    """What a site gets from the coordinator. Nothing in it is secret."""

    kind: Literal["distlfm-kit"] = "distlfm-kit"
    federation: str
    site: str
    host: str
    port: Port
    package: str
    ca: str


class PublicKeys(Config):
    """What the coordinator gets from a site. The proof shows that the site holds the signing key."""

    kind: Literal["distlfm-site"] = "distlfm-site"
    federation: str
    site: str
    node: str
    signing: str
    proof: str

    def signed(self) -> bytes:
        return f"{self.federation}\n{self.site}\n{self.node}".encode()


class Peers(Config):
    """What every site gets at last: the signing keys of all."""

    kind: Literal["distlfm-peers"] = "distlfm-peers"
    federation: str
    peers: dict[str, str]


def write_handed(path: Path, content: Config) -> None:
    """As JSON, whole or not at all."""
    put_all({path: (json.dumps(content.model_dump(), indent=2) + "\n").encode()})


def read_handed(model: type[Model], path: Path, fix: str = "Give the file that the other side sent.") -> Model:
    """A file that the other side sent; it is checked like a config."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise unreadable(path, error) from None
    except ValueError as error:
        raise UsageError(f"Cannot read {path}: {error}.", fix) from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} is not a file of a federation.", fix)
    return build(model, content, source=str(path))


def enrol(path: Path, files: Sequence[Path]) -> str:
    """Take sites' public keys into the roster, and write peers.json. Gives the fingerprint of all signing keys."""
    home = LinkHome(path)
    config, roster = home.config(), read_roster(home.roster)
    sites = dict(roster.sites)
    for file in files:
        keys = read_handed(PublicKeys, file)
        if keys.federation != config.federation or keys.site not in config.sites:
            raise UsageError(
                f"{file} is of site {keys.site!r} in {keys.federation!r}, which is not expected here.",
                f"Expected are: {', '.join(config.sites)}.",
            )
        if not is_signed(check_signing_public(keys.signing), keys.proof, LABEL, keys.signed()):
            raise UsageError(f"{file} was changed since the site wrote it.", "Ask the site for it again.")
        entry, known = Entry(node=keys.node, signing=keys.signing), sites.get(keys.site)
        if known is not None and known.status == "active" and known != entry:
            raise UsageError(
                f"Site {keys.site} is enrolled with other keys.",
                f"If it has really made new ones: distlfm federated provision revoke {path} {keys.site}",
            )
        sites[keys.site] = entry
    for what in ("node", "signing"):
        if len({getattr(entry, what) for entry in sites.values()}) != len(sites):
            raise UsageError(f"Two sites have the same {what} key.", "Each site must make its own.")
    write_handed(home.roster, roster.model_copy(update={"sites": sites}))
    return _write_peers(home, config)


def missing(path: Path) -> list[str]:
    """Sites that are expected, and whose keys are not enrolled (or were revoked)."""
    home = LinkHome(path)
    active = read_roster(home.roster).active()
    return [name for name in home.config().sites if name not in active]


def revoke(path: Path, site: str) -> str:
    """Shut a site out; a running link does so within a second. Gives the fingerprint of the keys that are left."""
    home = LinkHome(path)
    config, roster = home.config(), read_roster(home.roster)
    if site not in roster.sites:
        raise UsageError(f"There is no site {site!r}.", f"Enrolled are: {', '.join(roster.sites) or 'none'}.")
    gone = roster.sites[site].model_copy(update={"status": "revoked"})
    write_handed(home.roster, roster.model_copy(update={"sites": {**roster.sites, site: gone}}))
    AuditLog(home.audit).append("revoke", "", site=site)
    return _write_peers(home, config)


def pin(path: Path, peers_file: Path, *, sites: Sequence[str] = (), replace: bool = False) -> dict[str, str]:
    """Write the sites' signing keys into the policy. Gives them by site; all sites must have the same ones.

    sites: who takes part, this site among them, as the site knows from others than the link; without it those that are
    pinned already. A link that could add sites of its own would read the sum of one site among them. A key that was
    pinned before is changed only with `replace`: a link that could change it could pose as a site.
    """
    home, peers = SiteHome(path), read_handed(Peers, peers_file)
    config, policy = home.config(), load_policy(home.policy)
    if peers.federation != config.federation:
        raise UsageError(f"{peers_file} is of another federation, {peers.federation!r}.", "Ask for the right file.")
    _check_expected(peers_file, set(peers.peers), set(sites) or set(policy.peers))
    for name, key in peers.peers.items():
        check_name(name)
        check_signing_public(key)
        if name == config.name and key != public_hex(load_signing_key(home.signing_key)):
            raise UsageError(
                f"{peers_file} has another key for this site than signing.key is.",
                "Do not use it: somebody may be posing as this site. Tell the coordinator and the other sites.",
            )
        if not replace and policy.peers.get(name, key) != key:
            raise UsageError(
                f"{peers_file} has another key for {name} than is pinned.",
                f"Ask {name} by telephone whether it made a new key; if so, add --replace.",
            )
    if config.name not in peers.peers:
        raise UsageError(f"{peers_file} does not have this site, {config.name}.", "Ask the coordinator to enrol it.")
    text = home.policy.read_text(encoding="utf-8")
    lines = "".join(f"  {name}: {key!r}\n" for name, key in sorted(peers.peers.items()))
    kept = re.split(r"^peers:", text, maxsplit=1, flags=re.MULTILINE)[0]
    put_all({home.policy: f"{kept}peers:\n{lines}".encode()})
    digest = peers_fingerprint(peers.peers)
    AuditLog(home.audit).append("peers pinned", "", peers=sorted(peers.peers), fingerprint=digest)
    return dict(sorted(peers.peers.items()))


def _check_expected(file: Path, found: set[str], expected: set[str]) -> None:
    """Refuse a list of sites that is not the one which the site has agreed to."""
    listed = ",".join(sorted(found))
    if not expected:
        raise UsageError(
            f"{file} has {len(found)} sites: {listed.replace(',', ', ')}. The expected ones are not named.",
            "Ask by telephone, not the coordinator alone, whether each of them exists and takes part; then name them: "
            "--sites a,b,c",
        )
    for names, what in ((found - expected, "not expected"), (expected - found, "expected, and missing")):
        if names:
            raise UsageError(
                f"{file} has {len(found)} sites; {', '.join(sorted(names))}: {what}.",
                "A site that does not exist could help to read yours. If they really changed, and the sites say so by "
                "telephone, name all of them: --sites a,b,c",
            )


def peers_fingerprint(peers: Mapping[str, str]) -> str:
    """The same at all sites, or somebody was given another key."""
    return fingerprint("".join(f"{name} {key}\n" for name, key in sorted(peers.items())))


def _write_peers(home: LinkHome, config: LinkConfig) -> str:
    peers = {name: entry.signing for name, entry in sorted(read_roster(home.roster).active().items())}
    write_handed(home.peers, Peers(federation=config.federation, peers=peers))
    return peers_fingerprint(peers)
