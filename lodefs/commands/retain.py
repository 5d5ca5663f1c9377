"""``lodefs retain`` and ``lodefs quota``: settings of a repository."""

from __future__ import annotations

from functools import partial

from lodefs.api.upkeep import RetentionPlan
from lodefs.api.upkeep import quota as set_quota
from lodefs.api.upkeep import retain as set_retention
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Target
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.consent import require_consent
from lodefs.cli.parsed_type import DURATION
from lodefs.settings.session import Session


@cli.command(
    "lodefs retain vision/flickr30k --keep-last 10 --keep-within 90d --dry-run",
    "lodefs retain vision/flickr30k --keep-tagged     # only heads and what tags name",
    "lodefs retain vision/flickr30k                   # what is set, and what it does",
    store=True,
)
def retain(
    session: Session,
    target: Target = cli.argument("REPO"),
    keep_last: int | None = cli.option(
        "Keep the N newest commits of each branch.", between=(1, None), metavar="N"
    ),
    keep_tagged: bool = cli.option(
        "Keep commits that tags name, which always stay; alone: keep nothing else."
    ),
    keep_within: int | None = cli.option(
        "Keep commits that are younger.", type=DURATION, metavar="DURATION"
    ),
    show: bool = cli.option("Say what is set, and what it does; the default."),
    clear: bool = cli.option("Keep all history from now on."),
    dry_run: bool = cli.option("Only say what would go."),
    yes: bool = cli.option("Do not ask.", "-y", "--yes"),
    as_json: bool = cli.JSON,
) -> None:
    """Set how much of REPO's history is kept: a stored policy that `lodefs gc` follows.

    A commit stays if one of the options keeps it; commits that a branch or tag names always stay.
    `lodefs gc` deletes the rest, with the data that only it needs, a day or more later. Until then
    --clear keeps all commits that still exist.
    """
    if target.rev is not None:
        raise InvalidInput(f"{target}: a policy is of a whole repository: {target.repo}")
    policy = {"--keep-last": keep_last, "--keep-tagged": keep_tagged, "--keep-within": keep_within}
    cli.reject(policy if show else {}, "does nothing with --show")
    cli.reject(policy if clear else {}, "does nothing with --clear")
    cli.reject({"--clear": clear and show}, "does nothing with --show")
    change = partial(
        set_retention,
        target.repo,
        keep_last=keep_last,
        keep_tagged=keep_tagged,
        keep_within_s=keep_within,
        clear=clear,
        session=session,
    )
    plan = change(dry_run=True)
    is_change = clear or any(policy.values())
    if is_change and not dry_run:
        if plan.expiring:
            require_consent(_question(plan), is_given=yes)
        plan = change()
    if as_json:
        cli.write_json(_json_of(plan))
    else:
        _show(plan, with_commits=dry_run)


def _question(plan: RetentionPlan) -> str:
    going = text.count(len(plan.expiring), "commit")
    return f"this keeps {text.count(plan.kept, 'commit')} of {plan.repo}, and lets {going} go"


def _show(plan: RetentionPlan, *, with_commits: bool) -> None:
    cli.write_line(f"policy   {plan.policy or 'none: all history is kept'}")
    cli.write_line(f"keeps    {text.count(plan.kept, 'commit')}")
    if plan.policy is not None:
        cli.write_line(f"expires  {text.count(len(plan.expiring), 'commit')}, with `lodefs gc`")
    if plan.in_future:
        count = text.count(plan.in_future, "commit")
        cli.write_line(
            f"future   {count} whose time is yet to come: kept until then, and --keep-within"
        )
    for one in plan.expiring if with_commits else ():
        first = next(iter(text.escaped_lines(one.message)), "")
        cli.write_line(f"{one.id[:12]}  {text.time(one.time_s)}  {first}".rstrip())


def _json_of(plan: RetentionPlan) -> dict[str, object]:
    policy = plan.policy
    return {
        "repo": plan.repo,
        "policy": policy and cli.fields(policy, "keep_last", "keep_tagged", "keep_within_s"),
        "kept": plan.kept,
        "expiring": [{"commit": one.id, "time_s": one.time_s} for one in plan.expiring],
        "in_future": plan.in_future,
    }


@cli.command(
    "lodefs quota vision/flickr30k --size-bytes-max 2TB",
    "lodefs quota vision/flickr30k                       # what is set",
    store=True,
)
def quota(
    session: Session,
    target: Target = cli.argument("REPO"),
    size_bytes_max: str | None = cli.option("Such as 500GiB or 2TB.", metavar="SIZE"),
    clear: bool = cli.option("No quota from now on."),
    as_json: bool = cli.JSON,
) -> None:
    """Set how many bytes the files of a version of REPO may have.

    A larger push fails before it has sent much, and commits nothing. A push that does not grow the
    branch is allowed even if the branch is over the quota already.
    """
    from lodefs.proxy.config import parse_size

    if target.rev is not None:
        raise InvalidInput(f"{target}: a quota is of a whole repository: {target.repo}")
    cli.reject({"--size-bytes-max": size_bytes_max if clear else None}, "does nothing with --clear")
    try:
        limit = None if size_bytes_max is None else parse_size(size_bytes_max)
    except InvalidInput as error:
        raise InvalidInput(f"--size-bytes-max {size_bytes_max}: {error}") from error
    found = set_quota(target.repo, limit, clear=clear, session=session)
    if as_json:
        cli.write_json({"repo": target.repo, "quota_size_bytes": found})
    elif found is None:
        cli.write_line("no quota")
    else:
        cli.write_line(f"{text.size(found)} ({found:,} bytes) for the files of a version")
