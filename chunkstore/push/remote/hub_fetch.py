"""A process that fetches a repository of the Hugging Face Hub into a store.

Standard input has a FetchOrder as JSON. Standard output gets a HubOutcome as a line of JSON every
some seconds, and one at the end. ``HF_ENDPOINT`` and ``HF_TOKEN_PATH`` say which hub, and as whom.
"""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import TypeVar

import msgspec

from lodefs.chunkstore.errors import InvalidInput, LodefsError
from lodefs.chunkstore.format import hub
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.protocol.hub_fetch import FetchOrder, HubOrder, HubOutcome
from lodefs.chunkstore.push.push import PushOptions
from lodefs.chunkstore.push.remote.hub_push import push_hub
from lodefs.chunkstore.repo.store import open_store
from lodefs.chunkstore.system.processes import die_with_parent
from lodefs.chunkstore.system.progress import Progress

T = TypeVar("T")
AUTHOR = "Hugging Face Hub"
TOLD_EVERY_S = 10.0
TIMEOUT_S = 30.0  # for one answer about a repository
FILES_MAX = 10_000_000  # also directories; a list whose pages lead in a circle has no end
# The library keeps an answer in memory, and a hub may send one without an end. For each process;
# the names of a million files need less than half
MEMORY_BYTES_MAX = 4 << 30


def main() -> None:
    die_with_parent(os.getppid())  # a node that is killed does not leave a fetch behind
    limit_memory(MEMORY_BYTES_MAX)
    order = from_json(sys.stdin.buffer.read(), FetchOrder)
    progress, ended = Progress(), threading.Event()
    teller = threading.Thread(target=_tell_of, args=(progress, ended))
    teller.start()
    try:
        outcome = fetch(order, progress)
    except LodefsError as error:
        outcome = HubOutcome("failed", str(error))
    finally:
        ended.set()
        teller.join()
    _tell(outcome)


def limit_memory(size_bytes: int) -> None:
    """Limits the memory of this process and of those that it starts."""
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    soft = size_bytes if hard == resource.RLIM_INFINITY else min(size_bytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def fetch(order: FetchOrder, progress: Progress) -> HubOutcome:
    """Fetches a repository at one commit, and returns how that ended. Raises: errors of the store
    and of reading."""
    wanted = order.wanted
    found = _commit_of(wanted, order.size_bytes_max)
    if isinstance(found, HubOutcome):
        return found
    # A commit that nobody asks for by a name is its own branch
    branch = hub.branch_of(found) if wanted.rev == found else hub.ref_of(wanted.rev)
    options = PushOptions(
        message="", author=AUTHOR, time_s=int(time.time()), index_dir=Path(order.index_dir)
    )
    stored = StoreOptions(endpoint_url=order.endpoint_url, region=order.region)
    with closing(open_objects(order.store, stored)) as objects:
        url = f"{wanted.repo_url}@{found}"
        result = push_hub(open_store(objects), url, wanted.repo, branch, options, progress)
    read = f"{result.files:,} files, {result.size_bytes:,} bytes"
    return HubOutcome("done", f"{url} is {wanted.repo}@{branch}: {read}")


def _commit_of(wanted: HubOrder, size_bytes_max: int) -> str | HubOutcome:
    """Returns the commit that a revision is now; or why it is not fetched."""
    from huggingface_hub import HfApi, errors

    api = HfApi()
    try:
        info = api.repo_info(
            wanted.repo_id, repo_type=wanted.kind, revision=wanted.rev, timeout=TIMEOUT_S
        )
        sha = str(info.sha)
        if not hub.is_commit_id(sha):
            return HubOutcome("failed", f"{api.endpoint} names no commit of {wanted.repo_url}")
        files = api.list_repo_tree(
            wanted.repo_id, recursive=True, revision=sha, repo_type=wanted.kind
        )
        size_bytes = sum(getattr(one, "size", 0) for one in _bounded(files))
    except InvalidInput as error:
        return HubOutcome("too large", f"{wanted.repo_url} {error}")
    except errors.GatedRepoError:
        return HubOutcome("gated", f"{wanted.repo_url} is gated: the site's token has no access")
    except errors.RevisionNotFoundError:
        return HubOutcome("no revision", f"{wanted.repo_id} has no revision {wanted.rev}")
    except (errors.RepositoryNotFoundError, errors.HFValidationError):
        return HubOutcome("no repository", f"there is no repository {wanted.repo_id}")
    except Exception as error:  # noqa: BLE001 - the package has one HTTP library or another
        return HubOutcome("failed", f"{api.endpoint} did not answer: {type(error).__name__}")
    if size_bytes > size_bytes_max:
        return HubOutcome(
            "too large",
            f"{wanted.repo_url} has {size_bytes:,} bytes, and this site fetches at most "
            f"{size_bytes_max:,} (hub_size_bytes_max); lodefs push takes more",
        )
    return sha


def _bounded(files: Iterable[T]) -> Iterator[T]:
    """Yields ``files``. Raises: InvalidInput if they are too many."""
    for number, one in enumerate(files):
        if number == FILES_MAX:
            raise InvalidInput(f"has more than {FILES_MAX:,} files, the most that a site fetches")
        yield one


def _tell_of(progress: Progress, ended: threading.Event) -> None:
    while not ended.wait(TOLD_EVERY_S):
        _tell(
            HubOutcome(
                "running",
                f"{progress.phase}: {progress.bytes_done:,} of {progress.bytes_total:,} bytes",
            )
        )


def _tell(outcome: HubOutcome) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(outcome) + b"\n")
    sys.stdout.buffer.flush()
