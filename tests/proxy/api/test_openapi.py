"""The OpenAPI document is true: schemathesis holds a running proxy against it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
    unsupported_method,
)

from lodefs.chunkstore.format.inodes import ROOT_INO, child_ino
from lodefs.chunkstore.protocol import cache_control, wire
from lodefs.chunkstore.protocol.cache_control import WarmRequest
from lodefs.proxy.api import openapi, routes
from tests.support.proxy.fake_cache_control import MemoryCacheControl
from tests.support.proxy.fake_node import DictNode, RunningProxy, Symlink, start_proxy

NODE = DictNode(
    {
        b"a.txt": b"hello world",
        b"empty": b"",
        b"d/b\xff": b"x" * 100_000,
        b"link": Symlink(b"a.txt"),
    }
)
DOCUMENT = openapi.document("test")
PATHS = {
    "files": "a.txt",
    "stat": "link",
    "list": "d",
    "nodes": "",
}
DIRECTORY_INO = ROOT_INO
FILE_INO = child_ino(ROOT_INO, b"a.txt")
EXAMPLES_MAX = 12
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    unsupported_method,
]


NODE.place = wire.CachePlace(b"/cache", 1)
NODE.cache_control = CACHE_CONTROL = MemoryCacheControl()
JOB = "0123456789abcdef"
CACHE_CONTROL.put(JOB, WarmRequest("demo"))
BODIES: dict[str, tuple[Any, str]] = {
    wire.CACHE_USED: ([[1, 2], 3, 4096], wire.MSGPACK),
    cache_control.WARM: ({"repo": "demo", "globs": ["**/*.jpg"], "pin_s": 60}, "application/json"),
    cache_control.EVICT: ({"repo": "demo", "dry_run": True}, "application/json"),
}


@schemathesis.serializer(wire.MSGPACK)
def as_msgpack(_context: object, value: object) -> bytes:
    """How schemathesis sends a body that the document only calls MessagePack."""
    return msgspec.msgpack.encode(value)


@pytest.fixture(scope="module")
def proxy() -> Iterator[RunningProxy]:
    with start_proxy(NODE, tcp_is_local=True) as running:
        yield running


pytestmark = pytest.mark.slow
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT)


@SCHEMA.parametrize()
@settings(
    max_examples=EXAMPLES_MAX,
    derandomize=True,
    deadline=None,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_answers_are_as_documented(case: schemathesis.Case[Any], proxy: RunningProxy) -> None:
    """Whatever a client asks, the answer is one that the document foretells."""
    case.call_and_validate(base_url=proxy.url, checks=CHECKS, timeout=60)


def operations() -> list[APIOperation[Any, Any, Any, Any]]:
    """All operations of the document."""
    return [found.ok() for found in SCHEMA.get_all_operations() if isinstance(found, Ok)]


@pytest.mark.parametrize("operation", operations(), ids=lambda one: one.label)
def test_every_operation_can_succeed(
    operation: APIOperation[Any, Any, Any, Any], proxy: RunningProxy
) -> None:
    """With names that are there, each operation answers as documented, and not with a failure."""
    values = {
        "repo": "demo",
        "rev": "main",
        "commit": NODE.commit,
        "path": PATHS.get(operation.path.split("/")[1], ""),
        "id": JOB,
        "ino": FILE_INO if operation.path.endswith("/data") else DIRECTORY_INO,
    }
    names = {one.name for one in operation.path_parameters}
    query = {"name": "a.txt"} if operation.path.endswith("/lookup") else {}
    case = operation.Case(
        path_parameters={name: values[name] for name in names}, query=query, headers={}
    )
    if operation.method == "post":
        case.body, case.media_type = BODIES[operation.path]
    answer = case.call_and_validate(base_url=proxy.url, checks=CHECKS, timeout=60)
    assert answer.status_code // 100 == 2


def test_the_document_is_what_the_proxy_answers(proxy: RunningProxy) -> None:
    """/openapi.json is the document, of OpenAPI 3.1, with unique operation ids."""
    with proxy.client() as client:
        served = client.get("/openapi.json").json()
    assert served == DOCUMENT
    assert served["openapi"] == "3.1.0"
    ids = [one["operationId"] for path in served["paths"].values() for one in path.values()]
    assert len(set(ids)) == len(ids)


def test_every_route_is_in_the_document() -> None:
    """No path of the proxy is left out."""
    kinds = {path.split("/")[1].removesuffix(".json") for path in DOCUMENT["paths"]}
    parts = {path.rpartition("/")[2] for path in DOCUMENT["paths"] if path.startswith("/nodes/")}
    assert kinds == {
        *(routes.FILES, routes.STAT, routes.LIST, routes.TREES, routes.SNAPSHOTS, "nodes"),
        *(routes.HEALTHZ, routes.READYZ, routes.METRICS, routes.STATUS, routes.OPENAPI),
        *(routes.CACHE, routes.WARM, routes.PINS, routes.EVICT),
    }
    assert parts == {"{ino}", routes.CHILDREN, routes.LOOKUP, routes.DATA}
