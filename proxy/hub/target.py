"""Parses the raw targets of requests below /hf/. Pure; looks nothing up.

Source: the paths that the package huggingface_hub requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal
from urllib.parse import parse_qs, unquote, unquote_to_bytes

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import DEFAULT_BRANCH, split_path

Kind = Literal["models", "datasets", "spaces"]
Action = Literal["info", "tree", "refs", "paths-info", "resolve"]
# The hub's own words, and others for what it does not have
ErrorCode = Literal[
    "RepoNotFound",
    "RevisionNotFound",
    "EntryNotFound",
    "GatedRepo",
    "TooLarge",
    "FetchFailed",
    "BadRequest",
]

_KINDS: Mapping[str, Kind] = {"models": "models", "datasets": "datasets", "spaces": "spaces"}
_ACTIONS: Mapping[str, Action] = {
    "revision": "info",
    "tree": "tree",
    "refs": "refs",
    "paths-info": "paths-info",
}
_RESOLVE = "resolve"


class HubError(NotFound):
    """There is no such thing, or it is not for this client. ``code`` says why.
    ``sha`` and ``repo`` are the commit and the repository of the store that lack it, if there are
    any."""

    def __init__(self, code: ErrorCode, message: str, *, sha: str = "", repo: str = "") -> None:
        super().__init__(message)
        self.code = code
        self.sha = sha
        self.repo = repo


@dataclass(frozen=True, slots=True)
class HubTarget:
    """The meaning of a target. ``repo_id`` is as the client wrote it: NAME or ORG/NAME."""

    kind: Kind
    repo_id: str
    action: Action
    rev: str = DEFAULT_BRANCH
    path: bytes = b""
    query: Mapping[str, Sequence[str]] = field(default_factory=dict)

    @property
    def repositories(self) -> tuple[str, ...]:
        """The repositories of the store that may answer; the first that there is does."""
        if self.kind == "models":
            return (self.repo_id,)
        return f"{self.kind}/{self.repo_id}", self.repo_id

    def flag(self, name: str) -> bool:
        """Whether a parameter of the query is set."""
        return self.query.get(name, ("",))[-1].lower() in ("true", "1")


def parse_target(raw: str) -> HubTarget:
    """Parses what follows ``/hf/``, with its query. Raises: NotFound for paths that the hub has and
    a store has not; InvalidInput for a path with '..' or NUL, or a malformed query."""
    raw_path, _, raw_query = raw.partition("?")
    words = raw_path.split("/")
    query = form_of(raw_query)
    if words[0] == "api" and len(words) > 2 and words[1] in _KINDS:
        return _api_target(_KINDS[words[1]], words[2:], query)
    kind: Kind = "models"
    if len(words) > 3 and words[0] in ("datasets", "spaces"):
        kind, words = _KINDS[words[0]], words[1:]
    at = _verb_at(words, (_RESOLVE,))
    if not at or len(words) < at + 3:
        raise NotFound(
            "there is no such path below /hf/: it has what programs need to read repositories of "
            "the Hugging Face Hub (docs/huggingface.md)"
        )
    rev = unquote(words[at + 1])
    return HubTarget(kind, _repo_id(words[:at]), "resolve", rev, _path(words[at + 2 :]), query)


def form_of(text: str) -> Mapping[str, Sequence[str]]:
    """Returns the fields of a query or of a form. Raises: InvalidInput."""
    try:
        return parse_qs(text, keep_blank_values=True)
    except ValueError as error:
        raise InvalidInput(f"the query or form is malformed: {error}") from error


def _api_target(kind: Kind, words: list[str], query: Mapping[str, Sequence[str]]) -> HubTarget:
    at = _verb_at(words, _ACTIONS)
    if not at:
        if len(words) > 2:
            raise NotFound(f"there is no {words[2]!r} of a repository here")
        return HubTarget(kind, _repo_id(words), "info", query=query)
    action = _ACTIONS[words[at]]
    rev = unquote(words[at + 1]) if len(words) > at + 1 else DEFAULT_BRANCH
    return HubTarget(kind, _repo_id(words[:at]), action, rev, _path(words[at + 2 :]), query)


def _verb_at(words: Sequence[str], verbs: Mapping[str, Action] | Sequence[str]) -> int:
    """Returns where the verb stands, behind one or two words of a repository; 0 if there is
    none."""
    return next((at for at in (2, 1) if len(words) > at and words[at] in verbs), 0)


def _repo_id(words: Sequence[str]) -> str:
    return unquote("/".join(words))


def _path(words: Sequence[str]) -> bytes:
    return b"/".join(split_path(unquote_to_bytes("/".join(words))))
