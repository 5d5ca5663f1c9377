"""``lodefs repair``, as a user runs it."""

from __future__ import annotations

import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from lodefs.app import run
from lodefs.chunkstore.objects.open_url import open_objects
from lodefs.chunkstore.repo.store import open_store
from lodefs.proxy.cache.tables import CacheSettings
from lodefs.proxy.http.tokens import create_token
from lodefs.proxy.service.store_node import NodeSettings, StoreNode
from lodefs.settings.session import Session
from tests.support.proxy.fake_node import start_proxy
from tests.support.proxy.rig import read_path


def test_name_and_repair(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Lost packs are named with their files; the directory that was pushed repairs data and trees,
    another store also what has changed there; bad sources are refused."""

    def lodefs(*line: str) -> tuple[int, str, str]:
        code = run(list(line), Session({"HOME": str(tmp_path), "LODEFS_STORE": store}))
        return code, *capfd.readouterr()

    store, source, copy = str(tmp_path / "store"), tmp_path / "source", tmp_path / "copy"
    source.mkdir()
    (source / "a").write_bytes(bytes(range(256)) * 99)
    lodefs("init", store)
    lodefs("push", str(source), "x/y")
    shutil.copytree(store, copy)
    assert lodefs("repair", "--data")[:2] == (0, "1 commit, 2 packs: all is well\n")
    packs = sorted(Path(store, "packs").glob("*/*"), key=lambda path: path.stat().st_size)
    trees, data = packs
    data.write_bytes(bytes(data.stat().st_size))
    code, out, _ = lodefs("repair", "--json")
    (problem,) = json.loads(out)["problems"]
    assert (code, problem["repaired_from"]) == (1, None)
    assert ":a" in problem["concerns"][0]
    assert lodefs("repair", "--from", str(source), "--dry-run")[0] == 1
    code, out, _ = lodefs("repair", "--from", str(source))
    assert code == 0
    assert f"repaired from {source}" in out
    trees.unlink()
    assert lodefs("repair", "--from", str(source))[0] == 0
    trees.unlink()
    (source / "a").write_bytes(b"changed")
    assert lodefs("repair", "--from", str(source))[0] == 1
    data.unlink()
    trees.write_bytes(Path(copy, trees.relative_to(store)).read_bytes())
    code, out, _ = lodefs("repair", "--from", str(source))
    assert code == 1
    assert "not repaired: no source has 1 of its 1 chunks, of x/y@" in out
    assert ":a; `lodefs push --check`" in out
    assert lodefs("repair", "--from", str(copy))[0] == 0
    assert lodefs("verify", "--data")[0] == 0
    for shard in Path(store, "index").iterdir():
        shard.unlink()
    assert "listed: 2 packs" in lodefs("repair", "index")[1]
    code, _, error = lodefs("repair", "--from", f"unix:{tmp_path}/no/sock")
    assert (code, "is the proxy running?" in error) == (7, True)
    assert lodefs("repair", "--from", "http://x:y")[0] == 2
    assert lodefs("repair", "--from", str(tmp_path / "none"))[0] == 3


def test_a_proxy_with_a_token(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """What a node has in its cache, its proxy gives to who has a token for the repository; without
    one, the error says where it belongs."""

    def lodefs(*line: str, token: str = "") -> tuple[int, str, str]:
        session = Session({"HOME": str(tmp_path), "LODEFS_STORE": store, "LODEFS_TOKEN": token})
        return run(list(line), session), *capfd.readouterr()

    store, source, tokens = str(tmp_path / "store"), tmp_path / "source", tmp_path / "tokens"
    source.mkdir()
    (source / "a").write_bytes(bytes(range(256)) * 99)
    lodefs("init", store)
    lodefs("push", str(source), "x/y")
    good = create_token(tokens, "good", ["x/y"], now_s=0)
    other = create_token(tokens, "other", ["z"], now_s=0)
    settings = NodeSettings(CacheSettings(tmp_path / "cache", 64 << 20))

    @asynccontextmanager
    async def opened() -> AsyncIterator[StoreNode]:
        node = StoreNode(open_store(open_objects(store)), settings)
        try:
            await read_path(node, b"a", repo="x/y")
            yield node
        finally:
            await node.close()

    with start_proxy(opened, tokens_file=tokens) as proxy:
        for pack in Path(store, "packs").glob("*/*"):
            pack.unlink()
        code, _, error = lodefs("repair", "--from", proxy.url)
        assert (code, "the proxy needs a token" in error) == (6, True)
        code, out, _ = lodefs("repair", "--from", proxy.url, token=other)
        assert (code, "may not read the repository" in out) == (1, True)
        code, out, _ = lodefs("repair", "--from", proxy.url, token=good)
        assert (code, out.count(f"repaired from {proxy.url}")) == (0, 2)
    assert lodefs("verify", "--data")[0] == 0
