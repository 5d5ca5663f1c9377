"""``lodefs du``: the size of a store, repository or revision, and what deleting it would free."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from lodefs.api.upkeep import du as accounts
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.names import Target
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.maintenance.accounts import RepoAccount, RevisionAccount, StoreAccount

_METRICS = (  # name, field of RepoAccount, help
    ("freed_bytes", "freed_bytes", "Bytes that deleting the repository would free."),
    ("shared_bytes", "shared_bytes", "Bytes of its packs that other repositories need too."),
    ("apparent_bytes", "apparent_bytes", "Size of all files of all its commits."),
    ("commits", "commits", "Commits that branches and tags lead to and retention keeps."),
)
_STORE_METRICS = (
    ("pack_bytes", "size_bytes", "Size of all packs."),
    ("packs", "packs", "Number of packs."),
    ("unused_bytes", "unused_bytes", "Size of the packs that no repository needs."),
)
_SIZE_KEYS = ("apparent_bytes", "stored_bytes", "shared_bytes")
_REPO_KEYS = ("repo", "commits", *_SIZE_KEYS, "freed_bytes")
_STORE_KEYS = ("packs", "size_bytes", "unused_packs", "unused_bytes", "unreadable")
_REVISION_KEYS = ("repo", "rev", "commit", *_SIZE_KEYS, "unique_bytes", "freed_bytes", "unreadable")
_HEAD = ("FREES", "SHARED", "STORED", "APPARENT", "COMMITS", "REPOSITORY")


@cli.command(
    "lodefs du                                     # which repository to delete for room",
    "lodefs du vision/flickr30k@v1.0 --json",
    "lodefs du --textfile /var/lib/prometheus/node-exporter/lodefs.prom",
    store=True,
)
def du(
    session: Session,
    target: Target | None = cli.argument("[REPO[@REV]]"),
    textfile: Path | None = cli.option(
        "Write metrics for node_exporter's textfile collector instead.", metavar="FILE"
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Show how much of the store each repository takes, and what deleting it would free.

    FREES: size of its packs that no other repository needs. SHARED: size of its packs that others
    need too. STORED: both. APPARENT: size of all files of all commits, as if each were a copy. For
    REPO@REV: the size of that revision, what no other commit needs of it, and what deleting the
    branch or tag REV would free, together with all that only REV leads to.

    `lodefs gc` deletes such data a day or more later. `lodefs du` reads commits and directories
    but no data. It counts whole packs: a pack stays if a single chunk of it is needed.
    """
    cli.reject(
        {"REPO": textfile and target, "--json": textfile and as_json}, "goes without --textfile"
    )
    if textfile is not None:
        _check_place(textfile)
    with show_progress() as progress:
        found = accounts(target, progress=progress, session=session)
    from lodefs.chunkstore.maintenance.accounts import RevisionAccount

    if isinstance(found, RevisionAccount):
        if as_json:
            cli.write_json(cli.fields(found, *_REVISION_KEYS))
        else:
            _write_revision(found)
    elif textfile is not None:
        _write_metrics(found, textfile)
    elif as_json:
        _write_json(found, is_whole=target is None)
    else:
        _write_table(found, is_whole=target is None)


def _write_table(found: StoreAccount, *, is_whole: bool) -> None:
    rows = [_row(one) for one in found.repos]
    for row in [_HEAD, *rows]:
        amounts = "".join(f"{column:>12}" for column in row[:-1])
        cli.write_line(f"{amounts}  {row[-1]}")
    if is_whole:
        packs, unused = text.count(found.packs, "pack"), text.count(found.unused_packs, "pack")
        cli.write_line(f"store   {packs}, {text.size(found.size_bytes)}")
        cli.write_line(f"unused  {unused}, {text.size(found.unused_bytes)}: for `lodefs gc`")
    _write_unreadable(found.unreadable)


def _row(one: RepoAccount) -> tuple[str, ...]:
    sizes = (one.freed_bytes, one.shared_bytes, one.stored_bytes, one.apparent_bytes)
    return (*map(text.size, sizes), f"{one.commits:,}", one.repo)


def _write_revision(found: RevisionAccount) -> None:
    freed = "there is no branch or tag of that name" if found.freed_bytes is None else ""
    rows = [
        ("commit", found.commit.hex()),
        ("apparent", text.size(found.apparent_bytes)),
        ("stored", text.size(found.stored_bytes)),
        ("unique", f"{text.size(found.unique_bytes)}, which no other commit needs"),
        ("shared", text.size(found.shared_bytes)),
        (
            "frees",
            freed or f"{text.size(found.freed_bytes or 0)}, if this branch or tag is deleted",
        ),
    ]
    for name, words in rows:
        cli.write_line(f"{name:<10}{words}")
    _write_unreadable(found.unreadable)


def _write_unreadable(count: int) -> None:
    if count:
        what = "directory" if count == 1 else "directories"
        click.echo(
            f"lodefs: {count:,} {what} cannot be read, and their contents are not counted: see "
            "`lodefs verify`",
            err=True,
        )


def _write_json(found: StoreAccount, *, is_whole: bool) -> None:
    for one in found.repos:
        cli.write_json(cli.fields(one, *_REPO_KEYS))
    if is_whole:
        cli.write_json(cli.fields(found, *_STORE_KEYS))


def _write_metrics(found: StoreAccount, textfile: Path) -> None:
    """Writes the whole file or nothing, since node_exporter may read it at any time."""
    lines = []
    for metric, field, what in _METRICS:
        name = f"lodefs_repository_{metric}"
        lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge"]
        lines += [f'{name}{{repo="{one.repo}"}} {getattr(one, field)}' for one in found.repos]
    for metric, field, what in _STORE_METRICS:
        name = f"lodefs_store_{metric}"
        lines += [f"# HELP {name} {what}", f"# TYPE {name} gauge"]
        lines.append(f"{name} {getattr(found, field)}")
    part = textfile.with_name(f".{textfile.name}.{os.urandom(4).hex()}")
    try:
        with part.open("x") as out:  # must be new: another user may own the directory
            out.write("\n".join(lines) + "\n")
        part.replace(textfile)
    except OSError as error:
        raise kind_of(error)(
            f"--textfile {textfile} cannot be written: {error.strerror}"
        ) from error
    finally:
        with suppress(OSError):  # only the first error is reported
            part.unlink(missing_ok=True)


def _check_place(textfile: Path) -> None:
    """Checks the place of the file, before the store is read. Raises: NotFound, InvalidInput."""
    if textfile.is_dir():
        raise InvalidInput(f"--textfile {textfile} is a directory: name a file in it")
    if not textfile.parent.is_dir():
        raise NotFound(f"--textfile {textfile}: there is no directory {textfile.parent}: make it")
