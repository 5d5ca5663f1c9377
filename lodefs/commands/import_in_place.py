"""``lodefs import``."""

from __future__ import annotations

from functools import partial
from typing import Any

from lodefs.api.importing import import_in_place
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import commit_report
from lodefs.cli import options as cli
from lodefs.cli.consent import Consent, with_consent
from lodefs.settings.session import Session


@cli.command(
    "lodefs import s3://their-bucket/flickr30k vision/flickr30k",
    "lodefs import s3://their-bucket/labels vision/flickr30k:labels    # into a place",
    "lodefs import s3://their-bucket/all lake/all --copy-below 8MiB    # more is stored",
    name="import",
    store=True,
    of=import_in_place,
)
def import_(
    session: Session,
    url: str = cli.argument("s3://BUCKET/PREFIX"),
    repo: str = cli.argument("REPO[@BRANCH][:PATH]"),
    as_json: bool = cli.JSON,
    **options: Any,
) -> None:
    """Commit the objects of a bucket to a branch of REPO (default: main), in place.

    Each object is read once. The bytes of small ones go into the store, as with lodefs push; those
    of large ones stay where they are, and are read from there, with the object's ETag (and its
    version, if there is one) as a condition. If an object is changed or deleted, files with its
    bytes cannot be read, unless lodefs adopt has copied them before.

    The settings name the bucket: [sources.NAME] with url = "s3://BUCKET/PREFIX", and endpoint_url,
    region and profile if need be. Every reader needs the same name in its settings.

    A second import lists the bucket, and reads only what has changed.
    """
    spec = cli.spec_from(repo)
    branch = Spec(spec.repo, spec.rev)
    consent = Consent(branch, is_given=options["allow_removals"])
    options |= {"allow_removals": consent.allows, "session": session}
    result = with_consent(partial(import_in_place, url, spec, **options), consent)
    commit_report.show(result, branch, dry_run=options["dry_run"], as_json=as_json)
