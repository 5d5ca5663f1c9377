"""``lodefs push --every``: rounds of commits until SIGTERM or Ctrl-C."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Event
from types import FrameType
from typing import Any

import click

from lodefs.api.push_rounds import GRACE_S, PushRound, push_every
from lodefs.chunkstore.format.names import Spec
from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.settings.session import Session

_NAMED_MAX = 5
_ALARM_BEFORE_S = 1.0  # the warning comes this long before SIGKILL


class _GraceIsOver(Exception):
    """The last commit takes longer than the grace time."""


def run(
    session: Session,
    directory: str,
    place: Spec,
    every_s: int,
    grace_s: int | None,
    options: dict[str, Any],
    *,
    as_json: bool,
) -> None:
    """Commits at an interval, and once more at the end. The exit code is 1 if the last commit left
    changed files out."""
    stop, grace_s = Event(), grace_s or GRACE_S

    def tell(one: PushRound) -> None:
        _show(one, place, as_json=as_json)

    try:
        with _ended_by_signals(stop, grace_s):
            last = push_every(
                directory, place, every_s=every_s, stop=stop, grace_s=grace_s, tell=tell,
                session=session, **options,
            )  # fmt: skip
    except _GraceIsOver:
        click.echo(
            "lodefs: the grace time ended before the last commit: changes since the previous one "
            "are not committed (the data sent so far stays; push the directory again)",
            err=True,
        )
        session.exit_code = 1
        return
    tell(last)
    if last.unfit or last.moving or last.error:
        session.exit_code = 1


@contextmanager
def _ended_by_signals(stop: Event, grace_s: float) -> Iterator[None]:
    """SIGTERM and SIGINT set ``stop``; the work then ends within the grace time."""

    def end(_number: int, _frame: FrameType | None) -> None:
        if not stop.is_set():
            stop.set()
            signal.setitimer(signal.ITIMER_REAL, max(grace_s - _ALARM_BEFORE_S, 0.1))

    def give_up(_number: int, _frame: FrameType | None) -> None:
        raise _GraceIsOver

    before = {one: signal.signal(one, end) for one in (signal.SIGTERM, signal.SIGINT)}
    before[signal.SIGALRM] = signal.signal(signal.SIGALRM, give_up)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        for one, handler in before.items():
            signal.signal(one, handler)


def _show(one: PushRound, place: Spec, *, as_json: bool) -> None:
    result = one.result
    if as_json:
        cli.write_json(
            {
                "commit": result.commit if result else None,
                "files": result.files if result else None,
                "stored_bytes": result.stored_bytes if result else 0,
                "moving": [text.percent_encoded(path) for path in one.moving],
                "unfit": [text.percent_encoded(path) for path in one.unfit],
                "message": str(one.error) if one.error else None,
            }
        )
    elif result is not None:
        changes = result.changes
        changed = changes.added_files + changes.changed_files
        gone = changes.removed_files
        more = f", {text.count(gone, 'file')} gone" if gone else ""
        cli.write_line(f"{result.commit}  {text.count(changed, 'file')} new or changed{more}")
    sys.stdout.flush()
    _name(one.moving, "not committed, because it is being written")
    _name(one.unfit, "not committed, because the time is over")
    if one.error is not None:
        cli.warn(f"nothing was committed to {place.repo}@{place.rev} in this round: {one.error}")


def _name(paths: list[bytes], why: str) -> None:
    if paths:
        named = ", ".join(text.escaped(path) for path in paths[:_NAMED_MAX])
        more = f" and {len(paths) - _NAMED_MAX:,} more" if len(paths) > _NAMED_MAX else ""
        click.echo(f"lodefs: {why}: {named}{more}", err=True)
