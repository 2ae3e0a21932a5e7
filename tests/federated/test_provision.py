"""Roles come to know each other without a secret leaving its place."""

from __future__ import annotations

import json
import ssl
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from cryptography import x509

from distlfm.cli import main
from distlfm.errors import UsageError
from distlfm.federated.link import service as link_program
from distlfm.federated.link.authn import add_token, drop_token, read_token, read_tokens, token_digest
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.setup import identity as certificates
from distlfm.federated.setup.enrolment import enrol, missing, peers_fingerprint, pin, read_roster, revoke
from distlfm.federated.setup.homes import LinkConfig, LinkHome, SiteHome, check_secret
from distlfm.federated.setup.identity import certificate_end, load_signing_key
from distlfm.federated.setup.provision import add_site, make_link, make_local, make_site, renew
from distlfm.federated.site.policy import load_policy
from distlfm.runtime.reporting import Silent

SITES = ("north", "south", "west")
CONFIG = LinkConfig(federation="glucose", host="link.example.org", port=9443, sites=SITES)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[LinkHome, dict[str, SiteHome]]:
    return make_local(tmp_path_factory.mktemp("federation"), CONFIG)


def _change(path: Path, **values: object) -> Path:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
    return path


def test_secrets_are_closed_and_each_is_in_its_own_folder_only(made: tuple[LinkHome, dict[str, SiteHome]]) -> None:
    link, sites = made
    homes = [link.path, *(site.path for site in sites.values())]
    secret = {
        path: path.read_bytes()
        for home in homes
        for path in home.rglob("*")
        if path.suffix in (".key", ".secret", ".token")
    }
    assert len(secret) == 4 + 3 * len(SITES)  # CA, server, secret, token; node, signing, secret
    assert len(set(secret.values())) == len(secret)
    for path, content in secret.items():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        elsewhere = [other for home in homes for other in home.rglob("*") if other.is_file() and other != path]
        assert not [other for other in elsewhere if content.strip() in other.read_bytes()]
    assert {stat.S_IMODE(home.stat().st_mode) for home in homes} == {0o700}


def test_what_travels_between_the_roles_holds_no_private_key(made: tuple[LinkHome, dict[str, SiteHome]]) -> None:
    link, sites = made
    travels = [*link.kits.iterdir(), link.peers, *(site.path / f"{name}.public.json" for name, site in sites.items())]
    assert len(travels) == 2 * len(SITES) + 1
    for path in travels:
        assert "PRIVATE" not in path.read_text()


def test_the_server_certificate_holds_every_name_and_cannot_sign_others(
    made: tuple[LinkHome, dict[str, SiteHome]],
) -> None:
    link, _ = made
    certificate = x509.load_pem_x509_certificate(link.certificate.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["link.example.org", "localhost"]
    assert [str(ip) for ip in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1", "::1"]
    assert certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca is False
    authority = x509.load_pem_x509_certificate(link.ca.read_bytes())
    certificate.verify_directly_issued_by(authority)
    assert ssl.create_default_context(cafile=str(link.ca)).get_ca_certs()[0]["issuer"]


def shaken(home: LinkHome, host: str) -> str | None:
    """What a client that wants this host says of the link's certificate; nothing if all is well."""
    server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.create_default_context(cafile=str(home.ca))
    server.load_cert_chain(home.certificate, home.key)
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ours, theirs = client.wrap_bio(down, up, server_hostname=host), server.wrap_bio(up, down, server_side=True)
    for side in (ours, theirs, ours, theirs):
        try:
            side.do_handshake()
        except ssl.SSLWantReadError:
            continue
        except ssl.SSLCertVerificationError as error:
            return error.verify_message
    return None


LONG = f"{'link.' * 15}example.org"
"""More than a certificate's common name holds."""


@pytest.mark.parametrize("host", ["link.example.org", "10.0.0.3", "some_container", LONG, f"{'a' * 63}.{LONG}"])
def test_sites_believe_the_link_under_its_name_however_long_it_is(host: str, tmp_path: Path) -> None:
    make_link(tmp_path, CONFIG.model_copy(update={"host": host}), [f"also.{LONG}"])
    home = LinkHome(tmp_path)
    for again in (False, True):
        if again:
            renew(tmp_path)
        assert shaken(home, host) is None
        assert shaken(home, f"also.{LONG}") is None
        assert "other.example.org" in str(shaken(home, "other.example.org"))


NO_HOSTS = ("a b", "link.example.org:8443", "https://link.example.org", "[::1]", "häuser.example.org", "-a.org", "a..b")


@pytest.mark.parametrize("host", [*NO_HOSTS, f"{'a' * 64}.org", f"{'link.' * 50}example.org"])
@pytest.mark.parametrize("option", ["--host", "--bind", "--also"])
def test_a_name_that_no_host_can_have_is_refused_before_anything_is_made(
    option: str, host: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    call = ["federated", "provision", "link", str(tmp_path / "link"), "--sites", ",".join(SITES), option, host]
    assert main(call) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert f"{host!r} is not a name or address of a host. Give one such as link.example.org or 10.0.0.3" in line
    assert not (tmp_path / "link").exists()


def test_a_renewed_certificate_has_the_old_names_and_authority_and_a_new_key(tmp_path: Path) -> None:
    make_link(tmp_path, CONFIG, ["second.example.org"])
    home = LinkHome(tmp_path)
    old, authority = home.certificate.read_bytes(), home.ca.read_bytes()
    until = renew(tmp_path)
    assert home.ca.read_bytes() == authority
    before, after = (x509.load_pem_x509_certificate(one) for one in (old, home.certificate.read_bytes()))
    after.verify_directly_issued_by(x509.load_pem_x509_certificate(authority))
    assert [one.value for one in after.extensions] == [one.value for one in before.extensions]
    assert after.public_key() != before.public_key()
    assert certificate_end(home) == until > datetime.now(UTC) + timedelta(days=396)
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(home.certificate, check_secret(home.key))  # refuses a key of another certificate
    home.ca_key.unlink()
    with pytest.raises(UsageError, match=r"ca\.key.*Bring it back"):
        renew(tmp_path)


@pytest.mark.parametrize(("days", "words"), [(-1, "ended on"), (10, "ends on"), (200, "")])
def test_a_link_warns_of_the_end_of_its_certificate_and_does_not_serve_after_it(
    tmp_path: Path, days: int, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(certificates, "SERVER_DAYS", days)
    monkeypatch.setattr(certificates, "BACKDATE", timedelta(days=2))
    make_link(tmp_path, CONFIG)
    monkeypatch.setattr(link_program, "is_listening", lambda *_: True)  # the port is taken, so nothing is started
    warned: list[str] = []
    reporter = Silent()
    monkeypatch.setattr(reporter, "warn", warned.append)
    with pytest.raises(UsageError) as refused:
        link_program.serve_link(tmp_path, reporter)
    told = str(refused.value) if days < 0 else " ".join(warned)
    assert words in told
    assert ("provision renew" in told) == (days < 30)
    assert ("is taken" in str(refused.value)) == (days > 0)


def test_a_site_that_joins_later_gets_a_kit_and_is_enrolled(tmp_path: Path) -> None:
    make_link(tmp_path / "link", CONFIG)
    kit = add_site(tmp_path / "link", "east")
    assert add_site(tmp_path / "link", "east") == kit
    enrol(tmp_path / "link", [make_site(kit, tmp_path / "east")])
    home = LinkHome(tmp_path / "link")
    assert home.config() == CONFIG.model_copy(update={"sites": (*SITES, "east")})
    assert list(read_roster(home.roster).active()) == ["east"]
    assert missing(tmp_path / "link") == list(SITES)
    with pytest.raises(UsageError, match="not a name of a site"):
        add_site(tmp_path / "link", "East Wing")


def test_every_site_pins_the_same_keys_and_keeps_its_policys_words(
    made: tuple[LinkHome, dict[str, SiteHome]],
) -> None:
    _, sites = made
    keys = {name: public_hex(load_signing_key(site.signing_key)) for name, site in sites.items()}
    for name, site in sites.items():
        policy = load_policy(site.policy)
        assert (policy.site, policy.peers) == (name, keys)
        assert "# Fewest sites in a sum" in site.policy.read_text()


def test_public_keys_that_were_changed_on_the_way_are_refused(tmp_path: Path) -> None:
    kits = make_link(tmp_path / "link", CONFIG)
    mine, other = (make_site(kits[i], tmp_path / SITES[i]) for i in (0, 1))
    strange = json.loads(other.read_text())
    for change in ({"node": strange["node"]}, {"signing": strange["signing"]}, {"proof": strange["proof"]}):
        copy = tmp_path / "copy.json"
        copy.write_bytes(mine.read_bytes())
        with pytest.raises(UsageError, match="changed since the site wrote it"):
            enrol(tmp_path / "link", [_change(copy, **change)])
    assert read_roster(LinkHome(tmp_path / "link").roster).sites == {}


def test_a_site_that_nobody_expects_and_a_second_key_for_one_are_not_enrolled(tmp_path: Path) -> None:
    kits = make_link(tmp_path / "link", CONFIG)
    enrol(tmp_path / "link", [make_site(kits[0], tmp_path / "first")])
    second = make_site(kits[0], tmp_path / "second")
    with pytest.raises(UsageError, match="enrolled with other keys"):
        enrol(tmp_path / "link", [second])
    stranger = make_site(_change(kits[1], site="stranger"), tmp_path / "stranger")
    with pytest.raises(UsageError, match="not expected here"):
        enrol(tmp_path / "link", [stranger])
    revoke(tmp_path / "link", "north")
    enrol(tmp_path / "link", [second])
    assert list(read_roster(LinkHome(tmp_path / "link").roster).active()) == ["north"]


def test_a_coordinator_cannot_put_its_own_key_in_a_sites_place(tmp_path: Path) -> None:
    link, sites = make_local(tmp_path, CONFIG)
    north, forged = sites["north"].path, "ab" * 32
    peers = json.loads(link.peers.read_text())["peers"]
    changed = tmp_path / "peers.json"
    for name, message in (("north", "posing as this site"), ("south", "than is pinned")):
        changed.write_bytes(link.peers.read_bytes())
        _change(changed, peers={**peers, name: forged})
        with pytest.raises(UsageError, match=message):
            pin(north, changed)
    assert load_policy(north).peers == peers
    assert pin(north, changed, replace=True) == {**peers, "south": forged}
    assert peers_fingerprint({**peers, "south": forged}) != peers_fingerprint(peers)


def test_a_coordinator_cannot_add_sites_that_only_it_knows(tmp_path: Path) -> None:
    """With two of its own among three, the sum would be what the third one said."""
    link, sites = make_local(tmp_path, CONFIG)
    north = sites["north"].path
    peers = json.loads(link.peers.read_text())["peers"]
    changed = tmp_path / "peers.json"

    def sent(names: dict[str, str]) -> Path:
        changed.write_bytes(link.peers.read_bytes())
        return _change(changed, peers=names)

    fewer = {name: key for name, key in peers.items() if name != "west"}
    for names, words in (
        ({**peers, "sybil": "ab" * 32}, "sybil: not expected"),
        (fewer, "west: expected, and missing"),
    ):
        with pytest.raises(UsageError, match=words):
            pin(north, sent(names))
        with pytest.raises(UsageError, match=words):
            pin(north, sent(names), replace=True)
    assert load_policy(north).peers == peers
    assert pin(north, sent(fewer), sites=("north", "south")) == fewer
    assert load_policy(north).peers == fewer
    assert pin(north, sent(peers), sites=SITES) == peers


def test_who_takes_part_is_said_by_the_site_before_it_pins_for_the_first_time(tmp_path: Path) -> None:
    link = LinkHome(tmp_path / "link")
    kits = make_link(link.path, CONFIG)
    enrol(link.path, [make_site(kit, tmp_path / name) for kit, name in zip(kits, SITES, strict=True)])
    with pytest.raises(UsageError, match=r"3 sites: north, south, west\. The expected"):
        pin(tmp_path / "north", link.peers)
    with pytest.raises(UsageError, match="west: not expected"):
        pin(tmp_path / "north", link.peers, sites=("north", "south"))
    assert load_policy(tmp_path / "north").peers == {}
    assert list(pin(tmp_path / "north", link.peers, sites=SITES)) == list(SITES)


def test_two_sites_are_no_federation(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="three or more"):
        make_link(tmp_path / "link", CONFIG.model_copy(update={"sites": ("north", "south")}))


def test_a_kit_of_another_version_is_refused(tmp_path: Path) -> None:
    kit = make_link(tmp_path / "link", CONFIG)[0]
    with pytest.raises(UsageError, match=r"pip install .*==9\.9"):
        make_site(_change(kit, package="9.9"), tmp_path / "north")
    assert not (tmp_path / "north").exists()


def test_keys_are_never_replaced(tmp_path: Path) -> None:
    kit = make_link(tmp_path / "link", CONFIG)[0]
    make_site(kit, tmp_path / "north")
    before = (tmp_path / "north" / "signing.key").read_bytes()
    (tmp_path / "north" / "node.yaml").unlink()
    with pytest.raises(UsageError, match="not replaced"):
        make_site(kit, tmp_path / "north")
    assert (tmp_path / "north" / "signing.key").read_bytes() == before


def test_the_link_keeps_digests_of_tokens_and_forgets_a_dropped_one(tmp_path: Path) -> None:
    make_link(tmp_path, CONFIG)
    home = LinkHome(tmp_path)
    token = read_token(add_token(tmp_path, "anna"))
    assert read_tokens(home.tokens)["anna"].digest == token_digest(token)
    assert token not in home.tokens.read_text() + home.audit.read_text()
    drop_token(tmp_path, "anna")
    assert list(read_tokens(home.tokens)) == ["admin"]


def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    make_link(tmp_path, CONFIG)
    token = LinkHome(tmp_path).admin_token
    token.chmod(0o640)
    with pytest.raises(UsageError, match="chmod 600"):
        check_secret(token)
