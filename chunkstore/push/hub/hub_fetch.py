"""A process that fetches a repository of the Hugging Face Hub into a store.

Standard input has a StorePlace, a FetchOrder, then paths for which somebody waits: a line of JSON
each. Standard output gets a HubOutcome as a line of JSON when the store has the listing, every some
seconds, and at the end. ``HF_ENDPOINT`` and ``HF_TOKEN_PATH`` say which hub, and as whom.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from lodefs.chunkstore.errors import Corrupt, InvalidInput, LodefsError, NotADirectory, NotFound
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.format.foreign import hub
from lodefs.chunkstore.format.journal import RefName
from lodefs.chunkstore.format.names import CommitId, Spec, parse_id
from lodefs.chunkstore.journal.existing_commit import point_ref
from lodefs.chunkstore.protocol.orders.hub_orders import FetchOrder, HubOrder, HubOutcome
from lodefs.chunkstore.push.changes.branch_commits import read_living_head
from lodefs.chunkstore.push.changes.change import CopyFrom
from lodefs.chunkstore.push.changes.commit_changes import commit_changes
from lodefs.chunkstore.push.hub.growing_branch import delete_branch, growing_branch
from lodefs.chunkstore.push.hub.hub_arrival import Arrival, Earlier
from lodefs.chunkstore.push.hub.hub_files import open_hub_files
from lodefs.chunkstore.push.hub.hub_listing import (
    HubCommit,
    files_of,
    has_tags,
    keep_tags,
    options_of,
    store_listing,
)
from lodefs.chunkstore.push.session import PushOptions
from lodefs.chunkstore.push.store_process import store_of_parent, tell
from lodefs.chunkstore.repo.refs import BRANCHES
from lodefs.chunkstore.repo.store import Store, open_store
from lodefs.chunkstore.system.processes import limit_memory
from lodefs.chunkstore.system.progress import Progress

AUTHOR = "Hugging Face Hub"
TOLD_EVERY_S = 10.0
TIMEOUT_S = 30.0  # for one answer about a repository
EARLIER_MAX = 2  # commits that are looked through for equal files
# The library keeps an answer in memory, and a hub may send one without an end. For each process,
# which needs less than a tenth
MEMORY_BYTES_MAX = 4 << 30


def main() -> None:
    limit_memory(MEMORY_BYTES_MAX)
    with store_of_parent() as (objects, place):
        order = from_json(sys.stdin.buffer.readline(), FetchOrder)
        wanted: SimpleQueue[bytes] = SimpleQueue()
        threading.Thread(target=_take_paths, args=(wanted,), daemon=True).start()
        try:
            fetch = Fetch(open_store(objects), Path(place.index_dir), order, tell, wanted)
            with _told_regularly(fetch):
                outcome = fetch.run()
        except (Corrupt, InvalidInput, NotADirectory) as error:
            outcome = HubOutcome("damaged", str(error))
        except LodefsError as error:
            outcome = HubOutcome("failed", str(error))
        tell(outcome)


def _take_paths(wanted: SimpleQueue[bytes]) -> None:
    for line in sys.stdin.buffer:
        wanted.put(from_json(line, str).encode())


@contextmanager
def _told_regularly(fetch: Fetch) -> Iterator[None]:
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(TOLD_EVERY_S):
            tell(fetch.progress())

    teller = threading.Thread(target=report)
    teller.start()
    try:
        yield
    finally:
        ended.set()
        teller.join()


class Fetch:
    """One fetch. It goes on from what an earlier one has left in the store."""

    def __init__(
        self,
        store: Store,
        index_dir: Path,
        order: FetchOrder,
        tell: Callable[[HubOutcome], None],
        wanted: SimpleQueue[bytes] | None = None,
    ) -> None:
        """``tell`` is called once the store has the listing; ``wanted`` gets paths of files for
        which somebody waits."""
        self._store = store
        self._order = order
        self._repo = order.wanted.repo
        self._tell = tell
        self._wanted = wanted or SimpleQueue()
        self._counters = Progress()
        self._options = PushOptions(
            message="", author=AUTHOR, time_s=int(time.time()), index_dir=index_dir, workers=0
        )
        self._size_bytes = 0
        self._sha = ""  # once the store has the listing

    def progress(self) -> HubOutcome:
        """Returns how far the fetch is."""
        what = f"{self._counters.bytes_done:,} of {self._size_bytes:,} bytes have been read"
        return HubOutcome("running", what, self._sha)

    def run(self) -> HubOutcome:
        """Fetches the repository at one commit, and returns how that ended. Raises: errors of the
        store and of reading."""
        of_hub = commit_of(self._order.wanted)
        if isinstance(of_hub, HubOutcome):
            return of_hub
        if not has_tags(self._store, self._repo, of_hub.sha):
            self._size_bytes = sum(file.tag.size_bytes for file in files_of(of_hub))
            if self._size_bytes > self._order.size_bytes_max:
                return self._too_large(of_hub)
            self._fetch(of_hub)
        branch = self._point_branch(of_hub)
        # At each moment there is one or the other for clients
        for name in (hub.arriving_branch_of(of_hub.sha), hub.listing_branch_of(of_hub.sha)):
            delete_branch(self._store, self._repo, name)
        what = f"{of_hub.repo_url}@{of_hub.sha} is {self._repo}@{branch}"
        return HubOutcome("done", what, of_hub.sha)

    def _too_large(self, of_hub: HubCommit) -> HubOutcome:
        return HubOutcome(
            "too large",
            f"{of_hub.repo_url} has {self._size_bytes:,} bytes, and this site fetches at most "
            f"{self._order.size_bytes_max:,} (hub_size_bytes_max); lodefs push takes more",
        )

    def _fetch(self, of_hub: HubCommit) -> None:
        """Brings the files and their tags to the branch of the tags."""
        store, repo = self._store, self._repo
        listing = self._listing(of_hub)
        metadata = {hub.SOURCE: of_hub.repo_url, hub.LISTING_COMMIT: listing.hex()}
        options = replace(
            self._options, message="what has come", metadata=tuple(sorted(metadata.items()))
        )
        name = hub.arriving_branch_of(of_hub.sha)
        with (
            growing_branch(store, repo, name, options, self._counters) as branch,
            closing(open_hub_files(of_hub)) as remote,
        ):
            if branch.head is None:
                branch.commit()
            self._sha = of_hub.sha
            self._tell(self.progress())
            root, earlier = store.commit(repo, listing).root, self._earlier()
            arrival = Arrival(branch, root, remote, earlier=earlier, wanted=self._take_wanted)
            arrived = arrival.run()
        named = options_of(of_hub, self._options, f"{of_hub.repo_url}@{of_hub.sha}")
        files = [CopyFrom(Spec(repo, arrived.hex()), "")]
        whole = commit_changes(store, repo, hub.branch_of(of_hub.sha), files, named).commit
        keep_tags(store, of_hub, repo, CommitId(parse_id(whole)), listing, self._options)

    def _listing(self, of_hub: HubCommit) -> CommitId:
        """Returns the commit with all tags, which an earlier fetch may have left."""
        try:
            name = hub.arriving_branch_of(of_hub.sha)
            _, _, commit = read_living_head(self._store, self._repo, name)
            return CommitId(parse_id(dict(commit.metadata)[hub.LISTING_COMMIT]))
        except NotFound:
            files = files_of(of_hub)
            return store_listing(self._store, of_hub, self._repo, files, self._options)

    def _take_wanted(self) -> Iterable[bytes]:
        found = []
        while not self._wanted.empty():
            found.append(self._wanted.get())
        return found

    def _earlier(self) -> list[Earlier]:
        """Returns the newest commits of the hub that the repository has."""
        store, repo = self._store, self._repo
        living = store.refs(repo).living(BRANCHES)
        heads = [entry for name, entry in living if hub.commit_of_branch(name)]
        heads.sort(key=lambda entry: entry.time_s, reverse=True)
        found = []
        for entry in heads[:EARLIER_MAX]:
            assert entry.commit is not None
            tags = store.commit(repo, entry.commit)
            if tags.parents:
                found.append(Earlier(tags.root, store.commit(repo, tags.parents[0]).root))
        return found

    def _point_branch(self, of_hub: HubCommit) -> str:
        """Makes the branch that was asked for, unless there is one. Returns its name; a commit that
        was asked for by its id has that of its tags."""
        tags = hub.branch_of(of_hub.sha)
        if self._order.wanted.rev == of_hub.sha:
            return tags
        branch, refs = hub.ref_of(self._order.wanted.rev), self._store.refs(self._repo)
        there = refs.latest(BRANCHES, branch)
        if there is None or there.commit is None:
            commit = self._store.resolve(self._repo, f"{tags}~1")
            sequence = None if there is None else there.sequence
            name = RefName(self._repo, BRANCHES, branch)
            point_ref(self._store, name, commit, expected_sequence=sequence)
        return branch


def commit_of(wanted: HubOrder) -> HubCommit | HubOutcome:
    """Returns the commit that a revision is now; or why it is not fetched."""
    from huggingface_hub import HfApi, errors

    api = HfApi()
    try:
        info = api.repo_info(
            wanted.repo_id, repo_type=wanted.kind, revision=wanted.rev, timeout=TIMEOUT_S
        )
    except errors.GatedRepoError:
        return HubOutcome("gated", f"{wanted.repo_url} is gated: the site's token has no access")
    except errors.RevisionNotFoundError:
        return HubOutcome("no revision", f"{wanted.repo_id} has no revision {wanted.rev}")
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return HubOutcome("no repository", f"there is no repository {wanted.repo_id}")
    except Exception as error:  # noqa: BLE001 - the package has one HTTP library or another
        return HubOutcome("failed", f"{api.endpoint} did not answer: {type(error).__name__}")
    if not hub.is_commit_id(str(info.sha)):
        return HubOutcome("failed", f"{api.endpoint} names no commit of {wanted.repo_url}")
    return HubCommit(wanted.kind, wanted.repo_id, str(info.sha))
