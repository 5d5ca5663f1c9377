"""What the store lacks comes from the site's hub, once for all nodes and clients."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import Any
from urllib.request import Request, urlopen

import huggingface_hub as hf
import msgspec
import psutil
import pytest
from huggingface_hub import errors

from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.protocol.orders.hub_orders import HubOrder, HubOutcome, HubRequest
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.repo.store import create_store
from lodefs.proxy.hub import upstream as upstream_module
from lodefs.proxy.hub.upstream import HubUpstream, UpstreamSettings
from tests.support.chunkstore.hub_server import HubServer, etag_of, serve_hub
from tests.support.proxy.hub_site import hub_site
from tests.support.proxy.rig import until

WEIGHTS = bytes(range(256)) * 5000
FILES = {"config.json": b"{}", "sub/model.safetensors": WEIGHTS, "empty": b""}
ORDER = HubOrder("model", "org/name", "main", "org/name")
REQUEST = HubRequest(ORDER)


def by_id(sha: str) -> HubRequest:
    """The same repository at a commit."""
    return HubRequest(msgspec.structs.replace(ORDER, rev=sha))


@pytest.fixture
def hub() -> Iterator[HubServer]:
    """A hub with a model, whose requests are counted."""
    with serve_hub() as server:
        server.repository("org/name").commit(FILES)
        yield server


def download(endpoint: str, folder: Path) -> dict[str, bytes]:
    """The files of a snapshot that a client fetches through a node, by path."""
    found = Path(
        hf.snapshot_download("org/name", endpoint=endpoint, cache_dir=folder, etag_timeout=60)
    )
    return {
        str(path.relative_to(found)): path.read_bytes()
        for path in found.rglob("*")
        if path.is_file()
    }


@pytest.mark.slow
def test_two_nodes(tmp_path: Path, hub: HubServer) -> None:
    """Clients of two nodes that ask at once get equal files, with the hub's own commit and tags;
    the hub sends each byte once, and what was fetched is there when it is away."""
    sha = hub.repository("org/name").branches["main"]
    with hub_site(tmp_path, hub.url, nodes=2) as endpoints, ThreadPoolExecutor(4) as threads:
        folders = [tmp_path / f"home-{number}" for number in range(4)]
        found = [*threads.map(download, endpoints * 2, folders)]
        assert found == [FILES] * 4
        reads = {path: n for path, n in hub.reads().items() if path.startswith("GET ")}
        assert set(reads.values()) == {1}
        blob = folders[0] / "models--org--name" / "blobs" / etag_of(WEIGHTS)
        assert blob.read_bytes() == WEIGHTS
        hub.is_away = True
        for endpoint in endpoints:
            api = hf.HfApi(endpoint, token=False)
            assert api.model_info("org/name").sha == sha
            assert api.model_info("org/name", revision=sha).sha == sha


@pytest.mark.slow
def test_what_is_not_fetched(tmp_path: Path, hub: HubServer) -> None:
    """Clients get the hub's own refusals; the site's token counts, and a client's does not. Another
    revision is fetched by its id alone; a branch in the store stays where it is."""
    token = tmp_path / "token"
    token.write_text("site")
    token.chmod(0o600)
    hub.token = "site"
    gated = hub.repository("org/gated")
    gated.is_gated = True
    gated.commit(FILES)
    hub.repository("datasets/org/large").commit({"x": b"x" * 2_000_000})
    more: dict[str, Any] = {"hub_token_file": str(token), "hub_size_bytes_max": "1900kB"}
    with hub_site(tmp_path, hub.url, **more) as [endpoint]:
        api = hf.HfApi(endpoint, token=False)
        assert api.model_info("org/gated").siblings
        hub.token = "client"
        hub.repository("org/closed").is_gated = True
        with pytest.raises(errors.GatedRepoError):
            hf.HfApi(endpoint, token="client").model_info("org/closed")
        with pytest.raises(errors.RepositoryNotFoundError):
            api.model_info("org/none")
        with pytest.raises(errors.HfHubHTTPError, match="at most 1,900,000"):
            api.dataset_info("org/large")
        first = api.model_info("org/name").sha
        second = hub.repository("org/name").commit({"config.json": b"[]"})
        assert api.model_info("org/name").sha == first
        assert api.list_repo_files("org/name", revision=second) == ["config.json"]
        with pytest.raises(errors.RevisionNotFoundError):
            api.model_info("org/name", revision="v9")
        hub.is_away = True
        with pytest.raises(errors.HfHubHTTPError) as away:
            api.model_info("org/other")
        assert away.value.response.status_code == 503


@pytest.mark.slow
def test_files_that_are_on_their_way(tmp_path: Path, hub: HubServer) -> None:
    """While a large file comes, both nodes tell what the hub lists, give small files, and the
    beginning of the large one; when the process that fetches is killed, another one goes on, and
    a client that waits gets the rest."""
    large = Random(1).randbytes(9 << 20)
    sha = hub.repository("org/name").commit({**FILES, "a.bin": large})
    hub.rest.clear()
    with (
        hub_site(tmp_path, hub.url, nodes=2) as endpoints,
        ThreadPoolExecutor(2) as threads,
    ):
        for endpoint in endpoints:
            info = hf.HfApi(endpoint, token=False).model_info("org/name", files_metadata=True)
            assert info.sha == sha and info.siblings is not None
            sizes = {one.rfilename: one.size for one in info.siblings}
            assert sizes == {"a.bin": 9 << 20} | {path: len(data) for path, data in FILES.items()}
            urls = [hf.hf_hub_url("org/name", "a.bin", endpoint=endpoint) for endpoint in endpoints]
            told = hf.get_hf_file_metadata(urls[0], token=False, timeout=60)
            assert (told.etag, told.size, told.commit_hash) == (etag_of(large), 9 << 20, sha)
            config = hf.hf_hub_download(
                "org/name",
                "config.json",
                endpoint=endpoint,
                local_dir=tmp_path / "local",
                etag_timeout=60,
            )
            assert Path(config).read_bytes() == b"{}"
            assert ranged(f"{endpoint}/org/name/resolve/{sha}/a.bin", 0, 99) == large[:100]
        waiting = [threads.submit(ranged, url, 0, len(large) - 1) for url in urls]
        [process] = [one for one in psutil.Process().children(recursive=True) if fetches(one)]
        process.kill()
        process.wait()
        hub.rest.set()
        assert [one.result() for one in waiting] == [large] * 2
        assert download(endpoints[0], tmp_path / "home") == {**FILES, "a.bin": large}
    assert hub.ranges[etag_of(large), 0] == 1
    assert {n for (_, first), n in hub.ranges.items() if first} <= {1, 2}


def ranged(url: str, first: int, last: int) -> bytes:
    """Bytes of a file."""
    request = Request(url, headers={"Range": f"bytes={first}-{last}"})
    with urlopen(request, timeout=120) as answer:
        return bytes(answer.read())


def fetches(process: psutil.Process) -> bool:
    try:
        return any("hub_fetch" in word for word in process.cmdline())
    except psutil.NoSuchProcess:  # it has ended meanwhile
        return False


class Nodes:
    """Implements OwnerNodes: another node owns all, and answers what the test says."""

    def __init__(self, *answers: HubOutcome | Unavailable) -> None:
        self.answers = [*answers]

    def owner(self, key: bytes) -> str | None:
        return "other:7441"

    async def fetch_hub(self, address: str, request: HubRequest) -> HubOutcome:
        answer = self.answers.pop(0)
        if isinstance(answer, Unavailable):
            raise answer
        return answer


def settings_of(tmp_path: Path, url: str) -> UpstreamSettings:
    store = tmp_path / "store"
    create_store(DirectoryObjects(str(store)))
    place = StorePlace(str(store), None, None, str(tmp_path / "push-index"))
    return UpstreamSettings(url, place, tmp_path / "hub", None, 1 << 30)


def test_the_owner_is_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another node's fetch is awaited, and its outcome is told to all who asked here."""
    monkeypatch.setattr("lodefs.proxy.hub.upstream.ASK_EVERY_S", 0.0)
    done = HubOutcome("done", "there")
    nodes = Nodes(HubOutcome("running"), HubOutcome("running"), done)

    async def ask() -> list[HubOutcome]:
        upstream = HubUpstream(settings_of(tmp_path, "http://127.0.0.1:9"), nodes)
        return [*await asyncio.gather(upstream.reach(REQUEST), upstream.reach(REQUEST))]

    assert asyncio.run(ask()) == [done, done]
    assert not nodes.answers


@pytest.mark.slow
def test_an_owner_that_is_away(tmp_path: Path, hub: HubServer) -> None:
    """This node fetches in its place, once, and tells the outcome again for a while."""

    async def ask() -> list[HubOutcome]:
        upstream = HubUpstream(settings_of(tmp_path, hub.url), Nodes(Unavailable("away")))
        listed = await upstream.reach(REQUEST)
        await until(lambda: upstream.begin(REQUEST).state != "running")
        found = [listed, upstream.begin(REQUEST), upstream.begin(by_id(listed.sha))]
        await upstream.close()
        return found

    listed, ended, again = asyncio.run(ask())
    assert listed.sha == ended.sha == hub.repository("org/name").branches["main"]
    assert ended.state == "done" and again == ended


SHA = "0123456789" * 4
# Fetches one commit under all names; that of "main" ends when somebody waits for a file
SCRIPT = f"""
import json, sys
place, order = (json.loads(sys.stdin.readline()) for _ in range(2))
rev = order["wanted"]["rev"]
with open(place["index_dir"], "a") as runs: runs.write(rev + " ")
print(json.dumps({{"state": "running", "sha": "{SHA}"}}), flush=True)
path = json.loads(sys.stdin.readline())
print(json.dumps({{"state": "done", "sha": "{SHA}", "message": path}}), flush=True)
"""


def test_two_names_of_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A commit is fetched once, whatever it is called, and the one process that fetches it hears of
    files that somebody waits for under any of its names."""
    monkeypatch.setattr(upstream_module, "_COMMAND", [sys.executable, "-ISc", SCRIPT])
    other = HubRequest(msgspec.structs.replace(ORDER, rev="v1"))
    settings = settings_of(tmp_path, "http://127.0.0.1:9")
    runs, find_twin = Path(settings.place.index_dir), HubUpstream._twin
    twins: list[str] = []

    def noted(self: HubUpstream, fetch: upstream_module._Fetch, sha: str) -> object:
        found = find_twin(self, fetch, sha)
        twins.extend([fetch.order.rev] if found is not None else [])
        return found

    monkeypatch.setattr(HubUpstream, "_twin", noted)

    async def ask() -> list[HubOutcome]:
        upstream = HubUpstream(settings)
        found = [await upstream.reach(REQUEST)]
        second = asyncio.create_task(upstream.reach(other))
        await until(lambda: twins == ["v1"])
        found.append(upstream.begin(msgspec.structs.replace(by_id(SHA), path="x")))
        await until(lambda: upstream.begin(REQUEST).state == "done")
        found.append(upstream.begin(REQUEST))
        found.append(await second)
        await upstream.close()
        return found

    listed, again, done, of_other = asyncio.run(ask())
    assert (listed.state, again.state, done.state) == ("running", "running", "done")
    assert done.message == "x" and runs.read_text() == "main v1 v1 "
    assert {one.sha for one in (listed, again, done, of_other)} == {SHA}


def test_failures_in_a_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that ends without an outcome is started again at once for those who wait, then
    after 2 s for those who ask, then after 6 s."""
    monkeypatch.setattr(upstream_module, "_COMMAND", ["true"])
    now_s = [0.0]

    async def ask() -> list[int]:
        upstream = HubUpstream(
            settings_of(tmp_path, "http://127.0.0.1:9"), clock_s=lambda: now_s[0]
        )
        lasting = []
        for _ in range(3):
            assert (await upstream.reach(REQUEST)).state == "failed"
            begun_s = now_s[0]
            while upstream.begin(REQUEST).state == "failed":
                now_s[0] += 1
            lasting.append(int(now_s[0] - begun_s))
        await upstream.close()
        return lasting

    assert asyncio.run(ask()) == [2, 6, 14]


@pytest.mark.slow
def test_a_fetch_ends_with_its_node(tmp_path: Path, hub: HubServer) -> None:
    """A node that ends kills the process that fetches, whatever that waits for."""
    hub.answers.clear()

    async def begin_and_close() -> None:
        upstream = HubUpstream(settings_of(tmp_path, hub.url))
        others = set(psutil.Process().children())
        assert upstream.begin(REQUEST).state == "running"
        await until(lambda: bool(hub.requests))
        [process] = set(psutil.Process().children()) - others
        await upstream.close()
        assert not process.is_running()

    asyncio.run(begin_and_close())
