"""Make the roles: the coordinator's folder, a site's folder, and how they come to know each other's public keys.

coordinator: make_link → a kit for each site          (addresses and the CA's certificate; nothing secret)
site:        make_site → a file of public keys         (the private ones are made here and stay here)
coordinator: enrol     → peers.json                    (every site's public signing key)
site:        pin       → the policy names its peers    (by the names that the site expects, and whose fingerprint
                                                        was compared by telephone)

The last two are in `enrolment`. A new site finds a policy and settings in its folder, with a line about each choice.
"""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from distlfm.config import dump
from distlfm.errors import UsageError
from distlfm.federated.audit import AuditLog
from distlfm.federated.link.authn import add_token
from distlfm.federated.secure.keys import sign
from distlfm.federated.setup import homes, identity
from distlfm.federated.setup.enrolment import LABEL, Kit, PublicKeys, enrol, pin, read_handed, write_handed
from distlfm.federated.setup.homes import LinkConfig, LinkHome, NodeConfig, SiteHome, check_name, make_folder
from distlfm.store.files import put_all
from distlfm.version import __version__

POLICY = """\
# What this site allows. It is read for every message; nobody else can change it.
site: {site}
# The version of distlfm that all sites agreed on.
package: {package}
# Kinds of message that are answered. query.* are the federation's questions; take the line away to answer none.
allowed:
  - train
  - evaluate
  - query.*
# Fewest sites in a sum, at its start and at its end: nobody learns a sum over fewer.
min_cohort: 3
# Fewest patients used for an answer: those in the batches of a round's steps, those that choose for its figures.
min_examples: 5
# Whether sites count all alike (equal), so that nobody learns how many patients there are and none can claim more than
# its share, or by their patients, and then the most that this site counts for.
weights: equal
most_examples: 1000
# The most that a figure of this site counts.
figure_bound: 10.0
# Kinds of message that all sites answer together or not at all. Without train, a round that loses a site goes on with
# noise that covers what a site contributes (needs clip); else it waits for the site.
fixed_cohort:
  - train
  - evaluate
  - query
# Fewest sites by which two sums may differ without that noise, its size (in units of clip or figure_bound), and the
# most answers with it from one change of the sites to the next.
min_difference: 3
cover_noise: 4.0
cover_answers: 10
# Weights that a round may tune and leave here, by name or pattern such as second.*; none by default.
local: []
# What a round may ask at most: see docs/federation.md.
task:
  shared: ["*"]
  optimisers: [sgd, adam]
  lr: 0.5
  steps: 1000
  batch: 1024
  seconds: 900.0
# Longest update that leaves (its norm), and noise on it in units of that; null: as it is.
clip: null
noise_multiplier: 0.0
# Privacy budget of this site's patients (differential privacy). All answers together may cost it, and all have noise.
# The programme that goes with it is configs/programme/glucose_private.yaml. Null: none, and then nothing is answered
# but what `exact` names.
epsilon: 4.0
delta: 1.0e-5
# Kinds of message (train, evaluate, query) that are answered without noise if there is no budget. Masking then hides
# whose patients they are, but a coordinator may choose weights that bring out one patient's record in a sum.
exact: []
# Limits of a day (UTC): rounds, and refusals that depend on patients' records; after these it is silent until tomorrow.
rounds_a_day: 50
refusals_a_day: 3
# Limits of a day (UTC). Figures of a model count as a question: a programme of five rounds asks for them six times.
queries_a_day: 100
# How often this site tells, signed, whether a round's model is better for its own patients that choose: one bit each.
votes_a_day: 20
bytes_a_day: 2000000000
# Signing keys of all sites, written by `distlfm federated provision pin`. Keep this the last entry.
peers: {{}}
"""

SITE = """\
# What this site works on. No message changes it.
name: {site}
# Either the content of a config of `distlfm fit`, whose data section says where the patients' records are:
#fit:
#  verb: fit
#  data:
#    path: /data/patients.csv
#    columns: {{instance: patient, time: time_min, values: glucose_mg_dl}}
#    window: 1440
#  mechanism: {{kind: glucose}}  # with the priors that all sites agreed on
# or pairs that were made before:
#store: /data/pairs.zarr
# Share of the patients that are never learned from, but measure the model, and of those that choose between models:
#test: 0.3
#choose: 0.2
# Decides which these are, from each patient's name alone. Keep it secret, and as it is once patients take part:
seed: {seed}
# How the noise of differential privacy is made; the unit is a patient with all windows. epsilon and delta of
# policy.yaml win over those here. If nothing is said, the sites bring the noise together (mechanism: shared):
#privacy: {{epsilon: 4.0, delta: 1.0e-5, mechanism: patients, noise: 3.85, sample: 0.5}}
"""


def policy_text(site: str, package: str) -> str:
    """policy.yaml of a new site."""
    return POLICY.format(site=site, package=package)


SECRET_BYTES = 32
_ALWAYS = ("127.0.0.1", "::1", "localhost")
"""The link's own processes reach it so, whatever the sites call it."""


def make_link(path: Path, config: LinkConfig, hosts: Sequence[str] = ()) -> list[Path]:
    """Make a coordinator's folder. Returns the kits, one per site. hosts: further names in the certificate."""
    names = [check_name(name) for name in config.sites]
    if len(set(names)) != len(names) or len(names) < 3:
        raise UsageError(
            f"{len(set(names))} different sites are given.",
            "A federation has three or more: with two, each could take its own share from the sum.",
        )
    for host in hosts:
        homes.check_host(host)
    home = LinkHome(path)
    if home.config_file.exists():
        raise UsageError(f"{path} is a coordinator's folder already.", "Choose another one.")
    bound = () if config.bind in homes.EVERYWHERE else (config.bind,)
    with homes.whole_or_not(path):
        _make_folders(home, home.kits, home.runs)
        known = list(dict.fromkeys((config.host, *hosts, *bound, *_ALWAYS)))
        identity.make_certificates(home, config.federation, known)
        home.config_file.write_text(dump(config), encoding="utf-8")
        add_token(home.path, "admin")
        kits = [_write_kit(home, config, name) for name in config.sites]
        AuditLog(home.audit).append("provisioned", "", federation=config.federation, sites=list(config.sites))
        return kits


def _make_folders(home: homes.Home, *more: Path) -> None:
    """What both roles have: folders that are closed to others, and the secret of the role's own processes."""
    for folder in (home.path, home.state, home.flower, *more):
        make_folder(folder)
    homes.write_secret(home.secret, secrets.token_bytes(SECRET_BYTES))


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
    until = identity.renew_certificate(home)
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
    if operator is not None:
        from distlfm.lfo import load_checkpoint  # whoever makes a link needs no torch
        from distlfm.queries.asking import find_checkpoint

        operator = find_checkpoint(operator)
        load_checkpoint(operator)
    with homes.whole_or_not(path):
        _make_folders(home)
        signing, node = identity.make_signing_key(home), identity.make_node_key(home)
        home.ca.write_text(kit.ca, encoding="ascii")
        config = NodeConfig(federation=kit.federation, name=check_name(kit.site), host=kit.host, port=kit.port)
        settings = SITE.format(site=kit.site, seed=secrets.randbits(53))
        texts = {home.policy: policy_text(kit.site, __version__), path / "site.yaml": settings}
        for file, text in {home.config_file: dump(config), **texts}.items():
            if not file.exists():
                file.write_text(text, encoding="utf-8")
        if operator is not None:
            make_folder(path / "model")
            shutil.copyfile(operator, path / "model" / "base.pt")
        keys = PublicKeys(federation=kit.federation, site=kit.site, node=node, signing=signing, proof="")
        proof = sign(identity.load_signing_key(home.signing_key), LABEL, keys.signed())
        public = path / f"{kit.site}.public.json"
        write_handed(public, keys.model_copy(update={"proof": proof}))
        AuditLog(home.audit).append("provisioned", "", federation=kit.federation, signing=signing)
        return public


def make_local(path: Path, config: LinkConfig, operator: Path | None = None) -> tuple[LinkHome, dict[str, SiteHome]]:
    """A whole federation on this machine, for trials: `link` and `sites/NAME`, enrolled and pinned."""
    with homes.whole_or_not(path):
        link, sites = LinkHome(path / "link"), {name: SiteHome(path / "sites" / name) for name in config.sites}
        kits = make_link(link.path, config)
        enrol(link.path, [make_site(kit, home.path, operator) for kit, home in zip(kits, sites.values(), strict=True)])
        for home in sites.values():
            pin(home.path, link.peers, sites=config.sites)
        return link, sites


def _write_kit(home: LinkHome, config: LinkConfig, site: str) -> Path:
    file, ca = home.kits / f"{site}.kit.json", home.ca.read_text(encoding="ascii")
    known = config.model_dump(include={"federation", "host", "port"})
    write_handed(file, Kit(**known, site=site, package=__version__, ca=ca))
    return file
