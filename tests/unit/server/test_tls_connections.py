"""Connections over TLS do what connections do, and shake hands first."""

from __future__ import annotations

import asyncio
import socket
import ssl

import pytest
from echo_bench import Bench, Run, frame, read_frame, until
from test_connection import (
    test_a_busy_connection_yields_to_others,
    test_a_file_shorter_than_promised_ends_the_connection,
    test_a_mistake_in_a_session_closes_only_its_connection,
    test_a_peer_that_never_reads_costs_no_more_than_its_queue,
    test_closing_does_not_wait_for_ever,
    test_closing_lets_accepted_requests_finish,
    test_file_ranges_are_sent_between_bytes,
    test_files_and_places_mix,
    test_frames_of_every_size_arrive_whole,
    test_large_receive_memory_is_given_back,
    test_pipelined_requests_are_answered_in_order,
    test_places_keep_the_order_however_they_are_filled,
    test_reading_stops_at_the_limit_of_places_and_goes_on_later,
    test_receive_memory_is_shared_and_waited_for,
)

__all__ = [
    "test_a_busy_connection_yields_to_others",
    "test_a_file_shorter_than_promised_ends_the_connection",
    "test_a_mistake_in_a_session_closes_only_its_connection",
    "test_a_peer_that_never_reads_costs_no_more_than_its_queue",
    "test_closing_does_not_wait_for_ever",
    "test_closing_lets_accepted_requests_finish",
    "test_file_ranges_are_sent_between_bytes",
    "test_files_and_places_mix",
    "test_frames_of_every_size_arrive_whole",
    "test_large_receive_memory_is_given_back",
    "test_pipelined_requests_are_answered_in_order",
    "test_places_keep_the_order_however_they_are_filled",
    "test_reading_stops_at_the_limit_of_places_and_goes_on_later",
    "test_receive_memory_is_shared_and_waited_for",
]


@pytest.fixture
def serve(serve_tls: Run) -> Run:
    return serve_tls


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_are_spoken(serve: Run, version: ssl.TLSVersion) -> None:
    async def test(bench: Bench) -> None:
        assert bench.trust is not None
        bench.trust.minimum_version = bench.trust.maximum_version = version
        reader, writer = await bench.connect()
        assert writer.get_extra_info("ssl_object").version() == version.name.replace("_", ".")
        writer.write(frame(b"Ehello"))
        assert await read_frame(reader) == b"hello"
        writer.close()

    serve(test)


def test_bytes_that_are_no_tls_are_refused_and_reach_nobody(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await asyncio.open_connection(*bench.address)
        writer.write(frame(b"Ehello"))
        assert len(await reader.read()) < 16  # an alert, then the end
        assert bench.sessions == []
        writer.close()
        await until(lambda: bench.metrics.connections_closed == 1)

    serve(test)


def test_a_handshake_that_never_ends_is_cut(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        # The head of a message that never comes: counted, then closed.
        reader, writer = await asyncio.open_connection(*bench.address)
        writer.write(bytes([0x16, 3, 1, 2, 0]))
        await until(lambda: bench.metrics.connections_opened == 1)
        assert await asyncio.wait_for(reader.read(), 30) == b""
        assert bench.sessions == []
        writer.close()

    serve(test, tls_handshake_timeout_ms=200)


def test_those_who_shake_hands_count_as_connections(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        with socket.create_connection(bench.address):
            await until(lambda: bench.metrics.connections_opened == 1)
            with pytest.raises((ConnectionError, ssl.SSLError)):
                await bench.connect()
            assert bench.metrics.connections_refused == 1

    serve(test, connections_max=1)


def test_a_farewell_is_answered_by_one(serve: Run) -> None:
    async def test(bench: Bench) -> None:
        reader, writer = await bench.connect()
        writer.write(frame(b"Ehello"))
        assert await read_frame(reader) == b"hello"
        writer.close()
        await writer.wait_closed()
        await until(lambda: bench.metrics.connections_closed == 1)

    serve(test)


def test_a_hang_up_comes_after_what_was_queued_here_too(serve: Run) -> None:
    """With a client of the standard library: that of uvloop forgets bytes before a farewell."""

    async def test(bench: Bench) -> None:
        def client() -> bytes:
            assert bench.trust is not None
            with (
                socket.create_connection(bench.address) as plain,
                bench.trust.wrap_socket(plain, server_hostname="localhost") as ciphered,
            ):
                ciphered.sendall(frame(b"A5000000") + frame(b"H") + frame(b"Enever"))
                parts = []
                while part := ciphered.recv(1 << 16):
                    parts.append(part)
                return b"".join(parts)

        got = await asyncio.to_thread(client)
        assert got == frame(bytes(5_000_000)) + frame(b"bye")

    serve(test)
