"""The documents of a planned push: what is damaged is refused."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from lodefs.chunkstore.errors import Corrupt, InvalidInput
from lodefs.chunkstore.format import push_plan
from tests.support.chunkstore import golden


def test_documents_that_belong_elsewhere_are_refused() -> None:
    """A plan of another name, and a part of another number."""
    with pytest.raises(Corrupt, match="is the plan 'crawl-7', not p"):
        push_plan.decode_plan(push_plan.encode_plan(golden.plan()), "p", "plans/p/plan")
    with pytest.raises(Corrupt, match="has the number 1, not 2"):
        push_plan.decode_part(push_plan.encode_part(golden.plan_part()), 2, "plans/p/parts/2")
    with pytest.raises(Corrupt, match="has the number 1, not 0"):
        push_plan.decode_result(push_plan.encode_result(golden.plan_result()), 0, "x")


def test_impossible_values_are_refused() -> None:
    """Negative numbers, more parts than keys can number, names that no repository has, URLs that
    are no text, and columns of different lengths."""
    plans = [replace(golden.plan(), parts=parts) for parts in (-1, push_plan.PARTS_MAX + 1)]
    plans.append(replace(golden.plan(), repo="../r"))
    plans.append(replace(golden.plan_in_place(), source=b"s3://\xff"))
    for plan in plans:
        with pytest.raises(Corrupt, match="plans/p/plan"):
            push_plan.decode_plan(push_plan.encode_plan(plan), "crawl-7", "plans/p/plan")
    part = golden.plan_part()
    short = msgspec.structs.replace(part.directories[0], sizes=[1])
    with pytest.raises(Corrupt, match="columns of different lengths"):
        push_plan.decode_part(
            push_plan.encode_part(push_plan.PlannedPart(1, [short])), 1, "plans/p/parts/1"
        )


@pytest.mark.parametrize("path", [b"..", b"a/../b", b"/etc", b"a//b", b"."])
@pytest.mark.parametrize("name", [b"..", b".", b"", b"a/b", b"a\0", b"n" * 256])
def test_no_path_of_a_part_leads_out_of_the_source(path: bytes, name: bytes) -> None:
    """A user who may write to the store may write such a part."""
    for one in (
        push_plan.PlannedDirectory(path, [b"x"], b"\0", [1], [1], [1]),
        push_plan.PlannedDirectory(b"a", [name], b"\0", [1], [1], [1]),
    ):
        data = push_plan.encode_part(push_plan.PlannedPart(1, [one]))
        with pytest.raises(Corrupt, match="plans/p/parts/1 has a file or directory with the name"):
            push_plan.decode_part(data, 1, "plans/p/parts/1")


def test_a_source_in_place_has_a_name_of_the_settings() -> None:
    """Others are refused."""
    plan = golden.plan_in_place()
    assert plan.in_place is not None
    wrong = replace(plan, in_place=msgspec.structs.replace(plan.in_place, source="../x"))
    with pytest.raises(Corrupt, match="plans/p/plan"):
        push_plan.decode_plan(push_plan.encode_plan(wrong), "crawl-7", "plans/p/plan")


@pytest.mark.parametrize("piece", [(0, 0, True), (5, 4, False), (-1, 4, False), (0, 2**41, True)])
def test_a_piece_lies_in_the_only_file_of_its_part(piece: tuple[int, int, bool]) -> None:
    """Others are refused, and so is a piece in a part that has several files."""
    wrong = push_plan.PlannedPiece(piece[0], piece[1], is_digest=piece[2])
    right = push_plan.PlannedPiece(0, 1, is_digest=False)
    for part in (
        msgspec.structs.replace(golden.plan_piece(), piece=wrong),
        msgspec.structs.replace(golden.plan_part(), piece=right),
    ):
        with pytest.raises(Corrupt, match="plans/p/parts/1 has no piece of one file"):
            push_plan.decode_part(push_plan.encode_part(part), 1, "plans/p/parts/1")


@pytest.mark.parametrize("name", ["", "a/b", "..", "-p", "p" * 65, "p q"])
def test_names_of_plans_are_parts_of_keys(name: str) -> None:
    """Others are refused."""
    with pytest.raises(InvalidInput, match="is not a plan's name"):
        push_plan.check_plan_name(name)
