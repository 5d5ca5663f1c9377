"""Splits and builds ``lodefs://REPO@REV/PATH`` without a URL parser, since names of repositories
have slashes, and paths any byte.

Nothing is percent-encoded. Bytes of a path that are not UTF-8 become surrogate escapes, as in
``os.fsdecode``.
"""

from __future__ import annotations

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec, check_repo, check_revision, split_path

SCHEME = "lodefs"
_PREFIXES = (f"{SCHEME}://", f"{SCHEME}::")


def stripped(url: str) -> str:
    """``REPO@REV/PATH`` of a URL, without scheme and slashes at the ends."""
    for prefix in _PREFIXES:
        url = url.removeprefix(prefix)
    return url.strip("/")


def parse_url(url: str) -> Spec:
    """Returns the repository, revision and path of a URL, with or without its scheme.

    Raises: InvalidInput if a name is malformed or the revision is missing.
    """
    tail = stripped(url)
    repo, at, rest = tail.partition("@")
    if "://" in repo:
        raise InvalidInput(f"{url!r} is not a {SCHEME} URL: write {SCHEME}://REPO@REV/PATH")
    if not at:
        raise InvalidInput(
            f"{url!r} names no revision: write {SCHEME}://REPO@REV/PATH, "
            f"for example {SCHEME}://vision/flickr30k@main/images/1.jpg"
        )
    rev, _, path = rest.partition("/")
    check_repo(repo)
    check_revision(rev)
    return Spec(repo, rev, b"/".join(split_path(encoded_path(path))))


def encoded_path(path: str) -> bytes:
    """Returns the bytes of a path."""
    return path.encode("utf-8", "surrogateescape")


def decoded_path(path: bytes) -> str:
    """Returns the text of a path, from which ``encoded_path`` gets its bytes back."""
    return path.decode("utf-8", "surrogateescape")
