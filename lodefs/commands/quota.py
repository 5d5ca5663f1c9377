"""``lodefs quota``: how many bytes a version of a repository may have."""

from __future__ import annotations

import click

from lodefs.api.upkeep.retaining import quota as set_quota
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Target
from lodefs.cli import text
from lodefs.cli.options import (
    TARGET,
    examples,
    json_option,
    reject,
    session_command,
    write_json,
    write_line,
)
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs quota vision/flickr30k --size-bytes-max 2TB",
    "lodefs quota vision/flickr30k                       # what is set",
)


@click.command(epilog=EPILOG)
@click.argument("target", metavar="REPO", type=TARGET)
@click.option("--size-bytes-max", metavar="SIZE", help="Such as 500GiB or 2TB.")
@click.option("--clear", is_flag=True, help="No quota from now on.")
@json_option
@session_command(store=True)
def quota(
    session: Session, target: Target, size_bytes_max: str | None, clear: bool, as_json: bool
) -> None:
    """Set how many bytes the files of a version of REPO may have.

    A push of more fails before it has sent much, and commits nothing; one that does not grow the
    branch is allowed, also if that is over the quota already.
    """
    from lodefs.proxy.config import parse_size

    if target.rev is not None:
        raise InvalidInput(f"{target}: a quota is of a whole repository: {target.repo}")
    reject({"--size-bytes-max": size_bytes_max if clear else None}, "does nothing with --clear")
    try:
        limit = None if size_bytes_max is None else parse_size(size_bytes_max)
    except InvalidInput as error:
        raise InvalidInput(f"--size-bytes-max {size_bytes_max}: {error}") from error
    found = set_quota(target.repo, limit, clear=clear, session=session)
    if as_json:
        write_json({"repo": target.repo, "quota_size_bytes": found})
    elif found is None:
        write_line("no quota")
    else:
        write_line(f"{text.size(found)} ({found:,} bytes) for the files of a version")
