"""Options of volumes: what they mean, and that everything wrong is told, but no secret."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.mount.docker.options import (
    REFUSED,
    VALID,
    Options,
    Pin,
    parse_options,
)
from lodefs.mount.helper.interface import Source
from lodefs.mount.volumes.options import ON_LAST
from tests.support.docker.rig import split_url

SECRET = "hunter2-ghp-0123456789"


def refusal(**options: str) -> str:
    with pytest.raises(InvalidInput) as caught:
        parse_options(options, split_url)
    return str(caught.value)


def test_only_a_repository() -> None:
    """The branch main of a repository, which does not move."""
    assert parse_options({"repo": "vision/cats"}, split_url) == Options(
        source=Source(repo="vision/cats")
    )


def test_all_options() -> None:
    """Each option is where it belongs, and names may be written in capitals."""
    options = parse_options(
        {
            "REPO": "cats",
            "commit": "v1.0",
            "path": "/train//a/",
            "follow": "1h30m",
            "token_file": "/etc/lodefs/token",
            "store": "s3://bucket/prefix",
            "uid": "1000",
            "gid": "0",
            "mode": "0550",
            "cache_pin": "7d",
        },
        split_url,
    )
    source = Source(
        repo="cats",
        store="s3://bucket/prefix",
        path=b"train/a",
        token_file="/etc/lodefs/token",
        uid=1000,
        gid=0,
        mode=0o550,
    )
    assert options == Options(source=source, rev="v1.0", follow_s=5400, pin=Pin(7 * 86400))


def test_a_url_names_store_and_repository() -> None:
    """A full URL is split; a store besides is one too many."""
    source = parse_options({"repo": "s3://bucket/cats"}, split_url).source
    assert (source.store, source.repo) == ("s3://bucket", "cats")
    assert parse_options({"repo": "/srv/store/cats"}, split_url).source.store == "/srv/store"
    assert "leave out store" in refusal(repo="s3://bucket/cats", store="s3://other")


def test_settings_of_a_store() -> None:
    """Those that stores know may stand in its URL."""
    url = "s3://bucket/a@b?endpoint_url=https://minio:9000&region=eu"
    assert parse_options({"repo": "a", "store": url}, split_url).source.store == url
    for good in ("az://box/a?account=ours", "gs://bucket/a"):
        assert parse_options({"repo": "a", "store": good}, split_url).source.store == good
    assert "takes no settings" in refusal(repo="a", store="gs://bucket/a?endpoint_url=http://x")
    assert "takes account" in refusal(repo="a", store="az://box/a?endpoint_url=http://x")


def test_a_store_that_is_not_there() -> None:
    """It is no fault of the options, unless something is wrong with them too."""

    def split(url: str) -> tuple[str, str]:
        raise NotFound(f"{url}: there is no store")

    with pytest.raises(NotFound, match="no store"):
        parse_options({"repo": "s3://bucket/cats"}, split)
    with pytest.raises(InvalidInput, match="option uid"):
        parse_options({"repo": "s3://bucket/cats", "uid": "x"}, split)


@pytest.mark.parametrize("text", ["500", "0500", "0o500"])
def test_modes(text: str) -> None:
    """Octal digits, with or without what says that they are."""
    assert parse_options({"repo": "a", "mode": text}, split_url).source.mode == 0o500


def test_words_of_xethub() -> None:
    """``watch`` is ``follow``; ``write`` says yes or no."""
    options = parse_options({"repo": "a", "watch": "30s", "write": "false"}, split_url)
    assert options.follow_s == 30
    assert "twice" in refusal(repo="a", watch="30s", follow="30s")
    assert parse_options({"repo": "a", "write": "true"}, split_url).commits == ON_LAST
    assert "must be true or false" in refusal(repo="a", write="maybe")
    assert "store=" in refusal(repo="a", cas="cas.example.com")


def test_pins() -> None:
    """A pin lasts for a time, as long as the volume, or is none."""
    pins = [
        parse_options({"repo": "a", "cache_pin": text}, split_url).pin
        for text in ("true", "90s", "false")
    ]
    assert pins == [Pin(), Pin(90), None]


@pytest.mark.parametrize("name", ["pat", "password", "token", "secret", "PAT"])
def test_secrets_are_refused(name: str) -> None:
    """An option that would hold a secret is refused with the safe way, and not repeated."""
    told = refusal(repo="a", **{name: SECRET})
    assert "token_file=/PATH" in told
    assert name.lower() in told
    assert SECRET not in told


@pytest.mark.parametrize(
    "options",
    [
        {"repo": f"https://user:{SECRET}@xethub.com/u/r"},
        {"repo": "a", "store": f"s3://key:{SECRET}@bucket/prefix"},
        {"repo": "a", "store": f"s3://key:{SECRET}/x@bucket/prefix"},
        {"repo": "a", "store": f"s3://key%3a{SECRET}%40bucket/prefix"},
        {"repo": "a", "store": f"key:{SECRET}@bucket/prefix"},
        {"repo": "a", "store": f"s3://b/p?endpoint_url=https://AKIA:{SECRET}@minio"},
        {"repo": "a", "store": f"s3://b/p?endpoint_url=https://AKIA:{SECRET}/x@minio"},
        {"repo": "a", "store": f"s3://b/p?endpoint_url=https://AKIA:{SECRET}%40minio"},
        {"repo": f"s3://b/p/a?region=eu&endpoint_url=https://AKIA:{SECRET}@minio"},
        {"repo": "a", "store": f"s3://b/p?secret_key={SECRET}"},
        {"repo": "a", "store": f"s3://b/p?{SECRET}"},
        {"repo": "a", "store": f"s3://b/p#{SECRET}"},
        {"repo": "a", "store": f"s3://b/{SECRET}\n"},
        {"repo": "a", "store": f"s3://[{SECRET}/p"},
        {"repo": "a", "token_file": SECRET},
        {"repo": "a", "token_env": SECRET},
        {"repo": "a", "token_env": SECRET.replace("-", "_")},
        {"repo": "a", "username": SECRET},
        {"repo": "a", "api_key": SECRET},
        {"repo": "a", "cas": SECRET},
        {"repo": "a", "write": SECRET},
    ],
)
def test_what_may_be_a_secret_is_not_repeated(options: dict[str, str]) -> None:
    """A value at a place where people put secrets is in no message."""
    told = refusal(**options)
    assert SECRET not in told
    assert SECRET.replace("-", "_") not in told


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("repo", ""),
        ("repo", "a//b"),
        ("repo", "../etc"),
        ("commit", "a/b"),
        ("commit", ""),
        ("path", "a/../b"),
        ("path", "\ud800"),
        ("follow", "soon"),
        ("follow", "-1s"),
        ("follow", "9" * 400 + "w"),
        ("token_file", "relative"),
        ("token_env", "not a name"),
        ("store", ""),
        ("uid", "root"),
        ("uid", "-1"),
        ("gid", "4294967295"),
        ("mode", "0755"),
        ("mode", "rwx"),
        ("mode", "9"),
        ("mode", "o555"),
        ("mode", "00555"),
        ("cache_pin", "maybe"),
        ("cache_pin", "99999w"),
    ],
)
def test_malformed_options_are_named(name: str, value: str) -> None:
    """The message has the option's name, and the list of all there are."""
    told = refusal(**{"repo": "a", name: value})
    assert f"option {name}" in told
    assert all(valid in told for valid in VALID)


def test_credentials_of_s3_are_no_tokens() -> None:
    """The plugin has them in its environment, and would send them to a proxy."""
    told = refusal(repo="a", token_env="AWS_SECRET_ACCESS_KEY")
    assert "option token_env: variables AWS_... hold credentials for S3" in told


def test_everything_wrong_is_told_at_once() -> None:
    """One message names all that is wrong."""
    told = refusal(comit="main", mode="0777", pat=SECRET, uid="x", follow="?")
    for part in ("'comit'", "option mode", "option pat", "option uid", "option follow", "repo is"):
        assert part in told


def test_options_that_exclude_each_other() -> None:
    """A token is in one place, and a commit does not move."""
    assert "not both" in refusal(repo="a", token_file="/t", token_env="T")
    assert "needs a branch" in refusal(repo="a", commit="ab" * 32, follow="1h")


@given(
    st.dictionaries(
        st.one_of(st.sampled_from([*VALID, *REFUSED, "watch", "write"]), st.text(max_size=8)),
        st.text(max_size=20),
        max_size=6,
    )
)
def test_any_options_are_understood_or_refused(options: dict[str, str]) -> None:
    """Whatever is given, the result is options or InvalidInput."""
    with contextlib.suppress(InvalidInput):
        assert parse_options(options, split_url).source.repo


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("vision/cats@v2", "give -o repo=vision/cats and -o commit=v2"),
        ("cats:train", "give -o repo=cats and -o path=train"),
        ("cats@v2:train/a", "give -o repo=cats and -o commit=v2 and -o path=train/a"),
    ],
)
def test_a_revision_in_the_name(value: str, wanted: str) -> None:
    """REPO@REV:PATH, as commands take it, is refused with the options to use."""
    assert wanted in refusal(repo=value)
