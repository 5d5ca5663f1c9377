"""How jobs name datasets and their directories."""

from __future__ import annotations

import msgspec
import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Spec
from lodefs.settings.datasets import (
    DATASETS_MAX,
    Dataset,
    check_places,
    is_dataset,
    parse,
    parse_list,
    written,
)


@pytest.mark.parametrize(
    ("words", "spec", "directory"),
    [
        ("cats:/data", Spec("cats"), "/data"),
        ("a/b@v1:/d", Spec("a/b", "v1"), "/d"),
        ("cats@v1:images:/d", Spec("cats", "v1", b"images"), "/d"),
        ("cats:./d", Spec("cats"), "./d"),
        ("cats:../d", Spec("cats"), "../d"),
        ("cats:.", Spec("cats"), "."),
        ("cats:a b:/with blank, comma:and colon", Spec("cats", "main", b"a b"),
         "/with blank, comma:and colon"),
        ("cats:.hidden:/d", Spec("cats", "main", b".hidden"), "/d"),
        ("cats:\udcff:/\udcff", Spec("cats", "main", b"\xff"), "/\udcff"),
    ],
)  # fmt: skip
def test_one(words: str, spec: Spec, directory: str) -> None:
    """The directory begins where a colon is followed by / or a dot directory."""
    assert parse(words) == Dataset(spec, directory)
    assert is_dataset(words)


@pytest.mark.parametrize("directory", ["/d", "./d", ".", "..", "/d:x"])
def test_one_for_changes(directory: str) -> None:
    """The end :rw is no part of the directory, nor is the branch that it names."""
    found = Dataset(Spec("cats"), directory, is_writable=True)
    assert parse(f"cats:{directory}:rw") == parse(str(found)) == found
    assert is_dataset(f"cats:{directory}:rw")
    named = msgspec.structs.replace(found, branch="run-42")
    assert parse(f"cats:{directory}:rw=run-42") == parse(str(named)) == named
    assert is_dataset(f"cats:{directory}:rw=run-42")


@pytest.mark.parametrize("when", ["on-success", "always", "never"])
def test_when_to_commit_is_for_all_of_a_list(when: str) -> None:
    """And wherever it stands; what takes no changes is not concerned."""
    found = parse_list(f"a:/x,commit={when},cats:/d:rw")
    assert [one.when for one in found] == [None, when]
    assert parse_list(written(found)) == found


@pytest.mark.parametrize(
    "words", ["cats:/d:rw,commit=often", "cats:/d,commit=always", "commit=always",
              "a:/d:rw,commit=never,commit=never", "cats:/d:rw=HEAD", "cats:/d:rw=a/b"],
)  # fmt: skip
def test_mistakes_of_changes(words: str) -> None:
    """Are told."""
    with pytest.raises(InvalidInput):
        parse_list(words)


@pytest.mark.parametrize("words", ["cats", "cats:d", "cats@v1:images", ":/d", "c@:/d", "c:/a\nb",
                                   "c:a/../x:/d", "", "-x:/d", "c:/\0"])  # fmt: skip
def test_what_is_none(words: str) -> None:
    """Without a directory, or with a bad name, it is refused with what was meant."""
    with pytest.raises(InvalidInput):
        parse(words)


@pytest.mark.parametrize("words", ["/bin/ls", "ls", "./x:/y", "python3", "cats:d", "a=b"])
def test_commands_are_no_datasets(words: str) -> None:
    """A program is told from a dataset by its form."""
    assert not is_dataset(words)


def test_lists() -> None:
    """Commas and lines separate; a backslash keeps them in names; blanks around do not count."""
    assert parse_list("") == parse_list(" , \n") == []
    assert parse_list("a:/x,b@v:/y\n c:p:/z , ") == [
        Dataset(Spec("a"), "/x"),
        Dataset(Spec("b", "v"), "/y"),
        Dataset(Spec("c", "main", b"p"), "/z"),
    ]
    assert parse_list(r"a:/x\,y\\z,b:/two words") == [
        Dataset(Spec("a"), r"/x,y\z"),
        Dataset(Spec("b"), "/two words"),
    ]
    with pytest.raises(InvalidInput, match="must begin with /"):
        parse_list("a:./x")
    with pytest.raises(InvalidInput, match="'b' names no directory"):
        parse_list("a:/x,b")


def test_places_that_hide_each_other() -> None:
    """Two datasets on one directory, or one in the other's, are refused, and too many are."""
    one, two = Dataset(Spec("a"), "/x"), Dataset(Spec("b"), "/x/y")
    check_places([("/x", one), ("/xy", two)])
    with pytest.raises(InvalidInput, match="have the same directory"):
        check_places([("/x", one), ("/x", two)])
    for places in ([("/x", one), ("/x/y", two)], [("/x/y", two), ("/x", one)]):
        with pytest.raises(InvalidInput, match="lies in the other"):
            check_places(places)
    many = [(f"/{number}", one) for number in range(1000)]
    check_places(many[:DATASETS_MAX])
    with pytest.raises(InvalidInput, match="1000 datasets for one job: the limit is 64"):
        check_places(many)
