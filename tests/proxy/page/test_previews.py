"""Previews: what is shown of good files, and what is said of broken ones and bombs."""

from __future__ import annotations

import asyncio
import io
import struct
import sys
import zipfile
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.proxy.page import previews
from lodefs.proxy.page.image_header import read_header
from lodefs.proxy.page.preview_process import json_view
from lodefs.proxy.page.preview_view import ARCHIVE_BYTES_MAX, PreviewView
from lodefs.proxy.page.previews import Previews, format_of
from tests.support.proxy.fake_node import DictNode
from tests.support.proxy.rig import file_of


def view(name: bytes, content: bytes, *, process_s_max: float = 60) -> PreviewView:
    """The preview of a file, with enough time for a busy machine."""

    async def run() -> PreviewView:
        node = DictNode({name: content})
        file = await file_of(node, name, repo="demo")
        return await Previews(node, process_s_max=process_s_max).view(file, name)

    return asyncio.run(run())


def png(width: int, height: int) -> bytes:
    """An image that says it has a size."""

    def part(kind: bytes, data: bytes) -> bytes:
        checked = kind + data
        return struct.pack(">I", len(data)) + checked + struct.pack(">I", zlib.crc32(checked))

    head = part(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + part(b"IDAT", zlib.compress(b"")) + part(b"IEND", b"")


def parquet(rows: int, **options: object) -> bytes:
    """A file of pyarrow's."""
    table = pa.table({"id": list(range(rows)), "a\u202eb": ["<b>"] * rows})
    out = io.BytesIO()
    pq.write_table(table, out, **options)
    return out.getvalue()


def test_who_waits_for_a_preview_holds_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are read when it is their turn; requests beyond those that may wait read nothing."""

    async def run() -> tuple[int, int]:
        node = DictNode({b"a.txt": b"x" * 1000})
        file = await file_of(node, b"a.txt", repo="demo")
        reading, go_on = 0, asyncio.Event()

        async def open_(*_: object) -> object:
            nonlocal reading
            reading += 1
            await go_on.wait()
            raise Unavailable("the store does not answer")

        monkeypatch.setattr(node, "open", open_)
        made = Previews(node)
        asked = [asyncio.create_task(made.view(file, b"a.txt")) for _ in range(40)]
        refused, _ = await asyncio.wait(asked[previews.WAITING_MAX :], timeout=30)
        found = reading, len(refused)
        go_on.set()
        await asyncio.gather(*asked, return_exceptions=True)
        return found

    assert asyncio.run(run()) == (previews.PROCESSES_MAX, 40 - previews.WAITING_MAX)


def test_a_text_is_shown() -> None:
    """UTF-8, with U+FFFD for what is not, and no more than a part of a long one."""
    assert view(b"a.txt", "# Käse <b>".encode() + b"\xff").text == "# Käse <b>\ufffd"
    long = view(b"a.txt", b"line\n" * 200_000)
    assert long.is_cut
    assert len(long.text) == 65536
    assert view(b"empty", b"").note == "the file is empty"
    assert view(b"a.bin", bytes(range(256))).kind == "binary"


def test_csv_is_a_table() -> None:
    """Quoted cells, other delimiters, ragged rows; the first rows and columns alone."""
    found = view(b"a.csv", b'name,n\n"a, ""b""",1\nc\n')
    assert (found.columns, found.rows) == (["name", "n"], [['a, "b"', "1"], ["c"]])
    assert view(b"a.tsv", b"x\ty\n1\t2\n").columns == ["x", "y"]
    wide = view(b"w.csv", b",".join(b"c%d" % n for n in range(500)) + b"\n" + b"x" * 5000)
    assert len(wide.columns) == 60
    assert len(wide.rows[0][0]) == 201


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        (b"a.csv", b'a,b\n"never closed', "not a valid CSV file"),
        (b"a.csv", b"a,b\n" + b"x" * 200_000, "not a valid CSV file"),
        (b"a.csv", b"\0\1\2", "not a CSV file"),
        (b"a.parquet", b"", "not a Parquet"),
        (b"a.parquet", b"PAR1" + b"x" * 100, "not a Parquet"),
        (b"a.parquet", b"PAR1" + struct.pack("<I", 1 << 31) + b"PAR1", "longer than the file"),
        (b"a.parquet", b"PAR1" + b"\xff" * 64 + struct.pack("<I", 64) + b"PAR1", "read"),
        (b"a.png", png(60_000, 60_000), "too many"),
        (b"a.png", png(0, 5), "no pixels"),
        (b"a.png", png(5, 5)[:20], "truncated"),
        (b"a.jpg", b"\xff\xd8\xff\xe0\x00\x04ab", "truncated"),
        (b"a.gif", b"GIF89a", "truncated"),
    ],
)  # fmt: skip
def test_broken_files_give_a_sentence(name: bytes, content: bytes, words: str) -> None:
    """What is broken or a bomb is named, and nothing else happens."""
    found = view(name, content)
    assert found.kind == "none"
    assert words in found.note


def test_images_are_known_by_their_bytes() -> None:
    """Four kinds, whatever their name; SVG is a text."""
    assert read_header(png(3, 4)) == ("image/png", 3, 4)
    assert read_header(b"GIF89a" + struct.pack("<HH", 5, 6)) == ("image/gif", 5, 6)
    jpeg = b"\xff\xd8\xff\xe0\x00\x04ab\xff\xc0\x00\x0b\x08" + struct.pack(">HH", 7, 8)
    assert read_header(jpeg) == ("image/jpeg", 8, 7)
    webp = b"RIFF\0\0\0\0WEBPVP8X" + bytes(8) + b"\x09\0\0\x0a\0\0"
    assert read_header(webp) == ("image/webp", 10, 11)
    assert view(b"x.txt", png(3, 4)).media == "image/png"
    assert view(b"x.svg", b"<svg onload='alert(1)'/>").kind == "text"


def test_parquet_shows_rows_where_pyarrow_is_there() -> None:
    """The first rows of a whole small file."""
    found = view(b"a.parquet", parquet(120))
    assert (found.note[:9], found.columns) == ("the first", ["id", "a\u202eb"])
    assert found.types == ["int64", "string"]
    assert (found.rows[0], len(found.rows), found.is_cut) == (["0", "<b>"], 50, True)


def test_large_parquet_shows_its_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a file that is not read as a whole, names and types of columns stand in its end."""
    data = parquet(30_000, row_group_size=10_000, compression="none")
    monkeypatch.setattr(previews, "WHOLE_BYTES_MAX", len(data) // 2)
    found = view(b"a.parquet", data)
    assert found.rows == [["id", "int64"], ["a\u202eb", "string"]]
    assert found.note == "30,000 rows in 3 row groups, 2 columns"
    monkeypatch.setattr(previews, "WHOLE_BYTES_MAX", 16)
    assert "too large" in view(b"a.parquet", data).note


def test_parquet_without_pyarrow_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pyarrow the page names the extra that fetches it."""
    monkeypatch.setattr(previews, "find_spec", lambda _: None)
    found = view(b"a.parquet", parquet(10))
    assert (found.kind, found.may_retry) == ("none", False)
    assert "lodefs[preview]" in found.note


def test_formats_are_known_by_bytes_and_names() -> None:
    """Bytes say more than names."""
    tar = bytes(257) + b"ustar" + bytes(250)
    for name, head, form in (
        (b"a.md", b"# x", "markdown"),
        (b"A.JSON", b"{}", "json"),
        (b"a.tar.zst", b"", "tar"),
        (b"a.csv", tar, "tar"),
        (b"weights.npz", b"PK\x03\x04", "zip"),
        (b"json", b"{}", "text"),
    ):
        assert format_of(name, head) == form


def test_json_is_formatted() -> None:
    """Numbers, keys and their order stand as they were; what is none is a text."""
    found = view(b"a.json", b'{"b":1.50,"a":[1,{"b":2}],"b":1e400}')
    expected = (
        '{\n  "b": 1.50,\n  "a": [\n    1,\n    {\n      "b": 2\n    }\n  ],\n  "b": 1e400\n}'
    )
    assert (found.note, found.text) == ("formatted", expected)
    for content in (b"[" * 100_000, b'{"a":', b"NaN", b""):
        text = json_view(content, is_whole=True)
        assert (text.kind, text.text) == ("text", content[:65536].decode())
    assert json_view(b'{"a":1', is_whole=False).text == '{"a":1'


def test_markdown_and_archives_are_looked_at_in_processes() -> None:
    """A document comes back as its parts, members as a table; of a large zip the end is read."""
    document = view(b"README.md", b"# A\n\n<script>x</script>\n")
    assert [part.parts[0].text for part in document.parts] == ["A"]
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("large", bytes(ARCHIVE_BYTES_MAX))
        archive.writestr("small", b"x")
    assert [row[0] for row in view(b"a.bin", out.getvalue()).rows] == ["large", "small"]


def test_what_takes_too_much_to_parse_is_a_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the process of a Markdown or JSON file dies, another one shows its text."""
    program = (
        "import os\n"
        "from lodefs.proxy.page import preview_process as p\n"
        "p.markdown_view = lambda data, is_whole: os.abort()\n"
        "p.main()"
    )
    monkeypatch.setattr(previews, "_COMMAND", (sys.executable, "-c", program))
    assert view(b"a.md", b"# A").text == "# A"


def test_a_busy_machine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """What takes too long may be asked for again."""
    monkeypatch.setattr(previews, "_COMMAND", (sys.executable, "-c", HANGS))
    found = view(b"a.parquet", parquet(10), process_s_max=0.2)
    assert (found.kind, found.may_retry) == ("none", True)
    assert "longer than 0.2 s: this machine is busy" in found.note


HANGS = "import time; time.sleep(1000)"
EATS = "import sys; sys.stdout.write('x' * 3_000_000)"
DIES = "import os; os.kill(os.getpid(), 9)"


@pytest.mark.parametrize(
    ("program", "words"), [(HANGS, "longer than"), (EATS, "needs too much"), (DIES, "too much")]
)
def test_a_process_that_fails_is_ended(
    program: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that hangs is killed at its time limit; one that dies or floods shows nothing."""
    monkeypatch.setattr(previews, "_COMMAND", (sys.executable, "-c", program))
    found = view(b"a.txt", b"text", process_s_max=0.5 if program == HANGS else 60)
    assert words in found.note


def test_a_process_gets_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that takes more memory than it may is refused it, and the page says so."""
    program = (
        "from lodefs.proxy.page import preview_process as p\n"
        "p.view_of = lambda order, data: bytearray(4 << 30)\n"
        "p.main()"
    )
    monkeypatch.setattr(previews, "_COMMAND", (sys.executable, "-c", program))
    assert "not enough memory" in view(b"a.csv", b"a,b").note


def test_what_fails_after_the_answer_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process ends with its answer, without what libraries do at an interpreter's end."""
    program = (
        "import atexit, os\n"
        "from lodefs.proxy.page import preview_process as p\n"
        "atexit.register(os.abort)\n"
        "p.main()"
    )
    monkeypatch.setattr(previews, "_COMMAND", (sys.executable, "-c", program))
    assert view(b"a.txt", b"text").kind == "text"
