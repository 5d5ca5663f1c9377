"""Whose pins a user may release where rules of access count."""

from __future__ import annotations

import asyncio
import json
import os
import socket

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.protocol.access import AccessRule, AccessRules
from lodefs.chunkstore.protocol.cache_control import EvictRequest, WarmRequest
from lodefs.proxy.api import routes
from lodefs.proxy.api.control_handlers import CacheControlHandlers
from lodefs.proxy.api.request import EVERYBODY, Reader, Request
from lodefs.proxy.api.routes import Route
from lodefs.proxy.http.local_readers import LocalReaders
from tests.support.proxy.fake_cache_control import MemoryCacheControl
from tests.support.proxy.fake_node import DictNode

RELEASE = {"everything": True, "pins_only": True, "all_nodes": True}


def asked(kind: str, reader: Reader, **body: object) -> WarmRequest | EvictRequest:
    """What a request comes to."""
    node = DictNode({b"a": b"x"})
    node.cache_control = control = MemoryCacheControl()
    request = Request("POST", body=json.dumps(body).encode(), reader=reader)

    async def ask() -> None:
        await CacheControlHandlers(node).of[kind](Route(kind), request)

    asyncio.run(ask())
    return control.requests[0]


def test_each_user_has_owners_of_its_own() -> None:
    """What one pins for an owner, such as a job, it releases on all nodes; nobody else can name it,
    but root."""
    one, other = (Reader(is_limited=True, uid=uid) for uid in (1000, 1001))
    held = asked(routes.WARM, one, repo="a/b", owner="slurm-7").owner
    assert asked(routes.EVICT, one, **RELEASE, owner="slurm-7").owner == held
    assert asked(routes.EVICT, other, **RELEASE, owner="slurm-7").owner != held
    assert asked(routes.EVICT, other, **RELEASE, owner=held).owner != held
    assert asked(routes.EVICT, other, repo="a/b", owner=held).owner != held
    assert asked(routes.EVICT, EVERYBODY, **RELEASE, owner=held).owner == held
    assert asked(routes.WARM, one, repo="a/b").owner == ""
    with pytest.raises(InvalidInput, match="too long"):
        asked(routes.WARM, one, repo="a/b", owner="x" * 64)


@pytest.mark.parametrize(
    "body", [{}, {"owner": ""}, {"owner": "x", "pins_only": False}, {"owner": None}]
)
def test_everything_of_all_is_roots(body: dict[str, object]) -> None:
    """A limited user needs an owner's name, and drops no files of others."""
    with pytest.raises(Denied, match="name a repository"):
        asked(routes.EVICT, Reader(is_limited=True, uid=1000), **(RELEASE | body))


def test_the_kernel_says_which_user_it_is() -> None:
    """Also where users share what the fast path knows."""
    rules = AccessRules((AccessRule("*", frozenset({4242424})),), frozenset())
    first, second = socket.socketpair()
    with first, second:
        found = [LocalReaders(lambda: rules).of(one).reader for one in (first, second)]
    assert [(reader.is_limited, reader.uid) for reader in found] == [(True, os.getuid())] * 2
