"""`distlfm federated provision`: make the roles of a federation, and let them know each other's public keys."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from distlfm.cli.options import STATE, group
from distlfm.errors import UsageError

app = group("Make the roles of a federation. Private keys are made where they are used, and never leave.")

LinkFolder = Annotated[Path, Argument(help="The coordinator's folder.")]
SiteFolder = Annotated[Path, Argument(help="The site's folder.")]
Sites = Annotated[str, Option("--sites", help="Names of the sites, with commas: north,south,west.")]
Federation = Annotated[str, Option("--name", help="Name of the federation.")]
Port = Annotated[int, Option("--port", min=1, max=65535, help="Port of the link.")]


@app.command("link")
def link(
    folder: LinkFolder,
    sites: Sites,
    name: Federation = "federation",
    host: Annotated[str, Option("--host", help="Name or address under which sites reach it.")] = "127.0.0.1",
    bind: Annotated[str, Option("--bind", help="Address to listen on; the default is this machine.")] = "127.0.0.1",
    port: Port = 8443,
    also: Annotated[str, Option("--also", help="Further names in the certificate, with commas.")] = "",
) -> None:
    """At the coordinator: make certificate authority, server certificate, admin token, and a kit for each site.

    Example: `distlfm federated provision link link --sites north,south,west --host link.example.org --bind 0.0.0.0`
    """
    from distlfm.config import build
    from distlfm.federated.setup.homes import LinkConfig
    from distlfm.federated.setup.provision import make_link

    given = {"federation": name, "bind": bind, "host": host, "port": port, "sites": _names(sites)}
    for kit in make_link(folder, build(LinkConfig, given, source="provision"), _names(also)):
        STATE.reporter.say(f"kit: {kit}")
    STATE.reporter.say(f"admin token: {folder / 'admin.token'} (for whoever may start runs; keep it closed)")
    STATE.reporter.say(
        "next: send each site its kit; it makes its keys with: distlfm federated provision site KIT FOLDER"
    )


@app.command("site")
def site(
    kit: Annotated[Path, Argument(help="The kit that the coordinator sent.")],
    folder: SiteFolder,
    operator: Annotated[
        Path | None, Option("--operator", help="The operator that all begin with; copied to model/base.pt.")
    ] = None,
) -> None:
    """At a site: make its keys, policy and settings from the kit. Gives a file of public keys for the coordinator.

    Example: `distlfm federated provision site north.kit.json north --operator runs/operator/operator.pt`
    """
    from distlfm.federated.setup.provision import make_site

    _sent(kit)
    public = make_site(kit, folder, operator)
    STATE.reporter.say(f"public keys: {public}")
    STATE.reporter.say(
        f"next: send {public.name} to the coordinator; read and change {folder / 'policy.yaml'}, fill in "
        f"{folder / 'site.yaml'}"
    )


@app.command("enrol")
def enrol(
    folder: LinkFolder, keys: Annotated[list[Path], Argument(help="Files of public keys that sites sent.")]
) -> None:
    """At the coordinator: take sites' public keys in, and write peers.json for all sites.

    Example: `distlfm federated provision enrol link north.public.json south.public.json west.public.json`
    """
    from distlfm.federated.setup.enrolment import enrol as take
    from distlfm.federated.setup.enrolment import missing
    from distlfm.federated.setup.homes import LinkHome

    LinkHome(folder).config()
    _sent(*keys)
    told = take(folder, keys)
    STATE.reporter.say(f"peers, for all sites: {folder / 'peers.json'}")
    STATE.reporter.say(f"fingerprint of all signing keys: {told}")
    waiting = missing(folder)
    if waiting:
        STATE.reporter.say(f"keys have not come yet from: {', '.join(waiting)}")
    STATE.reporter.say(
        "next: "
        + ("when all are here, s" if waiting else "s")
        + "end peers.json to all sites, which pin it: distlfm federated provision pin FOLDER peers.json --sites …"
    )


@app.command("pin")
def pin(
    folder: SiteFolder,
    peers: Annotated[Path, Argument(help="peers.json of the coordinator.")],
    sites: Annotated[
        str, Option("--sites", help="Who takes part, as you know it, with commas; else who is pinned already.")
    ] = "",
    replace: Annotated[bool, Option("--replace", help="Take another key for a site that is pinned.")] = False,
) -> None:
    """At a site: write the other sites' signing keys into the policy. Compare names and fingerprint by telephone.

    Example: `distlfm federated provision pin north peers.json --sites north,south,west`
    """
    from distlfm.federated.setup.enrolment import peers_fingerprint
    from distlfm.federated.setup.enrolment import pin as write
    from distlfm.federated.setup.identity import fingerprint

    _sent(peers)
    pinned = write(folder, peers, sites=_names(sites), replace=replace)
    for name, key in pinned.items():
        STATE.reporter.say(f"{name}: {fingerprint(key)}")
    STATE.reporter.say(f"{len(pinned)} sites are pinned")
    STATE.reporter.say(f"fingerprint of all signing keys: {peers_fingerprint(pinned)}")
    STATE.reporter.say(
        "next: compare the names, their number and this fingerprint with the other sites by telephone; if anything "
        "differs, or a site cannot be reached, do not take part"
    )


@app.command("revoke")
def revoke(folder: LinkFolder, site: Annotated[str, Argument(help="Name of the site.")]) -> None:
    """At the coordinator: shut a site out. A running link does so within a second.

    Example: `distlfm federated provision revoke link north`
    """
    from distlfm.federated.setup.enrolment import revoke as shut

    told = shut(folder, site)
    STATE.reporter.say(f"{site} is shut out; fingerprint of the keys that are left: {told}")
    STATE.reporter.say(f"next: send {folder / 'peers.json'} to the sites that are left, which pin it")


@app.command("kit")
def kit(folder: LinkFolder, site: Annotated[str, Argument(help="Name of the site.")]) -> None:
    """At the coordinator: make the kit of a site that joins later, or one anew.

    Example: `distlfm federated provision kit link east`
    """
    from distlfm.federated.setup.provision import add_site

    STATE.reporter.say(f"kit: {add_site(folder, site)}")
    STATE.reporter.say(
        "next: send it to the site; enrol the keys that come back; all sites pin the new peers.json, with the new "
        "name in --sites"
    )


@app.command("renew")
def renew(folder: LinkFolder) -> None:
    """At the coordinator: make a new server certificate before the old one ends. Sites have nothing to do.

    Example: `distlfm federated provision renew link`
    """
    from distlfm.federated.setup.provision import renew as make_anew

    STATE.reporter.say(f"the new certificate ends on {make_anew(folder):%Y-%m-%d}")
    STATE.reporter.say("next: stop the link and start it again when no run is on; it then shows this certificate")


@app.command("token")
def token(
    folder: LinkFolder,
    holder: Annotated[str, Argument(help="Who may start runs.")],
    drop: Annotated[bool, Option("--drop", help="Let this holder's token open nothing any more.")] = False,
) -> None:
    """At the coordinator: make an admin token for somebody, or drop it.

    Example: `distlfm federated provision token link anna`
    """
    from distlfm.federated.link.authn import add_token, drop_token
    from distlfm.federated.setup.homes import LinkHome

    LinkHome(folder).config()  # a token elsewhere would open nothing
    if drop:
        drop_token(folder, holder)
        STATE.reporter.say(f"the token of {holder} opens nothing any more")
        return
    STATE.reporter.say(f"token of {holder}: {add_token(folder, holder)} (hand it over, and delete it here)")


@app.command("local")
def local(
    folder: Annotated[Path, Argument(help="Where link and sites go.")],
    sites: Sites = "north,south,west,east",
    name: Federation = "federation",
    port: Port = 8443,
    operator: Annotated[
        Path | None, Option("--operator", help="The operator that all begin with; copied to each site.")
    ] = None,
) -> None:
    """A whole federation on this machine, for trials: link, sites, enrol and pin at once.

    Example: `distlfm federated provision local federation --sites north,south,west`
    """
    from distlfm.config import build
    from distlfm.federated.setup.homes import LinkConfig
    from distlfm.federated.setup.provision import make_local

    given = {"federation": name, "port": port, "sites": _names(sites)}
    link, homes = make_local(folder, build(LinkConfig, given, source="provision"), operator)
    for home in (link, *homes.values()):
        STATE.reporter.say(str(home.path))


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sent(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise UsageError(f"There is no file {path}.", "Give the file that the other side sent.")
