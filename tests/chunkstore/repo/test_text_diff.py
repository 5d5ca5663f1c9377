"""Differences of texts, by line."""

from __future__ import annotations

import re
import subprocess
from itertools import pairwise
from pathlib import Path
from shutil import which

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.history import diff, find
from lodefs.chunkstore.repo.text_diff import (
    SIZE_BYTES_MAX,
    ContentDiff,
    content_diff,
    edits_of,
    unified,
)
from tests.support.chunkstore.handmade import Handmade, Link, memory_store

texts = st.lists(st.sampled_from("abcdef"), max_size=30)


@given(texts, texts)
@example(list("abcabba"), list("cbabac"))
def test_edits_make_one_text_of_another(old: list[str], new: list[str]) -> None:
    """What lies between edits is equal, and they neither touch nor overlap."""
    edits = edits_of(old, new)
    made: list[str] = []
    place = 0
    for edit in edits:
        made += old[place : edit.old_first]
        assert len(made) == edit.new_first
        made += new[edit.new_first : edit.new_end]
        place = edit.old_end
    assert made + old[place:] == new
    assert all(one.old_end <= two.old_first for one, two in pairwise(edits))
    assert (edits == []) == (old == new)


def lines(count: int) -> list[str]:
    return [f"{n}\n" for n in range(1, count + 1)]


def test_hunks() -> None:
    """As of diff -u: three lines around changes, ranges from 1 on, and the end without a newline is
    told."""
    old = lines(20)
    new = [*old[:1], "new\n", *old[2:12], *old[13:], "21"]
    assert [*unified(old, new)] == [
        "@@ -1,5 +1,5 @@", " 1", "-2", "+new", " 3", " 4", " 5",
        "@@ -10,7 +10,6 @@", " 10", " 11", " 12", "-13", " 14", " 15", " 16",
        "@@ -18,3 +17,4 @@", " 18", " 19", " 20", "+21", "\\ No newline at end of file",
    ]  # fmt: skip
    assert [*unified([], ["a\n"])] == ["@@ -0,0 +1 @@", "+a"]
    assert [*unified(["a\n"], [])] == ["@@ -1 +0,0 @@", "-a"]
    assert [*unified(old, old)] == []


@given(st.lists(st.sampled_from("abcdefghij"), max_size=60), st.data())
def test_patch_takes_it(old: list[str], data: st.DataObject) -> None:
    """Applied by their line numbers, hunks make the new text of the old one."""
    new = data.draw(st.permutations(old)) if data.draw(st.booleans()) else data.draw(texts)
    made, place = [], 0
    for line in unified([f"{one}\n" for one in old], [f"{one}\n" for one in new]):
        if begin := re.match(r"@@ -(\d+)(?:,(\d+))? ", line):
            first = int(begin[1]) - (begin[2] != "0")
            made += old[place:first]
            place = first
        elif line[0] == "+":
            made.append(line[1:])
        else:
            assert old[place] == line[1:]
            made += [old[place]] if line[0] == " " else []
            place += 1
    assert made + old[place:] == list(new)


def test_long_texts_take_no_time() -> None:
    """Many changes, and many equal lines, cost a pass or a few."""
    old = lines(20_000)
    new = [f"{line[:-1]}x\n" if n % 4 == 0 else line for n, line in enumerate(old)]
    assert len(edits_of(old, new)) == 5000
    few = [f"{n % 100}\n" for n in range(20_000)]
    other = [f"{n * n % 101}\n" for n in range(20_000)]
    assert edits_of(few, other)


@pytest.mark.skipif(which("patch") is None, reason="needs patch(1)")
def test_patch_itself_takes_it(tmp_path: Path) -> None:
    """patch(1) makes the new file of the old one."""
    old, new = lines(50), [*lines(9), *lines(60)[12:40], "x"]
    (tmp_path / "f").write_text("".join(old))
    text = "\n".join(["--- a/f", "+++ b/f", *unified(old, new), ""])
    command = ["patch", "-p1", "-d", str(tmp_path)]
    subprocess.run(command, input=text, text=True, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "f").read_text() == "".join(new)


def test_contents() -> None:
    """Small texts and targets of symlinks are compared; of all else it is said why not."""
    store = memory_store()
    made = Handmade(store)
    crlf = b"a,b\r\n1,2\r\n"
    made.commit("r", {b"crlf": crlf, b"nul": b"1", b"big": b"1", b"link": Link(b"x"), b"turn": b""})
    made.commit(
        "r",
        {
            b"crlf": crlf + b"3,4\r\n",
            b"nul": b"1\0",
            b"big": b"1" * (SIZE_BYTES_MAX + 1),
            b"link": Link(b"y"),
            b"turn": "a\u202eb".encode(),
            b"new": "é\n".encode(),
            b"latin": b"\xe9",
            b"bell": b"\x07",
            b"return": b"harmless\rrm -rf",
        },
    )
    changes = diff(store, find(store, Spec("r", "main~1")), find(store, Spec("r")))
    found = {one.path: content_diff(store.packs, one) for one in changes}
    assert found.pop(b"crlf").lines[-1] == "+3,4\r"
    assert found.pop(b"new") == ContentDiff(["@@ -0,0 +1 @@", "+é"])
    assert found.pop(b"big") == ContentDiff([], "large")
    assert found.pop(b"link").lines[1::2] == ["-x", "+y"]
    assert all(one == ContentDiff([], "binary") for one in found.values())
