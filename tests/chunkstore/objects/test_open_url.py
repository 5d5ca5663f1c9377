"""From URLs to stores."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import InvalidInput, Unavailable
from lodefs.chunkstore.objects.observing import Observation
from lodefs.chunkstore.objects.open_url import StoreOptions, check_empty, open_objects
from tests.support.chunkstore.bad_server import Answer, BadServer, Request
from tests.support.chunkstore.object_store_suite import MUCH


@pytest.mark.parametrize("form", ["{}", "file://{}", "file://localhost{}", "{}/"])
def test_directories(tmp_path: Path, form: str) -> None:
    """A path and a file URL open the same directory."""
    store = open_objects(form.format(tmp_path / "a store"))
    store.put("a", [b"x"])
    assert (tmp_path / "a store/a").read_bytes() == b"x"
    assert store.url == str(tmp_path / "a store")
    store.close()


def test_file_url_with_escapes(tmp_path: Path) -> None:
    """Percent escapes of a file URL are undone."""
    open_objects(f"file://{tmp_path}/a%20b").put("a", [b"x"])
    assert (tmp_path / "a b/a").exists()


@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("{}/a?region=x", "a?region=x"),
        ("{}/a#1", "a#1"),
        ("file://{}/a%3Fregion=x", "a?region=x"),
        ("file://{}/a%231", "a#1"),
    ],
)
def test_question_marks_in_paths(tmp_path: Path, form: str, name: str) -> None:
    """A path is one to its end; in a file URL its '?' and '#' are escaped."""
    open_objects(form.format(tmp_path)).put("a", [b"x"])
    assert (tmp_path / name / "a").exists()


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("file:///srv/a?region=x", "no settings, not 'region'"),
        ("file:///srv/a?b", "%3F"),
        ("file:///srv/a?", "%3F"),
        ("file:///srv/a#b", "%23"),
        ("s3://bucket/a#b", "%23"),
        ("s3://bucket/a?endpoint=http://h&regoin=x", "not 'endpoint', 'regoin'"),
        ("s3://bucket/a?region", "values: region"),
    ],
)
def test_settings_that_are_unknown(url: str, words: str) -> None:
    """What follows a '?' or '#' is known or refused, by its name."""
    with pytest.raises(InvalidInput, match=words):
        open_objects(url)


def test_relative_path_and_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A relative path means the working directory of the moment of opening; ~ the home."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    store = open_objects("store")
    monkeypatch.chdir("/")
    store.put("a", [b"x"])
    assert (tmp_path / "store/a").exists()
    assert open_objects("~/store").url == str(tmp_path / "home/store")


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("s3://bucket", "s3://bucket"),
        ("s3://bucket/", "s3://bucket"),
        ("s3://bucket/a/b-c_d/", "s3://bucket/a/b-c_d"),
        ("s3://bucket/a%20b".replace("%20", "+"), "s3://bucket/a+b"),
        ("s3://bucket/a?endpoint_url=http://127.0.0.1:9&region=eu-west-1", "s3://bucket/a"),
    ],
)
def test_s3(url: str, shown: str) -> None:
    """A bucket with or without a prefix opens without a connection; its URL is shown plainly."""
    store = open_objects(url)
    assert store.url == shown
    store.close()


@pytest.mark.parametrize(
    "url",
    [
        "",
        "\0",
        "s3:",
        "s3://",
        "s3:///prefix",
        "s3:bucket",
        "s3://b",
        "s3://bucket:9000/x",
        "s3://bucket/../x",
        "s3://bucket/a//b",
        "s3://bucket/%2e%2e/x",
        "s3://bucket/a%00b",
        "s3://bucket/a b",
        "s3://b[/c",
        "file://b[/c",
        "s3://bucket/x?endpoint_url=http://h[",
        "s3://bucket/" + "a" * 101,
        "s3://bucket/x?endpoint=http://h",
        "s3://bucket/x?region=",
        "s3://bucket/x?endpoint_url=ftp://h",
        "s3://bucket/x?endpoint_url=host:9000",
        "ftp://bucket/x",
        "http://host/x",
        "S3C:x",
        "file://host/path",
        "file:relative",
        "file:///a%00b",
    ],
)
def test_bad_urls(url: str) -> None:
    """What is no store's URL is refused before anything is touched."""
    with pytest.raises(InvalidInput):
        open_objects(url)


@pytest.mark.parametrize(
    ("url", "endpoint_url"),
    [
        ("s3://AKIA123:hushhush@bucket/x", None),
        ("s3://bucket/x?endpoint_url=http://user:hushhush@host", None),
        ("s3://bucket/x?secret_key=hushhush", None),
        ("s3://bucket/x?hushhush", None),
        ("s3://bucket/x", "https://user:hushhush@host"),
        ("s3://bucket/x?endpoint_url=http://host?signature=hushhush", None),
        ("s3://AKIA123:hushhush/more@bucket/x", None),
        ("s3://AKIA123:hushhush[@bucket/x", None),
        ("gs://user:hushhush@bucket", None),
    ],
)
def test_credentials_in_urls_are_refused(url: str, endpoint_url: str | None) -> None:
    """Credentials in a URL are refused, and the error does not repeat them."""
    with pytest.raises(InvalidInput) as caught:
        open_objects(url, StoreOptions(endpoint_url=endpoint_url))
    assert "hushhush" not in str(caught.value)


def test_observe(tmp_path: Path) -> None:
    """Every call is told to the callback of the options."""
    seen: list[Observation] = []
    store = open_objects(str(tmp_path), StoreOptions(observe=seen.append))
    store.put("a", [b"123"])
    store.get("a", size=MUCH)
    assert [(each.operation, each.size_bytes) for each in seen] == [("put", 3), ("get", 3)]


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("s3://b/x", "3 to 63 letters"),
        ("s3:///x", "names no bucket"),
        ("s3:/bucket/x", "begins with s3://"),
    ],
)
def test_what_is_wrong_with_a_bucket(url: str, words: str) -> None:
    """The error says whether the bucket is missing, its name is wrong, or a slash is."""
    with pytest.raises(InvalidInput, match=words):
        open_objects(url)


@pytest.mark.parametrize("form", ["{}", "file://{}"])
def test_a_new_store_among_other_files(tmp_path: Path, form: str) -> None:
    """A directory for a new store is empty, new, or holds a store; what is in it is named."""
    url = form.format(tmp_path)
    for name in ("lost+found", "probe", ".put"):
        (tmp_path / name).mkdir()
    check_empty(url)
    check_empty(url + "/new")
    (tmp_path / "thesis.tex").touch()
    with pytest.raises(InvalidInput, match=r"not empty \(it has thesis.tex\)"):
        check_empty(url)
    (tmp_path / "store.json").touch()
    check_empty(url)


@pytest.mark.usefixtures("aws_user")
def test_a_call_that_is_to_be_repeated_keeps_no_place_of_others() -> None:
    """Before the next attempt of a call that failed, another one is made, though one at once may
    be."""

    def answer(request: Request) -> Answer:
        is_bad = request.path.endswith("/bad")
        return Answer(500) if is_bad else Answer(200, headers={"Content-Length": "7"})

    found: list[int] = []
    with BadServer(answer) as server:
        options = StoreOptions(
            endpoint_url=server.endpoint_url,
            attempts_max=2,
            calls_max=1,
            wait_s_max=0.01,
            on_retry=lambda _: found.append(objects.head("good").size_bytes),
        )
        objects = open_objects("s3://bucket/store", options)
        with pytest.raises(Unavailable, match="cannot look up bad"):
            objects.head("bad")
        objects.close()
    assert found == [7]
