"""Keys and certificates: who a site is, and who the link is.

A site has an Ed25519 key that signs its messages to the other sites, and an ECDSA key with which the link lets it in.
Both are made at the site and never leave it. The other sites pin the public signing key, 64 hex digits, in their
policies. The link has a server certificate, signed by the federation's own certificate authority.
"""

from __future__ import annotations

import hashlib
import ipaddress
import re
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from distlfm.errors import UsageError
from distlfm.federated.secure.keys import public_hex
from distlfm.federated.setup.homes import LinkHome, SiteHome, check_secret, replace_secret, write_secret
from distlfm.store.files import put_all


def make_signing_key(home: SiteHome) -> str:
    """Make signing.key, and give its public part as 64 hex digits."""
    key = Ed25519PrivateKey.generate()
    write_secret(home.signing_key, _private(key))
    return public_hex(key)


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """The site's identity: an Ed25519 key in PEM (PKCS8) that only its owner may read."""
    content = check_secret(path).read_bytes()
    key = None
    with suppress(ValueError, TypeError):
        key = serialization.load_pem_private_key(content, password=None)
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds no Ed25519 key in PEM.", "Provision the site again.")
    return key


def make_node_key(home: SiteHome) -> str:
    """Make node.key and node.pub (ECDSA P-384, OpenSSH form, as Flower reads them). Gives the public line."""
    key = ec.generate_private_key(ec.SECP384R1())
    write_secret(home.node_key, _private(key, PrivateFormat.OpenSSH))
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    home.node_public.write_text(line + "\n", encoding="ascii")
    return line


def check_node_public(line: str) -> bytes:
    """The public node key as Flower compares it (PEM), from its OpenSSH line."""
    key = None
    with suppress(ValueError):
        key = serialization.load_ssh_public_key(line.encode("ascii"))
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise UsageError("A node key is not an ECDSA key on P-384.", "Take the site's own file of public keys.")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def check_signing_public(digits: str) -> str:
    """64 hex digits, or a refusal."""
    if not re.fullmatch("[0-9a-f]{64}", digits):
        raise UsageError("A signing key is not 64 hex digits.", "Take the site's own file of public keys.")
    return digits


def fingerprint(text: str) -> str:
    """Eight groups of four digits, to be compared over the telephone."""
    digits = hashlib.sha256(text.encode()).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))


CA_DAYS = 3650
SERVER_DAYS = 397
"""The longest that browsers and auditors accept."""
BACKDATE = timedelta(minutes=5)
"""For sites whose clock is a little behind."""
LONGEST_COMMON = 64
WARN_DAYS = 30
"""Days before its certificate ends from which a link says so when it starts."""


def make_certificates(home: LinkHome, federation: str, hosts: Sequence[str]) -> None:
    """Make ca.pem, ca.key, server.pem and server.key. hosts: names and addresses that the certificate holds (SANs)."""
    ca_key = ec.generate_private_key(ec.SECP384R1())
    authority = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{federation} certificate authority")])
    ca = (
        _builder(authority, authority, ca_key.public_key(), CA_DAYS)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs_certificates=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    # A common name holds 64 characters. Whoever checks a certificate looks at the alternative names, which hold any.
    common = hosts[0] if len(hosts[0]) <= LONGEST_COMMON else f"{federation} link"
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common)])
    names = x509.SubjectAlternativeName([_alternative(host) for host in hosts])
    private, server = _server(subject, names, ca, ca_key)
    write_secret(home.ca_key, _private(ca_key))
    write_secret(home.key, private)
    home.ca.write_bytes(ca.public_bytes(serialization.Encoding.PEM))
    home.certificate.write_bytes(server.public_bytes(serialization.Encoding.PEM))


def renew_certificate(home: LinkHome) -> datetime:
    """Make a new server.key and server.pem, with the names of the old one. Gives the moment at which it ends.

    The authority stays, so that sites have nothing to do.
    """
    if not home.ca_key.exists():
        raise UsageError(
            f"There is no {home.ca_key}, which signs certificates.",
            "Bring it back from where it is kept, for this step.",
        )
    ca_key = serialization.load_pem_private_key(check_secret(home.ca_key).read_bytes(), password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey)
    ca, old = (x509.load_pem_x509_certificate(path.read_bytes()) for path in (home.ca, home.certificate))
    names = old.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    private, server = _server(old.subject, names, ca, ca_key)
    replace_secret(home.key, private)
    put_all({home.certificate: server.public_bytes(serialization.Encoding.PEM)})
    return server.not_valid_after_utc


def certificate_end(home: LinkHome) -> datetime:
    """The moment at which the server's certificate ends."""
    return x509.load_pem_x509_certificate(home.certificate.read_bytes()).not_valid_after_utc


def _server(
    subject: x509.Name, names: x509.SubjectAlternativeName, ca: x509.Certificate, ca_key: ec.EllipticCurvePrivateKey
) -> tuple[bytes, x509.Certificate]:
    """A new private key in PEM, and the server's certificate for it."""
    key = ec.generate_private_key(ec.SECP384R1())
    certificate = (
        _builder(subject, ca.subject, key.public_key(), SERVER_DAYS)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs_certificates=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(names, critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(ca_key.public_key()), critical=False)
        .sign(ca_key, hashes.SHA384())
    )
    return _private(key), certificate


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, days: int
) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - BACKDATE)
        .not_valid_after(now + timedelta(days=days))
    )


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _private(key: Ed25519PrivateKey | ec.EllipticCurvePrivateKey, form: PrivateFormat = PrivateFormat.PKCS8) -> bytes:
    return key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption())
