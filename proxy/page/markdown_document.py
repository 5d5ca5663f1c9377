"""Markdown as a tree of known parts: nothing of it ever becomes markup.

The parser is markdown-it-py (CommonMark, with tables and struck text). HTML is left out: its tags
are dropped, and of blocks of it the text is kept. Links lead to web pages or to files beside the
document; images are files beside it, and an image of elsewhere is a text that says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from typing import TYPE_CHECKING

from lodefs.proxy.page.preview_view import DocumentPart, Part

if TYPE_CHECKING:
    from markdown_it.token import Token

CHARS_MAX = 48 * 1024
PARTS_MAX = 6000
DEPTH_MAX = 24  # deeper parts become their texts
IMAGES_MAX = 40
HREF_CHARS_MAX = 2000
_CONTAINERS: dict[str, Part] = {
    "paragraph": "paragraph",
    "heading": "heading",
    "bullet_list": "bullets",
    "ordered_list": "numbers",
    "list_item": "item",
    "blockquote": "quote",
    "strong": "strong",
    "em": "emphasis",
    "s": "struck",
    "link": "link",
    "table": "table",
    "tr": "row",
    "th": "head",
    "td": "cell",
}
_FRONT_MATTER = re.compile(r"---\r?\n(.*?)\r?\n---\r?(?:\n|\Z)", re.DOTALL)
_WEB = re.compile(r"(?:https?://|mailto:)", re.IGNORECASE)
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:|//|#", re.IGNORECASE)


def document_of(text: str) -> list[DocumentPart]:
    """Returns the parts of a Markdown text. A YAML block at its beginning, as cards of datasets
    have one, is a block of code."""
    from markdown_it import MarkdownIt

    parser = MarkdownIt("commonmark").enable(["table", "strikethrough"])
    front = _FRONT_MATTER.match(text)
    builder = _Builder()
    if front is not None:
        builder.leaf(DocumentPart("block", front[1]))
        text = text[front.end() :]
    builder.add(parser.parse(text))
    return builder.root.parts


class _Builder:
    """Puts tokens, which come one after the other, into a tree."""

    def __init__(self) -> None:
        self.root = DocumentPart("item")
        self._open: list[DocumentPart] = [self.root]
        self._passed = 0  # containers that are open, and have no part of their own
        self._left = PARTS_MAX
        self._images_left = IMAGES_MAX
        self._headings: list[int] = []  # levels of those around what follows

    def add(self, tokens: list[Token]) -> None:
        for token in tokens:
            if token.type == "inline":
                self.add(token.children or [])
            elif token.nesting > 0:
                self._begin(token)
            elif token.nesting < 0:
                self._end()
            else:
                for part in self._leaves(token):
                    self.leaf(part)

    def leaf(self, part: DocumentPart) -> None:
        around = self._open[-1].parts
        if part.part == "text" and around and around[-1].part == "text":
            around[-1].text += part.text
        elif self._left > 0:
            self._left -= 1
            around.append(part)

    def _begin(self, token: Token) -> None:
        kind = _CONTAINERS.get(token.type.removesuffix("_open"))
        is_passed = self._passed or len(self._open) > DEPTH_MAX or self._left <= 0
        if is_passed:
            self._passed += 1
            return
        if kind is None or (kind == "paragraph" and token.hidden):
            # the parts of what has no element of its own are those of what is around it
            self._open.append(self._open[-1])
            return
        part = DocumentPart(kind)
        if kind == "heading":
            part.level = self._level(int(token.tag[1:]))
        elif kind == "numbers":
            part.level = int(token.attrGet("start") or 1)
        elif kind == "link":
            part.href = _link(str(token.attrGet("href") or ""))
        self.leaf(part)
        self._open.append(part)

    def _end(self) -> None:
        if self._passed:
            self._passed -= 1
            return
        ended = self._open.pop()
        if ended.parts:
            return
        if ended.part == "heading":
            self._open[-1].parts.pop()
        elif ended.part == "link":
            ended.parts.append(DocumentPart("text", ended.href))

    def _level(self, level: int) -> int:
        while self._headings and self._headings[-1] >= level:
            self._headings.pop()
        self._headings.append(level)
        return len(self._headings)

    def _leaves(self, token: Token) -> Iterator[DocumentPart]:
        if token.type == "text":
            yield DocumentPart("text", token.content)
        elif token.type == "code_inline":
            yield DocumentPart("code", token.content)
        elif token.type in ("fence", "code_block"):
            yield DocumentPart("block", token.content)
        elif token.type == "softbreak":
            yield DocumentPart("text", "\n")
        elif token.type == "hardbreak":
            yield DocumentPart("break")
        elif token.type == "hr":
            yield DocumentPart("rule")
        elif token.type == "image":
            yield self._image(token)
        elif token.type == "html_block":
            text = _text_of(token.content)
            if text:
                yield DocumentPart("paragraph", parts=[DocumentPart("text", text)])

    def _image(self, token: Token) -> DocumentPart:
        href = str(token.attrGet("src") or "")
        is_beside = href and not _SCHEME.match(href) and len(href) <= HREF_CHARS_MAX
        if is_beside and self._images_left:
            self._images_left -= 1
            return DocumentPart("image", token.content or href.rpartition("/")[2], href)
        return DocumentPart("text", f"[image: {token.content or href[:80]}]")


def _link(href: str) -> str:
    """Returns a link that may be followed: to a web page, or to a file beside the document; or
    ""."""
    if len(href) > HREF_CHARS_MAX or (_SCHEME.match(href) and not _WEB.match(href)):
        return ""
    return href


class _TextOf(HTMLParser):
    """Collects the text of HTML, without that of scripts and styles."""

    def __init__(self) -> None:
        super().__init__()
        self.pieces: list[str] = []
        self._hidden = ""

    def handle_starttag(self, tag: str, _attrs: object) -> None:
        if tag in ("script", "style"):
            self._hidden = tag

    def handle_endtag(self, tag: str) -> None:
        if tag == self._hidden:
            self._hidden = ""

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.pieces.append(data)


def _text_of(html: str) -> str:
    parser = _TextOf()
    parser.feed(html)
    return "\n".join(filter(None, map(str.strip, "".join(parser.pieces).splitlines())))
