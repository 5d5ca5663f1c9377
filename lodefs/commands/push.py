"""``lodefs push`` and ``lodefs merge``."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import click

from lodefs.api.push_places import (
    STDIN,
    FileList,
    PushPlace,
    changes_for,
    changes_of_archives,
    changes_of_list,
)
from lodefs.api.pushing import commit_changes, is_directory
from lodefs.api.pushing import merge as merge_into
from lodefs.api.pushing import push as push_directory
from lodefs.chunkstore.format.names import Spec
from lodefs.chunkstore.push.remote.remote_files import is_url
from lodefs.cli import commit_report
from lodefs.cli import options as cli
from lodefs.cli.consent import Consent, with_consent
from lodefs.cli.parsed_type import DURATION, RATE, SIZE
from lodefs.commands import push_rounds
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.chunkstore.push.changes.branch_commits import ChangesResult
    from lodefs.chunkstore.push.session import CommitResult

_NOT_IN_ROUNDS = ("check", "dry_run", "allow_removals", "executor")
_FOR_BRANCHES = frozenset(("check", "executor"))


@cli.command(
    'lodefs push ./flickr30k vision/flickr30k -m "corrected captions"',
    "lodefs push ./flickr30k vision/flickr30k@experiment --dry-run",
    "lodefs push captions.csv vision/flickr30k:captions.csv    # one file; the others stay",
    "lodefs push ./new-images vision/flickr30k:images/2024     # a directory into a place",
    "lodefs push a.csv b.csv vision/flickr30k:tables/          # each keeps its name",
    "lodefs push ./flickr30k vision/flickr30k --exclude '*.tmp' --exclude /cache/",
    "lodefs push ./flickr30k vision/flickr30k --meta source=crawl-7 --meta license=CC-BY",
    "lodefs push --every 10m ./results runs/results@main:job-17",
    "lodefs push s3://their-bucket/flickr30k vision/flickr30k  # what is in a bucket",
    "lodefs push hf://openai/whisper-tiny@main models/whisper-tiny",
    "lodefs push cats.tar.zst dogs.zip vision/pets --unpack",
    "lodefs push /data/crawl data/crawl --executor dask://scheduler:8786",
    "make-captions | lodefs push - vision/flickr30k:captions.csv",
    store=True,
    of=push_directory,
)
def push(
    session: Session,
    sources: tuple[str, ...] = cli.argument("SRC...", shell_complete=cli.source_items),
    repo: str = cli.argument("REPO[@BRANCH][:PATH]"),
    exclude_from: tuple[BinaryIO, ...] = cli.option(
        "Leave out files that match the patterns in FILE, one per line.",
        type=click.File("rb"),
        metavar="FILE",
    ),
    from_list: BinaryIO | None = cli.option(
        "Push only the paths below SRC that FILE (-: standard input) lists, one per line.",
        type=click.File("rb"),
        metavar="FILE",
    ),
    null: bool = cli.option("The paths in --from-list end with NUL."),
    unpack: bool = cli.option("SRC are archives (tar, zip): push what is in them."),
    max_size: int | None = cli.option(
        "With --unpack: what an archive may unpack to [200 times its size].", type=SIZE
    ),
    rate: int | None = cli.option("Read at most so much a second, such as 100MB.", type=RATE),
    every: int | None = cli.option(
        "Commit changes in SRC at this interval, until SIGTERM.", type=DURATION
    ),
    grace: int | None = cli.option(
        "With --every: time between SIGTERM and SIGKILL [30s].", type=DURATION
    ),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Commit SRC to a branch of REPO (default: main).

    One directory, without PATH, becomes the whole content of the branch: files that are not in it
    are removed from the branch. With PATH, all other files stay: a directory replaces PATH, a file
    is stored at PATH. Several sources, or one source before a PATH that ends with a slash, go into
    PATH and keep their names ("REPO:" is the top). "-" is standard input. SRC may be a URL: s3://,
    gs://, az://, hf://, https://, sftp:// and others (docs/import.md).

    Files named .lodefsignore, and --exclude, list patterns in the syntax of .gitignore. Files that
    match are not in the commit, and excluded directories are not read.

    A commit keeps names, contents, symlinks and one executable bit. If others may not read a file
    here (mode 0600, or in a directory of mode 0700), everybody who may read the repository can read
    it: a push counts such files, and --private leaves them out or refuses the push.

    With --unpack, what archives (tar, zip) unpack to becomes the content of the branch, or of PATH.

    With --every, SRC is a directory that a job writes into. Push commits files that two looks find
    unchanged, and removes files that are gone; all others in the branch stay. SIGTERM and Ctrl-C
    end it after a last commit within the time of --grace. It exits with 1 if that leaves files out.

    A push reads only what changed since the last one here, sends only what the store lacks, and
    commits all or nothing. After Ctrl-C, repeat it: the data sent so far stays.
    """
    _check_order(sources, repo)
    spec = cli.spec_from(repo)
    form = _Form(sources, repo, from_list, null, unpack, max_size)
    form.check(options)
    cli.reject({"--grace": grace and every is None}, "does nothing without --every")
    options |= {"exclude": _patterns(options["exclude"], exclude_from), "rate_bytes_s": rate}
    if every is not None:
        _check_rounds(form, options)
        push_rounds.run(session, sources[0], spec, every, grace, options, as_json=as_json)
        return
    branch = Spec(spec.repo, spec.rev)
    consent = Consent(branch, is_given=options["allow_removals"])
    options |= {"allow_removals": consent.allows, "session": session}
    result = with_consent(form.push(spec, options), consent)
    commit_report.show(result, branch, dry_run=options["dry_run"], as_json=as_json)
    if result.unchanged and options["metadata"]:
        commit_report.note("there is no new commit, so --meta is not stored")


@dataclass(frozen=True, slots=True)
class _Form:
    """The form of a push: what its arguments, and the options beside them, say of its sources."""

    sources: tuple[str, ...]
    repo: str
    from_list: BinaryIO | None
    null: bool
    unpack: bool
    max_size: int | None

    @property
    def is_into(self) -> bool:
        """Whether it is a commit of changes, and no push of one directory as a whole branch."""
        return ":" in self.repo or self.from_list is not None or self.unpack

    def check(self, options: dict[str, Any]) -> None:
        """Raises UsageError for options and arguments that do not go together."""
        sources, repo = self.sources, self.repo
        cli.reject({"--null": self.null and self.from_list is None}, "needs --from-list")
        cli.reject({"--max-size": self.max_size and not self.unpack}, "needs --unpack")
        cli.reject({"--unpack": self.unpack and self.from_list}, "does not go with --from-list")
        whole = {f"--{name}": self.is_into and options[name] for name in _FOR_BRANCHES}
        cli.reject(whole, "needs a push of a whole branch, without a path")
        is_place = len(sources) == 1 and (is_url(sources[0]) or Path(sources[0]).is_dir())
        if self.from_list is not None and not is_place:
            raise click.UsageError("--from-list takes one directory, and lists paths below it")
        if not self.is_into and len(sources) > 1:
            raise click.UsageError(
                f"several sources go into a path: push SRC... {repo}:PATH/, or {repo}: (the top)"
            )
        if not self.is_into and (sources[0] == STDIN or Path(sources[0]).is_file()):
            name = "PATH" if sources[0] == STDIN else Path(sources[0]).name
            raise click.UsageError(
                f"{sources[0]} is a file, and only a directory becomes a branch: name its path, as "
                f"in lodefs push {sources[0]} {repo}:{name}"
            )

    def push(self, spec: Spec, options: dict[str, Any]) -> Callable[..., CommitResult]:
        """Returns the call that pushes; it takes the progress. Raises: InvalidInput."""
        if not self.is_into:
            return partial(push_directory, self.sources[0], spec, **options)
        options = {name: options[name] for name in options.keys() - _FOR_BRANCHES}
        place = PushPlace(spec, is_inside=self.repo.endswith((":", "/")))
        if self.unpack:
            return partial(_push_unpacked, self.sources, place, self.max_size, **options)
        names = None
        if self.from_list is not None:
            names = FileList(self.from_list, b"\0" if self.null else b"\n").names()
        return partial(_push_into, self.sources, place, names, **options)


def _check_rounds(form: _Form, options: dict[str, Any]) -> None:
    """Raises UsageError for options that do not go with --every, and removes them from the
    options."""
    named = {f"--{name.replace('_', '-')}": options.pop(name) for name in _NOT_IN_ROUNDS}
    more = {"--from-list": form.from_list is not None, "--unpack": form.unpack}
    cli.reject(named | more, "does not go with --every")
    if len(form.sources) > 1 or not Path(form.sources[0]).is_dir():
        raise click.UsageError("--every takes one directory")


def _push_into(
    sources: Sequence[str],
    place: PushPlace,
    names: list[bytes] | None,
    session: Session,
    **options: Any,
) -> ChangesResult:
    """Pushes sources into a path; with ``names``, only these paths below the one source."""
    branch = Spec(place.spec.repo, place.spec.rev)
    if names is None:
        is_there = partial(is_directory, branch, session=session)
        changes = changes_for(sources, place, is_there)
    else:
        changes = changes_of_list(sources[0], names, place)
    return commit_changes(branch, changes, session=session, **options)


def _push_unpacked(
    archives: Sequence[str],
    place: PushPlace,
    size_bytes_max: int | None,
    session: Session,
    **options: Any,
) -> ChangesResult:
    """Pushes what is in archives, in place of a path or of the whole branch."""
    branch = Spec(place.spec.repo, place.spec.rev)
    changes = changes_of_archives(archives, place, size_bytes_max)
    return commit_changes(branch, changes, session=session, **options)


def _patterns(words: Sequence[str], files: Sequence[BinaryIO]) -> list[bytes]:
    """Returns the patterns of the files and, after them, those of options, since the last match
    counts."""
    lines = [line.removesuffix(b"\r") for file in files for line in file.read().split(b"\n")]
    written = [line for line in lines if line.strip() and not line.startswith(b"#")]
    return written + [os.fsencode(word) for word in words]


def _check_order(sources: Sequence[str], repo: str) -> None:
    """Raises UsageError if SRC is missing, or if SRC and REPO were swapped."""
    if not sources:
        raise click.UsageError(
            f"{repo} is the only argument: name what to push and where, SRC... REPO[@BRANCH][:PATH]"
        )
    if len(sources) == 1 and not os.path.lexists(sources[0]) and Path(repo).is_dir():
        raise click.UsageError(f"SRC comes first: lodefs push {repo} {sources[0]}")


@cli.command(
    "lodefs merge vision/flickr30k@labels main           # main gets what labels changed",
    "lodefs merge vision/flickr30k@labels main --dry-run",
    "lodefs merge vision/flickr30k@labels main --theirs tables --ours tables/old.csv",
    store=True,
    of=merge_into,
)
def merge(
    session: Session,
    spec: Spec = cli.argument("REPO@REV"),
    branch: str = cli.argument("BRANCH", shell_complete=cli.revision_items),
    message: str = cli.option(
        "The commit's message [merge REV into BRANCH].", "-m", "--message", default=""
    ),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Merge the changes of REV into BRANCH.

    If REV follows BRANCH, BRANCH moves to REV. Otherwise a commit with both as parents is made, in
    which a path that only one side has changed since their common ancestor is as on that side. A
    path that was changed differently on each side is a conflict: nothing is committed, and the
    conflicts are named (exit code 15). The contents of a file are never merged.

    --ours and --theirs, which may be repeated, decide conflicts at PATH and below it. The nearest
    PATH counts, and . is everything.
    """
    cli.no_path(spec)
    result = merge_into(spec, branch, message=message, session=session, **options)
    commit_report.show(result, Spec(spec.repo, branch), dry_run=options["dry_run"], as_json=as_json)
