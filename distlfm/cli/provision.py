"""`distlfm federated provision`: make the roles of a federation, and let them know each other's public keys."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from distlfm.cli.options import group, say
from distlfm.config import build
from distlfm.errors import UsageError

if TYPE_CHECKING:
    from distlfm.federated.setup.homes import LinkConfig

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
    from distlfm.federated.setup.provision import make_link

    config = _config(federation=name, bind=bind, host=host, port=port, sites=_names(sites))
    say(*(f"kit: {kit}" for kit in make_link(folder, config, _names(also))))
    say(f"admin token: {folder / 'admin.token'} (for whoever may start runs; keep it closed)")
    say("next: send each site its kit; it makes its keys with: distlfm federated provision site KIT FOLDER")


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
    say(f"public keys: {public}")
    say(
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
    fingerprint = take(folder, keys)
    say(f"peers, for all sites: {folder / 'peers.json'}")
    say(f"fingerprint of all signing keys: {fingerprint}")
    if waiting := missing(folder):
        say(f"keys have not come yet from: {', '.join(waiting)}")
    send = "when all are here, send" if waiting else "send"
    pins = "distlfm federated provision pin FOLDER peers.json --sites …"
    say(f"next: {send} peers.json to all sites, which pin it: {pins}")


@app.command("pin")
def pin(
    folder: SiteFolder,
    peers: Annotated[Path, Argument(help="peers.json of the coordinator.")],
    sites: Annotated[
        str, Option("--sites", help="Who takes part, as you know it, with commas; else who is pinned already.")
    ] = "",
    replace: Annotated[bool, Option("--replace", help="Replace the key of a site that is pinned.")] = False,
) -> None:
    """At a site: write the other sites' signing keys into the policy. Compare names and fingerprint by telephone.

    Example: `distlfm federated provision pin north peers.json --sites north,south,west`
    """
    from distlfm.federated.setup.enrolment import peers_fingerprint
    from distlfm.federated.setup.enrolment import pin as write
    from distlfm.federated.setup.identity import fingerprint

    _sent(peers)
    pinned = write(folder, peers, sites=_names(sites), replace=replace)
    say(*(f"{name}: {fingerprint(key)}" for name, key in pinned.items()))
    say(f"{len(pinned)} sites are pinned")
    say(f"fingerprint of all signing keys: {peers_fingerprint(pinned)}")
    say(
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
    say(f"{site} is shut out; fingerprint of the keys that are left: {told}")
    say(f"next: send {folder / 'peers.json'} to the sites that are left, which pin it")


@app.command("kit")
def kit(folder: LinkFolder, site: Annotated[str, Argument(help="Name of the site.")]) -> None:
    """At the coordinator: make the kit of a site that joins later, or one anew.

    Example: `distlfm federated provision kit link east`
    """
    from distlfm.federated.setup.provision import add_site

    say(f"kit: {add_site(folder, site)}")
    say(
        "next: send it to the site; enrol the keys that come back; all sites pin the new peers.json, with the new "
        "name in --sites"
    )


@app.command("renew")
def renew(folder: LinkFolder) -> None:
    """At the coordinator: make a new server certificate before the old one ends. Sites have nothing to do.

    Example: `distlfm federated provision renew link`
    """
    from distlfm.federated.setup.provision import renew as make_anew

    say(f"the new certificate ends on {make_anew(folder):%Y-%m-%d}")
    say("next: stop the link and start it again when no run is on; it then shows this certificate")


@app.command("token")
def token(
    folder: LinkFolder,
    holder: Annotated[str | None, Argument(help="Who it is for. Without one, all tokens are listed.")] = None,
    role: Annotated[
        str, Option("--role", help="`run`: start rounds; `query`: ask questions; `read`: look at sites, runs, logs.")
    ] = "run",
    days: Annotated[int, Option("--days", min=1, max=3650, help="How many days it is of use.")] = 180,
    drop: Annotated[bool, Option("--drop", help="Revoke this holder's token.")] = False,
) -> None:
    """At the coordinator: make a token for somebody, with a role and an end; drop it; or list all.

    Example: `distlfm federated provision token link anna --role query --days 90`
    """
    from distlfm.federated.link.authn import ROLES, add_token, drop_token, read_tokens
    from distlfm.federated.setup.homes import LinkHome

    home = LinkHome(folder)
    home.config()  # a token elsewhere would open nothing
    if holder is None:
        for name, held in read_tokens(home.tokens).items():
            last = "has no end" if held.until is None else f"{'ended' if held.has_ended() else 'ends'} on {held.until}"
            say(f"{name}: {held.role} ({ROLES[held.role]}), {last}")
        return
    if drop:
        drop_token(folder, holder)
        say(f"the token of {holder} opens nothing any more")
        return
    known = [one for one in ROLES if one == role]
    if not known:
        raise UsageError(f"There is no role {role!r}.", f"Roles are {', '.join(ROLES)}.")
    say(f"token of {holder}: {add_token(folder, holder, known[0], days)} (hand it over, and delete it here)")


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
    from distlfm.federated.setup.provision import make_local

    link, homes = make_local(folder, _config(federation=name, port=port, sites=_names(sites)), operator)
    say(link.path, *(home.path for home in homes.values()))


def _config(**given: Any) -> LinkConfig:
    from distlfm.federated.setup.homes import LinkConfig

    return build(LinkConfig, given, source="provision")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _sent(*paths: Path) -> None:
    for path in paths:
        if not path.is_file():
            raise UsageError(f"There is no file {path}.", "Give the file that the other side sent.")
