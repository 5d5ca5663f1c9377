"""A push in parts (docs/many-machines.md): a plan, tasks that any machine does, one commit."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from secrets import token_hex
from typing import TYPE_CHECKING, Annotated, Any, Unpack

from lodefs.api.importing import COPY_BELOW_BYTES, left_in_place
from lodefs.api.parts.executors import opened_executor
from lodefs.api.parts.part_tasks import TaskResult, run_tasks
from lodefs.api.parts.plan_sources import source_of
from lodefs.api.pushing import PlanOptions, opened_for, push_options
from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format.names import CommitId, Spec
from lodefs.cli.parameters import option
from lodefs.cli.parsed_type import SIZE
from lodefs.settings.session import Session, Where, opened, revision_of

if TYPE_CHECKING:
    from lodefs.chunkstore.format.push_plan import PartResult
    from lodefs.chunkstore.push.limits import AllowRemovals
    from lodefs.chunkstore.push.parts.plan import PlanResult
    from lodefs.chunkstore.push.parts.plan_status import PlanStatus
    from lodefs.chunkstore.push.push import PushResult
    from lodefs.chunkstore.system.progress import Progress

_NOT_IN_PARTS = ("check", "dry_run", "rate_bytes_s")  # options of a push
_TASK_READERS = 0  # an executor has a process for each task that it does at once


class TaskOptions(Where, total=False):
    """How the parts of a plan are done."""

    skip_unreadable: Annotated[bool, option("Leave out files that cannot be read or that change.")]
    workers: Annotated[int | None, option("Processes that read and compress.", between=(0, 256))]
    source: Annotated[
        str | None, option("Read only SRC: refuse a plan of another source.", metavar="SRC")
    ]
    progress: Progress | None


def create_plan(
    name: str,
    source: str | os.PathLike[str],
    repo: str | Spec,
    *,
    in_place: Annotated[
        bool, option("Leave large objects where they are, as lodefs import does.", is_flag=True)
    ] = False,
    copy_below: Annotated[
        int, option("With --in-place: store the bytes of smaller objects [1MiB].", type=SIZE)
    ] = COPY_BELOW_BYTES,
    source_name: str | None = None,
    **options: Unpack[PlanOptions],
) -> PlanResult:
    """Plans the push of a directory or URL to ``REPO[@BRANCH]`` in parts, under a name that all
    machines use. All of them must see the source at the same place. ``in_place``: the plan is one
    of an import in place; ``copy_below`` and ``source_name`` are ``copy_below`` and ``source`` of
    ``import_in_place``. The rest: as for ``push``."""
    from lodefs.chunkstore.push.parts.plan import make_plan
    from lodefs.chunkstore.push.remote.remote_files import is_url

    spec = revision_of(repo)
    place = os.fspath(source) if is_url(source) else Path(source)
    with opened_for(options) as settings:
        core = push_options(settings, options)
        if in_place:
            sources = settings.config.sources
            place, left = left_in_place(str(place), sources, source_name, copy_below)
            core = replace(core, in_place=left)
        progress = options.get("progress")
        return make_plan(settings.store, name, place, spec.repo, spec.rev, core, progress)


def do_parts(
    name: str,
    task: int,
    tasks: int,
    tell: Callable[[TaskResult], None] = lambda _: None,
    **options: Unpack[TaskOptions],
) -> list[TaskResult]:
    """Does the share of task ``task`` of ``tasks``, counted from 1: of all parts each ``tasks``-th
    one. Parts that are done take no time. A part that fails does not stop the others; the result
    has its error. ``tell`` is called after each part."""
    if not 1 <= task <= tasks:
        raise InvalidInput(f"task {task}/{tasks}: tasks count from 1 to {tasks}")
    from lodefs.chunkstore.push.parts.plan import open_plan

    with opened_for(options) as settings:
        parts = open_plan(settings.store, name).plan.parts
        return _done(settings, name, range(task - 1, parts, tasks), options, tell)


def run_plan(
    name: str,
    executor: str | Executor,
    **options: Unpack[TaskOptions],
) -> list[TaskResult]:
    """Does all parts that are not done with an executor, one of ``concurrent.futures`` or the name
    of one, and returns those that failed. Raises: Unavailable if the executor itself fails."""
    with opened_executor(executor) as opened, opened_for(options) as settings:
        todo = status_of(name, session=settings).todo
        skip, source = options.get("skip_unreadable", False), options.get("source")
        task = PartTask(settings.store_url, name, skip, source and _absolute(source))
        is_done = partial(_is_done, settings, name)
        try:
            return run_tasks(opened, task, todo, is_done, options.get("progress"))
        except Unavailable as error:
            error.add_note(f"parts that are done stay done: lodefs plan status {name}")
            raise


def status_of(name: str, *, store: str | None = None, session: Session | None = None) -> PlanStatus:
    """How far a plan is."""
    from lodefs.chunkstore.push.parts.plan import open_plan
    from lodefs.chunkstore.push.parts.plan_status import read_status

    with opened(session, store=store) as settings:
        return read_status(settings.store, open_plan(settings.store, name))


def branch_of(name: str, *, session: Session) -> Spec:
    """Returns the branch that a plan is for."""
    from lodefs.chunkstore.push.parts.plan import open_plan

    plan = open_plan(session.store, name).plan
    return Spec(plan.repo, plan.branch)


def finish_plan(
    name: str,
    *,
    onto: Annotated[
        str | None,
        option("Replace REV, the branch's head now, if the branch has moved.", metavar="REV"),
    ] = None,
    allow_removals: Annotated[
        bool | AllowRemovals,
        option("Push even if that removes more than half of the branch's files.", is_flag=True),
    ] = False,
    progress: Progress | None = None,
    store: str | None = None,
    session: Session | None = None,
) -> PushResult:
    """Commits a plan whose parts are all done. A plan that is finished gives the same commit again.
    ``onto``: replace this revision, the head of a branch that has moved since the plan was made.

    Raises: InvalidInput, which names the parts that are not done; Conflict; TooManyRemovals."""
    from lodefs.chunkstore.push.parts.finish import finish_plan as finish
    from lodefs.chunkstore.push.parts.plan import open_plan

    with opened(session, store=store) as settings:
        core = push_options(settings, {}, allow_removals=allow_removals)
        at: CommitId | None = None
        if onto is not None:
            at = settings.store.resolve(open_plan(settings.store, name).plan.repo, onto)
        return finish(settings.store, name, core, progress, onto=at)


def discard_plan(name: str, *, store: str | None = None, session: Session | None = None) -> None:
    """Removes a plan. What its parts have stored is garbage, unless the plan is finished."""
    from lodefs.chunkstore.push.parts.plan import discard_plan as discard

    with opened(session, store=store) as settings:
        discard(settings.store, name)


def push_with(
    executor: str | Executor,
    source: str | os.PathLike[str],
    spec: Spec,
    allow_removals: bool | AllowRemovals,
    options: Mapping[str, Any],
) -> PushResult:
    """Pushes with an executor: plans, does all parts, commits. ``options`` are those of a push and
    of ``create_plan``. After an error the plan stays, and the error names it."""
    name = f"push-{token_hex(6)}"
    if any(map(options.get, _NOT_IN_PARTS)):
        raise InvalidInput("a push with an executor takes no --check, --dry-run and --rate")
    left_out = (*_NOT_IN_PARTS, "workers")  # each task reads in its own process
    given = {one: value for one, value in options.items() if one not in left_out}
    where: Where = {"session": given.get("session"), "store": given.get("store")}
    with opened_executor(executor) as opened, opened_for(where) as settings:
        progress, skip = given.get("progress"), given.get("skip_unreadable", False)
        given["session"] = settings
        left = create_plan(name, source, spec, **given)
        task: TaskOptions = {"skip_unreadable": skip, "progress": progress, "session": settings}
        task["source"] = os.fsdecode(left.plan.source)
        try:
            run_plan(name, opened, **task)
            result = finish_plan(
                name, allow_removals=allow_removals, progress=progress, session=settings
            )
        except LodefsError as error:
            error.add_note(f"the plan stays: lodefs plan status {name}; lodefs plan finish {name}")
            raise
    result.excluded, result.notes = left.excluded, left.notes
    result.skipped = [*left.skipped, *result.skipped]
    return result


@dataclass(frozen=True, slots=True)
class PartTask:
    """Does one part, in any process that can open the store and the source; it can be pickled."""

    store_url: str
    plan: str
    skip: bool = False
    source: str | None = None  # the only one that it may read; a real path or a URL

    def __call__(self, number: int) -> TaskResult:
        options: TaskOptions = {"skip_unreadable": self.skip, "workers": _TASK_READERS}
        options["source"] = self.source
        with opened(None, store=self.store_url) as settings:
            (result,) = _done(settings, self.plan, [number], options)
            return result


def _done(
    settings: Session,
    name: str,
    numbers: Iterable[int],
    options: TaskOptions,
    tell: Callable[[TaskResult], None] = lambda _: None,
) -> list[TaskResult]:
    from lodefs.chunkstore.push.parts.part_row import do_parts as done_parts

    found: list[TaskResult] = []

    def add(number: int, outcome: PartResult | LodefsError) -> None:
        if isinstance(outcome, LodefsError):
            found.append(TaskResult(number, str(outcome), isinstance(outcome, Unavailable)))
        else:
            files, size_bytes = outcome.files, outcome.size_bytes
            found.append(TaskResult(number, files=files, size_bytes=size_bytes))
        tell(found[-1])

    core = push_options(settings, options)
    own_source = partial(source_of, settings.config.sources, options.get("source"))
    done_parts(settings.store, name, numbers, core, add, options.get("progress"), own_source)
    return found


def _absolute(source: str) -> str:
    """Returns a source as processes in other directories name it."""
    from lodefs.chunkstore.push.source_directory import real_root

    return os.fsdecode(real_root(source))


def _is_done(settings: Session, name: str, number: int) -> bool:
    from lodefs.chunkstore.push.parts.plan import open_plan
    from lodefs.chunkstore.push.parts.plan_status import read_status

    plan = open_plan(settings.store, name)
    return not read_status(settings.store, plan, numbers=[number]).todo
