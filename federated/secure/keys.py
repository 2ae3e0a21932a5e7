"""Keys of the protocol: agreement (X25519), derivation (HKDF), masks (ChaCha20), boxes and signatures (Ed25519)."""

from __future__ import annotations

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from distlfm.federated.secure.ring import Words
from distlfm.federated.secure.rules import PROTOCOL

KEY_BYTES = 32
PIECE = 1 << 15
"""Words of a mask that are made at once."""


class BadKey(ValueError):
    """A public key with which nothing secret can be agreed, or a box that was not made for its receiver."""


def public_hex(key: Ed25519PrivateKey) -> str:
    """The public key as peers pin it: 64 hex digits."""
    return key.public_key().public_bytes_raw().hex()


def sign(key: Ed25519PrivateKey, label: str, content: bytes) -> str:
    """Signature in hex digits. The label says what is signed, so that no signature serves for anything else."""
    return key.sign(_labelled(label, content)).hex()


def is_signed(public: str, signature: str, label: str, content: bytes) -> bool:
    """Whether the owner of the pinned key signed this content under this label."""
    try:
        Ed25519PublicKey.from_public_bytes(bytes.fromhex(public)).verify(
            bytes.fromhex(signature), _labelled(label, content)
        )
    except (InvalidSignature, ValueError):
        return False
    return True


def _labelled(label: str, content: bytes) -> bytes:
    return f"{PROTOCOL} {label}".encode() + b"\0" + content


def new_secret() -> str:
    """A fresh X25519 private key, in hex digits."""
    return X25519PrivateKey.generate().private_bytes_raw().hex()


def public_of(secret: str) -> str:
    """The public key of an X25519 private key, both in hex digits."""
    return X25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).public_key().public_bytes_raw().hex()


def agree(secret: str, public: str, session: bytes, label: str) -> bytes:
    """A key of 32 bytes that only the owners of the two private keys know, for one session and one use."""
    try:
        shared = X25519PrivateKey.from_private_bytes(bytes.fromhex(secret)).exchange(
            X25519PublicKey.from_public_bytes(bytes.fromhex(public))
        )
    except ValueError:  # a point of low order gives everybody the same "secret"
        raise BadKey("No key can be agreed with this public key.") from None
    return derive(shared, session, label)


def derive(secret: bytes, session: bytes, label: str) -> bytes:
    """A key of 32 bytes for one session and one use, from a secret that may serve several uses."""
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=f"{PROTOCOL} {label}".encode()).derive(secret)


def seal(key: bytes, content: bytes) -> str:
    """A box in hex digits that only the other owner of `key` opens. A key seals one box, so the nonce is constant."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), content, None).hex()


def unseal(key: bytes, box: str) -> bytes:
    """What is in a box; raises BadKey if anybody touched it."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), bytes.fromhex(box), None)
    except (InvalidTag, ValueError):
        raise BadKey("This box was not sealed for this session and receiver.") from None


def add_mask(total: Words, key: bytes, *, take_away: bool = False) -> None:
    """Add a key's mask to words [N], in place: they look random to whoever does not have the key of 256 bits.

    A key makes one mask. It is made piece by piece, so that a piece is added while it is near the processor.
    """
    stream = Cipher(ChaCha20(key, bytes(16)), mode=None).encryptor()
    blank, piece = memoryview(bytes(8 * PIECE)), memoryview(bytearray(8 * PIECE))
    for start in range(0, len(total), PIECE):
        here = total[start : start + PIECE]
        stream.update_into(blank[: 8 * len(here)], piece[: 8 * len(here)])
        words = np.frombuffer(piece, dtype="<u8", count=len(here))
        if take_away:
            here -= words
        else:
            here += words


def mask(key: bytes, count: int) -> Words:
    """Return the `count` words of a key's mask."""
    total: Words = np.zeros(count, dtype=np.uint64)
    add_mask(total, key)
    return total
