"""``lodefs cp`` and ``lodefs mv``."""

from __future__ import annotations

from typing import Any

from lodefs.api.moving import cp as copy_path
from lodefs.api.moving import mv as move_path
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import commit_report
from lodefs.cli import options as cli
from lodefs.settings.session import Session


@cli.command(
    "lodefs cp vision/flickr30k@v1.0:captions.csv vision/flickr30k:captions.csv",
    "lodefs cp vision/flickr30k@v1.0:images vision/all@draft:flickr30k/   # keeps its name",
    "lodefs cp vision/flickr30k@v1.0 vision/all:flickr30k                 # a whole version",
    store=True,
    of=copy_path,
)
def cp(
    session: Session,
    spec: Spec = cli.argument("REPO@REV[:PATH]"),
    to: str = cli.argument("REPO[@BRANCH]:PATH"),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Commit a copy of a file or directory of a version at another path, also of another
    repository.

    No bytes are read or sent: the new path leads to the same chunks. A directory replaces what is
    at the new path. If the new path ends with a slash, or a file is copied to a directory, the copy
    goes into that directory and keeps its name.
    """
    result = copy_path(spec, to, session=session, **options)
    target = cli.spec_from(to)
    branch = Spec(target.repo, target.rev)
    commit_report.show(result, branch, dry_run=options["dry_run"], as_json=as_json)


@cli.command(
    "lodefs mv vision/flickr30k:captions.csv vision/flickr30k:old/",
    "lodefs mv vision/flickr30k:images vision/images:flickr30k",
    store=True,
    of=move_path,
)
def mv(
    session: Session,
    spec: Spec = cli.argument("REPO[@BRANCH]:PATH"),
    to: str = cli.argument("REPO[@BRANCH]:PATH"),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Move a file or directory of a branch to another path, also of another repository.

    No bytes are read or sent. Within one branch this is one commit, else one in each branch. The
    copy comes first, and only copied files are removed. If the removal fails, both paths have the
    files: repeat the command. A file replaces only a file.
    """
    moved = move_path(spec, to, session=session, **options)
    target, dry_run = cli.spec_from(to), options["dry_run"]
    if as_json:
        copied = commit_report.json_of(moved.copied, dry_run=dry_run)
        removed = moved.removed and commit_report.json_of(moved.removed, dry_run=dry_run)
        cli.write_json(copied | {"removal": removed})
        return
    commit_report.show(moved.copied, Spec(target.repo, target.rev), dry_run=dry_run, as_json=False)
    if moved.removed is not None and moved.removed.commit and not dry_run:
        cli.write_line(f"removed from {spec.repo}@{spec.rev}: {moved.removed.commit}")
