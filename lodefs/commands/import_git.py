"""``lodefs import-git``."""

from __future__ import annotations

from functools import partial
from typing import Any

from lodefs.api.git_importing import import_git as import_commit
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import commit_report
from lodefs.cli import options as cli
from lodefs.cli.consent import Consent, with_consent
from lodefs.settings.session import Session


@cli.command(
    "lodefs import-git https://github.com/org/cats.git@v1.0 vision/cats",
    "lodefs import-git ~/src/cats@main vision/cats@from-git",
    "lodefs mount vision/cats@git:3f1c9a2 /mnt/cats    # by the id of the Git commit",
    name="import-git",
    store=True,
    of=import_commit,
)
def import_git(
    session: Session,
    url: str = cli.argument("URL[@REV]"),
    repo: str = cli.argument("REPO[@BRANCH]"),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Commit the files of a Git commit to a branch of REPO (default: main).

    URL is https://, http:// or ssh://, or a directory with a Git repository; REV is a branch, a tag
    or the whole id of a commit (default: HEAD). The files of that commit become the whole content
    of the branch, as they are in Git: hooks, filters and settings of the repository are never used.
    What .gitattributes excludes from archives (export-ignore) is left out.

    Pointers of Git LFS become files without a copy of their bytes: their objects are in the store,
    since they were pushed to the LFS server of REPO (docs/git.md), or to that of --lfs-repo. With
    --fetch-lfs the Git server's own LFS server is asked for those that the store lacks.

    The commit gets the tag git-ID, so REPO@git:ID finds it; ID may be its beginning of 7 or more
    digits. A second import reads only what changed.
    """
    spec = cli.spec_from(repo)
    branch = Spec(spec.repo, spec.rev)
    consent = Consent(branch, is_given=options["allow_removals"])
    options |= {"allow_removals": consent.allows, "session": session}
    result = with_consent(partial(import_commit, url, spec, **options), consent)
    commit_report.show(result, branch, dry_run=options["dry_run"], as_json=as_json)
