"""Making the roles: the coordinator's folder, a site's folder, and how they come to know each other's public keys.

coordinator: make_link → a kit for each site          (addresses and the CA's certificate; nothing secret)
site:        make_site → a file of public keys         (the private ones are made here and stay here)
coordinator: enrol     → peers.json                    (every site's public signing key)
site:        pin       → the policy names its peers    (by the names that the site expects, and whose fingerprint
                                                        was compared by telephone)
"""

from __future__ import annotations

import json
import re
import secrets
import shutil
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path

from distlfm.config import dump
from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.authn import make_token, read_digests, token_digest
from distlfm.federated.certificates import make_certificates, renew_certificate
from distlfm.federated.homes import (
    EVERYWHERE,
    LinkConfig,
    LinkHome,
    NodeConfig,
    SiteHome,
    check_name,
    make_folder,
    whole_or_not,
    write_config,
    write_secret,
)
from distlfm.federated.identity import (
    check_signing_public,
    fingerprint,
    make_node_key,
    make_signing_key,
)
from distlfm.federated.policy import load_policy
from distlfm.federated.provision_files import LABEL, Kit, Peers, PublicKeys, read_handed, write_handed
from distlfm.federated.roster import Entry, read_roster, write_roster
from distlfm.federated.secagg.keys import is_signed, load_signing_key, public_hex, sign
from distlfm.federated.templates import policy_text, site_text
from distlfm.store.files import put_all
from distlfm.version import __version__

SECRET_BYTES = 32
_ALWAYS = ("127.0.0.1", "localhost")
"""The link's own processes reach it so, whatever the sites call it."""


def make_link(path: Path, config: LinkConfig, hosts: Sequence[str] = ()) -> list[Path]:
    """Make a coordinator's folder. Gives the kits, one a site. hosts: further names in the certificate."""
    names = [check_name(name) for name in config.sites]
    if len(set(names)) != len(names) or len(names) < 3:
        raise UsageError(
            f"{len(set(names))} different sites are given.",
            "A federation has three or more: with two, each could take its own share from the sum.",
        )
    home = LinkHome(path)
    if home.config_file.exists():
        raise UsageError(f"{path} is a coordinator's folder already.", "Choose another one.")
    with whole_or_not(path):
        return _fill_link(home, config, hosts)


def _fill_link(home: LinkHome, config: LinkConfig, hosts: Sequence[str]) -> list[Path]:
    for folder in (home.path, home.state, home.flower, home.kits, home.runs):
        make_folder(folder)
    bound = () if config.bind in EVERYWHERE else (config.bind,)
    make_certificates(home, config.federation, list(dict.fromkeys((config.host, *hosts, *bound, *_ALWAYS))))
    write_secret(home.secret, secrets.token_bytes(SECRET_BYTES))
    write_config(home.config_file, config)
    add_token(home.path, "admin")
    kits = [_write_kit(home, config, name) for name in config.sites]
    AuditLog(home.audit).append("provisioned", "", federation=config.federation, sites=list(config.sites))
    return kits


def add_site(path: Path, site: str) -> Path:
    """Expect one more site, and make its kit. For a site that is expected already, its kit is made anew."""
    home = LinkHome(path)
    config = home.config()
    if check_name(site) not in config.sites:
        config = config.model_copy(update={"sites": (*config.sites, site)})
        put_all({home.config_file: dump(config).encode()})
        AuditLog(home.audit).append("site expected", "", site=site)
    return _write_kit(home, config, site)


def renew(path: Path) -> datetime:
    """Give the link a new server certificate, with which it serves after its next start. Gives its end."""
    home = LinkHome(path)
    home.config()
    until = renew_certificate(home)
    AuditLog(home.audit).append("certificate renewed", "", until=until.isoformat())
    return until


def make_site(kit_file: Path, path: Path, operator: Path | None = None) -> Path:
    """Make a site's folder from its kit. Gives the file of public keys, to be sent to the coordinator.

    operator: the checkpoint that all begin with, copied into the folder.
    """
    kit = read_handed(Kit, kit_file)
    if kit.package != __version__:
        raise UsageError(
            f"The kit is for distlfm {kit.package}, and {__version__} is installed.",
            f'Install that version: pip install "distlfm[federated]=={kit.package}"',
        )
    home = SiteHome(path)
    if home.config_file.exists():
        raise UsageError(f"{path} is a site's folder already.", "Choose another one.")
    checkpoint = None if operator is None else _checked(operator)
    with whole_or_not(path):
        return _fill_site(home, kit, checkpoint)


def _checked(operator: Path) -> Path:
    """The checkpoint that a path means, if this version can read it."""
    from distlfm.lfo import load_checkpoint  # whoever makes a link needs no torch
    from distlfm.pipeline.query_ask import find_checkpoint

    found = find_checkpoint(operator)
    load_checkpoint(found)
    return found


def _fill_site(home: SiteHome, kit: Kit, operator: Path | None) -> Path:
    path = home.path
    for folder in (path, home.state, home.flower):
        make_folder(folder)
    signing, node = make_signing_key(home), make_node_key(home)
    write_secret(home.secret, secrets.token_bytes(SECRET_BYTES))
    home.ca.write_text(kit.ca, encoding="ascii")
    config = NodeConfig(federation=kit.federation, name=check_name(kit.site), host=kit.host, port=kit.port)
    write_config(home.config_file, config)
    if not home.policy.exists():
        home.policy.write_text(policy_text(kit.site, __version__), encoding="utf-8")
    if not (path / "site.yaml").exists():
        (path / "site.yaml").write_text(site_text(kit.site), encoding="utf-8")
    if operator is not None:
        make_folder(path / "model")
        shutil.copyfile(operator, path / "model" / "base.pt")
    keys = PublicKeys(federation=kit.federation, site=kit.site, node=node, signing=signing, proof="")
    proof = sign(load_signing_key(home.signing_key), LABEL, keys.signed())
    public = path / f"{kit.site}.public.json"
    write_handed(public, keys.model_copy(update={"proof": proof}))
    AuditLog(home.audit).append("provisioned", "", federation=kit.federation, signing=signing)
    return public


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
    _distinct(sites)
    write_roster(home.roster, roster.model_copy(update={"sites": sites}))
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
    write_roster(home.roster, roster.model_copy(update={"sites": {**roster.sites, site: gone}}))
    AuditLog(home.audit).append("revoke", "", site=site)
    return _write_peers(home, config)


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
    told = peers_fingerprint(peers.peers)
    AuditLog(home.audit).append("peers pinned", "", peers=sorted(peers.peers), fingerprint=told)
    return dict(sorted(peers.peers.items()))


def _check_expected(file: Path, found: set[str], expected: set[str]) -> None:
    """Refuse a list of sites that is not the one which the site has agreed to."""
    listed = ",".join(sorted(found))
    if not expected:
        raise UsageError(
            f"{file} has {len(found)} sites: {listed.replace(',', ', ')}. It is not said which ones are expected.",
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


def make_local(path: Path, config: LinkConfig, operator: Path | None = None) -> tuple[LinkHome, dict[str, SiteHome]]:
    """A whole federation on this machine, for trials: `link` and `sites/NAME`, enrolled and pinned."""
    with whole_or_not(path):
        kits = make_link(path / "link", config)
        homes = {name: SiteHome(path / "sites" / name) for name in config.sites}
        made = [make_site(kit, home.path, operator) for kit, home in zip(kits, homes.values(), strict=True)]
        enrol(path / "link", made)
        for home in homes.values():
            pin(home.path, LinkHome(path / "link").peers, sites=config.sites)
        return LinkHome(path / "link"), homes


def peers_fingerprint(peers: Mapping[str, str]) -> str:
    """The same at all sites, or somebody was told another key."""
    return fingerprint("".join(f"{name} {key}\n" for name, key in sorted(peers.items())))


def _distinct(sites: Mapping[str, Entry]) -> None:
    for what in ("node", "signing"):
        keys = [getattr(entry, what) for entry in sites.values()]
        if len(set(keys)) != len(keys):
            raise UsageError(f"Two sites have the same {what} key.", "Each site must make its own.")


def _write_kit(home: LinkHome, config: LinkConfig, site: str) -> Path:
    kit = Kit(
        federation=config.federation,
        site=site,
        host=config.host,
        port=config.port,
        package=__version__,
        ca=home.ca.read_text(encoding="ascii"),
    )
    write_handed(home.kits / f"{site}.kit.json", kit)
    return home.kits / f"{site}.kit.json"


def _write_peers(home: LinkHome, config: LinkConfig) -> str:
    peers = {name: entry.signing for name, entry in sorted(read_roster(home.roster).active().items())}
    write_handed(home.peers, Peers(federation=config.federation, peers=peers))
    return peers_fingerprint(peers)


def _write_digests(home: LinkHome, digests: Mapping[str, str]) -> None:
    put_all({home.tokens: json.dumps(dict(digests)).encode()})
    home.tokens.chmod(0o600)
