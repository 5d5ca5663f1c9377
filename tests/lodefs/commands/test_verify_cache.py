"""``lodefs verify --cache``: what it says, its exit codes, and repairs with and without a proxy."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from lodefs.chunkstore.nodecache.damage_reports import reported_files
from lodefs.commands import verify
from lodefs.proxy.cache.directory import CacheDir
from lodefs.settings.session import Session
from tests.support.lodefs.command_line import Lodefs
from tests.support.proxy.rig import MIB, REPO, Rig, read_path

BIG = random.Random(3).randbytes(2 * MIB)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    """A cache with one large file and a small one."""
    rig = Rig(tmp_path, {b"odd\xff/big": BIG, b"small": b"s" * 900}, chunk_size_bytes=20_000)

    async def fill() -> None:
        async with rig.node() as node:
            for path, content in rig.files.items():
                assert await read_path(node, path) == content

    asyncio.run(fill())
    return rig


def damage(rig: Rig) -> Path:
    (path,) = (rig.directory / "cache").glob("flat/*/*")
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[1_000_000] ^= 64
    path.write_bytes(data)
    return path


def test_all_is_well(lodefs: Lodefs, rig: Rig) -> None:
    """A good cache: one line, exit code 0."""
    ran = lodefs("verify", "--cache", "--cache-dir", str(rig.directory / "cache"))
    assert ran.code == 0, ran.err
    assert ran.out.endswith("read: all is well\n")


def test_damage_is_named(lodefs: Lodefs, rig: Rig) -> None:
    """Cache file, chunk and dataset file are named, for people and for scripts; exit code 1."""
    path = damage(rig)
    words = ("verify", "--cache", "--cache-dir", str(rig.directory / "cache"))
    ran = lodefs(*words)
    assert ran.code == 1
    line, summary = ran.out.splitlines()
    assert line.startswith(f"{path}: 20000 bytes at 1000000, chunk ")
    assert f"{REPO}@{rig.commit.hex()}:odd" in line
    assert summary.endswith("1 file damaged; --repair drops them")
    ran = lodefs(*words, "--json")
    assert ran.code == 1
    (problem,) = ran.json["problems"]
    assert problem["dataset_files"] == [
        {"repo": REPO, "commit": rig.commit.hex(), "path": "odd%FF/big"}
    ]
    assert (ran.json["damaged_cache_files"], ran.json["repaired"]) == (1, False)
    assert path.exists()


def test_repair_without_a_proxy(lodefs: Lodefs, rig: Rig) -> None:
    """Where no proxy runs, the command drops the file itself; then all is well, and reads are
    right."""
    path = damage(rig)
    words = ("verify", "--cache", "--cache-dir", str(rig.directory / "cache"))
    ran = lodefs(*words, "--repair")
    assert ran.code == 1
    assert "dropped" in ran.out
    assert not path.exists()
    assert lodefs(*words, "--repair").code == 0

    async def read() -> bytes:
        async with rig.node() as node:
            return await read_path(node, b"odd\xff/big")

    assert asyncio.run(read()) == BIG


def test_repair_waits_for_the_proxy_for_a_while(rig: Rig) -> None:
    """Where a proxy owns the cache it is asked and waited for; one that never looks is given up
    in time, and finds the list later."""
    damage(rig)
    cache_dir = rig.directory / "cache"
    owner = CacheDir(cache_dir)
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    try:
        assert not verify.drop_damaged(cache_dir, [1], clock_s=lambda: now[0], sleep=sleep)
        assert now[0] >= verify.SETTLE_TIMEOUT_S
    finally:
        owner.close()
    assert reported_files(cache_dir) == [1]


def test_which_cache(tmp_path: Path, rig: Rig) -> None:
    """Without --cache-dir it is the cache of the settings, then that of the user's own proxy."""
    config = tmp_path / "c.toml"
    config.write_text(f'[serve]\ncache_dir = "{tmp_path}/x"\n')
    known = {"HOME": str(tmp_path), "LODEFS_CONFIG": str(config), "LODEFS_PROXY": "unix:/none"}
    session = Session({**known, "LODEFS_STORE": "/store"})
    assert verify.node_cache_dir(session) == tmp_path / "x"
    (own,) = [tmp_path / ".cache/lodefs" / name for name in ["proxy-" + _digest("/store")]]
    (own / "cache").mkdir(parents=True)
    assert verify.node_cache_dir(session) == own / "cache"
    (tmp_path / "x").mkdir()
    assert verify.node_cache_dir(session) == tmp_path / "x"


def _digest(text: str) -> str:
    from lodefs.chunkstore.format.names import digest_of

    return digest_of(text.encode()).hex()[:12]


@pytest.mark.parametrize(
    "words",
    [
        ("--cache", "vision/cats"),
        ("--cache", "--data"),
        ("--repair",),
        ("--cache-dir", "/tmp"),
    ],
)
def test_options_that_do_not_fit(lodefs: Lodefs, words: tuple[str, ...]) -> None:
    """Options of the one kind of check are refused with the other."""
    assert lodefs("verify", *words).code == 2


def test_no_cache_there(lodefs: Lodefs, tmp_path: Path) -> None:
    """A directory that is no cache is not found."""
    ran = lodefs("verify", "--cache", "--cache-dir", str(tmp_path))
    assert ran.code == 3
    assert "--cache-dir" in ran.err
