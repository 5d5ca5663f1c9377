"""A revision is written in the same way wherever one is named."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.protocol import wire
from lodefs.chunkstore.repo.store import create_store
from lodefs.mount.csi.attributes import parse_volume
from lodefs.mount.docker.options import parse_options
from lodefs.proxy.api.routes import parse_route
from lodefs.proxy.s3.buckets import split_key
from lodefs.reading.urls import parse_url
from lodefs.settings.datasets import parse as parse_dataset
from tests.support.chunkstore.handmade import Handmade
from tests.support.chunkstore.memory_objects import MemoryObjects
from tests.support.lodefs.command_line import Lodefs


def of_docker(rev: str) -> str:
    """``docker volume create -o commit=``."""
    return parse_options({"repo": "a/b", "commit": rev}, lambda _url: ("", "")).rev


def of_s3(rev: str) -> str:
    """A key of the bucket ``lodefs``."""
    found = split_key(f"a/b@{rev}/f".encode())
    if found is None:
        raise InvalidInput("not a key")
    return found[1]


PARSERS: dict[str, Callable[[str], str]] = {
    "http": lambda rev: parse_route(f"/files/a/b@{rev.replace('^', '%5E')}/f").rev,
    "fsspec": lambda rev: parse_url(f"lodefs://a/b@{rev}/f").rev,
    "s3": of_s3,
    "docker": of_docker,
    "csi": lambda rev: parse_volume({"repo": "a/b", "commit": rev}).wanted.rev,
    "slurm": lambda rev: parse_dataset(f"a/b@{rev}:/data").spec.rev,
}


@pytest.mark.parametrize("name", PARSERS)
def test_all_places_take_commits_before(name: str) -> None:
    """HTTP, Python, S3, Docker, Kubernetes and Slurm know ~N and ^N, and refuse what is none."""
    parse = PARSERS[name]
    for rev in ("main~2^2", "v1.0^", "8b9f94~0"):
        assert parse(rev) == rev
    for rev in ("~1", "main~x", "main~1001"):
        with pytest.raises(LodefsError):
            parse(rev)


def test_paths_of_urls_have_it_encoded() -> None:
    """What a proxy answers, and is asked, has no character that a URL may not have."""
    path = wire.file_path(wire.FILES, "a/b", "main^2~1", b"f")
    assert path == "/files/a/b@main%5E2~1/f"
    assert parse_route(path).rev == "main^2~1"


def test_on_the_command_line(lodefs: Lodefs, objects: MemoryObjects) -> None:
    """What reads takes it; what moves a branch wants the name of one."""
    made = Handmade(create_store(objects))
    first = made.commit("a/b", {b"f": b"1"})
    made.commit("a/b", {b"f": b"2", b"g": b"3"})
    assert lodefs("cat", "a/b@main~1:f").out == "1"
    assert "A  g" in lodefs("diff", "a/b@main^", "a/b").out
    assert lodefs("tag", "a/b@main~1", "v1").code == 0
    assert lodefs("log", "--json", "a/b@v1").json_lines[0]["commit"] == first.hex()
    ran = lodefs("ls", "a/b@main~9")
    assert ran.code == 3
    assert f"no a/b@main~9: {first.hex()[:12]} is the first commit, 1 before main" in ran.err
    for words in (["branch", "a/b", "x~1"], ["rm", "a/b@main~1"], ["reflog", "a/b@main~1"]):
        ran = lodefs(*words)
        assert ran.code == 2
        assert "is not a branch or tag name" in ran.err
