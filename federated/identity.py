"""Who a site is: an Ed25519 key that signs its messages to the other sites, and an ECDSA key for the link's door.

Both are made at the site and never leave it. The other sites pin the public signing key, 64 hex digits, in their
policies.
"""

from __future__ import annotations

import hashlib
import stat
from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from distlfm.errors import UsageError
from distlfm.federated.homes import SiteHome, write_secret
from distlfm.federated.secagg.keys import public_hex
from distlfm.store.files import unreadable


def make_signing_key(home: SiteHome) -> str:
    """Make signing.key, and give its public part as 64 hex digits."""
    key = Ed25519PrivateKey.generate()
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    write_secret(home.signing_key, text)
    return public_hex(key)


def load_signing_key(path: Path) -> Ed25519PrivateKey:
    """The site's identity: an Ed25519 key in PEM (PKCS8) that only its owner may read."""
    try:
        mode, content = path.stat().st_mode, path.read_bytes()
    except PermissionError as error:
        raise unreadable(path, error) from None
    except OSError as error:
        raise UsageError(
            f"Cannot read the signing key {path}: {error.strerror}.", "Provision the site, or name the key's file."
        ) from None
    if stat.S_IMODE(mode) & 0o077:
        raise UsageError(f"Others may read the signing key {path}.", f"Run: chmod 600 {path}")
    try:
        key = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        key = None
    if not isinstance(key, Ed25519PrivateKey):
        raise UsageError(f"{path} holds no Ed25519 key in PEM.", "Provision the site again.")
    return key


def make_node_key(home: SiteHome) -> str:
    """Make node.key and node.pub (ECDSA P-384, OpenSSH form, as Flower reads them). Gives the public line."""
    key = ec.generate_private_key(ec.SECP384R1())
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH, serialization.NoEncryption()
    )
    write_secret(home.node_key, text)
    line = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH).decode()
    home.node_public.write_text(line + "\n", encoding="ascii")
    return line


def check_node_public(line: str) -> bytes:
    """The public node key as Flower compares it (PEM), from its OpenSSH line."""
    try:
        key = serialization.load_ssh_public_key(line.encode("ascii"))
    except (ValueError, UnicodeEncodeError):
        key = None
    if not isinstance(key, ec.EllipticCurvePublicKey) or key.curve.name != "secp384r1":
        raise UsageError("A node key is no ECDSA key on P-384.", "Take the site's own file of public keys.")
    return key.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)


def check_signing_public(digits: str) -> str:
    """64 hex digits, or a refusal."""
    try:
        right = len(bytes.fromhex(digits)) == 32 and digits == digits.lower() and len(digits) == 64
    except ValueError:
        right = False
    if not right:
        raise UsageError("A signing key is no 64 hex digits.", "Take the site's own file of public keys.")
    return digits


def fingerprint(text: str) -> str:
    """Eight groups of four digits, to be compared over the telephone."""
    digits = hashlib.sha256(text.encode()).hexdigest()[:32]
    return " ".join(digits[i : i + 4] for i in range(0, 32, 4))
