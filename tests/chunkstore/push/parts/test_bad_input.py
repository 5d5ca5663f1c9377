"""Plans whose machines, stores and coordinators are not as they should be."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lodefs.chunkstore.errors import Denied, InvalidInput, LodefsError, NoSpace, NotFound
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.journal import End
from lodefs.chunkstore.format.push_plan import PushPlan
from lodefs.chunkstore.journal.journal import StoreJournal
from lodefs.chunkstore.maintenance.collect import CollectOptions, collect
from lodefs.chunkstore.push.parts.finish import finish_plan
from lodefs.chunkstore.push.parts.part_row import Outcome, do_part, do_parts
from lodefs.chunkstore.push.parts.plan import discard_plan, make_plan
from lodefs.chunkstore.push.push import PushOptions
from lodefs.chunkstore.repo.checks.verify import verify
from tests.chunkstore.push.parts.test_parts import FEW, REPO, Site
from tests.support.chunkstore.directories import in_commit, in_directory, write_files
from tests.support.chunkstore.faulty_store import fail
from tests.support.maintenance.schedules import one_at_a_time
from tests.support.maintenance.world import HOUR_S, World

WEEK_H, YEAR_H = 7 * 24, 365 * 24


@pytest.fixture
def site(tmp_path: Path) -> Site:
    made = Site(tmp_path)
    _write(made.source)
    return made


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with one_at_a_time():
        made = World(tmp_path)
        _write(made.source("s"))
        yield made


def _write(source: Path) -> None:
    write_files(source, {f"{n % 2}/{n}": bytes([n]) * (500 + n) for n in range(10)})


@pytest.mark.parametrize(
    ("operation", "prefix"),
    [
        ("get", keys.plan("p", 0, "results/")),
        ("list", "repos/r/refs/branches/main/"),
        ("put", "repos/r/commits/"),
        ("put", "journal/ends/"),
        ("put", "repos/r/refs/branches/main/"),
    ],
)
def test_two_coordinators_make_one_commit(site: Site, operation: str, prefix: str) -> None:
    """Whenever the second one finishes the plan while the first one does, both get that commit. If
    the first one has written all but the branch, the second one commits nothing."""
    site.do(*range(site.plan().parts))
    others: list[str] = []

    def by_other(perform: Callable[[], Any]) -> Any:
        with suppress(InvalidInput):
            others.append(site.finish().commit)
        return perform()

    site.objects.add(by_other, operation, prefix, times=1)
    result = site.finish()
    assert (
        others == []
        if prefix.endswith("branches/main/") and operation == "put"
        else [result.commit]
    )
    assert len(list(site.store.refs(REPO).history("branches", "main"))) == 1
    assert result.files == 10
    site.assert_pushed(result)


@pytest.mark.parametrize("error", [Denied("403"), NoSpace("the disk is full")], ids=str)
def test_a_store_that_takes_nothing_from_a_machine(site: Site, error: LodefsError) -> None:
    """Its parts fail with that reason, though their failures cannot be stored either; another
    machine does them."""
    plan = site.plan()
    site.do(0)
    site.objects.add(fail(error), "put")
    for number in range(1, plan.parts):
        with pytest.raises(type(error), match=str(error)):
            site.do(number, machine="two")
    assert site.status().missing == [*range(1, plan.parts)]
    site.objects.forget()
    with pytest.raises(InvalidInput, match=f"{plan.parts - 1} of the {plan.parts} parts"):
        site.finish()
    site.do(*range(plan.parts))
    site.assert_pushed(site.finish())


def test_a_machine_that_does_not_see_the_source(site: Site) -> None:
    """Its parts fail with the path; a machine that sees it does them."""
    plan = site.plan()
    hidden = site.source.rename(site.source.with_name("elsewhere"))
    with pytest.raises(NotFound, match=f"{site.source}"):
        site.do(0)
    assert str(site.source) in site.status().failed[0].message
    hidden.rename(site.source)
    site.do(*range(plan.parts))
    site.assert_pushed(site.finish())


def _planned(world: World) -> tuple[PushOptions, int]:
    options = world.session().options
    plan = make_plan(world.store, "p", world.source("s"), REPO, "main", options, limits=FEW).plan
    return options, plan.parts


def _assert_sound(world: World, commit: str) -> None:
    assert in_commit(world.store, REPO, commit) == in_directory(world.source("s"))
    assert verify(world.store, data=True).problems == []


@pytest.mark.parametrize("off_h", [-YEAR_H, YEAR_H])
def test_machines_with_other_clocks(world: World, off_h: int) -> None:
    """Gc runs, whose clock is right, keep what they store as long as some of them work."""
    options, parts = _planned(world)
    for number in range(parts):
        off_s = off_h * HOUR_S if number % 2 else 0
        clock = lambda off_s=off_s: world.clock() + off_s  # noqa: E731
        do_part(world.store, "p", number, replace(options, clock=clock))
        assert world.collect().deleted.packs == 0
        world.hours += 20
    result = finish_plan(world.store, "p", options)
    _assert_sound(world, result.commit)
    world.collect_all()
    _assert_sound(world, result.commit)


def test_a_plan_that_goes_on_after_a_week(world: World) -> None:
    """The grace time was longer: nothing is lost, and nothing is read or sent twice."""
    options, parts = _planned(world)
    half = parts // 2
    for number in range(half):
        do_part(world.store, "p", number, options)
    for _ in range(7):
        world.hours += 24
        assert world.collect(grace_s=2 * WEEK_H * HOUR_S).deleted.packs == 0
    world.objects.forget()
    other = replace(options, index_dir=options.index_dir.with_name("another machine"))
    for number in range(parts):
        do_part(world.store, "p", number, other)
    puts = [call.key for call in world.objects.calls if call.operation == "put"]
    packs = [key for key in puts if key.startswith("packs/")]
    assert len(packs) == len({*packs}) == 2 * (parts - half)  # of data and of trees
    results = keys.plan("p", 0, "results/")
    assert len([key for key in puts if key.startswith(results)]) == parts - half
    result = finish_plan(world.store, "p", options)
    _assert_sound(world, result.commit)
    world.collect_all()
    assert world.garbage() == set()
    _assert_sound(world, result.commit)


def _planned_again(site: Site) -> None:
    """The source changes, and another plan gets the name."""
    discard_plan(site.store, "p")
    for path in site.source.glob("?/*"):
        path.write_bytes(path.read_bytes()[::-1] + b"new")
    site.plan()


def test_a_result_that_comes_late_is_not_one_of_the_next_plan(site: Site) -> None:
    """A task puts it when its plan was discarded and another one has the name: that plan's part is
    not done, and is done with the new files."""

    def late(perform: Callable[[], Any]) -> Any:
        _planned_again(site)
        return perform()

    parts = site.plan().parts
    site.objects.add(late, "put", keys.plan("p", 0, "results/"), times=1)
    site.do(0)
    assert site.status().missing == [*range(parts)]
    site.do(*range(parts), machine="two")
    site.assert_pushed(site.finish())


@pytest.mark.parametrize("moment", ["journal/entries/", "plans/p/0000000000/writers/"])
def test_a_writer_that_comes_late_is_not_one_of_the_next_plan(site: Site, moment: str) -> None:
    """A task begins another writer, since a gc run has given up the first one. Just then its plan
    is discarded, and another one gets the name: that plan has none of its files, and ends."""

    def late(perform: Callable[[], Any]) -> Any:
        _planned_again(site)
        return perform()

    parts = site.plan().parts
    StoreJournal(site.objects).put_end(End(0, None))
    site.objects.add(late, "put", moment, times=1)
    with suppress(NotFound):
        site.do(0)
    assert site.status().missing == [*range(parts)]
    site.do(*range(parts), machine="two")
    site.assert_pushed(site.finish())
    assert collect(site.store, CollectOptions()).plans == 1
    assert list(site.store.objects.list("plans/")) == []


def test_what_a_task_puts_for_a_plan_that_is_gone_is_removed(site: Site) -> None:
    """By the next gc run. A run that looks while another plan gets the name removes none of its
    documents."""
    site.plan()
    kept = dict(site.memory.objects)
    discard_plan(site.store, "p")
    late = keys.plan_part("p", 0, "failures", 0)
    site.memory.objects[late] = kept[keys.plan_part("p", 0, "parts", 0)]

    def again(perform: Callable[[], Any]) -> Any:
        site.plan()
        return perform()

    site.objects.add(again, "list", "plans/p/", times=1)
    assert collect(site.store, CollectOptions()).plans == 1
    assert late not in site.memory.objects
    site.do(*range(len(site.status().missing)))
    site.assert_pushed(site.finish())


def test_a_discard_that_ends_late_leaves_the_next_plan(site: Site) -> None:
    """Two discard a plan at once, and another one gets the name before the slower one has ended."""
    site.plan()

    def late(perform: Callable[[], Any]) -> Any:
        _planned_again(site)
        return perform()

    site.objects.add(late, "delete", keys.plan("p", 0, "parts/"), times=1)
    discard_plan(site.store, "p")
    site.do(*range(len(site.status().missing)))
    site.assert_pushed(site.finish())


def test_a_task_does_no_parts_of_the_next_plan(site: Site) -> None:
    """It would do them with the source and the options of its own."""
    found: dict[int, Outcome] = {}

    def source_of(plan: PushPlan) -> bytes:
        _planned_again(site)
        return plan.source

    options = replace(site.options(), skip_unreadable=True)
    parts = range(site.plan().parts)
    do_parts(site.store, "p", parts, options, found.__setitem__, source_of=source_of)
    assert all("another one has its name" in str(one) for one in found.values())
    assert len(found) == len(parts)
    assert not site.status().done


def test_a_plan_that_was_collected_half_done_is_made_again(world: World) -> None:
    """Its name is free after its grace time, and what is left of its data is garbage or used."""
    options, parts = _planned(world)
    for number in range(parts // 2):
        do_part(world.store, "p", number, options)
    world.collect()
    world.hours += WEEK_H
    assert world.collect().plans == 1
    _planned(world)
    for number in range(parts):
        do_part(world.store, "p", number, options)
    result = finish_plan(world.store, "p", options)
    _assert_sound(world, result.commit)
    world.collect_all()
    _assert_sound(world, result.commit)
    assert world.garbage() == set()
