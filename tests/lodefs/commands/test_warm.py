"""``lodefs warm``, ``pins`` and ``evict`` against a real node in this process."""

from __future__ import annotations

import io
import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lodefs.api.warming import GONE_S_MAX, STARTS_MAX, Follower
from lodefs.chunkstore.errors import InvalidInput, NotFound, Unavailable
from lodefs.chunkstore.protocol.cache_control import PinView, WarmRequest, WarmStatus
from lodefs.chunkstore.protocol.control_client import ControlClient
from lodefs.chunkstore.system.durations import parse_duration
from lodefs.chunkstore.system.progress import Progress
from lodefs.commands.warm import pin_line
from lodefs.proxy.service.store_node import StoreNode
from lodefs.proxy.warm import cluster_jobs
from tests.support.lodefs.command_line import Lodefs
from tests.support.proxy.fake_cache_control import MemoryCacheControl
from tests.support.proxy.fake_node import RunningProxy
from tests.support.proxy.rig import MIB, REPO, Rig, serve_rig

FILES = {
    b"images/a/1.jpg": random.Random(1).randbytes(40_000),
    b"images/a/2.png": random.Random(2).randbytes(30_000),
    b"images/b/3.jpg": random.Random(3).randbytes(20_000),
    b"labels/\xff\x1b[1m": random.Random(4).randbytes(10_000),
    b"large": random.Random(5).randbytes(3 * MIB),
}


@pytest.fixture
def served(tmp_path: Path) -> Iterator[tuple[RunningProxy, StoreNode]]:
    """A node with an empty cache of 8 MiB."""
    rig = Rig(tmp_path, FILES, chunk_size_bytes=10_000)
    with serve_rig(rig, rig.settings(8 * MIB)) as found:
        yield found


@pytest.fixture
def proxy(served: tuple[RunningProxy, StoreNode]) -> str:
    return served[0].address


def test_warm_again_and_evict(lodefs: Lodefs, proxy: str) -> None:
    """All comes, once; what is pinned is listed; evicted, it is fetched again."""
    first = lodefs("--proxy", proxy, "warm", REPO, "--json")
    assert (first.code, first.json["state"], first.json["files_done"]) == (0, "done", 5)
    assert first.json["fetched_bytes"] == sum(map(len, FILES.values()))
    again = lodefs("warm", REPO, "--pin", "7d", LODEFS_PROXY=proxy)
    assert again.code == 0
    assert again.out.startswith(f"warmed {REPO}@")
    assert "0 B of it new" in again.out
    assert "pinned until" in again.out
    pins = lodefs("pins", LODEFS_PROXY=proxy)
    assert pins.out.count("\n") == 2
    assert "1 pin: 3.1 MiB of the 8.0 MiB" in pins.out
    dry = lodefs("evict", REPO, "--dry-run", LODEFS_PROXY=proxy)
    assert "would remove the pin" in dry.out
    assert "would free 3.1 MiB in 2 cache files" in dry.out
    gone = lodefs("evict", REPO, "--json", LODEFS_PROXY=proxy)
    assert (gone.code, gone.json["cache_files"], len(gone.json["pins"])) == (0, 2, 1)
    assert "nothing of" in lodefs("evict", REPO, LODEFS_PROXY=proxy).out
    assert lodefs("evict", "--all", LODEFS_PROXY=proxy).out == "nothing is in the cache\n"
    assert lodefs("evict", "--all", "--pins-only", LODEFS_PROXY=proxy).out == "there are no pins\n"
    third = lodefs("warm", f"{REPO}@main:large", "--json", LODEFS_PROXY=proxy)
    assert third.json["fetched_bytes"] == 3 * MIB


@pytest.mark.parametrize(
    ("words", "code", "told"),
    [
        (["--from", "none.txt"], 3, "--from: none.txt does not exist"),
        (["--pin", "9000000d"], 2, "--pin: the limit is 3660d"),
    ],
)
def test_what_cannot_be_asked_for(
    lodefs: Lodefs, proxy: str, words: list[str], code: int, told: str
) -> None:
    """A list that is not there and a pin for ever are refused by the names of their options."""
    ran = lodefs("warm", REPO, *words, LODEFS_PROXY=proxy)
    assert (ran.code, ran.err) == (code, f"lodefs: error: {told}\n")


@pytest.mark.parametrize(
    ("arguments", "stdin", "files"),
    [
        ([f"{REPO}:images"], b"", 3),
        ([f"{REPO}@main:images/**/*.jpg"], b"", 2),
        ([f"{REPO}:**/*.png"], b"", 1),
        ([REPO, "--from", "-"], b"large\nimages/a/2.png\n\nimages/b\n", 3),
        ([f"{REPO}:images", "--from", "-"], b"a/1.jpg\nb/3.jpg", 2),
        ([REPO, "--from", "-", "-0"], b"labels/\xff\x1b[1m\0large\0", 2),
    ],
)
def test_parts_of_a_dataset(
    lodefs: Lodefs,
    proxy: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    stdin: bytes,
    files: int,
) -> None:
    """A path, a pattern, a list on standard input: just so many files come."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin)))
    ran = lodefs("warm", *arguments, "--json", LODEFS_PROXY=proxy)
    assert (ran.code, ran.json["files_done"]) == (0, files), ran.err


@pytest.mark.parametrize(
    ("arguments", "code", "named"),
    [
        (["warm", f"{REPO}:images/*.gif"], 3, "images/*.gif"),
        (["warm", f"{REPO}:imgaes"], 3, "imgaes"),
        (["warm", "no/such"], 3, "no/such"),
        (["warm", f"{REPO}@v9"], 3, "v9"),
        (["warm", REPO, "--pin", "7"], 2, "7d"),
        (["warm", REPO, "--pin", "100000w"], 2, "--pin: the limit is 3660d"),
        (["warm", REPO, "--from", "-"], 2, "no paths"),
        (["warm", f"{REPO}:*.jpg", "--from", "-"], 2, "directory"),
        (["warm", REPO, "--null"], 2, "--from"),
        (["warm", REPO, "--all-nodes"], 2, "cluster"),
        (["warm"], 2, "REPO"),
        (["warm", REPO, "--jobs"], 2, "REPO"),
        (["warm", "--attach", "0" * 16], 3, "no warm job"),
        (["warm", "--cancel", "xyz"], 2, "hex"),
        (["evict"], 2, "--all"),
        (["evict", REPO, "--all"], 2, "--all"),
        (["evict", f"{REPO}@v9"], 3, "v9"),
        (["evict", "../x"], 2, "repository"),
    ],
)
def test_what_cannot_be(
    lodefs: Lodefs,
    proxy: str,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    code: int,
    named: str,
) -> None:
    """Each mistake has its exit code and a line that names it."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"\n")))
    ran = lodefs(*arguments, LODEFS_PROXY=proxy)
    assert ran.code == code, ran.err
    assert named in ran.err
    assert ran.err.startswith("lodefs: error: ")


def test_what_does_not_fit_is_refused(lodefs: Lodefs, tmp_path: Path) -> None:
    """A dataset that is larger than the cache, or than what pins leave: exit code 10."""
    files = {b"%d" % n: random.Random(n).randbytes(3 * MIB) for n in range(3)}
    rig = Rig(tmp_path, files, chunk_size_bytes=100_000)
    with serve_rig(rig, rig.settings(8 * MIB)) as (proxy, _):
        assert lodefs("warm", f"{REPO}:0", "--pin", "1h", LODEFS_PROXY=proxy.address).code == 0
        assert lodefs("warm", f"{REPO}:1", "--pin", "1h", LODEFS_PROXY=proxy.address).code == 0
        ran = lodefs("warm", f"{REPO}:2", "--pin", "1h", LODEFS_PROXY=proxy.address)
        assert ran.code == 10
        assert "6,291,456 are pinned" in ran.err
        held = lodefs("evict", f"{REPO}@main:0", "--pins-only", LODEFS_PROXY=proxy.address)
        assert held.out.startswith("removed the pin ")
        assert lodefs("warm", f"{REPO}:2", LODEFS_PROXY=proxy.address).code == 0


def test_detached_jobs(lodefs: Lodefs, proxy: str) -> None:
    """A detached job is known by its id: waited for, listed, ended."""
    begun = lodefs("warm", REPO, "--detach", LODEFS_PROXY=proxy)
    job_id = begun.out.strip()
    assert (begun.code, len(job_id)) == (0, 16)
    waited = lodefs("warm", "--attach", job_id, "--json", LODEFS_PROXY=proxy)
    assert (waited.code, waited.json["state"], waited.json["id"]) == (0, "done", job_id)
    listed = lodefs("warm", "--jobs", "--json", LODEFS_PROXY=proxy)
    assert [job["id"] for job in listed.json_lines] == [job_id]
    assert lodefs("warm", "--cancel", job_id, LODEFS_PROXY=proxy).code == 0


def test_interrupted_it_ends_the_job(
    lodefs: Lodefs, served: tuple[RunningProxy, StoreNode], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ctrl-C ends the job on the node, says so, and the exit code is a shell's."""
    proxy, node = served
    control = MemoryCacheControl()
    monkeypatch.setattr(node, "_cache_control", control)

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "follow", interrupted)
    ran = lodefs("warm", REPO, LODEFS_PROXY=proxy.address)
    assert ran.code == 130
    assert "fetched data stays: repeat the command" in ran.err
    assert [status.state for status in control.statuses.values()] == ["cancelled"]


class Calls:
    """What a proxy answers, one after the other; an error is raised."""

    def __init__(self, *answers: WarmStatus | Exception) -> None:
        self.asked: list[str] = []
        self._answers = list(answers)

    def call(self, _kind: object, method: str, path: str, *_: object) -> WarmStatus:
        self.asked.append(f"{method} {path}")
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Follow:
    """A follower whose clock moves as it sleeps."""

    def __init__(self, *answers: WarmStatus | Exception, own: bool = True) -> None:
        self.calls = Calls(*answers)
        self.now_s = 0.0
        request = WarmRequest(REPO) if own else None
        self.follower = Follower(
            self.calls,  # type: ignore[arg-type]
            request,
            clock_s=lambda: self.now_s,
            sleep=self._sleep,
        )

    def _sleep(self, seconds: float) -> None:
        self.now_s += seconds


def status(job_id: str, state: str) -> WarmStatus:
    """A job in a state."""
    return MemoryCacheControl().put(job_id, WarmRequest(REPO), state=state)


def test_a_restarted_proxy_is_given_the_job_again() -> None:
    """Gone for a while, back without the job: it is begun anew, and followed to its end."""
    gone, unknown = Unavailable("refused"), NotFound("no such job")
    follow = Follow(
        *(status("1", "fetching"), gone, gone, unknown),
        *(status("2", "listing"), status("2", "fetching"), status("2", "done")),
    )
    progress = Progress()
    assert follow.follower.follow("1", progress).id == "2"
    assert follow.calls.asked == [
        *(["GET /warm/1"] * 4),
        *("POST /warm", "GET /warm/2", "GET /warm/2"),
    ]
    assert progress.phase == "done"


def test_a_proxy_that_stays_away_is_given_up() -> None:
    """After so long the error is told."""
    follow = Follow(Unavailable("refused"))
    with pytest.raises(Unavailable):
        follow.follower.follow("1", Progress())
    assert GONE_S_MAX < follow.now_s < GONE_S_MAX + 5


def test_a_proxy_that_forgets_again_and_again_is_given_up() -> None:
    """Starting anew is bounded, and a job of others is not begun anew at all."""
    follow = Follow(NotFound("no such job"))
    with pytest.raises(NotFound):
        follow.follower.follow("1", Progress())
    assert follow.calls.asked.count("POST /warm") <= STARTS_MAX
    of_others = Follow(NotFound("no such job"), own=False)
    with pytest.raises(NotFound):
        of_others.follower.follow("1", Progress())
    assert of_others.calls.asked == ["GET /warm/1"]


def test_a_proxy_that_speaks_otherwise(tmp_path: Path) -> None:
    """What is no answer to this is Unavailable, with a hint."""
    rig = Rig(tmp_path, FILES)
    with serve_rig(rig) as (proxy, _):
        calls = ControlClient(proxy.address)
        with pytest.raises(Unavailable, match="another version"):
            calls.call(WarmStatus, "GET", "/healthz")
        calls.close()


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("30m", 1800), ("12h", 43_200), ("7d", 604_800), ("2w", 1_209_600),
     ("1d12h", 129_600), ("1.5h", 5400)],
)  # fmt: skip
def test_durations(text: str, seconds: int) -> None:
    """Numbers with units, one or several."""
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "7", "d", "-1d", "7 d", "7y", "0s", "1e3s", "7dd"])
def test_what_is_no_duration(text: str) -> None:
    """Anything else is refused with examples."""
    with pytest.raises(InvalidInput, match="7d"):
        parse_duration(text)


def test_odd_names_are_safe_on_a_terminal() -> None:
    """A pin of a path with control characters is shown on one line, escaped."""
    pin = PinView("0" * 16, REPO, "ab" * 32, "a", "a%0A%1B%5B1m/*", 0, 10, 1, is_complete=False)
    line = pin_line(pin)
    assert line.isprintable()
    assert line.endswith("not complete")


def test_missing_nodes_are_told_at_once_and_skipped(
    lodefs: Lodefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Warming all nodes names a node that does not answer while it waits; the node is an error
    then, or with --skip-missing a warning, and the rest is done."""
    monkeypatch.setattr(cluster_jobs, "SILENT_S_MAX", 3.0)  # the command asks meanwhile
    monkeypatch.setattr(cluster_jobs, "SKIP_S_MAX", 0.1)
    monkeypatch.setattr(cluster_jobs, "ASK_EVERY_S", 0.05)
    gone = Gone()
    rig = Rig(tmp_path, FILES, chunk_size_bytes=10_000)
    with serve_rig(rig, rig.settings(8 * MIB)) as (served, node):
        node._warmer._peers = gone  # type: ignore[assignment]
        failed = lodefs("--proxy", served.address, "warm", REPO, "--all-nodes")
        skipped = lodefs("--proxy", served.address, "warm", REPO, "--all-nodes", "--skip-missing")
    assert failed.code == 7
    assert f"waiting for {gone.ADDRESS}: Connection refused" in failed.err
    assert f"error: {gone.ADDRESS}: Connection refused" in failed.err
    assert skipped.code == 0
    assert f"warning: {gone.ADDRESS} was skipped: Connection refused" in skipped.err
    assert skipped.out.startswith(f"warmed {REPO}@")
    assert lodefs("warm", REPO, "--skip-missing").code == 2


class Gone:
    """A PeerJobClient of a cluster whose other node is not there."""

    ADDRESS = "10.0.0.9:7441"

    def members(self) -> list[str]:
        return [self.ADDRESS]

    def own(self) -> list[str]:
        return []

    async def start(self, address: str, request: WarmRequest, job_id: str) -> str:
        raise Unavailable("Connection refused")

    async def progress(self, address: str, job_id: str) -> WarmStatus:
        raise Unavailable("Connection refused")

    async def cancel(self, address: str, job_id: str) -> None:
        raise Unavailable("Connection refused")
