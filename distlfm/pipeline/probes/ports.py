"""Can a program here listen on a free port of the loopback interface, and be reached?"""

from __future__ import annotations

import socket

from distlfm.pipeline.probes.answer import expect, reply

ANSWER_SECONDS = 5.0


def check() -> str:
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(ANSWER_SECONDS)
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port), timeout=ANSWER_SECONDS) as client:
            accepted, _ = server.accept()
            with accepted:
                client.sendall(b"?")
                expect(accepted.recv(1) == b"?", "a byte sent over loopback did not arrive")
    return f"listened on 127.0.0.1:{port} and was reached"


if __name__ == "__main__":
    reply(check)
