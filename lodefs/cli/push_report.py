"""What a push did, as JSON and as lines for people."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import click

from lodefs.chunkstore.format.names import Spec, is_commit_prefix
from lodefs.cli import text
from lodefs.cli.options import write_line

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.push import PushResult
    from lodefs.chunkstore.push.scanner import SourceNotes

_BRANCH_NOT_COMMIT = (
    "{0} is the name of a new branch, though it looks like a commit; to remove it: "
    "lodefs branch --delete {1} {0}"
)
_SHARED_KEYS = (
    "commit", "unchanged", "created_branch", "files", "directories", "size_bytes", "new_bytes",
    "stored_bytes", "files_read", "lost_packs", "excluded",
)  # fmt: skip


def json_of(result: PushResult | ChangesResult, *, dry_run: bool) -> dict[str, object]:
    """The keys of docs/scripting.md. ``symlinks``, ``rebased``: of one kind of push each."""
    found: dict[str, object] = {key: getattr(result, key) for key in _SHARED_KEYS}
    for key in ("symlinks", "rebased"):
        if hasattr(result, key):
            found[key] = getattr(result, key)
    skipped = [
        {"path": text.percent_encoded(one.path), "message": one.reason} for one in result.skipped
    ]
    notes = {
        "private_files": result.notes.private_files,
        "hard_linked_files": result.notes.hard_linked_files,
        "often_excluded": dict(sorted(result.notes.often_excluded.items())),
    }
    return found | _changes_of(result) | {"dry_run": dry_run, "skipped": skipped} | notes


def show(result: PushResult | ChangesResult, spec: Spec, *, dry_run: bool) -> None:
    """Writes it. ``spec``: the branch."""
    _show_skipped(result)
    symlinks = getattr(result, "symlinks", 0)
    links = f", {text.count(symlinks, 'symlink')}" if symlinks else ""
    write_line(f"files   {result.files:,} ({result.files_read:,} read){links}")
    write_line(f"bytes   {text.size(result.size_bytes)}")
    changes = _changes_of(result)
    for what in ("added", "changed", "removed"):
        files, size_bytes = changes[f"{what}_files"], changes[f"{what}_bytes"]
        amount = "unknown: the branch's trees cannot be read"
        if files is not None and size_bytes is not None:
            amount = f"{text.count(files, 'file')}, {text.size(size_bytes)}"
        write_line(f"{what:<8}{amount}")
    write_line(f"new     {text.size(result.new_bytes)}")
    write_line(f"{'to send' if dry_run else 'stored '} {text.size(result.stored_bytes)}")
    if result.lost_packs:
        packs = text.count(result.lost_packs, "pack")
        write_line(
            f"gone    {packs}: no longer in the store (collected, or lost), and stored again"
        )
    if result.excluded:
        write_line(f"left out by patterns: {text.count(result.excluded, 'path')}")
    _show_commit(result, spec, dry_run=dry_run)
    if not result.unchanged:
        _show_notes(result.notes)


def _show_commit(result: PushResult | ChangesResult, spec: Spec, *, dry_run: bool) -> None:
    if getattr(result, "rebased", 0):
        write_line(f"{spec} had moved: this follows what others committed")
    if result.unchanged:
        write_line(f"nothing changed: {spec} stays at {result.commit}")
    elif dry_run:
        write_line("a dry run: nothing was written to the store")
    else:
        if result.created_branch:
            write_line(f"created branch {spec.rev}")
            if _looks_like_a_commit(spec.rev):
                _note(_BRANCH_NOT_COMMIT.format(spec.rev, spec.repo))
        write_line(f"commit  {result.commit}")


def _show_skipped(result: PushResult | ChangesResult) -> None:
    for item in result.skipped:
        click.echo(f"lodefs: skipped: {text.escaped(str(item))}", err=True)
    if result.skipped:
        count = text.count(len(result.skipped), "path")
        click.echo(
            f"lodefs: left out of the commit: {count}, named above (an older version is not kept "
            "either)",
            err=True,
        )


def _show_notes(notes: SourceNotes) -> None:
    """What whoever pushed may not have meant."""
    if notes.private_files:
        count = text.count(notes.private_files, "file")
        names = ", ".join(text.escaped(os.fsdecode(path)) for path in notes.private_named)
        more = notes.private_files - len(notes.private_named)
        _note(
            f"{count} that others may not read here can be read by all who may read the "
            f"repository: {names}{f' and {more:,} more' if more else ''} (--private skip leaves "
            "such files out, --private refuse refuses the push)"
        )
    if notes.hard_linked_files:
        count = text.count(notes.hard_linked_files, "file")
        _note(f"{count} with hard links: a copy or mount has each as a file of its own")
    if notes.often_excluded:
        names = ", ".join(f"{name} ({n:,})" for name, n in sorted(notes.often_excluded.items()))
        _note(
            f"pushed too: {names}; if that is not data, name it in a file .lodefsignore, or with "
            "--exclude"
        )


def _note(line: str) -> None:
    click.echo(f"lodefs: note: {line}", err=True)


def _changes_of(result: PushResult | ChangesResult) -> dict[str, int | None]:
    """Files and bytes that were added, changed and removed; None if that is not known."""
    return {
        f"{what}_{unit}": getattr(result.changes, f"{what}_{unit}", None)
        for what in ("added", "changed", "removed")
        for unit in ("files", "bytes")
    }


def _looks_like_a_commit(name: str) -> bool:
    """Whether a reader would take a branch's name for a commit: hex digits, but not a date."""
    return is_commit_prefix(name) and not name.isdigit() and not name.isalpha()
