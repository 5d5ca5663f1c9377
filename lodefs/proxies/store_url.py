"""Splits the URL of a repository in a store into store and repository."""

from __future__ import annotations

from collections.abc import Iterator

from lodefs.chunkstore.errors import InvalidInput, LodefsError, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.proxies.own_proxy import ask, plain_store, served_store
from lodefs.settings.session import Session, absolute, split_settings

ASK_TIMEOUT_S = 2.0  # for the node's proxy
STORE_TIMEOUT_S = 5.0  # for each place that may hold a store


def split_url(session: Session, node: str, url: str) -> tuple[str, str]:
    """Returns the store and the repository of s3://BUCKET/PREFIX/REPO, gs://..., az://...,
    file:///DIR/REPO or /DIR/REPO.

    If the URL begins with the store of the proxy ``node``, the store is "". Otherwise it is the
    first place along the path that holds a store.json. Raises: InvalidInput, NotFound (with the
    places that were tried), Unavailable.
    """
    url = absolute(url)
    head, settings = split_settings(url)
    own = _store_of(node)
    if own and (plain_store(url) + "/").startswith(plain_store(own) + "/"):
        return "", _repo(url, plain_store(url)[len(plain_store(own)) :])
    tried = []
    for store, repo in _splits(head.rstrip("/")):
        store += settings
        found = _look(session, store)
        if not found:
            return store, _repo(url, repo)
        tried.append(f"{store} ({found})")
    if not tried:
        raise InvalidInput(f"{url!r} names a store but no repository in it: add its name")
    raise NotFound(f"{url}: no part of it is a store; tried {', '.join(tried)}")


def _splits(url: str) -> Iterator[tuple[str, str]]:
    """Yields all stores and repositories that a URL may mean, the shortest store first."""
    scheme, mark, rest = url.partition("://")
    if not mark:
        scheme, rest = "", url
    parts = rest.split("/")
    for count in range(1, len(parts)):
        store = "/".join(parts[:count])
        if store or count > 1:
            yield scheme + mark + store, "/".join(parts[count:])


def _repo(url: str, name: str) -> str:
    name = name.strip("/")
    if not name:
        raise InvalidInput(f"{url!r} names a store but no repository in it: add its name")
    return check_repo(name)


def _store_of(node: str) -> str:
    """Returns the store of the node's proxy; "" if it does not answer."""
    try:
        return str(served_store(ask(node, "/status", timeout_s=ASK_TIMEOUT_S)) or "")
    except LodefsError:
        return ""


def _look(session: Session, store: str) -> str:
    """Returns the reason why there is no store; "" if there is one. Raises: InvalidInput,
    Unavailable."""
    s3 = session.config.s3
    options = StoreOptions(
        endpoint_url=s3.endpoint_url,
        region=s3.region,
        attempts_max=1,
        throttled_s_max=0.0,
        transfer_timeout_s=STORE_TIMEOUT_S,
    )
    objects = open_objects(store, options)
    try:
        objects.get(keys.STORE, size=1)
    except LodefsError as error:
        if isinstance(error, NotFound):
            return "no store.json"
        return f"{type(error).__name__}: {error}"
    finally:
        objects.close()
    return ""
