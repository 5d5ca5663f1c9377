"""Parts in one process: the next one is read while the last packs of a part are under way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from threading import Event
from typing import Any

import pytest

from lodefs.chunkstore.errors import InvalidInput, LodefsError, Unavailable
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.push.parts.part_row import Outcome, do_parts
from lodefs.chunkstore.push.parts.part_scan import PartLimits
from lodefs.chunkstore.push.session import PushSession
from lodefs.chunkstore.push.workers.pool import InlineWorkers
from tests.chunkstore.push.parts.test_parts import Site
from tests.support.chunkstore.directories import write_files
from tests.support.chunkstore.faulty_store import fail

TIMEOUT_S = 60.0


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A source of ten files in four parts. Each file is twice in it, in different parts."""
    made = Site(tmp_path)
    random = Random(3)
    contents = [random.randbytes(9000 + n) for n in range(5)]
    write_files(made.source, {f"{n // 5}/{n}": contents[n % 5] for n in range(10)})
    return made


def _row(site: Site, parts: int, workers: int = 0) -> dict[int, Outcome]:
    found: dict[int, Outcome] = {}
    options = replace(site.options(), workers=workers)
    do_parts(site.store, "p", range(parts), options, found.__setitem__)
    assert sorted(found) == [*range(parts)]
    return found


def _failed(outcomes: dict[int, Outcome]) -> list[int]:
    return sorted(n for n, one in outcomes.items() if isinstance(one, LodefsError))


def test_the_next_part_is_read_while_a_pack_is_under_way(site: Site) -> None:
    """The first pack is put when the next part has been asked for."""
    plan, goes_on = site.plan(), Event()

    def tell(perform: Callable[[], Any]) -> Any:
        goes_on.set()
        return perform()

    def wait(perform: Callable[[], Any]) -> Any:
        assert goes_on.wait(TIMEOUT_S)
        return perform()

    site.objects.add(tell, "get", keys.plan_part("p", 0, "parts", 1))
    site.objects.add(wait, "put", "packs/", times=1)
    assert _failed(_row(site, plan.parts)) == []
    site.assert_pushed(site.finish())


def test_what_is_under_way_is_not_stored_again(site: Site) -> None:
    """Parts have files in common; together they store what a plain push stores."""
    _row(site, site.plan().parts)
    site.finish()
    stored = _size_of_packs(site)
    site.pushed("plain")
    assert _size_of_packs(site) <= stored + 500  # trees on the borders
    results = [site.status().done[number] for number in range(4)]
    assert sum(one.new_bytes for one in results) == sum(9000 + n for n in range(5))
    assert sum(one.stored_bytes for one in results) > stored


def _size_of_packs(site: Site) -> int:
    return sum(one.size_bytes for one in site.objects.list("packs/"))


def test_parts_of_one_process_ask_little_of_the_store(site: Site) -> None:
    """What belongs to the plan is read once for all of them."""
    plan = site.plan()
    site.objects.forget()
    _row(site, plan.parts)
    calls = len(site.objects.calls)
    assert calls <= 16 + 10 * plan.parts
    assert site.objects.count("get", keys.plan("p", 0, "writers/")) <= 8


@pytest.mark.parametrize("workers", [0, 2])
def test_a_part_that_fails_stops_no_other(site: Site, workers: int) -> None:
    """Its error ends the workers: the part before it is stored, and the next ones have new
    workers."""
    plan = site.plan()
    for name in ("0/3", "1/8"):
        (site.source / name).write_bytes(b"later")
    failed = _failed(_row(site, plan.parts, workers))
    assert sorted(site.status().failed) == failed and len(failed) == 2
    assert len(site.status().done) == plan.parts - 2


def test_a_part_that_fails_late_does_not_send_its_data_again(site: Site) -> None:
    """What it has stored is remembered, though it has no result."""
    data = Random(1).randbytes(9 << 20)  # more than the first pack takes
    write_files(site.source, {"2/large": data, "9/late": b"small"})
    plan = site.plan(limits=PartLimits(files=99))
    (site.source / "9" / "late").write_bytes(b"later")
    assert _failed(_row(site, plan.parts)) == [0]
    assert site.objects.count("put", "packs/") == 1
    assert _failed(_row(site, plan.parts)) == [0]
    assert site.objects.count("put", "packs/") == 1


def test_an_end_that_fails_is_told_of_its_own_part(site: Site) -> None:
    """The part that was read meanwhile is read again, and done."""
    plan = site.plan()
    result = keys.plan_part("p", 0, "results", 1)
    site.objects.add(fail(Unavailable("no answer")), "put", result, times=1)
    assert _failed(_row(site, plan.parts)) == [1]
    assert site.status().failed[1].message == "no answer"
    assert _failed(_row(site, plan.parts)) == []
    site.assert_pushed(site.finish())


def test_a_store_that_does_not_answer_ends_all_parts(site: Site) -> None:
    """Each of them with the store's error, and not without end."""
    plan = site.plan()
    site.objects.add(fail(Unavailable("no answer")), "put", "packs/")
    assert _failed(_row(site, plan.parts)) == [*range(plan.parts)]


def test_a_finished_plan_whose_results_go_is_told(site: Site) -> None:
    """A gc run removes them one after the other."""
    plan = site.plan()
    _row(site, plan.parts)
    site.finish()
    site.objects.delete(keys.plan_part("p", 0, "results", 2))
    found = _row(site, plan.parts)
    assert _failed(found) == [2] and "finished, and gone" in str(found[2])


def test_numbers_are_checked_before_anything_is_read(site: Site) -> None:
    """A part that the plan does not have stops all."""
    plan = site.plan()
    with pytest.raises(InvalidInput, match=f"no part {plan.parts}"):
        _row(site, plan.parts + 1)
    assert site.status().done == {}


def test_readers_suit_the_whole_plan(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """A first part that is small leaves no other part without processes."""
    asked: list[tuple[int, int]] = []

    def readers(_: PushSession, files: int, size_bytes: int) -> InlineWorkers:
        asked.append((files, size_bytes))
        return made

    made = InlineWorkers(site.store.settings.chunking)
    monkeypatch.setattr(PushSession, "readers", readers)
    plan = site.plan()
    _row(site, plan.parts)
    made.close()
    assert asked[0] == (plan.files, plan.size_bytes)
