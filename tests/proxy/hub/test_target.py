"""target.py: what the paths below /hf/ name."""

from __future__ import annotations

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.proxy.hub.target import HubTarget, parse_target


@pytest.mark.parametrize(
    ("raw", "target"),
    [
        ("api/models/gpt2", HubTarget("models", "gpt2", "info")),
        ("api/models/a/b", HubTarget("models", "a/b", "info")),
        ("api/models/a/b/revision/refs%2Fpr%2F1", HubTarget("models", "a/b", "info", "refs/pr/1")),
        ("api/datasets/a/b/refs", HubTarget("datasets", "a/b", "refs")),
        ("api/models/gpt2/tree/main", HubTarget("models", "gpt2", "tree")),
        ("api/spaces/a/b/tree/v1/x%2Fy", HubTarget("spaces", "a/b", "tree", "v1", b"x/y")),
        ("api/models/a/b/paths-info/v1", HubTarget("models", "a/b", "paths-info", "v1")),
        ("a/b/resolve/main/x/y%20z", HubTarget("models", "a/b", "resolve", "main", b"x/y z")),
        ("gpt2/resolve/v1/x", HubTarget("models", "gpt2", "resolve", "v1", b"x")),
        ("datasets/a/b/resolve/v1/x", HubTarget("datasets", "a/b", "resolve", "v1", b"x")),
        ("datasets/squad/resolve/v1/x", HubTarget("datasets", "squad", "resolve", "v1", b"x")),
    ],
)
def test_what_clients_ask_for(raw: str, target: HubTarget) -> None:
    """Each path that huggingface_hub makes has its meaning."""
    assert parse_target(raw) == target


def test_repositories() -> None:
    """A model is the repository of its name; a dataset may also lie below datasets/."""
    assert parse_target("api/models/a/b").repositories == ("a/b",)
    assert parse_target("api/datasets/a/b").repositories == ("datasets/a/b", "a/b")


@pytest.mark.parametrize(
    "raw",
    ["a/b/resolve/main/..%2F..%2Fetc%2Fpasswd", "a/b/resolve/main/x/../../y", "a/b/resolve/m/%00"],
)
def test_hostile_paths(raw: str) -> None:
    """A path that leads out of the repository is refused, however it is escaped."""
    with pytest.raises(InvalidInput):
        parse_target(raw)


@pytest.mark.parametrize(
    "raw", ["", "api", "api/whoami-v2", "api/models/a/b/xet-read-token/main", "a/b", "a/b/raw/m/x"]
)
def test_what_is_not_here(raw: str) -> None:
    """What a store has not is not found: the tokens of Xet, users, other views of files."""
    with pytest.raises(NotFound):
        parse_target(raw)


@given(st.text(st.sampled_from("api/models.%2F00?=&datasetsresolvetree"), max_size=60))
def test_any_target(raw: str) -> None:
    """Every target has a meaning or one of lodefs' errors."""
    with suppress(LodefsError):
        assert isinstance(parse_target(raw), HubTarget)
