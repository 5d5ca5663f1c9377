"""Rules of access on the proxy's Unix socket."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol.access import LOOK_AGAIN_S, AccessRule, AccessRules, CurrentRules
from lodefs.chunkstore.protocol.wire import USER_HEADER
from lodefs.chunkstore.system.sockets import Peer
from lodefs.proxy.http.local_readers import LocalReaders
from tests.support.mount.mounts import until
from tests.support.proxy.fake_node import Client, DictNode, Reply, RunningProxy, start_proxy
from tests.support.proxy.rig import REPO, Rig, serve_rig

SECRET = "medical/scans"
MEMBERS, OTHERS = 70001, 70002
FILE = random.Random(5).randbytes(10_000)


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path, {b"a": b"hello"})
    made.maker.commit(SECRET, {b"a": FILE})
    return made


@pytest.fixture
def proxy(rig: Rig) -> Iterator[RunningProxy]:
    if os.geteuid() != 0:
        pytest.skip("needs root, to be of several groups")
    rule = AccessRule("medical/*", frozenset({MEMBERS}))
    rules = AccessRules((rule,), frozenset())
    with serve_rig(rig, local_readers=LocalReaders(lambda: rules)) as (made, _):
        yield made


def client(proxy: RunningProxy, gid: int) -> Client:
    """A client of a group: it is what it was when it connected."""
    former = os.getegid()
    os.setegid(gid)
    try:
        return proxy.client()
    finally:
        os.setegid(former)


def said(reply: Reply) -> tuple[int, str, str]:
    failure = reply.json()
    return reply.status, failure["error"], failure["message"]


def test_what_may_not_be_read_does_not_exist(rig: Rig, proxy: RunningProxy) -> None:
    """Every route answers as for a repository that there is not, and names none that there is;
    another repository has no commit of it."""
    with client(proxy, MEMBERS) as member, client(proxy, OTHERS) as other:
        commit = member.get(f"/snapshots/{SECRET}@main").json()["commit"]
        assert member.get(f"/files/{SECRET}@main/a").body == FILE
        for target in (
            "/files/{}@main/a",
            "/files/{}@{commit}/a",
            "/stat/{}@main/a",
            "/list/{}@main/",
            "/snapshots/{}@main",
            "/snapshots/{}@{commit}",
            "/nodes/{}@{commit}/1",
            "/nodes/{}@{commit}/1/children",
            "/nodes/{}@{commit}/1/lookup?name=a",
            "/page/repository/{}",
            "/page/history/{}@main",
            "/page/find/{}@main/?match=a",
        ):
            there, nowhere = (
                said(other.get(target.format(repo, commit=commit)))
                for repo in (SECRET, "medical/nowhere")
            )
            assert there[0] == 404, target
            renamed = there[2].replace(SECRET, "medical/nowhere")
            assert (*there[:2], renamed) == nowhere, target
        assert said(other.get("/snapshots/nowhere@main"))[2].count("no repository") == 1
        assert "scans" not in str(said(other.get("/snapshots/nowhere@main")))
        assert other.get(f"/files/{REPO}@{commit}/a").status == 404
        assert other.get(f"/files/{REPO}@main/a").body == b"hello"


def test_the_fast_path_tells_users_apart(proxy: RunningProxy) -> None:
    """What one user was answered from the cache is not answered to another with equal headers."""
    with client(proxy, MEMBERS) as member, client(proxy, OTHERS) as other:
        commit = member.get(f"/snapshots/{SECRET}@main").json()["commit"]
        target = f"/files/{SECRET}@{commit}/a"

        def is_fast() -> bool:
            assert member.get(target, Range="bytes=0-9").status == 206
            return proxy.call(lambda: proxy.server.metrics.fast_answers) > 0

        until(is_fast)
        assert other.get(target, Range="bytes=0-9").status == 404
        with client(proxy, MEMBERS) as again:
            assert again.get(target, Range="bytes=10-19").body == FILE[10:20]


def test_the_nodes_cache_for_users(proxy: RunningProxy) -> None:
    """Users warm, see and evict what they may read; the cache's files are not for them, and
    metrics name nothing else."""

    def post(who: Client, path: str, **body: object) -> Reply:
        return who.get(path, method="POST", body=json.dumps(body).encode())

    with client(proxy, MEMBERS) as member, client(proxy, OTHERS) as other:
        begun = post(member, "/warm", repo=SECRET, pin_s=600)
        assert begun.status == 202
        job = begun.json()["id"]
        for repo in (SECRET, "medical/nowhere"):
            for path in ("/warm", "/evict"):
                failure = said(post(other, path, repo=repo))
                hidden = f"there is no repository {repo} that you may read"
                assert failure == (404, "NotFound", hidden)
        for method in ("GET", "DELETE"):
            there = said(other.get(f"/warm/{job}", method=method))
            nowhere = said(other.get(f"/warm/{'0' * 16}", method=method))
            assert there == (404, "NotFound", nowhere[2].replace("0" * 16, job))
        assert [len(who.get("/warm").json()["jobs"]) for who in (member, other)] == [1, 0]
        assert other.get("/pins").json()["pins"] == []
        assert post(other, "/evict", everything=True).status == 403
        assert b"medical" not in other.get("/metrics").body
        assert other.get("/cache").status == 404
        assert other.get("/page/repositories").json()["names"] == [REPO]


def test_bytes_of_users(rig: Rig) -> None:
    """Root says for whom it asks, as a mount of the node does, and what comes is counted for that
    user; nobody else may say so."""
    with serve_rig(rig) as (proxy, node):
        commit = rig.commit.hex()
        with proxy.client() as mine, proxy.client(tcp=True) as far:
            target = f"/files/{REPO}@{commit}/a"
            assert far.get(target, **{USER_HEADER: "5002"}).body == b"hello"
            for odd in ("5003x", "-1", "9" * 30, ""):
                assert mine.get(target, **{USER_HEADER: odd}).status == 200
        with proxy.client() as mine:
            secret = f"/files/{SECRET}@main/a"
            assert mine.get(secret, **{USER_HEADER: "5001"}).body == FILE
            text = mine.get("/metrics").body.decode()
        assert node._counts.user_bytes == {"5001": [0, 0, len(FILE)]}
        assert f'lodefs_user_bytes_total{{source="store",user="5001"}} {len(FILE)}' in text or (
            f'lodefs_user_bytes_total{{user="5001",source="store"}} {len(FILE)}' in text
        )


def test_a_group_that_is_made_later_lets_its_members_in(rig: Rig) -> None:
    """From their next connection on. Those that are open stay without rights, though all of them
    had the same before."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to be of several groups")
    known: dict[str, int] = {}
    now_s = [0.0]
    rules = CurrentRules(
        {"medical/*": ["cardiology"]}, known.get, free_uids=(),
        clock=lambda: now_s[0], start=lambda call: call(),
    )  # fmt: skip
    with serve_rig(rig, local_readers=LocalReaders(rules)) as (proxy, _):
        target = f"/files/{SECRET}@main/a"
        with client(proxy, MEMBERS) as member, client(proxy, OTHERS) as other:
            assert member.get(target).status == other.get(target).status == 404
            known["cardiology"], now_s[0] = MEMBERS, LOOK_AGAIN_S
            with client(proxy, MEMBERS) as again, client(proxy, OTHERS) as still:
                assert again.get(target).body == FILE
                assert still.get(target).status == 404
                assert member.get(target).status == other.get(target).status == 404


def test_a_group_is_looked_for_while_nobody_connects() -> None:
    """So who connects first after a quiet time is not bound to rules of before."""
    known: dict[str, int] = {}
    now_s = [0.0]
    rules = CurrentRules(
        {"medical/*": ["cardiology"]}, known.get, free_uids=(),
        clock=lambda: now_s[0], start=lambda call: call(),
    )  # fmt: skip
    with start_proxy(DictNode({}), local_readers=LocalReaders(rules)) as proxy:
        known["cardiology"], now_s[0] = MEMBERS, LOOK_AGAIN_S
        proxy.call(proxy.server.sweep)
        now_s[0] = 0.0  # whoever asks now has none looked for
        assert rules().may_read(Peer(5001, frozenset({MEMBERS})), SECRET)
