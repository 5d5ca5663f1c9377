"""Commands around the proxy: token, status, and what serve hands on."""

from __future__ import annotations

import json
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from unittest.mock import patch

import pytest

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.commands.serve import settings
from lodefs.commands.status import cluster, figures
from lodefs.proxies import tokens_in_use
from lodefs.proxy.config import Config
from lodefs.proxy.http.tokens import TokenBook, Verdict
from lodefs.settings.session import Session
from tests.support.lodefs.command_line import Lodefs
from tests.support.proxy.fake_node import DictNode, start_proxy


def test_token_is_printed_once(lodefs: Lodefs, tmp_path: Path) -> None:
    """A new token is printed and works; the file and the list do not hold it."""
    file = tmp_path / "tokens"
    made = lodefs("token", "--file", str(file), "create", "ci", "vision/*")
    assert made.code == 0
    secret = made.out.strip()
    assert TokenBook(file).check(secret, "vision/cats") is Verdict.ALLOWED
    assert TokenBook(file).check(secret, "other") is Verdict.FORBIDDEN
    assert secret not in file.read_text()
    listed = lodefs("token", "--file", str(file), "list")
    assert "vision/*" in listed.out
    assert secret not in listed.out + listed.err
    assert lodefs("token", "--file", str(file), "create", "ci", "*").code == 4
    assert lodefs("token", "--file", str(file), "delete", "ci").code == 0
    assert TokenBook(file).check(secret, "vision/cats") is Verdict.UNKNOWN
    assert lodefs("token", "--file", str(file), "delete", "ci").code == 3


def test_deleting_waits_for_the_proxy(lodefs: Lodefs, tmp_path: Path) -> None:
    """A token that is deleted lets nobody in any more when the command ends."""
    file = tmp_path / "tokens"
    with start_proxy(DictNode({b"a": b"x"}), tokens_file=file) as proxy:
        known = {"LODEFS_PROXY": f"unix:{proxy.socket_path}"}
        secret = lodefs("token", "--file", str(file), "create", "ci", "demo", **known).out.strip()
        with proxy.client(tcp=True) as tcp:
            asked = {"Authorization": f"Bearer {secret}"}
            assert tcp.get("/files/demo@main/a", **asked).status == 200
            ran = lodefs("token", "--file", str(file), "delete", "ci", **known)
            assert (ran.code, ran.out, ran.err) == (0, "deleted the token ci\n", "")
            assert tcp.get("/files/demo@main/a", **asked).status == 401


def test_deleting_fails_if_the_proxy_cannot_read(
    lodefs: Lodefs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A proxy that cannot read the file lets the token in, and the command fails and says so; a
    proxy with other tokens is none of its business."""
    file, other = tmp_path / "tokens", tmp_path / "other"
    for path in (file, other):
        lodefs("token", "--file", str(path), "create", "ci", "demo")
    monkeypatch.setattr(tokens_in_use, "TAKEN_TIMEOUT_S", 0.3)

    def refuse(book: TokenBook) -> bool:
        book.problem = "tokens: Permission denied"
        raise InvalidInput(book.problem)

    monkeypatch.setattr(TokenBook, "reload", refuse)
    with start_proxy(DictNode({b"a": b"x"}), tokens_file=file) as proxy:
        known = {"LODEFS_PROXY": f"unix:{proxy.socket_path}"}
        ran = lodefs("token", "--file", str(file), "delete", "ci", **known)
        assert (ran.code, ran.out) == (7, "")
        assert f"unix:{proxy.socket_path}: " in ran.err
        assert "may still accept" in ran.err
        made = lodefs("token", "--file", str(file), "create", "new", "demo", **known)
        assert (made.code, len(made.out.split())) == (0, 1)
        assert "may not be let in yet" in made.err
        ran = lodefs("token", "--file", str(other), "delete", "ci", **known)
        assert (ran.code, ran.err) == (
            0,
            f"lodefs: warning: no proxy that runs here uses {other}\n",
        )


def test_a_proxy_that_does_not_answer(lodefs: Lodefs, tmp_path: Path) -> None:
    """Whether a proxy that hangs lets the token in is not known, which is an error; one that does
    not listen lets nobody in."""
    file, path = str(tmp_path / "tokens"), tmp_path / "sock"
    known = {"LODEFS_PROXY": f"unix:{path}"}
    assert lodefs("token", "--file", file, "create", "ci", "demo", **known).code == 0
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen(0)
        patched = patch.object(tokens_in_use, "ASK_TIMEOUT_S", 0.1)
        with patched, pytest.raises(Unavailable, match="no answer in time"):
            tokens_in_use.await_taken(Session(known), Path(file), None, 0.0)
    assert lodefs("token", "--file", file, "delete", "ci", **known).code == 0


@pytest.mark.parametrize(
    ("seen", "told"),
    [
        ({}, "version differs"),
        ({"tokens": []}, None),
        ({"tokens": [{"file": "/other", "digest": "9", "problem": ""}]}, None),
        ({"tokens": [{"file": "/other", "digest": "old", "problem": ""}]}, "has not read"),
        ({"tokens": [{"file": "FILE", "digest": "9", "problem": "why"}]}, "why"),
    ],
)
def test_what_a_proxy_says(tmp_path: Path, seen: dict[str, object], told: str | None) -> None:
    """A proxy uses the file if it names it, or had what was in it before: then it sees the file at
    another path, as in a container."""
    file = tmp_path / "tokens"
    file.write_text("{}")
    for one in seen.get("tokens", []):  # type: ignore[attr-defined]
        one["file"] = str(file) if one["file"] == "FILE" else one["file"]
    found = tokens_in_use.untaken(seen, file, "old")
    assert found is None if told is None else told in (found or "")


def test_token_without_a_file(lodefs: Lodefs) -> None:
    """Without a tokens file the error says where to name one."""
    ran = lodefs("token", "list")
    assert ran.code == 2
    assert "--file" in ran.err


def test_token_file_of_the_config(lodefs: Lodefs, tmp_path: Path) -> None:
    """The tokens file may stand in the config file."""
    config = tmp_path / "c.toml"
    config.write_text(
        f'[serve]\ntokens_file = "{tmp_path}/tokens"\nsocket_path = "{tmp_path}/sock"\n'
    )
    ran = lodefs("token", "create", "--write", "x/*", "a", "*", LODEFS_CONFIG=str(config))
    assert ran.code == 0
    listed = lodefs("token", "list", "--json", LODEFS_CONFIG=str(config)).json
    assert (listed["name"], listed["patterns"], listed["write"]) == ("a", ["*"], ["x/*"])
    assert "writes x/*" in lodefs("token", "list", LODEFS_CONFIG=str(config)).out


def test_serve_settings(tmp_path: Path) -> None:
    """serve hands on the config file's settings; options and --store win."""
    config = tmp_path / "c.toml"
    config.write_text(
        'store = "/file"\n[s3]\nendpoint_url = "http://s3"\ntransfer_timeout_s = 9\n'
        '[serve]\ncache_dir = "/cache"\nlog_level = "error"\n'
    )
    session = Session({"LODEFS_CONFIG": str(config)})
    session.apply_options(store="s3://b/p")
    found = Config.from_mapping(settings(session, {"cache_dir": "/option", "listen": None}))
    assert found.store == "s3://b/p"
    assert found.cache_dir == Path("/option")
    assert found.log_level == "error"
    assert found.endpoint_url == "http://s3"
    assert found.transfer_timeout_s == 9
    assert found.listen is None


def test_serve_options_are_checked(lodefs: Lodefs) -> None:
    """Wrong options of serve are told together, and nothing is started."""
    ran = lodefs("serve", "--listen", "nonsense:x", "--cache-size", "much")
    assert ran.code == 2
    assert "listen" in ran.err
    assert "cache_size_bytes_max" in ran.err


def test_serve_needs_a_store() -> None:
    """A proxy without a store is refused with the ways to name one."""
    with pytest.raises(InvalidInput, match="LODEFS_STORE"):
        settings(Session({"LODEFS_CONFIG": "/dev/null"}), {})


def test_status_figures() -> None:
    """status shows use, limit and hit rate as people read them."""
    found = dict(
        figures(
            {
                "version": "1",
                "node": {
                    "store": "s3://b/p",
                    "cache_used_bytes": 1 << 30,
                    "cache_size_bytes_max": 4 << 30,
                    "hits_reads": 3,
                    "misses_reads": 1,
                    "store_corrupt_chunks": 2,
                },
            }
        )
    )
    assert found["used"] == "1.0 GiB of 4.0 GiB (25.0 %)"
    assert found["hits"] == "75.0 % (3 hits, 1 misses)"
    assert found["corrupt"].startswith("2 chunks")
    assert dict(figures({})) == {"version": "unknown"}


def test_status_of_checks() -> None:
    """status shows how much of the cache was checked lately, the oldest check and the rate, and
    how far the check after a power cut is; nothing of both where there is nothing."""
    known: dict[str, object] = {
        "recovery_bytes": 4 << 30,
        "recovery_bytes_done": 1 << 30,
        "scrub_fresh_bytes": 6 << 30,
        "scrub_old_bytes": 1 << 30,
        "scrub_never_bytes": 1 << 30,
        "scrub_days": 7,
        "scrub_oldest_check_age_s": 864_000,
        "scrub_bytes_per_s_max": 16 << 20,
        "scrub_bytes_per_s": 3 << 20,
    }
    found = dict(figures({"node": known}))
    assert found["recovery"] == "1.0 GiB of 4.0 GiB checked after a power cut"
    assert found["scrub"] == (
        "75.0 % checked or written within 7 days, oldest check 10.0 days ago, 1.0 GiB never, "
        "3.0 MiB/s now"
    )
    off = dict(figures({"node": known | {"scrub_bytes_per_s_max": 0}}))
    assert off["scrub"].endswith("1.0 GiB never, off")
    done = known | {"recovery_bytes_done": 4 << 30, "scrub_fresh_bytes": 0}
    done |= {"scrub_old_bytes": 0, "scrub_never_bytes": 0}
    assert not {"recovery", "scrub"} & set(dict(figures({"node": done})))


def node(number: int, **more: object) -> dict[str, object]:
    return {"address": f"n{number}:7441", "self": False, "state": "well", "weight": 1.0} | more


def test_status_of_a_cluster() -> None:
    """status shows the nodes, which of them this one is, and the state of the others."""
    peers = [
        node(1, weight=2.0),
        node(2, self=True),
        node(3, state="late", reason="silent for 2 s"),
        node(4, state="down"),
    ]
    assert cluster({"node": {"peers": peers}}) == [
        ("cluster", "4 nodes, 2 well; this node is n2:7441"),
        ("node", "n1:7441  well  weight 2"),
        ("node", "n2:7441  this node"),
        ("node", "n3:7441  late (silent for 2 s)"),
        ("node", "n4:7441  down"),
    ]


def test_status_tells_of_each_node() -> None:
    """Of a node that is not well the state and the reason; of all others when they were heard of,
    how fast they answer, what came from them and went to them, and what was the matter last."""
    well = {
        "state": "well",
        "reason": "",
        "seen_ago_s": 2.2,
        "latency_s": 0.0021,
        "received_bytes": 5 << 20,
        "sent_bytes": 0,
        "error": "",
        "error_ago_s": None,
    }
    silent = well | {"state": "refusing", "reason": "403: another secret", "seen_ago_s": None}
    peers = [
        node(1, **well),
        node(2, **well | {"error": "timed out", "error_ago_s": 61.0}),
        node(3, **silent),
        node(4, self=True),
    ]
    assert [line for _, line in cluster({"node": {"peers": peers}})] == [
        "4 nodes, 3 well; this node is n4:7441",
        "n1:7441  well  seen 2 s ago, 2 ms, 5.0 MiB from it, 0 B to it",
        (
            "n2:7441  well (last error 61 s ago: timed out)  seen 2 s ago, 2 ms, "
            "5.0 MiB from it, 0 B to it"
        ),
        ("n3:7441  refusing (403: another secret)  never seen, 5.0 MiB from it, 0 B to it"),
        "n4:7441  this node",
    ]
    known = {"peers": peers, "store_fetched_bytes": 1024, "peer_fetched_bytes": 2048}
    assert ("fetched", "1.0 KiB from the store, 2.0 KiB from other nodes") in figures(
        {"node": known}
    )


def test_mounts_have_a_heading(lodefs: Lodefs, monkeypatch: pytest.MonkeyPatch) -> None:
    """The mounts that status shows are those of all users, and a line above them says so."""

    class One:
        def line(self, _session: Session) -> str:
            return "data/set@main on /mnt"

    monkeypatch.setattr("lodefs.commands.status.mount_listings", lambda _session: [One(), One()])
    lines = lodefs("status").out.splitlines()
    assert lines == [
        "mounts    2 mounts on this machine, of all users and proxies",
        "mount     data/set@main on /mnt",
        "mount     data/set@main on /mnt",
    ]


def test_status_of_a_large_cluster() -> None:
    """Of many nodes only those are shown that are not well, and not too many of them."""
    peers = [node(number) for number in range(1000)]
    assert cluster({"node": {"peers": peers}}) == [
        ("cluster", "1,000 nodes, all well; this node is none of them")
    ]
    bad = [node(number, state="down") for number in range(1000, 1100)]
    lines = cluster({"node": {"peers": peers + bad}})
    assert len(lines) == 18
    assert lines[1] == ("node", "n1000:7441  down")
    assert lines[-1][1] == "… and 84 more that are not well"


def test_status_hands_the_cluster_on(lodefs: Lodefs) -> None:
    """For people as lines, for scripts as the proxy gave it."""
    body = json.dumps({"version": "1", "node": {"peers": [node(1, self=True)]}}).encode()

    class Proxy(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        url = f"http://127.0.0.1:{server.server_address[1]}"
        shown = lodefs("--proxy", url, "status")
        as_json = lodefs("--proxy", url, "status", "--json")
        server.shutdown()
        thread.join()
    assert "cluster   1 node, all well; this node is n1:7441\n" in shown.out
    assert as_json.json["node"]["peers"] == [node(1, self=True)]


@pytest.mark.parametrize("peers", [None, [], "x", [5]])
def test_status_without_a_cluster(peers: object) -> None:
    """A node alone, or a proxy that does not tell, shows nothing."""
    assert cluster({"node": {"peers": peers}}) == cluster({}) == []


def test_status_without_a_proxy(lodefs: Lodefs) -> None:
    """status starts nothing: without a proxy it is Unavailable, with the way out."""
    ran = lodefs("status")
    assert ran.code == 7
    assert "lodefs serve" in ran.err


@pytest.mark.parametrize("command", ["status", "mounts"])
def test_malformed_proxy(lodefs: Lodefs, command: str) -> None:
    """A proxy's address that is none is told by the command that needs it."""
    ran = lodefs("--proxy", "ftp://x", command)
    assert ran.code == (2 if command == "status" else 0)


def test_mount_point_is_checked_first(lodefs: Lodefs, tmp_path: Path) -> None:
    """A mount point that is missing or not empty is refused before a proxy is started."""
    missing = lodefs("mount", "r", str(tmp_path / "none"))
    assert missing.code == 2
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").write_text("")
    assert lodefs("mount", "r", str(tmp_path / "full")).code == 2
    assert not (tmp_path / "home" / ".cache").exists()


def test_mount_through_a_proxy_that_is_not_there(lodefs: Lodefs, tmp_path: Path) -> None:
    """A proxy that does not answer is Unavailable in time, and nothing is mounted."""
    (tmp_path / "m").mkdir()
    ran = lodefs(
        "--proxy", f"unix:{tmp_path}/none", "mount", "--read-timeout", "0.2", "r",
        str(tmp_path / "m"),
    )  # fmt: skip
    assert ran.code == 7
    assert "does not answer yet; waiting for it, 0.2 s at most" in ran.err
    assert (tmp_path / "m").stat().st_dev == tmp_path.stat().st_dev


def test_unmount_of_what_is_not_mounted(lodefs: Lodefs, tmp_path: Path) -> None:
    """unmount names a directory where nothing is mounted."""
    ran = lodefs("unmount", str(tmp_path))
    assert ran.code == 2
    assert "there is no lodefs mount here" in ran.err


def test_unmount_of_several(lodefs: Lodefs, tmp_path: Path) -> None:
    """One that cannot be taken away does not keep unmount from the others."""
    ran = lodefs("unmount", f"{tmp_path}/1", f"{tmp_path}/2")
    assert ran.code == 2
    assert ran.err.count("there is no lodefs mount here") == 2
