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
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

import click
from click.shell_completion import (
    BashComplete,
    CompletionItem,
    add_completion_class,
    split_arg_string,
)

from lodefs.settings.session import Session

TIME_S_MAX = 1.0
ITEMS_MAX = 200
_LINE, _BREAKS = "LODEFS_COMPLETE_LINE", "LODEFS_COMPLETE_BREAKS"
_SPECIAL = re.compile(r"[^\w./@:=+,~^%-]")  # characters that end a word for a shell


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
    from lodefs.chunkstore.repo.refs import BRANCHES, TAGS

    head, colon, path = incomplete.partition(":")
    repo, at, rev = head.partition("@")
    if colon and ":" in form:
        above = path.rpartition("/")[0]
        spec = parse_spec(os.fsencode(f"{head}:{above}"))
        for name, entry in listing(session.store, spec):
            end = "/" if entry.kind is Kind.DIRECTORY else ""
            yield f"{head}:{above}{'/' if above else ''}{os.fsdecode(name)}{end}"
    elif at and "@" in form:
        refs = session.store.refs(repo)
        for kind in (BRANCHES, TAGS):
            yield from (f"{repo}@{name}" for name, _ in refs.living(kind) if name.startswith(rev))
    elif not colon and not at:
        for known in session.store.repos(repo):
            yield known
            if known == repo:
                yield from (f"{known}{mark}" for mark in "@:" if mark in form)


def _soon(words: Callable[[], Iterator[str]]) -> list[str]:
    """The complete names that a child process prints in time. A store that does not answer is left
    behind with that process."""
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
        words = split_arg_string(line)
        incomplete = words.pop() if words and not line[-1:].isspace() else ""
        breaks = set(os.environ.get(_BREAKS, "")) & set("@:=")
        self._cut = max((incomplete.rfind(mark) + 1 for mark in breaks), default=0)
        return words[1:], incomplete

    def format_completion(self, item: CompletionItem[Any]) -> str:
        value = str(item.value)
        if item.type == "plain":
            value = _SPECIAL.sub(r"\\\g<0>", value[self._cut :])
        return f"{item.type},{value}"


def register() -> None:
    """Makes click use this class. Call it before a shell is answered."""
    add_completion_class(_Bash, "bash")
