"""``lodefs retain``: what of a repository's history is kept."""

from __future__ import annotations

from functools import partial

import click

from lodefs.api.upkeep.retaining import RetentionPlan
from lodefs.api.upkeep.retaining import retain as set_retention
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.names import Target
from lodefs.cli import text
from lodefs.cli.consent import require_consent
from lodefs.cli.options import (
    TARGET,
    examples,
    json_option,
    reject,
    session_command,
    write_json,
    write_line,
)
from lodefs.cli.parsed_type import DURATION
from lodefs.settings.session import Session

EPILOG = examples(
    "lodefs retain vision/flickr30k --keep-last 10 --keep-within 90d --dry-run",
    "lodefs retain vision/flickr30k --keep-tagged     # only heads and what tags name",
    "lodefs retain vision/flickr30k                   # what is set, and what it does",
)


@click.command(epilog=EPILOG)
@click.argument("target", metavar="REPO", type=TARGET)
@click.option(
    "--keep-last",
    type=click.IntRange(1),
    metavar="N",
    help="Keep the N newest commits of each branch.",
)
@click.option(
    "--keep-tagged",
    is_flag=True,
    help="Keep commits that tags name, which always stay; alone: keep nothing else.",
)
@click.option(
    "--keep-within", type=DURATION, metavar="DURATION", help="Keep commits that are younger."
)
@click.option("--show", is_flag=True, help="Say what is set, and what it does; the default.")
@click.option("--clear", is_flag=True, help="Keep all history from now on.")
@click.option("--dry-run", is_flag=True, help="Only say what would go.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@json_option
@session_command(store=True)
def retain(
    session: Session,
    target: Target,
    keep_last: int | None,
    keep_tagged: bool,
    keep_within: int | None,
    show: bool,
    clear: bool,
    dry_run: bool,
    yes: bool,
    as_json: bool,
) -> None:
    """Set what of REPO's history is kept: a stored policy that `lodefs gc` follows.

    A commit stays if one of the options keeps it; what a branch or tag names stays always. The
    rest, with the data that only it needs, goes with `lodefs gc`, a day or more later: until then
    --clear keeps all that is still there.
    """
    if target.rev is not None:
        raise InvalidInput(f"{target}: a policy is of a whole repository: {target.repo}")
    policy = {"--keep-last": keep_last, "--keep-tagged": keep_tagged, "--keep-within": keep_within}
    reject(policy if show else {}, "does nothing with --show")
    reject(policy if clear else {}, "does nothing with --clear")
    reject({"--clear": clear and show}, "does nothing with --show")
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
        write_json(_json_of(plan))
    else:
        _show(plan, with_commits=dry_run)


def _question(plan: RetentionPlan) -> str:
    going = text.count(len(plan.expiring), "commit")
    return f"this keeps {text.count(plan.kept, 'commit')} of {plan.repo}, and lets {going} go"


def _show(plan: RetentionPlan, *, with_commits: bool) -> None:
    write_line(f"policy   {plan.policy or 'none: all history is kept'}")
    write_line(f"keeps    {text.count(plan.kept, 'commit')}")
    if plan.policy is not None:
        write_line(f"expires  {text.count(len(plan.expiring), 'commit')}, with `lodefs gc`")
    if plan.in_future:
        count = text.count(plan.in_future, "commit")
        write_line(
            f"future   {count} whose time is yet to come: kept until then, and --keep-within"
        )
    for one in plan.expiring if with_commits else ():
        first = next(iter(text.escaped_lines(one.message)), "")
        write_line(f"{one.id[:12]}  {text.time(one.time_s)}  {first}".rstrip())


def _json_of(plan: RetentionPlan) -> dict[str, object]:
    policy = plan.policy
    return {
        "repo": plan.repo,
        "policy": policy
        and {
            "keep_last": policy.keep_last,
            "keep_tagged": policy.keep_tagged,
            "keep_within_s": policy.keep_within_s,
        },
        "kept": plan.kept,
        "expiring": [{"commit": one.id, "time_s": one.time_s} for one in plan.expiring],
        "in_future": plan.in_future,
    }
