"""What pages tell a reader to run: blocks of shell commands, and all lines with ``lodefs``."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
_BLOCK = re.compile(
    r"^#+ (?P<heading>[^\n]*)$|^(?P<indent> *)```(?P<kind>[a-z]*)[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
PROMPT = "$ "
_SHELL = ("", "sh", "console")
_SPAN = re.compile(r"(?<!`)`(lodefs [^`]+)`(?!`)")
_OPTIONAL = re.compile(r"(?<= )\[([^]]*)\]")
_CRON = re.compile(r"^(?:[\d*/,-]+ +){5}")
_ENDS = {"|", "||", "&", "&&", ";", ";;", "(", ")", ">", ">>", "<", "<<", ">&"}
_BEFORE = {"$", "sudo", "srun", "exec", "time", "if", "then", "do", "until", "while"}


class Step(NamedTuple):
    """Commands of a page, and what they print as the page shows it; None: it does not."""

    commands: str
    output: str | None


class Block(NamedTuple):
    """A block of a page that is for a shell. ``name``: the page, the heading above it as in its
    address, and which of those below it. ``kind``: the word after its first fence."""

    name: str
    kind: str
    text: str


def blocks_of(page: str) -> list[Block]:
    """Those of a page below docs/, or of the project's folder, in their order."""
    found: list[Block] = []
    heading, number = "", 0
    path = ROOT / "docs" / page
    for match in _BLOCK.finditer((path if path.exists() else ROOT / page).read_text()):
        if match["heading"] is not None:
            heading, number = re.sub(r"[^\w -]", "", match["heading"].lower()).replace(" ", "-"), 0
        elif match["kind"] in _SHELL:
            number += 1
            text = re.sub(rf"^{match['indent']}", "", match["text"], flags=re.MULTILINE)
            found.append(Block(f"{page}#{heading}-{number}", match["kind"], text))
    return found


def steps_of(page: Path, heading: str = "") -> list[Step]:
    """What a reader does who types the blocks of a page from top to bottom, or of its part under a
    heading: a block ``sh`` is one step, a block ``console`` one for each of its prompts."""
    text = page.read_text()
    if heading:
        text = text.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    found: list[Step] = []
    for match in _BLOCK.finditer(text):
        if match["kind"] == "sh":
            found.append(Step(match["text"], None))
        elif match["kind"] == "console":
            for part in re.split(rf"^{re.escape(PROMPT)}", match["text"], flags=re.MULTILINE)[1:]:
                command, _, output = part.partition("\n")
                found.append(Step(command + "\n", output))
    return found


def block(name: str) -> str:
    """The text of a block, by its name."""
    (found,) = [one.text for one in blocks_of(name.partition("#")[0]) if one.name == name]
    return found


def documents() -> list[Path]:
    """All pages that a user reads."""
    below = ("docs", "deploy", "grafana", "loadtests")
    return [
        *ROOT.glob("*.md"),
        *(page for folder in below for page in (ROOT / folder).rglob("*.md")),
    ]


def commands_of(document: str) -> Iterator[list[str]]:
    """The words after ``lodefs`` of each command line in the blocks of a document."""
    for match in _BLOCK.finditer(document):
        if match["text"] is not None and match["kind"] in _SHELL:
            yield from commands_in(match["text"])


def mentions_of(document: str) -> Iterator[list[str]]:
    """The same of what its sentences mention, without the brackets around what may be left out."""
    for span in _SPAN.findall(_BLOCK.sub(_without_block, document)):
        yield from commands_in(_OPTIONAL.sub(r"\1", span.replace("\n", " ")))


def _without_block(match: re.Match[str]) -> str:
    return "" if match["text"] is not None else match[0]


def commands_in(script: str) -> Iterator[list[str]]:
    """The words after ``lodefs`` of each command of a script of a shell."""
    for line in script.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(_CRON.sub("", line.strip()), posix=True, punctuation_chars="();<>|&\n")
        lexer.whitespace_split = True
        try:
            words = list(lexer)
        except ValueError:  # a quotation mark of prose
            words = []
        simple: list[str] = []
        for word in [*words, ";"]:
            if word in _ENDS:
                yield from _after_lodefs(simple)
                simple = []
            else:
                simple.append(word)


def _after_lodefs(words: list[str]) -> Iterator[list[str]]:
    at = 0
    while at < len(words) and (words[at] in _BEFORE or re.match(r"\w+=", words[at])):
        at += 1
    if words[at : at + 1] == ["ssh"]:
        at += 2
    if at < len(words) and words[at].rpartition("/")[2] == "lodefs":
        yield words[at + 1 :]


def typed(text: str) -> str:
    """What a reader types of a block: what follows a prompt, if it has prompts; of a line of a
    crontab its command."""
    lines = text.splitlines()
    if any(line.startswith(PROMPT) for line in lines):
        lines = [line.removeprefix(PROMPT) for line in lines if line.startswith(PROMPT)]
    return "".join(f"{_CRON.sub('', line)}\n" for line in lines)
