"""How a helper group and its owner talk: authenticated frames of JSON and plain arrays. No pickle, no torch, no dolfin.

A frame is two lengths (4 bytes for the header, 8 for the arrays), a header in JSON with a table of the arrays' names,
types and shapes, the arrays' bytes in that order, and a seal over all of it. The seal's key is new for each connection
and its count new for each frame, so that a frame that was changed, repeated or left out is refused. Nothing is
encrypted: over TCP, who can listen on the cluster's network can read the numbers, but not alter or invent any.

Before the first frame both ends prove, by HMAC-SHA256 of each other's random challenge, that they hold the group's
secret; nothing but messages of fixed length is read from a peer that has not.
"""

from __future__ import annotations

import hmac
import json
import math
import secrets
import socket
import struct
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

SECRET_BYTES = 32
MAX_HEADER_BYTES = 1 << 24
MAX_ARRAY_BYTES = 1 << 36
ALLOWED_TYPES = ("<f8", "<i8", "<i4", "|u1", "|b1")

_LENGTHS = struct.Struct(">IQ")
_GREETING = struct.Struct(">8sI32s")
_MAGIC = b"distlfm1"
_SEAL_BYTES = 32


class WireError(Exception):
    """A frame that is not as it should be: too long, changed under way, or of a type that is not allowed."""


class PeerGone(WireError):
    """The other end closed the connection."""


class SecretRefused(WireError):
    """The other end does not hold the group's secret."""


@dataclass(frozen=True)
class Message:
    """A JSON header and arrays by name."""

    header: Mapping[str, Any]
    arrays: Mapping[str, Array] = field(default_factory=dict)


def new_secret() -> bytes:
    return secrets.token_bytes(SECRET_BYTES)


class Channel:
    """One authenticated connection. Not safe for use by two threads at once."""

    def __init__(self, sock: socket.socket, sending_key: bytes, receiving_key: bytes) -> None:
        self.socket = sock
        self._sending_key, self._receiving_key = sending_key, receiving_key
        self._sent = self._received = 0

    def fileno(self) -> int:
        return self.socket.fileno()

    def close(self) -> None:
        self.socket.close()

    def send(self, message: Message, deadline: float | None = None) -> None:
        """Send a whole frame by `deadline`, a time of `time.monotonic`; after a TimeoutError the channel is lost."""
        table, parts = [], []
        for name, value in message.arrays.items():
            array = np.asarray(value)
            array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(array.shape)
            if array.dtype.str not in ALLOWED_TYPES:
                raise WireError(f"array {name!r} is of type {array.dtype}; only {', '.join(ALLOWED_TYPES)} are sent")
            table.append([name, array.dtype.str, list(array.shape)])
            parts.append(_bytes_of(array))
        head = json.dumps({"header": message.header, "arrays": table}, separators=(",", ":")).encode()
        lengths = _LENGTHS.pack(len(head), sum(len(part) for part in parts))
        _check_lengths(len(head), sum(len(part) for part in parts))
        seal = _seal(self._sending_key, self._sent)
        self._sent += 1
        frame: list[bytes | memoryview] = [lengths + head, *parts]
        for chunk in frame:
            seal.update(chunk)
        for chunk in (*frame, seal.digest()):
            _send_all(self.socket, chunk, deadline)

    def receive(self, deadline: float | None = None) -> Message:
        """Read a whole frame; PeerGone if the other end went, WireError if the frame is not as it was sent."""
        seal = _seal(self._receiving_key, self._received)
        self._received += 1
        lengths = _read_exactly(self.socket, _LENGTHS.size, deadline)
        num_head, num_body = _LENGTHS.unpack(lengths)
        _check_lengths(num_head, num_body)
        head = _read_exactly(self.socket, num_head, deadline)
        seal.update(lengths)
        seal.update(head)
        header, table = _parse(head)
        arrays: dict[str, Array] = {}
        if sum(int(dtype[-1]) * math.prod(shape) for _, dtype, shape in table) != num_body:
            raise WireError("a frame's arrays are not as long as it says")
        for name, dtype, shape in table:
            arrays[name] = np.empty(shape, dtype=dtype)
            view = _bytes_of(arrays[name])
            _read_into(self.socket, view, deadline)
            seal.update(view)
        if not hmac.compare_digest(_read_exactly(self.socket, _SEAL_BYTES, deadline), seal.digest()):
            raise WireError("a frame was changed under way, or is out of turn")
        return Message(header, arrays)


def greet_owner(sock: socket.socket, secret: bytes, rank: int, deadline: float | None = None) -> Channel:
    """A rank's side of the proof."""
    challenge = secrets.token_bytes(SECRET_BYTES)
    _send_all(sock, _GREETING.pack(_MAGIC, rank, challenge), deadline)
    answer = _read_exactly(sock, 2 * SECRET_BYTES, deadline)
    transcript = _transcript(rank, challenge, answer[:SECRET_BYTES])
    if not hmac.compare_digest(answer[SECRET_BYTES:], _prove(secret, b"owner", transcript)):
        raise SecretRefused("the owner does not hold the group's secret")
    _send_all(sock, _prove(secret, b"rank", transcript), deadline)
    return Channel(sock, _prove(secret, b"from rank", transcript), _prove(secret, b"from owner", transcript))


def admit_rank(sock: socket.socket, secret: bytes, deadline: float | None = None) -> tuple[int, Channel]:
    """The owner's side of the proof: the rank's number, and the channel to it."""
    magic, rank, challenge = _GREETING.unpack(_read_exactly(sock, _GREETING.size, deadline))
    if magic != _MAGIC:
        raise SecretRefused("the peer speaks another language")
    own = secrets.token_bytes(SECRET_BYTES)
    transcript = _transcript(rank, challenge, own)
    _send_all(sock, own + _prove(secret, b"owner", transcript), deadline)
    if not hmac.compare_digest(_read_exactly(sock, SECRET_BYTES, deadline), _prove(secret, b"rank", transcript)):
        raise SecretRefused("the peer does not hold the group's secret")
    return rank, Channel(sock, _prove(secret, b"from owner", transcript), _prove(secret, b"from rank", transcript))


def tune(sock: socket.socket) -> None:
    """Small frames go at once, and a TCP peer whose machine died is noticed within half a minute."""
    if sock.family == socket.AF_UNIX:
        return
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3), ("TCP_USER_TIMEOUT", 25_000)):
        if hasattr(socket, option):
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, option), value)


def _transcript(rank: int, of_rank: bytes, of_owner: bytes) -> bytes:
    return _GREETING.pack(_MAGIC, rank, of_rank) + of_owner


def _prove(secret: bytes, who: bytes, transcript: bytes) -> bytes:
    return hmac.digest(secret, who + b"\0" + transcript, "sha256")


def _seal(key: bytes, count: int) -> hmac.HMAC:
    return hmac.new(key, count.to_bytes(8, "big"), "sha256")


def _check_lengths(num_head: int, num_body: int) -> None:
    if num_head > MAX_HEADER_BYTES or num_body > MAX_ARRAY_BYTES:
        raise WireError(f"a frame of {num_head} + {num_body} bytes is above the limit")


def _parse(head: bytes) -> tuple[Mapping[str, Any], list[tuple[str, str, tuple[int, ...]]]]:
    try:
        content = json.loads(head)
        header = content["header"]
        table = [(str(name), str(dtype), tuple(int(n) for n in shape)) for name, dtype, shape in content["arrays"]]
    except (ValueError, TypeError, KeyError) as error:
        raise WireError(f"a frame's header cannot be read: {error}") from None
    if not isinstance(header, dict) or len({name for name, _, _ in table}) != len(table):
        raise WireError("a frame's header is not a mapping, or names an array twice")
    for name, dtype, shape in table:
        if dtype not in ALLOWED_TYPES or any(n < 0 for n in shape):
            raise WireError(f"array {name!r} of type {dtype} and shape {shape} is not allowed")
    return header, table


def _bytes_of(array: Array) -> memoryview:
    return array.reshape(-1).view(np.uint8).data


def _wait(sock: socket.socket, deadline: float | None) -> None:
    if deadline is None:
        sock.settimeout(None)
        return
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the time limit of a message has passed")
    sock.settimeout(left)


def _send_all(sock: socket.socket, data: bytes | memoryview, deadline: float | None) -> None:
    view = memoryview(data)
    while view:
        _wait(sock, deadline)
        try:
            view = view[sock.send(view) :]
        except (BrokenPipeError, ConnectionError) as error:
            raise PeerGone(str(error)) from None


def _read_exactly(sock: socket.socket, count: int, deadline: float | None) -> bytes:
    data = bytearray(count)
    _read_into(sock, memoryview(data), deadline)
    return bytes(data)


def _read_into(sock: socket.socket, view: memoryview, deadline: float | None) -> None:
    while view:
        _wait(sock, deadline)
        try:
            count = sock.recv_into(view)
        except ConnectionError as error:
            raise PeerGone(str(error)) from None
        if count == 0:
            raise PeerGone("the connection was closed")
        view = view[count:]
