"""Markdown documents: what becomes of good ones, and of those that were made to harm."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from lodefs.proxy.page.markdown_document import DEPTH_MAX, IMAGES_MAX, PARTS_MAX, document_of
from lodefs.proxy.page.preview_view import DocumentPart


def every(parts: list[DocumentPart]) -> Iterator[DocumentPart]:
    """All parts, also those inside of others."""
    for part in parts:
        yield part
        yield from every(part.parts)


def kinds(text: str) -> list[str]:
    return [part.part for part in every(document_of(text))]


def words(text: str) -> str:
    return " ".join(part.text for part in every(document_of(text)) if part.text)


def depth(parts: list[DocumentPart]) -> int:
    return max((1 + depth(part.parts) for part in parts), default=0)


def test_a_document_is_a_tree_of_parts() -> None:
    """Headings, lists, tables, code, links; the YAML of a dataset's card is a block."""
    found = document_of(
        "---\nlicense: mit\n---\n# A *b*\n\n3. x\n\n[to](d/f.csv)\n\n|n|\n|-|\n|1|\n"
    )
    block, heading, numbers, paragraph, table = found
    assert (block.part, block.text) == ("block", "license: mit")
    assert (heading.part, heading.level, heading.parts[1].part) == ("heading", 1, "emphasis")
    assert (numbers.part, numbers.level, numbers.parts[0].part) == ("numbers", 3, "item")
    assert (paragraph.parts[0].part, paragraph.parts[0].href) == ("link", "d/f.csv")
    assert [row.parts[0].part for row in table.parts] == ["head", "cell"]


def test_no_level_of_headings_is_left_out() -> None:
    """Levels are those of an outline, whatever the text says; a heading of nothing is none."""
    found = document_of("## a\n#### b\n#### c\n### d\n#\n# e\n")
    assert [part.level for part in found] == [1, 2, 2, 2, 1]


@pytest.mark.parametrize(
    "text",
    [
        "[x](javascript:alert(1))",
        "[x](JaVaScRiPt:alert(1))",
        "[x](data:text/html,<b>)",
        "[x](vbscript:x)",
        "[x](file:///etc/passwd)",
        "[x](&#106;avascript:alert(1))",
        "<javascript:alert(1)>",
        "[x]: javascript:alert(1)\n\n[x]",
        "[x](//evil.example/)",
        "[x](#part)",
    ],
)
def test_links_lead_to_web_pages_and_files_alone(text: str) -> None:
    """Of another scheme nothing is left but the text."""
    assert {part.href for part in every(document_of(text))} == {""}


def test_images_of_elsewhere_are_not_loaded() -> None:
    """They are a text; those beside the document are images, as many as are shown."""
    assert words("![logo](https://evil.example/x.png)") == "[image: logo]"
    assert words("![](//evil.example/x.png)") == "[image: //evil.example/x.png]"
    (paragraph,) = document_of("![](img/a.png)")
    (image,) = paragraph.parts
    assert (image.part, image.text, image.href) == ("image", "a.png", "img/a.png")
    assert kinds("![a](a.png) " * 100).count("image") == IMAGES_MAX


def test_html_is_left_out() -> None:
    """Tags are dropped; the text of blocks stays, but for that of scripts and styles."""
    assert words("<div><h1>Name</h1>\n<script>alert(1)</script></div>") == "Name"
    assert words("a <b onclick=x>bold</b> word <!-- note -->") == "a bold word "
    assert document_of("<style>p {}</style>\n\n<!-- nothing -->\n") == []


@pytest.mark.parametrize(
    "text",
    ["*a **b " * 200 + "b** a*" * 200, "> " * 500 + "a", "- " * 500 + "x", "[" * 99 + "](b)" * 99],
)
def test_depth_is_bounded(text: str) -> None:
    """What lies deeper becomes text of what is around it."""
    assert depth(document_of(text)) <= DEPTH_MAX + 2


def test_parts_are_bounded() -> None:
    """A text of nothing but marks has no more parts than are shown."""
    assert 1000 < len(kinds("`a` **b** " * 2500)) <= PARTS_MAX
