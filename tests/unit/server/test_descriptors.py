"""What a socket knows of its peer."""

from __future__ import annotations

import select
import socket

from pentalog.server.descriptors import unsent_bytes


def test_a_slow_peer_is_seen_to_read_before_the_socket_accepts_more() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as reader,
        server.accept()[0] as writer,
    ):
        writer.setblocking(False)
        try:
            while True:
                writer.send(bytes(1 << 20))
        except BlockingIOError:
            pass
        unread_bytes = unsent_bytes(writer)
        assert unread_bytes > 0
        # Less than a third of what the socket has accepted.
        while unsent_bytes(writer) == unread_bytes:
            assert reader.recv(4096)
        assert 0 < unsent_bytes(writer) < unread_bytes
        assert select.select([], [writer], [], 0)[1] == [], "its loop would not be woken yet"
