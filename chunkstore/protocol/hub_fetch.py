"""Messages about a fetch from the Hugging Face Hub, between nodes and the process that fetches."""

from __future__ import annotations

from typing import Literal

import msgspec

RepoKind = Literal["model", "dataset", "space"]
# running; done: it is in the store; missing, gated, too large: the hub's or the site's last word;
# failed: another attempt may succeed
State = Literal["running", "done", "no repository", "no revision", "gated", "too large", "failed"]


class HubOrder(msgspec.Struct, frozen=True):
    """A repository of the hub at a revision, and the repository of the store that it goes to."""

    kind: RepoKind
    repo_id: str
    rev: str
    repo: str

    @property
    def repo_url(self) -> str:
        return f"hf://{'' if self.kind == 'model' else f'{self.kind}s/'}{self.repo_id}"


class HubOutcome(msgspec.Struct, frozen=True):
    """The progress of a fetch, or its end. ``message`` is for logs and clients."""

    state: State
    message: str = ""


class FetchOrder(msgspec.Struct, frozen=True):
    """One fetch for the process that makes it. ``store`` is a URL, ``index_dir`` the directory of
    the push index."""

    wanted: HubOrder
    store: str
    endpoint_url: str | None
    region: str | None
    index_dir: str
    size_bytes_max: int
