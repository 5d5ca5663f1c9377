"""Shows what a commit of changes did: to people by lines, to scripts as JSON."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from lodefs.chunkstore.format.names import Spec, is_commit_prefix
from lodefs.cli import options as cli
from lodefs.cli import text

if TYPE_CHECKING:
    from lodefs.chunkstore.push.scanner import SourceNotes
    from lodefs.chunkstore.push.session import CommitResult

_BRANCH_NOT_COMMIT = (
    "{0} is the name of a new branch, though it looks like a commit; to remove it: "
    "lodefs branch --delete {1} {0}"
)
_PRIVATE_OPTION = " (--private skip leaves such files out, --private refuse refuses the push)"
_SHARED_KEYS = (
    "commit", "unchanged", "created_branch", "files", "directories", "size_bytes", "new_bytes",
    "stored_bytes", "files_read", "lost_packs", "excluded",
)  # fmt: skip
_OWN_KEYS = ("symlinks", "rebased", "git_commit", "lfs_files", "lfs_fetched_bytes", "kept_files")


def json_of(result: CommitResult, *, dry_run: bool) -> dict[str, object]:
    """Returns the keys of docs/scripting.md. Only some kinds of push have ``symlinks``,
    ``rebased``, or the keys of an import from Git."""
    keys = [*_SHARED_KEYS, *(key for key in _OWN_KEYS if hasattr(result, key))]
    found = cli.fields(result, *keys)
    skipped = [
        {"path": text.percent_encoded(one.path), "message": one.reason} for one in result.skipped
    ]
    notes = {
        "private_files": result.notes.private_files,
        "hard_linked_files": result.notes.hard_linked_files,
        "stateless_files": result.notes.stateless_files,
        "set_id_files": result.notes.set_id_files,
        "often_excluded": dict(sorted(result.notes.often_excluded.items())),
    }
    return found | _changes_of(result) | {"dry_run": dry_run, "skipped": skipped} | notes


def show(
    result: CommitResult, spec: Spec, *, dry_run: bool, as_json: bool, has_options: bool = True
) -> None:
    """Writes the result. ``spec``: the branch. ``has_options``: options of a push of files
    apply."""
    if as_json:
        cli.write_json(json_of(result, dry_run=dry_run))
        return
    _show_skipped(result)
    symlinks = getattr(result, "symlinks", 0)
    links = f", {text.count(symlinks, 'symlink')}" if symlinks else ""
    # What counts as a file below, and in `lodefs log`
    cli.write_line(f"files   {result.files + symlinks:,} ({result.files_read:,} read{links})")
    cli.write_line(f"bytes   {text.size(result.size_bytes)}")
    if git_commit := getattr(result, "git_commit", ""):
        lfs_files = text.count(getattr(result, "lfs_files", 0), "file")
        cli.write_line(f"git     {git_commit} (from Git LFS: {lfs_files})")
    if not result.unchanged:
        _show_changes(result)
    if not result.unchanged or result.stored_bytes:
        cli.write_line(f"new     {text.size(result.new_bytes)}")
        cli.write_line(f"{'to send' if dry_run else 'stored '} {text.size(result.stored_bytes)}")
    if result.lost_packs:
        packs = text.count(result.lost_packs, "pack")
        cli.write_line(
            f"gone    {packs}: deleted by gc, lost, or in place in a bucket; stored again"
        )
    if result.excluded:
        cli.write_line(f"left out by patterns: {text.count(result.excluded, 'path')}")
    _show_commit(result, spec, dry_run=dry_run)
    if not result.unchanged:
        _show_notes(result.notes, has_options=has_options)
    if result.notes.stateless_files:
        count = text.count(result.notes.stateless_files, "file")
        note(
            f"each push reads {count} again: the source tells neither checksum, version nor time, "
            "or one of the last minute"
        )


def note(line: str) -> None:
    """Tells users of a possible mistake."""
    click.echo(f"lodefs: note: {line}", err=True)


def _show_changes(result: CommitResult) -> None:
    changes = _changes_of(result)
    for what in ("added", "changed", "removed"):
        files, size_bytes = changes[f"{what}_files"], changes[f"{what}_bytes"]
        amount = "unknown: the branch's trees cannot be read"
        if files is not None and size_bytes is not None:
            amount = f"{text.count(files, 'file')}, {text.size(size_bytes)}"
        cli.write_line(f"{what:<8}{amount}")


def _show_commit(result: CommitResult, spec: Spec, *, dry_run: bool) -> None:
    if getattr(result, "rebased", 0):
        cli.write_line(f"{spec} had moved: this commit follows those of others")
    if result.unchanged:
        cli.write_line(f"nothing changed: {spec} stays at {result.commit}")
    elif dry_run:
        cli.write_line("a dry run: nothing was written to the store")
    else:
        if result.created_branch:
            cli.write_line(f"created branch {spec.rev}")
            if _looks_like_a_commit(spec.rev):
                note(_BRANCH_NOT_COMMIT.format(spec.rev, spec.repo))
        cli.write_line(f"commit  {result.commit}")


def _show_skipped(result: CommitResult) -> None:
    for item in result.skipped:
        click.echo(f"lodefs: skipped: {text.escaped(str(item))}", err=True)
    if result.skipped:
        count = text.count(len(result.skipped), "path")
        click.echo(
            f"lodefs: left out of the commit: {count}, named above (an older version is not kept "
            "either)",
            err=True,
        )


def _show_notes(notes: SourceNotes, *, has_options: bool) -> None:
    """Writes notes on possible mistakes of the user. ``has_options``: options of a push of files
    apply."""
    if notes.private_files:
        count = text.count(notes.private_files, "file")
        names = ", ".join(text.escaped(path) for path in notes.private_named)
        more = notes.private_files - len(notes.private_named)
        note(
            f"{count} that others may not read here can be read by all who may read the "
            f"repository: {names}{f' and {more:,} more' if more else ''}"
            f"{_PRIVATE_OPTION if has_options else ''}"
        )
    if notes.hard_linked_files:
        count = text.count(notes.hard_linked_files, "file")
        note(f"{count} with hard links: in a copy or mount, each name is a separate file")
    if notes.set_id_files:
        count = text.count(notes.set_id_files, "file")
        note(f"{count} with setuid or setgid: a commit keeps only the executable bit")
    if notes.often_excluded:
        names = ", ".join(f"{name} ({n:,})" for name, n in sorted(notes.often_excluded.items()))
        note(
            f"pushed too: {names}; if they are not data, name them in .lodefsignore, or with "
            "--exclude"
        )


def _changes_of(result: CommitResult) -> dict[str, int | None]:
    """Returns the numbers of files and bytes added, changed and removed; None if unknown."""
    return {
        f"{what}_{unit}": getattr(result.changes, f"{what}_{unit}", None)
        for what in ("added", "changed", "removed")
        for unit in ("files", "bytes")
    }


def _looks_like_a_commit(name: str) -> bool:
    """Whether the name of a branch could be taken for a commit: hex digits, but not a date."""
    return is_commit_prefix(name) and not name.isdigit() and not name.isalpha()
