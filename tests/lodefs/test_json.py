"""What ``--json`` writes: the same noun has the same name everywhere, and a document names all."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.protocol.cache_control import EvictView, PinsView, PinView
from lodefs.commands.mounts import MountListing
from lodefs.mount.process.handover import State
from lodefs.mount.process.mounter import Mounted
from tests.support.lodefs.command_line import Lodefs

DOCUMENT = Path(__file__).parents[2] / "docs" / "scripting.md"
COUNTS = {"files", "symlinks", "directories", "size_bytes"}
MOUNT = {"mountpoint", "repo", "commit", "path", "pid", "passthrough", "supervised", "writable"}
KEYS = {
    "push": {"commit", "unchanged", "created_branch", "new_bytes", "stored_bytes", "files_read",
             "skipped", "added_files", "added_bytes", "changed_files", "changed_bytes",
             "removed_files", "removed_bytes", "lost_packs", "dry_run", "excluded", "private_files",
             "hard_linked_files", "stateless_files", "set_id_files", "often_excluded"} | COUNTS,
    "pull": {"commit", "unchanged", "fetched_bytes", "updated_from", "removed", "kept",
             "skipped", "lost"} | COUNTS,
    "ls": {"path", "kind", "digest", "size_bytes", "executable"},
    "log": {"commit", "parents", "author", "time_s", "message", "files", "directories",
            "size_bytes", "branches", "tags",
            "metadata"},
    "diff": {"change", "path", "before", "after"},
    "tag": {"name", "commit", "previous"},
    "reflog": {"time_s", "change", "previous", "commit", "author"},
    "tag list": {"name", "commit", "time_s"},
    "tag delete": {"name", "commit", "deleted"},
    "copy": {"dry_run", "refs", "commits", "packs", "packs_by_server", "packs_there",
             "stored_bytes"},
    "verify": {
        "problems", "commits", "commits_without_files", "directories", "files", "source_objects",
        "read_bytes", "purged",
    },
    "repair": {"dry_run", "problems", "commits", "packs", "notes", "unchecked"},
    "purge": {"what", "chunks", "packs", "size_bytes", "versions", "shared", "is_done",
              "damaged_commits", "in_place", "left", "writers"},
    "token create": {"name", "patterns", "token"},
    "token list": {"name", "patterns", "write", "time_s"},
    "version": {"version"},
    "repos": {"repo"},
    "mounts": MOUNT | {"branch", "proxy", "proxy_answers", "traffic"},
    "pins": {"pins", "pinned_bytes", "cache_size_bytes_max"},
    "pin": {"id", "repo", "commit", "path", "what", "pinned_until_s", "size_bytes", "cache_files",
            "is_complete", "owners"},
    "evict": {"pins", "cache_files", "freed_bytes", "wanted_bytes", "kept_cache_files",
              "kept_bytes", "held_by", "dry_run"},
    "init": {"store", "store_id"},
    "bench-store": {"store", "first_byte_s", "first_byte_worst_s", "reads", "ranges",
                    "list_keys_per_s", "listed_keys", "writes", "read_bytes", "written_bytes",
                    "recommended"},
    "stats": {"time_s", "proxy_answers", "interval_s", "restarted", "reads_per_s", "bytes_per_s",
              "sources", "latency_s", "store_calls_per_s", "peer_received_bytes_per_s",
              "peer_sent_bytes_per_s", "requests", "fetching_bytes", "waiting_units"},
    "profile": {"mountpoint", "repo", "commit", "seconds", "layer", "waiting", "requests",
                "lost_requests", "passthrough_opens", "operations", "reads", "slowest", "advice"},
    "doctor": {"check", "state", "saw", "mend"},
}  # fmt: skip


def documented() -> str:
    """The part of the document that describes the objects."""
    text = DOCUMENT.read_text()
    found = re.search(r"^## JSON for scripts\n(.*)", text, re.DOTALL | re.MULTILINE)
    assert found
    return found[1]


def test_keys_of_commands(lodefs: Lodefs, tmp_path: Path) -> None:
    """Each command that a store and files are enough for writes the keys that are pinned here."""
    assert lodefs("init", "--json", str(tmp_path / "store")).json.keys() == KEYS["init"]
    source, tokens = tmp_path / "source", str(tmp_path / "tokens")
    source.mkdir()
    (source / "a").write_text("a")
    store = {"LODEFS_STORE": str(tmp_path / "store")}
    lines = {
        "push": ["push", str(source), "r"],
        "pull": ["pull", "r", str(tmp_path / "t")],
        "ls": ["ls", "r"],
        "log": ["log", "r"],
        "tag": ["tag", "r", "v1"],
        "tag list": ["tag", "r"],
        "reflog": ["reflog", "r"],
        "tag delete": ["tag", "--delete", "r", "v1"],
        "verify": ["verify"],
        "repair": ["repair"],
        "purge": ["purge", "r", "--path", "a", "--dry-run"],
        "token create": ["token", "--file", tokens, "create", "n", "*"],
        "token list": ["token", "--file", tokens, "list"],
        "version": ["version"],
        "repos": ["ls"],
    }
    found = {name: lodefs(*line, "--json", **store).json_lines for name, line in lines.items()}
    assert {name: set(one[0]) for name, one in found.items()} == {
        name: KEYS[name] for name in lines
    }
    (source / "a").write_text("changed")
    lodefs("push", str(source), "r@dev", **store)
    (change,) = lodefs("diff", "--json", "r", "r@dev", **store).json_lines
    assert set(change) == KEYS["diff"]
    assert set(change["before"]) == {"kind", "digest", "size_bytes", "executable"}


def test_keys_of_mounts() -> None:
    """mounts, and status for each mount, write these, whatever is known."""
    mounted = Mounted("/m", "r", "ab" * 32, b"", 7)
    for state in (None, State(7, supervised=True)):
        assert set(MountListing(mounted, "", state, None).as_json()) == KEYS["mounts"]


@pytest.mark.parametrize(
    ("struct", "name"), [(PinsView, "pins"), (PinView, "pin"), (EvictView, "evict")]
)
def test_keys_of_upkeep(struct: type[msgspec.Struct], name: str) -> None:
    """What the proxy answers is written as it is."""
    assert {field.name for field in msgspec.structs.fields(struct)} == KEYS[name]


@pytest.mark.parametrize("name", KEYS)
def test_every_key_is_documented(name: str) -> None:
    """The document names each key."""
    named = set(re.findall(r"`([a-z_]+)`", documented()))
    assert KEYS[name] - named == set()
