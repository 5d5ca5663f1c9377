"""The object keys of a store (docs/format.md), in one place."""

from __future__ import annotations

from lodefs.chunkstore.format.names import CommitId, PackId, is_hex

STORE = "store.json"
PACKS = "packs/"
INDEX = "index/"
HOOKS = "hooks/"
REPOS = "repos/"
PROBES = "probe/"
ENTRIES = "journal/entries/"
LEDGER = "journal/ledger"
PURGES = "purges/"
SCRUB = "scrub/ledger"
REMOVED_SHARDS = "removed-shards"
PLANS = "plans/"

_SETTINGS = "_settings"  # not a kind of ref
SEQUENCE_MAX = 10**10 - 1  # refs and the journal count down from here: the newest sorts first


def pack(pack_id: PackId) -> str:
    """Returns ``packs/ab/<64 hex>``."""
    name = pack_id.hex()
    return f"{PACKS}{name[:2]}/{name}"


def before_packs(prefix: bytes) -> str:
    """Returns a key that sorts right before those of packs whose ids begin with ``prefix``."""
    name = prefix.hex()
    return f"{PACKS}{name[:2]}/{name}"


def shard(push_id: str) -> str:
    """Returns ``index/<push id>``."""
    return f"{INDEX}{push_id}"


def hook_list(push_id: str) -> str:
    """Returns ``hooks/<push id>``. The list ends with the shard of that push."""
    return f"{HOOKS}{push_id}"


def probe(token: str) -> str:
    """Returns ``probe/<token>``, which is written and removed to test conditional writes."""
    return f"{PROBES}{token}"


def commits(repo: str) -> str:
    """Returns the prefix of a repository's commits."""
    return f"{REPOS}{repo}/commits/"


def commit(repo: str, commit_id: CommitId) -> str:
    """Returns ``repos/<repo>/commits/<64 hex>``."""
    return f"{commits(repo)}{commit_id.hex()}"


def refs(repo: str, kind: str) -> str:
    """Returns the prefix of all refs of one kind ("branches" or "tags")."""
    return f"{REPOS}{repo}/refs/{kind}/"


def ref(repo: str, kind: str, name: str) -> str:
    """Returns the prefix of one ref's log."""
    return f"{refs(repo, kind)}{name}/"


def settings(repo: str) -> str:
    """Returns the prefix of a repository's settings. It sorts before those of its branches and
    tags, so that a list of a repository begins with its newest settings."""
    return f"{REPOS}{repo}/refs/{_SETTINGS}/"


def settings_entry(repo: str, sequence: int) -> str:
    """Returns ``repos/<repo>/refs/_settings/<10 digits, descending>``; sequences count from 0."""
    return descending(settings(repo), sequence)


def settings_sequence(key: str) -> int:
    """Returns the sequence of the settings at ``key``; -1 for any other key."""
    head, _, digits = key.rpartition("/")
    sequence = SEQUENCE_MAX - int(digits) if digits.isdigit() and len(digits) == 10 else -1
    return sequence if head.endswith(f"/refs/{_SETTINGS}") else -1


def expired(repo: str, prefix: str = "") -> str:
    """Returns ``repos/<repo>/refs/expired/<commit id>``, or a prefix of such keys."""
    return f"{REPOS}{repo}/refs/expired/{prefix}"


def ref_entry(repo: str, kind: str, name: str, sequence: int) -> str:
    """Returns ``repos/<repo>/refs/<kind>/<name>/<10 digits, descending>``; sequences count from
    0."""
    return descending(ref(repo, kind, name), sequence)


def ref_of_entry(key: str) -> tuple[str, str, str, int] | None:
    """Returns repository, kind, name and sequence of a ref's entry; None for any other key."""
    repo, found, rest = key.removeprefix(REPOS).partition("/refs/")
    kind, name, number = (*rest.split("/"), "", "")[:3]
    if not (found and name) or not number.isdigit():
        return None
    sequence = SEQUENCE_MAX - int(number)
    return (repo, kind, name, sequence) if key == ref_entry(repo, kind, name, sequence) else None


def descending(log: str, number: int) -> str:
    """Returns the key of an entry of a log: ``log`` and 10 digits. Numbers count from 0."""
    return f"{log}{SEQUENCE_MAX - number:010d}"


def number_in(log: str, key: str) -> int:
    """Returns the number of the log's entry at ``key``; -1 for any other key."""
    digits = key.removeprefix(log)
    number = SEQUENCE_MAX - int(digits) if digits.isdigit() else -1
    return number if number >= 0 and key == descending(log, number) else -1


def journal_entry(number: int) -> str:
    """Returns ``journal/entries/<10 digits, descending>``; numbers count from 0."""
    return descending(ENTRIES, number)


def journal_number(key: str) -> int:
    """Returns the number of the journal's entry at ``key``; -1 for any other key."""
    return number_in(ENTRIES, key)


def journal_part(what: str, number: int) -> str:
    """Returns ``journal/<what>/<10 digits, descending>`` for a part of an entry of the journal
    ("ends", "beats", "outcomes", "done")."""
    return descending(f"journal/{what}/", number)


def purge(number: int) -> str:
    """Returns ``purges/<10 digits, ascending>``; numbers count from 0."""
    return f"{PURGES}{number:010d}"


def plan_name(name: str) -> str:
    """Returns ``plans/<name>/first`` for the document that takes the name of a planned push."""
    return f"{PLANS}{name}/first"


def plan(name: str, first: int, what: str = "") -> str:
    """Returns ``plans/<name>/<10 digits of its first writer>/<what>`` for a document of a planned
    push, or the prefix of all of them."""
    return f"{PLANS}{name}/{first:010d}/{what}"


def plan_part(name: str, first: int, what: str, number: int) -> str:
    """Returns ``<what>/<8 digits>`` of a plan for a part ("parts"), its result ("results") or its
    failure ("failures")."""
    return plan(name, first, f"{what}/{number:08d}")


def plan_writer(name: str, first: int, number: int) -> str:
    """Returns ``writers/<10 digits, descending>`` of a plan; numbers count from 1."""
    return descending(plan(name, first, "writers/"), number)


def plan_of(key: str) -> str:
    """Returns the name of the plan that a key of it has; "" for any other key."""
    return key.removeprefix(PLANS).partition("/")[0] if key.startswith(PLANS) else ""


def pack_of(key: str) -> PackId | None:
    """Returns the id of the pack at ``key``; None for any other key."""
    name = key.rpartition("/")[2]
    if not key.startswith(PACKS) or len(name) != 64 or not is_hex(name):
        return None
    found = PackId(bytes.fromhex(name))
    return found if key == pack(found) else None
