"""``lodefs bundle``: a revision in one file, for sites without a network."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.refs import singular
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.cli import text
from lodefs.cli.consent import require_consent
from lodefs.cli.options import SPEC, examples, json_option, session_command, write_json, write_line
from lodefs.cli.progress_bars import show_progress
from lodefs.commands.log import no_path
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.format.bundle import BundleHead
    from lodefs.chunkstore.repo.refs import RefEntry

STDIO = "-"


@click.group(
    epilog=examples(
        "lodefs bundle create cats.bundle vision/cats@v1.0",
        "lodefs bundle unpack cats.bundle /srv/store",
        "ssh there lodefs bundle create - vision/cats | lodefs bundle unpack - /srv/store",
    )
)
def bundle() -> None:
    """A branch or tag, with its history and all data, in one file."""


@bundle.command(
    epilog=examples(
        "lodefs bundle create cats.bundle vision/cats@v1.0",
        "lodefs bundle create cats-2.bundle vision/cats@v2.0 --since v1.0      # only what is new",
    )
)
@click.argument("file", metavar="FILE")
@click.argument("spec", metavar="REPO[@REV]", type=SPEC)
@click.option("--since", metavar="REV", help="Without what REV leads to: who unpacks it has that.")
@json_option
@session_command(store=True)
def create(session: Session, file: str, spec: Spec, since: str | None, as_json: bool) -> None:
    """Write a branch or tag of the store to FILE (-: standard output), which must be new."""
    from lodefs.chunkstore.transfer.bundle import create_bundle

    no_path(spec)
    if file == STDIO and as_json:
        raise click.UsageError("--json and a bundle cannot both go to standard output.")
    with show_progress() as progress, _written(file) as out:
        done = create_bundle(session.store, spec.repo, spec.rev, since, out, progress=progress)
    if as_json:
        write_json(_json_of(done.head) | {"size_bytes": done.size_bytes})
    elif file != STDIO:
        write_line(f"{_line(done.head)}; {text.size(done.size_bytes)}")


@bundle.command(
    epilog=examples(
        "lodefs bundle unpack cats.bundle /srv/store",
        "lodefs bundle unpack --yes - s3://bucket/prefix < cats.bundle",
    )
)
@click.argument("file", metavar="FILE")
@click.argument("destination_url", metavar="[STORE]", required=False)
@click.option("-y", "--yes", is_flag=True, help="Do not ask before a branch moves.")
@json_option
@session_command(store=True)
def unpack(
    session: Session, file: str, destination_url: str | None, yes: bool, as_json: bool
) -> None:
    """Bring what is in FILE (-: standard input) to a store, with its ids, and move its branch or
    tag there. STORE is the one of --store or LODEFS_STORE unless it is given.

    FILE says which branch of which repository that is: it asks before one that is there moves.
    `lodefs bundle list FILE` says it, too.

    A FILE is read to its end first, so that a damaged one, or one over the quota there, changes
    nothing. From standard input data arrives as it is read, but the branch moves only when all of
    it was right.
    """
    from lodefs.chunkstore.transfer.bundle import standing, unpack_bundle
    from lodefs.chunkstore.transfer.bundle_file import BundleReader, check_bundle

    store = session.store if destination_url is None else session.store_at(destination_url)
    what, size_bytes = _shown(file), None
    with _read(file) as source:
        if file != STDIO:
            with show_progress() as progress:
                progress.phase = f"checking {what}"
                size_bytes = check_bundle(source, what).size_bytes
            source.seek(0)
        reader = BundleReader(source, what)
        now = standing(reader, store)
        if now is not None and now.commit not in (None, reader.head.commit):
            require_consent(_question(reader.head, now, store.url), is_given=yes)
        with show_progress() as progress:
            done = unpack_bundle(reader, store, now, size_bytes=size_bytes, progress=progress)
    if as_json:
        before = None if done.before is None else done.before.hex()
        packs = {"packs": done.packs, "packs_there": done.packs_there}
        write_json(_json_of(done.head) | packs | {"previous": before})
        return
    there = f"; there already: {text.count(done.packs_there, 'pack')}" if done.packs_there else ""
    is_same = done.before == done.head.commit
    state = "unchanged" if is_same else f"now at {done.head.commit.hex()[:12]}"
    repo, _, name = done.head.ref
    write_line(f"{repo}@{name}  {state}: {text.count(done.packs, 'pack')} put{there}")


def _question(head: BundleHead, now: RefEntry, store_url: str) -> str:
    repo, kind, name = head.ref
    assert now.commit is not None, "it is there"
    moves = f"from {now.commit.hex()[:12]} to {head.commit.hex()[:12]}"
    return f"this moves {singular(kind)} {name} of {repo} in {store_url} {moves}"


@bundle.command("list", epilog=examples("lodefs bundle list --check cats.bundle"))
@click.argument("file", metavar="FILE")
@click.option("--check", is_flag=True, help="Read all of it, and check that it is whole.")
@json_option
@session_command()
def list_(session: Session, file: str, check: bool, as_json: bool) -> None:  # noqa: ARG001
    """Say what is in FILE (-: standard input): repository, branch or tag, commits."""
    from lodefs.chunkstore.transfer.bundle_file import BundleReader, check_bundle

    with _read(file) as source:
        what = _shown(file)
        head = (check_bundle if check else BundleReader)(source, what).head
    if as_json:
        write_json(_json_of(head))
        return
    write_line(_line(head))
    for commit in reversed(head.commits):
        write_line(commit.hex())


def _json_of(head: BundleHead) -> dict[str, object]:
    repo, kind, name = head.ref
    return {
        "repo": repo,
        "kind": singular(kind),
        "name": name,
        "commit": head.commit.hex(),
        "since": None if head.since is None else head.since.hex(),
        "commits": len(head.commits),
        "packs": head.packs,
        "time_s": head.time_s,
    }


def _line(head: BundleHead) -> str:
    repo, kind, name = head.ref
    since = "" if head.since is None else f" since {head.since.hex()[:12]}"
    counts = f"{text.count(len(head.commits), 'commit')}, {text.count(head.packs, 'pack')}"
    return f"{repo}@{name} ({singular(kind)}) at {head.commit.hex()[:12]}{since}: {counts}"


def _shown(file: str) -> str:
    return "standard input" if file == STDIO else text.escaped(os.fsencode(file))


@contextlib.contextmanager
def _read(file: str) -> Iterator[BinaryIO]:
    if file == STDIO:
        yield sys.stdin.buffer
        return
    with _translated(file), Path(file).open("rb") as source:
        yield source


@contextlib.contextmanager
def _written(file: str) -> Iterator[BinaryIO]:
    """A new file, which comes to be in one step, whole. What a process that was killed leaves has
    another name, and is in nobody's way."""
    if file == STDIO:
        if sys.stdout.isatty():
            raise InvalidInput("a bundle is not for a terminal: name a FILE, or a pipe")
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise  # the reader has enough: no error of ours
        except OSError as error:
            raise kind_of(error)(f"standard output: {error.strerror}") from error
        return
    path = Path(file)
    if os.path.lexists(path):
        raise AlreadyExists(f"{_shown(file)} exists: name a new file")
    if not path.parent.is_dir():
        raise NotFound(f"there is no directory {_shown(str(path.parent))}")
    part = path.with_name(f"{path.name[:200]}.{os.urandom(4).hex()}.part")
    with _translated(file):
        try:
            with part.open("xb") as out:
                yield out
                out.flush()
                os.fsync(out.fileno())
            _move(part, path)
        finally:
            part.unlink(missing_ok=True)


def _move(part: Path, path: Path) -> None:
    """Never over what came meanwhile, where the file system has hard links."""
    try:
        os.link(part, path)
    except FileExistsError:
        raise AlreadyExists(f"{_shown(str(path))} exists: name a new file") from None
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS):
            raise
        part.rename(path)


@contextlib.contextmanager
def _translated(file: str) -> Iterator[None]:
    """Errors of a bundle's file as ours."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"there is no file {_shown(file)}") from None
    except IsADirectoryError:
        raise InvalidInput(f"{_shown(file)} is a directory: name a file") from None
    except OSError as error:
        raise kind_of(error)(f"{_shown(file)}: {error.strerror}") from error
