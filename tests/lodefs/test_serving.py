"""Commands around the proxy: token, status, and what serve hands on."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from chunkstore.errors import InvalidInput
from lodefs.commands.serve import settings
from lodefs.commands.status import cluster, figures
from lodefs.session import Session
from lodefs.testing import Lodefs
from proxy.config import Config
from proxy.tokens import TokenBook, Verdict


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


def test_token_without_a_file(lodefs: Lodefs) -> None:
    """Without a tokens file the error says where to name one."""
    ran = lodefs("token", "list")
    assert ran.code == 2
    assert "--file" in ran.err


def test_token_file_of_the_config(lodefs: Lodefs, tmp_path: Path) -> None:
    """The tokens file may stand in the config file."""
    config = tmp_path / "c.toml"
    config.write_text(f'[serve]\ntokens_file = "{tmp_path}/tokens"\n')
    assert lodefs("token", "create", "a", "*", LODEFS_CONFIG=str(config)).code == 0
    listed = lodefs("token", "list", "--json", LODEFS_CONFIG=str(config)).json
    assert (listed["name"], listed["patterns"]) == ("a", ["*"])


def test_serve_settings(tmp_path: Path) -> None:
    """serve hands on the config file's settings; options and --store win."""
    config = tmp_path / "c.toml"
    config.write_text(
        'store = "/file"\n[s3]\nendpoint_url = "http://s3"\ntransfer_timeout_s = 9\n'
        '[serve]\ncache_dir = "/cache"\nlog_level = "error"\n'
    )
    session = Session({"LODEFS_CONFIG": str(config)})
    session.use(store="s3://b/p")
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


def node(number: int, **more: object) -> dict[str, object]:
    return {"address": f"n{number}:7441", "self": False, "usable": True, "weight": 1.0} | more


def test_status_of_a_cluster() -> None:
    """status shows the nodes, which of them this one is, and who cannot be used since when."""
    peers = [
        node(1, weight=2.0),
        node(2, self=True),
        node(3, usable=False, unusable_s=12.4),
        node(4, usable=False),
    ]
    assert cluster({"node": {"peers": peers}}) == [
        ("cluster", "4 nodes, 2 usable; this node is n2:7441"),
        ("node", "n1:7441  usable  weight 2"),
        ("node", "n2:7441  this node"),
        ("node", "n3:7441  not usable for 12 s"),
        ("node", "n4:7441  not usable"),
    ]


def test_status_of_a_large_cluster() -> None:
    """Of many nodes only those are shown that cannot be used, and not too many of them."""
    peers = [node(number) for number in range(1000)]
    assert cluster({"node": {"peers": peers}}) == [
        ("cluster", "1,000 nodes, all usable; this node is none of them")
    ]
    bad = [node(number, usable=False) for number in range(1000, 1100)]
    lines = cluster({"node": {"peers": peers + bad}})
    assert len(lines) == 18
    assert lines[1] == ("node", "n1000:7441  not usable")
    assert lines[-1][1] == "… and 84 more that are not usable"


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
    assert "cluster   1 node, all usable; this node is n1:7441\n" in shown.out
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
    assert "does not answer; it is waited for, 0.2 s at most" in ran.err
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
