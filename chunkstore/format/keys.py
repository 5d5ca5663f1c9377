"""Where things lie in a store: the object keys of docs/format.md, in one place."""

from __future__ import annotations

from lodefs.chunkstore.format.names import CommitId, PackId

STORE = "store.json"
PACKS = "packs/"
INDEX = "index/"
REPOS = "repos/"
PROBES = "probe/"

SEQUENCE_MAX = 10**10 - 1  # refs count down from here, so that the newest sorts first


def pack(pack_id: PackId) -> str:
    """``packs/ab/<64 hex>``."""
    name = pack_id.hex()
    return f"{PACKS}{name[:2]}/{name}"


def shard(push_id: str) -> str:
    """``index/<push id>``."""
    return f"{INDEX}{push_id}"


def probe(token: str) -> str:
    """``probe/<token>``: written and removed again to see whether conditional writes work."""
    return f"{PROBES}{token}"


def commits(repo: str) -> str:
    """The prefix of a repository's commits."""
    return f"{REPOS}{repo}/commits/"


def commit(repo: str, commit_id: CommitId) -> str:
    """``repos/<repo>/commits/<64 hex>``."""
    return f"{commits(repo)}{commit_id.hex()}"


def refs(repo: str, kind: str) -> str:
    """The prefix of all refs of one kind ("branches" or "tags")."""
    return f"{REPOS}{repo}/refs/{kind}/"


def ref(repo: str, kind: str, name: str) -> str:
    """The prefix of one ref's log."""
    return f"{refs(repo, kind)}{name}/"


def ref_entry(repo: str, kind: str, name: str, sequence: int) -> str:
    """``repos/<repo>/refs/<kind>/<name>/<10 digits, descending>``; sequences count from 0."""
    return f"{ref(repo, kind, name)}{SEQUENCE_MAX - sequence:010d}"
