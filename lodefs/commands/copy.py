"""``lodefs copy`` and ``lodefs bundle``: move commits between stores, directly or in a file."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from lodefs.api.parts.executors import EXECUTORS, opened_executor
from lodefs.chunkstore.errors import AlreadyExists, InvalidInput, NotFound
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.repo.refs import singular
from lodefs.chunkstore.system.os_errors import kind_of
from lodefs.cli import exit_codes, text
from lodefs.cli import options as cli
from lodefs.cli.consent import require_consent
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session, absolute

if TYPE_CHECKING:
    from lodefs.chunkstore.format.bundle import BundleHead
    from lodefs.chunkstore.format.journal import RefName
    from lodefs.chunkstore.format.names import CommitId
    from lodefs.chunkstore.repo.refs import RefEntry
    from lodefs.chunkstore.transfer.copy import CopiedRef, CopyResult, RefusedRef


_STEP_OF_MANY_BYTES = 256 << 30  # a thousand tasks, between two moves of a branch
NAMED_MAX = 8  # more purged paths than this are only counted


@cli.command(
    "lodefs copy s3://here/prefix s3://there/prefix vision/flickr30k@v1.0",
    "lodefs copy /srv/store s3://bucket/prefix --all           # all branches and tags",
    "lodefs copy s3://old/prefix s3://new/prefix --all         # S3 copies from bucket to bucket",
    "lodefs copy s3://here/a gs://there/b --all --executor dask://scheduler:8786",
)
def copy(
    session: Session,
    source_url: str = cli.argument("SRC-STORE"),
    destination_url: str = cli.argument("DST-STORE"),
    spec: Spec | None = cli.argument("[REPO[@REV]]"),
    is_all: bool = cli.option(
        "Copy all branches and tags of REPO, or of all repositories.", "--all"
    ),
    dry_run: bool = cli.option("Only show what would be sent."),
    check: bool = cli.option(
        "Read and check every byte here, even if S3 could copy the packs itself."
    ),
    workers: int = cli.option(
        "Packs in flight; each takes about 40 MiB of memory [8].", default=8, between=(1, 64)
    ),
    executor: str | None = cli.option(
        f"Have its tasks send the packs: {EXECUTORS}", metavar="EXECUTOR"
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Copy a branch or tag of REPO, with all of its history, from one store to another.

    Commits and data keep their ids. Data that DST-STORE has is not sent again, and nothing is
    deleted there. A branch with other commits there is refused; with --all the others are copied
    and the exit code is 1. After an interruption, repeat the command. It may run beside any other.
    A copy does not repeat purges: it says what SRC-STORE has purged and DST-STORE still has.

    Every byte is checked on the way, with one exception: if both stores are at one S3 endpoint, S3
    copies the packs itself. Then only directories and indexes are checked, and other damage in
    SRC-STORE is copied too; `lodefs verify --data` finds it later, and --check finds it now.

    With --executor many machines send the packs, and check every byte; this one walks through
    the history, and moves branches and tags.
    """
    from lodefs.api.parts.store_tasks import copy_with
    from lodefs.chunkstore.transfer.copy import CopyOptions
    from lodefs.chunkstore.transfer.copy import copy as copy_repos

    if spec is not None:
        cli.no_path(spec)
    if spec is None and not is_all:
        raise click.UsageError("name a REPO, or give --all for all repositories.")
    source, destination = session.store_at(source_url), session.store_at(destination_url)
    options = CopyOptions(dry_run=dry_run, workers=workers, clock=time.time)
    if executor is not None:
        options = replace(options, step_size_bytes=_STEP_OF_MANY_BYTES)
    repos = source.repos() if spec is None else [spec.repo]
    rev = None if is_all or spec is None else spec.rev
    is_here = check or dry_run or executor is not None
    server = None if is_here else session.server_copy(source_url, destination_url)
    with ExitStack() as stack:
        progress, send = stack.enter_context(show_progress()), None
        if executor is not None and not dry_run:
            opened = stack.enter_context(opened_executor(executor))
            send = copy_with(opened, absolute(source_url), absolute(destination_url), workers)
        result = copy_repos(source, destination, repos, rev, options, progress, server, send)
    if as_json:
        cli.write_json(_json_of(result, dry_run=dry_run))
    else:
        for line in _lines(result, dry_run=dry_run):
            cli.write_line(line)
    for cut in (one for one in result.refs if one.is_cut_off):
        click.echo(f"lodefs: {_cut_off(cut, destination_url)}", err=True)
    if result.purges:
        click.echo(f"lodefs: {_purged(result, source_url, destination_url)}", err=True)
    for one in result.refused:
        click.echo(f"lodefs: {_name(one.ref)} is not copied: {_reason(one)}", err=True)
    if result.refused:
        session.exit_code = exit_codes.FAILURE


def _json_of(result: CopyResult, *, dry_run: bool) -> dict[str, object]:
    return {
        "dry_run": dry_run,
        "refs": [
            {
                "repo": one.ref.repo,
                "kind": singular(one.ref.kind),
                "name": one.ref.name,
                "previous": None if one.before is None else one.before.hex(),
                "commit": one.after.hex(),
                "is_cut_off": one.is_cut_off,
            }
            for one in result.refs
        ],
        "refused": [
            {
                "repo": one.ref.repo,
                "kind": singular(one.ref.kind),
                "name": one.ref.name,
                "reason": str(one.error),
            }
            for one in result.refused
        ],
        "purged_chunks": sum(len(one.chunks) for one in result.purges),
        **cli.fields(result, "commits", "packs", "packs_by_server", "packs_there"),
        "stored_bytes": result.size_bytes,
    }


def _lines(result: CopyResult, *, dry_run: bool) -> list[str]:
    sent = "to send" if dry_run else "sent"
    lines = [_line(one) for one in result.refs]
    packs = f"{text.count(result.packs, 'pack')}, {text.size(result.size_bytes)}"
    own = result.packs_by_server
    by_server = f" ({'all' if own == result.packs else own} copied by S3 itself)" if own else ""
    there = (
        f"; already there: {text.count(result.packs_there, 'pack')}" if result.packs_there else ""
    )
    return [*lines, f"{sent}: {text.count(result.commits, 'commit')}, {packs}{by_server}{there}"]


def _line(one: CopiedRef) -> str:
    before = "new" if one.before is None else _short(one.before)
    move = "unchanged" if one.before == one.after else f"{before} -> {_short(one.after)}"
    return f"{_name(one.ref)}  {move}"


def _cut_off(one: CopiedRef, destination_url: str) -> str:
    before = "" if one.before is None else _short(one.before)
    return (
        f"{_name(one.ref)} no longer leads to {before}, where it was: the commits between have "
        f"expired in the source. `lodefs gc` will delete them and those before them, unless they "
        f"get a name: lodefs tag {one.ref.repo}@{before} NAME --store "
        f"{text.escaped(destination_url)}"
    )


def _purged(result: CopyResult, source_url: str, destination_url: str) -> str:
    chunks = text.count(sum(len(one.chunks) for one in result.purges), "chunk")
    names = [text.escaped(one.what) for one in result.purges if one.what]
    of = f" of {', '.join(names[:NAMED_MAX])}" if names else ""
    more = f" and {len(names) - NAMED_MAX} more" if len(names) > NAMED_MAX else ""
    source, there = text.escaped(source_url), text.escaped(destination_url)
    return (
        f"{source} has purged {chunks}{of}{more}, and {there} has not: what {there} has of them "
        f"stays readable. To remove it: lodefs purge --from {source} --store {there}"
    )


def _name(ref: RefName) -> str:
    return f"{ref.repo}@{ref.name}"


def _reason(one: RefusedRef) -> str:
    notes = [*getattr(one.error, "__notes__", ()), *text.way_out(one.error)]
    return text.escaped(text.without_keys("; ".join([str(one.error), *notes])))


def _short(commit_id: CommitId) -> str:
    return commit_id.hex()[:12]


STDIO = "-"


@click.group(
    epilog=cli.examples(
        "lodefs bundle create cats.bundle vision/cats@v1.0",
        "lodefs bundle unpack cats.bundle /srv/store",
        "ssh there lodefs bundle create - vision/cats | lodefs bundle unpack - /srv/store",
    )
)
def bundle() -> None:
    """Write a branch or tag, with its history and all data, to one file, or read it back."""


@cli.command(
    "lodefs bundle create cats.bundle vision/cats@v1.0",
    "lodefs bundle create cats-2.bundle vision/cats@v2.0 --since v1.0      # only what is new",
    group=bundle,
    store=True,
)
def create(
    session: Session,
    file: str = cli.argument("FILE"),
    spec: Spec = cli.argument("REPO[@REV]"),
    since: str | None = cli.option(
        "Leave out what REV leads to, which the receiver has.", metavar="REV"
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Write a branch or tag of the store to FILE (-: standard output), which must be new."""
    from lodefs.chunkstore.transfer.bundle import create_bundle

    cli.no_path(spec)
    if file == STDIO and as_json:
        raise click.UsageError("--json and a bundle cannot both go to standard output.")
    with show_progress() as progress, _written(file) as out:
        done = create_bundle(session.store, spec.repo, spec.rev, since, out, progress=progress)
    if as_json:
        cli.write_json(_bundle_json_of(done.head) | {"size_bytes": done.size_bytes})
    elif file != STDIO:
        cli.write_line(f"{_bundle_line(done.head)}; {text.size(done.size_bytes)}")


@cli.command(
    "lodefs bundle unpack cats.bundle /srv/store",
    "lodefs bundle unpack --yes - s3://bucket/prefix < cats.bundle",
    group=bundle,
    store=True,
)
def unpack(
    session: Session,
    file: str = cli.argument("FILE"),
    destination_url: str | None = cli.argument("[STORE]"),
    yes: bool = cli.option("Do not ask before a branch moves.", "-y", "--yes"),
    as_json: bool = cli.JSON,
) -> None:
    """Unpack FILE (-: standard input) into a store, and move its branch or tag there. Commits and
    data keep their ids. STORE defaults to --store or LODEFS_STORE.

    FILE names its repository and branch, and so does `lodefs bundle list FILE`. You are asked
    before a branch of the store moves.

    A FILE is read to its end first: if it is damaged or exceeds the quota, nothing changes.
    Standard input is stored as it arrives, but the branch moves only after all of it has proved
    right.
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
        cli.write_json(_bundle_json_of(done.head) | packs | {"previous": before})
        return
    there = f"; already there: {text.count(done.packs_there, 'pack')}" if done.packs_there else ""
    is_same = done.before == done.head.commit
    state = "unchanged" if is_same else f"now at {done.head.commit.hex()[:12]}"
    repo, _, name = done.head.ref
    cli.write_line(f"{repo}@{name}  {state}: {text.count(done.packs, 'pack')} put{there}")


def _question(head: BundleHead, now: RefEntry, store_url: str) -> str:
    repo, kind, name = head.ref
    assert now.commit is not None, "it is there"
    moves = f"from {now.commit.hex()[:12]} to {head.commit.hex()[:12]}"
    return f"this moves {singular(kind)} {name} of {repo} in {store_url} {moves}"


@cli.command("lodefs bundle list --check cats.bundle", name="list", group=bundle)
def list_(
    session: Session,  # noqa: ARG001
    file: str = cli.argument("FILE"),
    check: bool = cli.option("Read all of FILE, and check that it is complete."),
    as_json: bool = cli.JSON,
) -> None:
    """Show what FILE (-: standard input) holds: its repository, branch or tag, and commits."""
    from lodefs.chunkstore.transfer.bundle_file import BundleReader, check_bundle

    with _read(file) as source:
        what = _shown(file)
        head = (check_bundle if check else BundleReader)(source, what).head
    if as_json:
        cli.write_json(_bundle_json_of(head))
        return
    cli.write_line(_bundle_line(head))
    for commit in reversed(head.commits):
        cli.write_line(commit.hex())


def _bundle_json_of(head: BundleHead) -> dict[str, object]:
    repo, kind, name = head.ref
    return {
        "repo": repo,
        "kind": singular(kind),
        "name": name,
        **cli.fields(head, "commit", "since"),
        "commits": len(head.commits),
        **cli.fields(head, "packs", "time_s"),
    }


def _bundle_line(head: BundleHead) -> str:
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
    """Yields a new file, which appears under its name only when it is complete. A process that is
    killed leaves a file of another name, which disturbs nobody."""
    if file == STDIO:
        if sys.stdout.isatty():
            raise InvalidInput(
                "a bundle cannot be written to a terminal: name a FILE, or use a pipe"
            )
        try:
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
        except BrokenPipeError:
            raise  # the reader has closed the pipe: this is not our error
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
    """Moves the file without replacing one that came meanwhile, if the file system has links."""
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
    """Turns operating system errors of a bundle's file into errors of lodefs."""
    try:
        yield
    except FileNotFoundError:
        raise NotFound(f"there is no file {_shown(file)}") from None
    except IsADirectoryError:
        raise InvalidInput(f"{_shown(file)} is a directory: name a file") from None
    except OSError as error:
        raise kind_of(error)(f"{_shown(file)}: {error.strerror}") from error
