"""A tiny DNS server on loopback, over UDP and TCP."""

from __future__ import annotations

import socketserver
import struct
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import dns.exception
import dns.flags
import dns.message
import dns.rcode
import dns.rdatatype
import dns.rrset

HOST = "127.0.0.1"
UDP_BYTES_MAX = 512


class NameServer:
    """Answers with ``records``, by name (with its last dot) and kind; other names are not there."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], list[str]] = {}
        self.ttl_s = 17
        self.rcode: dns.rcode.Rcode | None = None  # answered to everything
        self.silent = False
        self.asked: list[tuple[str, str]] = []
        self.port = 0

    def set(self, name: str, kind: str, records: Sequence[str]) -> None:
        """Replace the records of a name; an empty list: the name is there, and has none."""
        self.records[name, kind] = list(records)

    def answer(self, wire: bytes, *, is_udp: bool) -> bytes:
        """The answer to one question; b"" for none."""
        query = dns.message.from_wire(wire)
        question = query.question[0]
        asked = (question.name.to_text().lower(), dns.rdatatype.to_text(question.rdtype))
        self.asked.append(asked)
        if self.silent:
            return b""
        response = dns.message.make_response(query)
        if self.rcode is not None:
            response.set_rcode(self.rcode)
        elif asked in self.records:
            if self.records[asked]:
                rrset = dns.rrset.from_text(
                    question.name, self.ttl_s, "IN", asked[1], *self.records[asked]
                )
                response.answer.append(rrset)
        elif not any(name == asked[0] for name, _ in self.records):
            response.set_rcode(dns.rcode.NXDOMAIN)
        try:
            return response.to_wire(max_size=UDP_BYTES_MAX if is_udp else 65535)
        except dns.exception.TooBig:
            response.answer.clear()
            response.flags |= dns.flags.TC
            return response.to_wire()


@contextmanager
def name_server() -> Iterator[NameServer]:
    """A server that runs meanwhile, on a free port."""
    server = NameServer()

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            wire, sock = self.request
            answer = server.answer(wire, is_udp=True)
            if answer:
                sock.sendto(answer, self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            (size,) = struct.unpack("!H", self.rfile.read(2))
            answer = server.answer(self.rfile.read(size), is_udp=False)
            self.wfile.write(struct.pack("!H", len(answer)) + answer)

    with (
        socketserver.ThreadingTCPServer((HOST, 0), Stream) as tcp,
        socketserver.ThreadingUDPServer(tcp.server_address, Datagram) as udp,
    ):
        server.port = tcp.server_address[1]
        threads = [threading.Thread(target=one.serve_forever, args=(0.01,)) for one in (tcp, udp)]
        for thread in threads:
            thread.start()
        try:
            yield server
        finally:
            tcp.shutdown()
            udp.shutdown()
            for thread in threads:
                thread.join()
