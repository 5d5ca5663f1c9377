"""Completions for the word under the cursor: repositories, revisions and paths of a store.

A shell waits for them, so they take a second at most. After an error there are none, and no
message.
"""

from __future__ import annotations

import os
import re
import select
import signal
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.settings.session import Session

TIME_S_MAX = 1.0
ITEMS_MAX = 200
_LINE, _BREAKS = "LODEFS_COMPLETE_LINE", "LODEFS_COMPLETE_BREAKS"
_SPECIAL = {  # what a shell does not take as it stands: outside of quotes, and in either kind
    "": re.compile(r"[^\w./@:=+,~^%-]"),
    '"': re.compile(r'["$`\\]'),
    "'": re.compile(r"'"),
}
# A part of a line of bash; ``open`` is a quote that does not end.
_PIECE = re.compile(
    r"""\s+ | \\. | '[^']*' | "(?:\\.|[^"\\])*" | (?P<open>['"].*) | .""", re.VERBOSE | re.DOTALL
)


def spec_items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completions for an argument REPO[@REV][:PATH], whose metavar says which parts it has."""
    form = str(param.metavar)
    words = _soon(lambda: _specs(_session(ctx), incomplete, form))
    return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def source_items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completions for files before a path in the store. After one file, that path may be next."""
    files = [CompletionItem(incomplete, type="file")]
    place = next(one for one in ctx.command.params if one is not param)
    has_one = (
        ctx.params.get(str(place.name)) is not None
    )  # click takes a single word for the last argument
    return [*files, *spec_items(ctx, place, incomplete)] if has_one else files


def revision_items(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    """Completions for an argument REV or BRANCH after that of its repository."""
    spec = ctx.params.get(str(ctx.command.params[0].name))
    if not isinstance(spec, Spec):
        return []
    kinds = (BRANCHES,) if param.metavar == "BRANCH" else (BRANCHES, TAGS)
    words = _soon(lambda: _names(_session(ctx), spec.repo, kinds, incomplete))
    return [CompletionItem(word) for word in words]


def _session(ctx: click.Context) -> Session:
    session = ctx.obj
    assert isinstance(session, Session)
    given = ctx.params.get("store_url") or ctx.find_root().params.get("store")
    session.apply_options(store=given)
    return session


def _specs(session: Session, incomplete: str, form: str) -> Iterator[str]:
    """Words that begin like the one under the cursor."""
    from lodefs.chunkstore.format.names import parse_spec
    from lodefs.chunkstore.format.tree import Kind
    from lodefs.chunkstore.repo.history import listing

    head, colon, path = incomplete.partition(":")
    repo, at, rev = head.partition("@")
    if colon and ":" in form:
        above = path.rpartition("/")[0]
        spec = parse_spec(os.fsencode(f"{head}:{above}"))
        for name, entry in listing(session.store, spec):
            end = "/" if entry.kind is Kind.DIRECTORY else ""
            yield f"{head}:{above}{'/' if above else ''}{os.fsdecode(name)}{end}"
    elif at and "@" in form:
        names = _names(session, repo, (BRANCHES, TAGS), rev)
        yield from (f"{repo}@{name}" for name in names)
    elif not colon and not at:
        for known in session.store.repos(repo):
            yield known
            if known == repo:
                yield from (f"{known}{mark}" for mark in "@:" if mark in form)


def _names(session: Session, repo: str, kinds: Sequence[str], begin: str) -> Iterator[str]:
    """Yields the names of branches and tags that begin like the one under the cursor."""
    refs = session.store.refs(repo)
    for kind in kinds:
        yield from (name for name, _ in refs.living(kind) if name.startswith(begin))


def _soon(words: Callable[[], Iterator[str]]) -> list[str]:
    """Returns the complete names that a child process prints in time. A store that does not answer
    is left behind with that process."""
    ours, theirs = os.pipe()
    child = os.fork()
    if not child:
        try:
            _say(theirs, words)
        finally:
            os._exit(0)
    os.close(theirs)
    said, ends_s = b"", time.monotonic() + TIME_S_MAX
    try:
        while (left_s := ends_s - time.monotonic()) > 0 and select.select([ours], [], [], left_s)[
            0
        ]:
            more = os.read(ours, 65536)
            if not more:
                break
            said += more
    finally:
        os.close(ours)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    return [os.fsdecode(word) for word in said.split(b"\0")[:-1]]


def _say(fd: int, words: Callable[[], Iterator[str]]) -> None:
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):  # nobody should see warnings of libraries
        os.dup2(null, standard)
    for word in islice(words(), ITEMS_MAX):
        os.write(fd, os.fsencode(word) + b"\0")


class LastWord(NamedTuple):
    """The word under the cursor, which may be empty. ``begin``: its offset in the line. ``kept``:
    bash replaces what follows this many of its characters. ``quote``: the open quote, or ""."""

    text: str
    begin: int
    kept: int
    quote: str


def last_word(line: str, breaks: Collection[str]) -> LastWord:
    """Returns the word at the end of a line. bash replaces what follows an open quote, or the last
    of the characters ``breaks`` that is in no quotes."""
    pieces, begin, quote = list[str](), 0, ""
    for piece in _PIECE.finditer(line):
        quote = (piece["open"] or "")[:1]
        pieces.append(piece[0])
        if piece[0].isspace():
            pieces, begin = [], piece.end()
    broken = max((at for at, piece in enumerate(pieces, 1) if piece in breaks), default=0)
    kept = len(pieces) - 1 if quote else broken
    return LastWord(_unquoted(pieces), begin, len(_unquoted(pieces[:kept])), quote)


def _unquoted(pieces: Sequence[str]) -> str:
    return "".join(split_arg_string("".join(pieces)))


def quoted(value: str, quote: str) -> str:
    """Returns a value as bash takes it after an open quote, or, for "", outside of quotes."""
    return _SPECIAL[quote].sub(r"'\''" if quote == "'" else r"\\\g<0>", value)


class _Bash(BashComplete):
    """Like click's class, but splits the line itself: to bash, ``@`` and ``:`` end words."""

    source_template = f"""\
%(complete_func)s() {{
    local type value word="${{COMP_WORDS[COMP_CWORD]}}"
    COMPREPLY=()
    while IFS=, read -r type value; do
        if [[ $type == file ]]; then
            mapfile -t -O ${{#COMPREPLY[@]}} COMPREPLY < <(compgen -f -- "$word")
            compopt -o filenames
        elif [[ $type == dir ]]; then
            compopt -o dirnames
        else
            COMPREPLY+=("$value")
            [[ $value == *[/@:] ]] && compopt -o nospace
        fi
    done < <({_LINE}="${{COMP_LINE:0:COMP_POINT}}" {_BREAKS}="$COMP_WORDBREAKS" \\
        %(complete_var)s=bash_complete "$1" 2>/dev/null)
}}
complete -o nosort -F %(complete_func)s %(prog_name)s
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        line = os.environ.get(_LINE, "")
        breaks = set(os.environ.get(_BREAKS, "")) & set("@:=")
        self._last = last_word(line, breaks)
        return split_arg_string(line[: self._last.begin])[1:], self._last.text

    def format_completion(self, item: CompletionItem[Any]) -> str:
        value = str(item.value)
        if item.type == "plain":
            value = quoted(value[self._last.kept :], self._last.quote)
        return f"{item.type},{value}"


def register() -> None:
    """Makes click use this class. Call it before a shell is answered."""
    add_completion_class(_Bash, "bash")
