"""Messages about a fetch from the Hugging Face Hub, between nodes and the process that fetches."""

from __future__ import annotations

from typing import Literal

import msgspec

RepoKind = Literal["model", "dataset", "space"]
# running; done: it is in the store; missing, gated, too large: the hub's or the site's last word;
# damaged: the hub sends something else than it lists; failed: another attempt may succeed
State = Literal[
    "running", "done", "no repository", "no revision", "gated", "too large", "damaged", "failed"
]


class HubOrder(msgspec.Struct, frozen=True):
    """A repository of the hub at a revision, and the repository of the store that it goes to."""

    kind: RepoKind
    repo_id: str
    rev: str
    repo: str

    @property
    def repo_url(self) -> str:
        return f"hf://{'' if self.kind == 'model' else f'{self.kind}s/'}{self.repo_id}"


class HubRequest(msgspec.Struct, frozen=True):
    """A fetch that somebody needs now; ``path`` is the file that is waited for, if it is one."""

    order: HubOrder
    path: str = ""


class HubOutcome(msgspec.Struct, frozen=True, omit_defaults=True):
    """The progress of a fetch, or its end. ``message`` is for logs and clients. ``sha`` is the
    hub's commit, as soon as the store has its listing."""

    state: State
    message: str = ""
    sha: str = ""


class FetchOrder(msgspec.Struct, frozen=True):
    """One fetch for the process that makes it. Paths of files that clients wait for follow it, a
    line of JSON each."""

    wanted: HubOrder
    size_bytes_max: int
