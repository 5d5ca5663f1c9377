"""Which texts are URLs of Git repositories, and which of them a node may read."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput
from lodefs.chunkstore.format.git_url import (
    check_allowed,
    check_prefix,
    check_rev,
    parse_git_url,
    relative_to,
    split_rev,
)


def test_urls() -> None:
    """A URL has a scheme, a host and a path; the scheme's own port makes no difference."""
    url = parse_git_url("https://Host.example:443/org/Repo.git/")
    assert str(url) == "https://host.example/org/Repo.git"
    assert url.repo == "git/host.example/org/Repo"
    assert parse_git_url("https://h:8443/a/b").repo == "git/h_8443/a/b"
    assert str(parse_git_url("ssh://git@h/~u/r.git")) == "ssh://git@h/~u/r.git"


@pytest.mark.parametrize(
    "text",
    [
        "ext::sh -c touch% /tmp/x",
        "file:///etc",
        "git://host/repo",
        "https://host",
        "https://host/../etc",
        "https://host/a//b",
        "https://-oProxyCommand=x/repo",
        "ssh://-oProxyCommand=x/repo",
        "https://host/-x",
        "https://host/a?b=c",
        "https://host/a b",
        "https://host/a\nb",
        "https://user@host/a",
        "--upload-pack=x",
        f"https://host/{'a' * 1000}",
    ],
)
def test_no_urls(text: str) -> None:
    """Other schemes, options, and paths that lead upwards are refused."""
    with pytest.raises(InvalidInput):
        parse_git_url(text)


def test_a_password_is_not_repeated() -> None:
    """A URL with a password is refused by a message without it."""
    with pytest.raises(InvalidInput) as caught:
        parse_git_url("https://user:hunter2@host/repo.git")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("rev", ["-x", "--upload-pack=x", "a..b", "", "a b", "x.lock", "@{1}", "~"])
def test_no_revisions(rev: str) -> None:
    """What Git could take for an option or a range is no revision."""
    with pytest.raises(InvalidInput):
        check_rev(rev)


def test_revisions_follow_an_at() -> None:
    """The revision follows the path, and may have slashes; HEAD is meant without one."""
    assert split_rev("https://h/r.git@feature/x") == ("https://h/r.git", "feature/x")
    assert split_rev("ssh://git@h/r.git") == ("ssh://git@h/r.git", "HEAD")
    assert split_rev("/a@b/c@v1") == ("/a@b/c", "v1")


def test_allowed_urls() -> None:
    """Allowed is what lies below a beginning that the administrator names, and nothing else."""
    allowed = [check_prefix("https://host.example/org"), check_prefix("ssh://git@other:2222/a/")]
    assert allowed == ["https://host.example/org/", "ssh://other:2222/a/"]
    for text in ("https://HOST.example/org/x.git", "ssh://me@other:2222/a/b"):
        check_allowed(parse_git_url(text), allowed)
    for text in (
        "https://host.example/organ/x.git",
        "https://host.example/org/%2e%2e/x",
        "http://host.example/org/x.git",
        "https://host.example:8443/org/x.git",
        "https://evil.example/https://host.example/org/x",
        "ssh://other/a/b",
    ):
        with pytest.raises((Denied, InvalidInput)):
            check_allowed(parse_git_url(text), allowed)
    with pytest.raises(Denied):
        check_allowed(parse_git_url("https://host.example/org/x.git"), [])


def test_urls_of_submodules() -> None:
    """A relative URL is one beside the parent's; one that leads above the host is refused."""
    parent = parse_git_url("https://h/org/repo.git")
    assert str(relative_to(parent, "../lib.git")) == "https://h/org/lib.git"
    assert str(relative_to(parent, "https://other/x")) == "https://other/x"
    for text in ("../../../x/-y", "ext::sh", "/etc", "../../.."):
        with pytest.raises(InvalidInput):
            relative_to(parent, text)
