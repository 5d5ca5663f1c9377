"""``lodefs log``, ``diff``, ``blame`` and ``reflog``: the history of a repository."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from typing import TYPE_CHECKING

import click

from lodefs.api.history import blame as blamed
from lodefs.api.history import diff as changes
from lodefs.api.history import log as commits
from lodefs.chunkstore.errors import NotFound
from lodefs.chunkstore.format.commit import Commit
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.chunkstore.format.tree import Kind, TreeEntry
from lodefs.chunkstore.repo.history import Change, RefMove
from lodefs.chunkstore.repo.refs import BRANCHES, TAGS
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.graph_lines import GraphLines
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.upper_changes import Renamed
    from lodefs.chunkstore.repo.history import CommitNames
    from lodefs.chunkstore.repo.pack_reader import PackReader
    from lodefs.chunkstore.repo.text_diff import ContentDiff

    Difference = Change | Renamed


@cli.command(
    "lodefs log -n 10 vision/flickr30k",
    "lodefs log --oneline --graph vision/flickr30k",
    "lodefs log --meta source=crawl-7 vision/flickr30k",
    store=True,
)
def log(
    session: Session,
    spec: Spec = cli.argument("REPO[@REV]"),
    limit: int | None = cli.option("Show at most this many commits.", "-n", between=(1, None)),
    first_parent: bool = cli.option("Follow only the first parent of each merge."),
    metadata: tuple[str, ...] = cli.option(
        "Show only commits with this metadata.", "--meta", metavar="KEY[=VALUE]"
    ),
    oneline: bool = cli.option("Show one line for each commit."),
    graph: bool = cli.option("Draw a graph of commits and their parents."),
    as_json: bool = cli.JSON,
) -> None:
    """Show the commits of a revision, newest first, with the branches and tags at each."""
    from lodefs.chunkstore.repo.history import NAMES_MAX, CommitNames, names_of_commits

    cli.no_path(spec)
    cli.reject({"--graph": graph and bool(metadata)}, "draws all commits and takes no --meta")
    cli.reject(
        {"--oneline": oneline and as_json, "--graph": graph and as_json}, "does not go with --json"
    )
    shown, parents = set[str](), set[str]()
    found = commits(spec, first_parent=first_parent, metadata=metadata, session=session)
    names, are_all = names_of_commits(session.store, spec)
    drawn = GraphLines() if graph else None
    for commit_id, commit in islice(found, limit):
        ahead = commit.parents[: 1 if first_parent else None]
        shown.add(commit_id)
        parents.update(parent.hex() for parent in ahead)
        at = CommitId(bytes.fromhex(commit_id))
        of_it = names.get(at, CommitNames([], []))
        if as_json:
            cli.write_json(_json_of(commit_id, commit) | of_it._asdict())
            continue
        lines = _line(commit_id, commit, of_it) if oneline else _shown(commit_id, commit, of_it)
        for line in lines if drawn is None else _with_graph(drawn, at, ahead, lines):
            cli.write_line(line)
    if parents - shown and len(shown) != limit and not metadata:
        click.echo(f"older commits of {spec.repo} have expired: see `lodefs retain`", err=True)
    if not are_all:
        click.echo(f"only {NAMES_MAX} branches and {NAMES_MAX} tags were looked up", err=True)


def _json_of(commit_id: str, commit: Commit) -> dict[str, object]:
    keys = "parents", "author", "time_s", "message", "files", "directories", "size_bytes"
    return {"commit": commit_id, **cli.fields(commit, *keys), "metadata": dict(commit.metadata)}


def _line(commit_id: str, commit: Commit, names: CommitNames) -> list[str]:
    subject = next(iter(text.escaped_lines(commit.message)), "")
    return [f"{commit_id[:12]}{_in_brackets(names)} {subject}".rstrip()]


def _shown(commit_id: str, commit: Commit, names: CommitNames) -> list[str]:
    merged = " ".join(parent.hex()[:12] for parent in commit.parents)
    message = [f"    {line}" for line in text.escaped_lines(commit.message)]
    return [
        f"commit {commit_id}{_in_brackets(names)}",
        *([f"merge  {merged}"] if len(commit.parents) > 1 else []),
        f"author {text.escaped(commit.author)}",
        f"time   {text.time(commit.time_s)}",
        f"holds  {text.count(commit.files, 'file')}, {text.size(commit.size_bytes)}",
        *(f"meta   {text.escaped(f'{key}={value}')}" for key, value in commit.metadata),
        "",
        *message,
        *([""] if message else []),
    ]


def _in_brackets(names: CommitNames) -> str:
    words = [*names.branches, *(f"tag: {name}" for name in names.tags)]
    return f" ({', '.join(words)})" if words else ""


def _with_graph(
    drawn: GraphLines, at: CommitId, parents: Sequence[CommitId], lines: list[str]
) -> list[str]:
    first, others, after = drawn.commit(at, parents)
    later = [f"{others}  {line}".rstrip() for line in lines[1:]]
    return [f"{first}  {lines[0]}", *later, *after]


@cli.command(
    "lodefs blame vision/flickr30k:captions.csv",
    "lodefs blame vision/flickr30k@v1.0:images          # each entry of a directory",
    store=True,
)
def blame(
    session: Session, spec: Spec = cli.argument("REPO[@REV][:PATH]"), as_json: bool = cli.JSON
) -> None:
    """Show which commit last changed PATH. For a directory, show this for each of its entries, the
    latest changes first. A directory counts as changed when anything below it changes.
    """
    for one in blamed(spec, session=session):
        commit = one.commit
        if as_json:
            found = {"path": text.percent_encoded(one.path), "commit": one.commit_id.hex()}
            cli.write_json(found | cli.fields(commit, "author", "time_s", "message"))
            continue
        first = next(iter(text.escaped_lines(commit.message)), "")
        who = (
            f"{one.commit_id.hex()[:12]}  {text.time(commit.time_s)}  {text.escaped(commit.author)}"
        )
        cli.write_line(f"{who}  {text.escaped(one.path)}  {first}".rstrip())


_MARKS = {"added": "A", "removed": "D", "changed": "M", "type changed": "T"}


@cli.command(
    "lodefs diff vision/flickr30k@v1.0 vision/flickr30k@main",
    "lodefs diff --stat vision/flickr30k@v1.0 vision/flickr30k@main",
    "lodefs diff -p vision/flickr30k@v1.0:captions.csv vision/flickr30k:captions.csv",
    "lodefs diff ./work                     # the changes in a writable mount",
    store=True,
)
def diff(
    session: Session,
    before: str = cli.argument("REPO@A[:PATH]|DIR"),
    after: Spec | None = cli.argument("[REPO@B[:PATH]]"),
    exit_code: bool = cli.option("Exit with 1 if anything differs."),
    stat: bool = cli.option("Show only how many files and bytes differ."),
    name_only: bool = cli.option("Show only the paths."),
    patch: bool = cli.option("Also show the lines that differ.", "-p", "--patch"),
    as_json: bool = cli.JSON,
) -> None:
    """Show the paths that differ between two revisions: A for added, D for removed, M for changed,
    T for another type. Or show what differs between a writable mount and its base: R is a renamed
    directory, before the differences in it.

    With --patch, differences in text files of at most 1 MiB (CSV, JSON, Markdown, ...) follow as a
    patch. Other files are named as binary or large.
    """
    cli.reject({"--name-only": name_only and stat}, "does nothing with --stat")
    cli.reject({"--patch": patch and (stat or name_only)}, "needs neither --stat nor --name-only")
    cli.reject({"--patch": patch and after is None}, "needs two revisions")
    counts = {what: _Count() for what in _MARKS}
    found = _of_mount(session, before) if after is None else _of_specs(session, before, after)
    for change in found:
        counts.setdefault(what_of(change), _Count()).add(change)
        if not stat:
            packs = session.store.packs if patch else None
            _show(change, packs, name_only=name_only, as_json=as_json)
    if stat:
        _show_counts({what: counts[what] for what in _MARKS}, as_json=as_json)
    elif not as_json and not name_only:
        summary = ", ".join(
            f"{one.entries:,} {what}" for what, one in counts.items() if one.entries
        )
        cli.write_line(summary or "no difference")
    if exit_code and any(one.entries for one in counts.values()):
        session.exit_code = 1


def _of_specs(session: Session, before: str, after: Spec) -> Iterator[Difference]:
    return changes(cli.spec_from(before), after, session=session)


def _of_mount(session: Session, directory: str) -> Iterator[Difference]:
    from lodefs.api.writing.writable_changes import status

    repo, at, _ = directory.partition("@")
    if at and not os.path.lexists(directory):
        raise click.UsageError(
            f"{directory} is the only revision: name two, as in lodefs diff {directory} {repo}"
        )
    try:
        yield from status(directory, session=session).differences
    except NotFound as error:
        if not os.path.isdir(directory):
            error.add_note("to compare two revisions, name both: REPO@A REPO@B")
        raise


def what_of(change: Difference) -> str:
    """Returns the key of a kind of difference in JSON."""
    return change.what.value if isinstance(change, Change) else "renamed"


@dataclass(slots=True)
class _Count:
    """The amount of difference of one kind. Bytes: the present size of files, the old size of
    removed ones."""

    entries: int = 0
    files: int = 0  # symlinks too
    size_bytes: int = 0

    def add(self, change: Difference) -> None:
        self.entries += 1
        entry = change.after or change.before if isinstance(change, Change) else None
        if entry is not None and entry.kind is not Kind.DIRECTORY:
            self.files += 1
            self.size_bytes += entry.size_bytes if entry.kind is Kind.FILE else 0


def _show(change: Difference, packs: PackReader | None, *, name_only: bool, as_json: bool) -> None:
    """Writes one change; with ``packs``, also the change of its content."""
    from lodefs.chunkstore.repo.text_diff import content_diff

    patch = None
    if packs is not None and isinstance(change, Change):
        patch = content_diff(packs, change)
    if as_json:
        found = difference_json_of(change)
        if patch is not None:
            found |= {"patch": patch.lines, "not_shown": patch.not_shown}
        cli.write_json({"path": found["path"]} if name_only else found)
    elif name_only:
        cli.write_line(text.escaped(change.path))
    else:
        cli.write_line(difference_line_of(change))
        if patch is not None and isinstance(change, Change):
            for line in _patch_lines(change, patch):
                cli.write_line(line)


def difference_line_of(change: Difference) -> str:
    """Returns one path that differs, as a line for people."""
    path = text.escaped(change.path)
    if not isinstance(change, Change):
        return f"R  {text.escaped(change.source)} -> {path}"
    return f"{_MARKS[change.what.value]}  {path}  ({_sizes(change.before, change.after)})"


def difference_json_of(change: Difference) -> dict[str, object]:
    """Returns one path that differs, as JSON for scripts."""
    path = text.percent_encoded(change.path)
    found: dict[str, object] = {"change": what_of(change), "path": path}
    if not isinstance(change, Change):
        return found | {"source": text.percent_encoded(change.source)}
    before, after = _diff_json_of(change.before), _diff_json_of(change.after)
    return found | {"before": before, "after": after}


def _patch_lines(change: Change, found: ContentDiff) -> list[str]:
    """Returns the patch for people and for patch(1), which ignores the line above it."""
    if found.not_shown:
        return [f"   {found.not_shown}: its lines are not shown"]
    if not found.lines:
        return []
    sides = ("---", "a/", change.before), ("+++", "b/", change.after)
    path = text.escaped(change.path)
    heads = [f"{mark} {f'{below}{path}' if side else '/dev/null'}" for mark, below, side in sides]
    return [*heads, *found.lines]


def _show_counts(counts: dict[str, _Count], *, as_json: bool) -> None:
    if as_json:
        keys = {what: what.replace(" ", "_") for what in counts}
        found = {f"{keys[what]}_files": one.files for what, one in counts.items()}
        cli.write_json(
            found | {f"{keys[what]}_bytes": one.size_bytes for what, one in counts.items()}
        )
        return
    for what, one in counts.items():
        if one.entries:
            cli.write_line(
                f"{what:<13}{text.count(one.files, 'file')}, {text.size(one.size_bytes)}"
            )
    if not any(one.entries for one in counts.values()):
        cli.write_line("no difference")


def _sizes(before: TreeEntry | None, after: TreeEntry | None) -> str:
    """Both sizes; in bytes if they differ but would look equal."""
    sizes = _size(before), _size(after)
    if sizes[0] == sizes[1] and before and after and before.size_bytes != after.size_bytes:
        sizes = f"{before.size_bytes:,} B", f"{after.size_bytes:,} B"
    return " -> ".join(sizes)


def _size(entry: TreeEntry | None) -> str:
    if entry is None:
        return "nothing"
    if entry.kind is Kind.FILE:
        return text.size(entry.size_bytes)
    return entry.kind.name.lower()


def _diff_json_of(entry: TreeEntry | None) -> dict[str, object] | None:
    if entry is None:
        return None
    digest = entry.digest.hex() or None  # None for content that is in no commit
    found: dict[str, object] = {"kind": entry.kind.name.lower(), "digest": digest}
    if entry.kind is Kind.FILE:
        found |= {"size_bytes": entry.size_bytes, "executable": entry.executable}
    return found


@cli.command(
    "lodefs reflog vision/flickr30k",
    "lodefs branch --force vision/flickr30k@9c2f01ab77de main     # back to one of these",
    store=True,
)
def reflog(
    session: Session,
    spec: Spec = cli.argument("REPO[@NAME]"),
    limit: int | None = cli.option("Show at most this many moves.", "-n", between=(1, None)),
    only_tag: bool = cli.option("Show the tag NAME, even if a branch had that name.", "--tag"),
    as_json: bool = cli.JSON,
) -> None:
    """Show where a branch or tag of REPO (default: main) was, newest first: when it moved, from
    which commit to which, and who pushed. This works for deleted branches and tags too.
    """
    from lodefs.chunkstore.repo.history import reflog as moves

    cli.no_path(spec)
    for kind in (TAGS,) if only_tag else (BRANCHES, TAGS):
        found = moves(session.store, spec.repo, kind, spec.rev)
        first = next(found, None)
        if first is not None:
            break
    else:
        session.store.require_repo(spec.repo)
        what = "tag" if only_tag else "branch or tag"
        raise NotFound(f"{spec.repo} never had a {what} {spec.rev}")
    for move in islice(chain([first], found), limit):
        if as_json:
            cli.write_json(_reflog_json_of(move))
        else:
            cli.write_line(_reflog_shown(move))


def _reflog_json_of(move: RefMove) -> dict[str, object]:
    return {
        "time_s": move.time_s,
        "change": move.move.value,
        "previous": None if move.before is None else move.before.hex(),
        "commit": None if move.after is None else move.after.hex(),
        "author": move.author,
    }


def _reflog_shown(move: RefMove) -> str:
    author = "" if move.author is None else f"  {text.escaped(move.author)}"
    path = f"{_short(move.before)} -> {_short(move.after)}"
    return f"{text.time(move.time_s)}  {path}  {move.move.value}{author}"


def _short(commit_id: CommitId | None) -> str:
    return f"{'none':<12}" if commit_id is None else commit_id.hex()[:12]
