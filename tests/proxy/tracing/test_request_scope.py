"""A request has one id, in its log lines and its answer, and stays in the trace of its client."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from lodefs.chunkstore.format.inodes import ROOT_INO
from lodefs.chunkstore.objects.interface import Part
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client as ReadClient
from lodefs.chunkstore.protocol.trace_context import TraceContext, current_trace
from lodefs.chunkstore.protocol.wire import Entry as Entry
from lodefs.chunkstore.protocol.wire import Snapshot
from lodefs.proxy.node import SnapshotFile
from lodefs.proxy.runtime.thread_pools import Pool
from lodefs.proxy.s3.buckets import S3Settings
from lodefs.proxy.service.logs import JsonFormatter
from lodefs.proxy.tracing.request_scope import ID_HEADER, RequestFields, current_request, serving
from tests.support.proxy.cluster import cluster_of, slow_clock_s
from tests.support.proxy.fake_node import Content, DictNode, RunningProxy, start_proxy
from tests.support.proxy.rig import Rig, read_path

TRACE = TraceContext("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7", True)
PARENT = TRACE.headers["traceparent"]
FILES: dict[bytes, Content] = {b"a.txt": b"hello world", b"broken": b"12345"}


class TracedNode(DictNode):
    """A node that notes for which trace its files were asked for."""

    def __init__(self) -> None:
        super().__init__(FILES, extents=True)
        self.traces: list[TraceContext | None] = []
        self.failures[b"broken"] = (0, RuntimeError("a mistake"))

    async def file(self, snapshot: Snapshot, path: bytes) -> Entry | SnapshotFile:
        """As of proxy.node.Names."""
        self.traces.append(current_trace.get())
        return await super().file(snapshot, path)

    async def by_ino(self, snapshot: Snapshot, ino: int) -> Entry:
        """As of proxy.node.Names."""
        self.traces.append(current_trace.get())
        return await super().by_ino(snapshot, ino)


@pytest.fixture
def node() -> Iterator[TracedNode]:
    made = TracedNode()
    yield made
    made.close()


@pytest.fixture
def proxy(node: TracedNode) -> Iterator[RunningProxy]:
    with start_proxy(node, s3=S3Settings()) as running:
        yield running


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What a proxy would log, as JSON lines."""
    said = io.StringIO()
    handler = logging.StreamHandler(said)
    handler.setFormatter(JsonFormatter())
    handler.addFilter(RequestFields())
    log = logging.getLogger("lodefs")
    log.addHandler(handler)
    yield said
    log.removeHandler(handler)


def test_an_error_has_its_id_everywhere(proxy: RunningProxy, lines: io.StringIO) -> None:
    """The header, the body and the log's line of one failure tell the same id, each its own."""
    with proxy.client() as client:
        failed = client.get("/files/demo@main/broken", traceparent=PARENT)
    with proxy.client() as client:
        missing = client.get("/files/demo@main/none")
    assert (failed.status, missing.status) == (500, 404)
    name = failed.json()["request_id"]
    assert name == failed.header(ID_HEADER) != missing.json()["request_id"]
    assert missing.json()["request_id"] == missing.header(ID_HEADER) != ""
    (line,) = [json.loads(one) for one in lines.getvalue().splitlines()]
    assert (line["request_id"], line["trace_id"]) == (name, TRACE.trace_id)


@pytest.mark.parametrize(
    ("given", "taken"),
    [("job-7/step:3", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("<i>", False)],
)
def test_a_sane_id_of_the_client_is_taken(proxy: RunningProxy, given: str, taken: bool) -> None:
    """It comes back with good answers and bad ones; any other is as if it had not been sent."""
    with proxy.client() as client:
        good = client.get("/files/demo@main/a.txt", X_Request_Id=given)
        bad = client.get("/files/demo@main/none", X_Request_Id=given)
    assert good.header(ID_HEADER) == (given if taken else None)
    assert (bad.json()["request_id"] == bad.header(ID_HEADER) == given) is taken
    assert bad.header(ID_HEADER)


def test_a_request_that_is_no_http_has_an_id(proxy: RunningProxy) -> None:
    """Also what could not be parsed can be found in the log."""
    with proxy.connect() as connected:
        connected.sendall(b"NONSENSE\r\n\r\n")
        answer = http.client.HTTPResponse(connected)
        answer.begin()
        body = json.loads(answer.read())
    assert answer.status == 400
    assert answer.getheader(ID_HEADER) == body["request_id"] != ""


def test_s3s_errors(proxy: RunningProxy) -> None:
    """A client of S3 gets the same id in S3's places."""
    with socket.create_connection(("127.0.0.1", proxy.s3_port), timeout=60) as connected:
        connected.sendall(b"GET /lodefs/none HTTP/1.1\r\nHost: x\r\nX-Request-Id: abc\r\n\r\n")
        answer = http.client.HTTPResponse(connected)
        answer.begin()
        body = answer.read()
    assert answer.status >= 400
    assert b"<RequestId>abc</RequestId>" in body
    assert answer.getheader(ID_HEADER) == answer.getheader("x-amz-request-id") == "abc"


@pytest.mark.parametrize("parent", [PARENT, "nonsense", f"{PARENT}, {PARENT}"])
def test_the_trace_of_the_client(proxy: RunningProxy, node: TracedNode, parent: str) -> None:
    """What is asked of the node belongs to it; a malformed one begins another, recorded by
    nobody."""
    with proxy.client() as client:
        assert client.get("/files/demo@main/a.txt", traceparent=parent).status == 200
        assert client.get("/files/demo@main/a.txt").status == 200
    traced, untraced = node.traces
    assert untraced is None
    assert traced is not None
    assert (traced == TRACE) is (parent == PARENT)
    assert traced.sampled is (parent == PARENT)


def test_the_hot_path_knows_nothing_of_it(proxy: RunningProxy, node: TracedNode) -> None:
    """Plain requests are answered there, without an id, and those with a trace are not; hundreds of
    different traces do not make it forget."""
    target = f"/files/demo@{node.commit}/a.txt"
    with proxy.client() as client:
        for _ in range(3):
            assert client.get(target).header(ID_HEADER) is None
            proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        hot = proxy.call(lambda: proxy.server.metrics.fast_answers)
        for number in range(1, 300):
            parent = f"00-{number:032x}-{TRACE.span_id}-01"
            assert client.get(target, traceparent=parent).body == b"hello world"
        assert proxy.call(lambda: proxy.server.metrics.fast_answers) == hot > 0
        proxy.until(lambda: all(one.idle for one in proxy.server.connections))
        assert client.get(target).body == b"hello world"
    assert proxy.call(lambda: proxy.server.metrics.fast_answers) == hot + 1


def test_exemplars_name_traces_that_are_recorded(proxy: RunningProxy) -> None:
    """OpenMetrics leads from a slow bucket to a trace."""
    unrecorded = TraceContext("1" * 32, TRACE.span_id).headers["traceparent"]
    with proxy.client() as client:
        client.get("/files/demo@main/a.txt", traceparent=PARENT)
        client.get("/files/demo@main/none", traceparent=unrecorded)
        body = client.get("/metrics", Accept="application/openmetrics-text").body.decode()
    assert f'# {{trace_id="{TRACE.trace_id}"}}' in body
    assert "1" * 32 not in body


def test_from_a_mount(proxy: RunningProxy, node: TracedNode) -> None:
    """A client of a job that is traced sends its trace with each request."""
    client = ReadClient(parse_address(proxy.address), timeout_s=60).traced(TRACE)
    client.mounted(client.snapshot("demo", "main"))
    assert client.node(ROOT_INO).ino == ROOT_INO
    client.close()
    assert node.traces == [TRACE]


def test_from_node_to_node_to_the_store(tmp_path: Path) -> None:
    """What a reader waits for belongs to its trace and its id, in each node and at the store."""
    big = Random(1).randbytes(200_000)  # 20 packs: each node owns some
    rig = Rig(tmp_path, {b"big": big}, chunk_size_bytes=2_000, pack_chunks=5)
    seen: list[tuple[TraceContext | None, str | None]] = []

    def note(_key: str, part: Part) -> Part:
        scope = current_request.get()
        seen.append((current_trace.get(), scope.id if scope else None))
        return part

    async def run() -> int:
        async with cluster_of(rig, 2, clock_s=slow_clock_s) as members:
            rig.objects.answer = note
            with serving({ID_HEADER: "job-7", "traceparent": PARENT}):
                await read_path(members[0].node, b"big")
            return sum(member.server.metrics.requests("peers") for member in members)

    assert asyncio.run(run()) > 0
    assert set(seen) == {(TRACE, "job-7")}


def test_threads_work_for_the_request_that_asked() -> None:
    """And for no other afterwards."""

    async def run() -> list[str]:
        pool = Pool("test", threads=1)
        try:
            found = []
            for name in ("one", "two"):
                with serving({ID_HEADER: name}):
                    found.append(await pool.run(_name_in_thread))
            return [*found, await pool.run(_name_in_thread)]
        finally:
            await pool.close()

    assert asyncio.run(run()) == ["one", "two", ""]


def _name_in_thread() -> str:
    scope = current_request.get()
    return scope.id if scope else ""
