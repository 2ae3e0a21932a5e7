"""Frames between a helper group and its owner."""

from __future__ import annotations

import json
import secrets
import socket
import struct
import threading
import time
from collections.abc import Iterator

import numpy as np
import pytest

from distlfm.solvers.fem.group import wire
from distlfm.solvers.fem.group.wire import Channel, Message, PeerGone, SecretRefused, WireError

Ends = tuple[Channel, Channel]


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    owner, rank = socket.socketpair()
    yield owner, rank
    owner.close()
    rank.close()


@pytest.fixture
def ends(sockets: tuple[socket.socket, socket.socket]) -> Ends:
    return joined(*sockets, b"s" * 32, b"s" * 32)


def joined(owner: socket.socket, rank: socket.socket, owners: bytes, ranks: bytes) -> Ends:
    """Both sides of the proof at once; an error of either side is raised."""
    found: list[Channel] = []
    errors: list[Exception] = []

    def greet() -> None:
        try:
            found.append(wire.greet_owner(rank, ranks, 5, time.monotonic() + 5))
        except WireError as error:
            errors.append(error)
            rank.close()

    thread = threading.Thread(target=greet)
    thread.start()
    try:
        number, channel = wire.admit_rank(owner, owners, time.monotonic() + 5)
    finally:
        thread.join()
    if errors:
        raise errors[0]
    assert number == 5
    return channel, found[0]


def test_arrays_come_back_as_they_were(ends: Ends) -> None:
    owner, rank = ends
    arrays = {
        "float": np.linspace(0, 1, 12).reshape(3, 4),
        "big endian": np.arange(3, dtype=">f8"),
        "strided": np.arange(20.0).reshape(4, 5)[::2, ::3],
        "int": np.arange(4, dtype=np.int64),
        "short": np.arange(4, dtype=np.int32),
        "byte": np.arange(4, dtype=np.uint8),
        "truth": np.array([True, False]),
        "empty": np.zeros((0, 3)),
        "scalar": np.array(2.5),
    }
    owner.send(Message({"a": 1, "é": [None, "x"]}, arrays))
    rank.send(rank.receive())
    back = owner.receive()
    assert back.header == {"a": 1, "é": [None, "x"]}
    assert list(back.arrays) == list(arrays)
    for name, array in arrays.items():
        assert back.arrays[name].shape == array.shape
        np.testing.assert_array_equal(back.arrays[name], array)


def test_array_larger_than_the_sockets_buffer_arrives(ends: Ends) -> None:
    array = np.random.default_rng(0).normal(size=1_000_000)
    thread = threading.Thread(target=lambda: ends[0].send(Message({}, {"x": array})))
    thread.start()
    received = ends[1].receive().arrays["x"]
    thread.join()
    np.testing.assert_array_equal(received, array)


@pytest.mark.parametrize("array", [np.array([1j]), np.array(["a"]), np.array([object()]), np.zeros(1, np.float32)])
def test_type_that_is_not_allowed_is_not_sent(ends: Ends, array: np.ndarray) -> None:
    with pytest.raises(WireError, match="is of type"):
        ends[0].send(Message({}, {"x": array}))


def test_wrong_secret_is_refused(sockets: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises((SecretRefused, PeerGone)):
        joined(*sockets, secrets.token_bytes(32), secrets.token_bytes(32))


def test_rank_without_the_secret_is_refused_by_the_owner(sockets: tuple[socket.socket, socket.socket]) -> None:
    owner, rank = sockets
    rank.sendall(struct.pack(">8sI32s", b"distlfm1", 0, bytes(32)) + bytes(32))
    with pytest.raises(SecretRefused):
        wire.admit_rank(owner, b"s" * 32, time.monotonic() + 5)


def test_stranger_that_says_nothing_is_given_up(sockets: tuple[socket.socket, socket.socket]) -> None:
    with pytest.raises(TimeoutError):
        wire.admit_rank(sockets[0], b"s" * 32, time.monotonic() + 0.1)


@pytest.mark.parametrize("where", ["header", "array", "seal"])
def test_tampered_frame_is_refused(ends: Ends, where: str) -> None:
    """One changed bit, in the middle of a valid frame."""
    frame = recorded(ends, Message({"verb": "ping"}, {"x": np.arange(4.0)}))
    place = {"header": frame.index(b"ping"), "array": len(frame) - 40, "seal": len(frame) - 1}[where]
    frame[place] ^= 1
    ends[0].socket.sendall(frame)
    with pytest.raises(WireError):
        ends[1].receive()


def test_repeated_frame_is_refused(ends: Ends) -> None:
    frame = recorded(ends, Message({"verb": "ping"}))
    ends[0].socket.sendall(frame)
    ends[0].socket.sendall(frame)
    assert ends[1].receive().header == {"verb": "ping"}
    with pytest.raises(WireError, match="out of turn"):
        ends[1].receive()


@pytest.mark.parametrize(
    "table",
    [
        [["x", "|O8", [1]]],
        [["x", "<f8", [-1]]],
        [["x", "<f8", [2]]],
        [["x", "<f8", [1 << 40, 1 << 40]]],
        [["x", "<i4", [1]], ["x", "<i4", [1]]],
        "no table",
    ],
)
def test_frame_that_lies_about_its_arrays_is_refused_before_they_are_read(ends: Ends, table: object) -> None:
    head = json.dumps({"header": {}, "arrays": table}).encode()
    ends[0].socket.sendall(struct.pack(">IQ", len(head), 8) + head + bytes(8))
    with pytest.raises(WireError):
        ends[1].receive()


def test_frame_above_the_limit_is_refused_before_it_is_read(ends: Ends) -> None:
    ends[0].socket.sendall(struct.pack(">IQ", 1 << 31, 0))
    with pytest.raises(WireError, match="above the limit"):
        ends[1].receive()


def test_closed_connection_is_told_from_a_damaged_frame(ends: Ends) -> None:
    ends[0].socket.sendall(b"123")
    ends[0].close()
    with pytest.raises(PeerGone):
        ends[1].receive()


def recorded(ends: Ends, message: Message) -> bytearray:
    """The bytes of a frame that `ends[0]` would send, taken off the wire."""
    near, far = socket.socketpair()
    with near, far:
        twin = Channel(near, ends[0]._sending_key, ends[0]._receiving_key)
        twin.send(message)
        return bytearray(far.recv(1 << 16))
