"""Clients of the Unix socket, and what each may read if the settings have access rules."""

from __future__ import annotations

import grp
import logging
import os
import socket
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from lodefs.chunkstore.protocol.access import AccessRules, CurrentRules
from lodefs.chunkstore.system.sockets import Peer, peer_of
from lodefs.proxy.api.fast_path import KnownHeaders
from lodefs.proxy.api.request import Reader
from lodefs.proxy.runtime.thread_pools import NOBODY, REMOTE, remote_owner

KINDS_MAX = 1024  # of users, by the groups in the rules
_NOBODY = Peer(0xFFFFFFFE, frozenset())
_log = logging.getLogger("lodefs.proxy")


class LocalReader:
    """A client, and the headers that the fast path knows for clients with the same rights."""

    def __init__(self, reader: Reader, blocks: KnownHeaders) -> None:
        self.reader = reader
        self.blocks = blocks


class LocalReaders:
    """All clients of one Unix socket."""

    def __init__(self, rules: Callable[[], AccessRules]) -> None:
        self._rules = rules
        self._known = rules()  # the rules for which kinds exist
        self._kinds: dict[frozenset[int] | None, LocalReader] = {}

    def look(self) -> None:
        """Looks up missing groups again if that is due, so that the first client after a quiet time
        is not bound to old rules. Call it about once a second."""
        self._rules()

    def of(self, sock: socket.socket) -> LocalReader:
        """Returns the client at the other end; one without rights if the kernel does not say."""
        try:
            peer = peer_of(sock)
        except OSError:
            peer = _NOBODY
        rules = self._rules()
        if rules is not self._known:
            self._known = rules
            self._kinds.clear()
        kind = rules.kind_of(peer)
        found = self._kinds.get(kind)
        if found is None:
            found = LocalReader(_reader(peer, rules if kind is not None else None), KnownHeaders())
            if len(self._kinds) < KINDS_MAX:
                self._kinds[kind] = found
        if kind is None:
            return found
        return LocalReader(replace(found.reader, uid=peer.uid), found.blocks)


def _reader(peer: Peer, rules: AccessRules | None) -> Reader:
    """Returns a reader with these rules, which stay while the connection is open: clients of one
    kind share what the fast path knows, so no other rules may let one of them in."""
    if rules is None:
        return Reader()
    return Reader(may_read=lambda repo: rules.may_read(peer, repo), is_limited=True)


def local_readers(table: Mapping[str, Sequence[str]]) -> LocalReaders | None:
    """Returns the clients by the settings' rules; None if everybody may read everything."""
    rules = CurrentRules(
        table, _gid_of, free_uids=(0, os.geteuid()), say=lambda line: _log.warning("%s", line)
    )
    return LocalReaders(rules) if rules() else None


def _gid_of(group: str) -> int | None:
    try:
        return grp.getgrnam(group).gr_gid
    except KeyError:
        return None


def owner_of(sock: socket.socket) -> str:
    """Returns the owner of a connection, as in thread_pools.current_owner, unless a token says
    more. NOBODY is root, or the proxy's own user, who may name the owner."""
    try:
        if sock.family != socket.AF_UNIX:
            return remote_owner(sock.getpeername()[0])
        uid = peer_of(sock).uid
    except OSError:
        return REMOTE
    return NOBODY if uid in (0, os.geteuid()) else str(uid)
