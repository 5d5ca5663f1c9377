"""Which texts are URLs of Git repositories, and which of them a node may read."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.foreign.git_url import (
    check_allowed,
    check_rev,
    parse_git_url,
    relative_to,
    spec_of_url,
    split_rev,
    url_of_repo,
)
from lodefs.chunkstore.format.names import Spec, parse_spec


def test_urls() -> None:
    """A URL has a scheme, a host and a path; the scheme's own port makes no difference."""
    url = parse_git_url("https://Host.example:443/org/Repo.git/")
    assert str(url) == "https://host.example/org/Repo.git"
    assert url.repo == "git/host.example/org/Repo.git"
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
    """Allowed is what the administrator names, and what lies below it, and nothing else; the
    settings say how it is reached."""
    names = ("https://Host.example/org/", "ssh://git@other:2222", "https://one/a/r.git")
    allowed = [check_allowed(one) for one in names]
    assert allowed == ["https://host.example/org", "ssh://git@other:2222/", "https://one/a/r.git"]
    for repo, url in (
        ("git/host.example/org/x.git", "https://host.example/org/x.git"),
        ("git/other_2222/a/b", "ssh://git@other:2222/a/b"),
        ("git/one/a/r.git", "https://one/a/r.git"),
        ("git/host.example/organ/x.git", None),
        ("git/host.example/x.git", None),
        ("git/one/a/r", None),
        ("git/other/a/b", None),
        ("vision/cats", None),
    ):
        assert url_of_repo(repo, allowed) == url
        assert url_of_repo(repo, []) is None
    for text in ("file:///srv", "https://", "https://h/a b", "https://h/~me", "ext::x"):
        with pytest.raises(InvalidInput):
            check_allowed(text)


def test_datasets() -> None:
    """A URL names a dataset: a revision of Git, and perhaps a path in it."""
    assert spec_of_url("https://h/org/r.git@v1:a/b") == Spec("git/h/org/r.git", "git:v1", b"a/b")
    assert spec_of_url("ssh://git@h:22/r.git") == Spec("git/h/r.git", "git:HEAD")
    assert spec_of_url("https://h/r@feature/x").rev == "git:feature+x"
    assert parse_spec("git/h/r@git:feature+x~1:a") == Spec("git/h/r", "git:feature+x~1", b"a")
    for text in ("https://h/r@--x", "https://h/r@a+b", "https://h/~u/r", "https://h/r:../x"):
        with pytest.raises(InvalidInput):
            spec_of_url(text)


def test_urls_of_submodules() -> None:
    """A relative URL is one beside the parent's; one that leads above the host is refused."""
    parent = parse_git_url("https://h/org/repo.git")
    assert str(relative_to(parent, "../lib.git")) == "https://h/org/lib.git"
    assert str(relative_to(parent, "https://other/x")) == "https://other/x"
    for text in ("../../../x/-y", "ext::sh", "/etc", "../../.."):
        with pytest.raises(InvalidInput):
            relative_to(parent, text)
