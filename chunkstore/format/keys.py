"""Where things lie in a store: the object keys of docs/format.md, in one place."""

from __future__ import annotations

from lodefs.chunkstore.format.names import CommitId, PackId, is_hex

STORE = "store.json"
PACKS = "packs/"
INDEX = "index/"
REPOS = "repos/"
PROBES = "probe/"
ENTRIES = "journal/entries/"
LEDGER = "journal/ledger"
PURGES = "purges/"
SCRUB = "scrub/ledger"
REMOVED_SHARDS = "removed-shards"

_SETTINGS = "_settings"  # no kind of ref
SEQUENCE_MAX = 10**10 - 1  # refs and the journal count down from here: the newest sorts first


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


def settings(repo: str) -> str:
    """The prefix of a repository's settings: before those of its branches and tags, so that a list
    of what it has begins with the newest."""
    return f"{REPOS}{repo}/refs/{_SETTINGS}/"


def settings_entry(repo: str, sequence: int) -> str:
    """``repos/<repo>/refs/_settings/<10 digits, descending>``; sequences count from 0."""
    return descending(settings(repo), sequence)


def settings_sequence(key: str) -> int:
    """The sequence of the settings at ``key``; -1 if that is no such key."""
    head, _, digits = key.rpartition("/")
    sequence = SEQUENCE_MAX - int(digits) if digits.isdigit() and len(digits) == 10 else -1
    return sequence if head.endswith(f"/refs/{_SETTINGS}") else -1


def expired(repo: str, prefix: str = "") -> str:
    """``repos/<repo>/refs/expired/<commit id>``, or the beginning of such keys."""
    return f"{REPOS}{repo}/refs/expired/{prefix}"


def ref_entry(repo: str, kind: str, name: str, sequence: int) -> str:
    """``repos/<repo>/refs/<kind>/<name>/<10 digits, descending>``; sequences count from 0."""
    return descending(ref(repo, kind, name), sequence)


def ref_of_entry(key: str) -> tuple[str, str, str, int] | None:
    """Repository, kind, name and sequence of a ref's entry; None for the key of anything else."""
    repo, found, rest = key.removeprefix(REPOS).partition("/refs/")
    kind, name, number = (*rest.split("/"), "", "")[:3]
    if not (found and name) or not number.isdigit():
        return None
    sequence = SEQUENCE_MAX - int(number)
    return (repo, kind, name, sequence) if key == ref_entry(repo, kind, name, sequence) else None


def descending(log: str, number: int) -> str:
    """The key of an entry of a log, ``log`` and 10 digits; numbers count from 0."""
    return f"{log}{SEQUENCE_MAX - number:010d}"


def number_in(log: str, key: str) -> int:
    """The number of the entry of a log that lies at ``key``; -1 if that is no such key."""
    digits = key.removeprefix(log)
    number = SEQUENCE_MAX - int(digits) if digits.isdigit() else -1
    return number if number >= 0 and key == descending(log, number) else -1


def journal_entry(number: int) -> str:
    """``journal/entries/<10 digits, descending>``; numbers count from 0."""
    return descending(ENTRIES, number)


def journal_number(key: str) -> int:
    """The number of the journal's entry that lies at ``key``; -1 if that is no such key."""
    return number_in(ENTRIES, key)


def journal_part(what: str, number: int) -> str:
    """``journal/<what>/<10 digits, descending>``: what belongs to an entry of the journal
    ("ends", "beats", "outcomes", "done")."""
    return descending(f"journal/{what}/", number)


def purge(number: int) -> str:
    """``purges/<10 digits, ascending>``; numbers count from 0."""
    return f"{PURGES}{number:010d}"


def pack_of(key: str) -> PackId | None:
    """The id of the pack at ``key``; None if that is no such key."""
    name = key.rpartition("/")[2]
    if not key.startswith(PACKS) or len(name) != 64 or not is_hex(name):
        return None
    found = PackId(bytes.fromhex(name))
    return found if key == pack(found) else None
