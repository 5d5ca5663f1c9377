"""Where a task of a plan reads: from the source that it names, and by its own settings."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from lodefs.api.parts.plan_sources import source_of
from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.push_plan import PlannedInPlace, PushPlan
from lodefs.chunkstore.objects.in_place.source_settings import SourceSettings
from lodefs.chunkstore.push.remote import remote_files
from tests.support.chunkstore import golden
from tests.support.chunkstore.memory_remote import MemoryRemote

LAKE = {"lake": SourceSettings("s3://lake/a", "http://h:1", None, "me")}


def _plan(source: bytes, in_place: PlannedInPlace | None = None) -> PushPlan:
    return replace(golden.plan(), source=source, in_place=in_place)


def test_a_task_reads_what_it_names(tmp_path: Path) -> None:
    """By whatever path leads there; a plan of another directory or URL is refused, with both."""
    source, link = tmp_path / "source", tmp_path / "link"
    source.mkdir()
    link.symlink_to(source)
    plan = _plan(os.fsencode(source))
    for named in (None, source, link, f"{source}/"):
        assert source_of({}, named, plan) == plan.source
    for other in (b"/etc", b"s3://bucket/x", b"http://10.0.0.1/x"):
        with pytest.raises(InvalidInput, match=f"is of {other.decode()}, .* read {source} alone"):
            source_of({}, link, _plan(other))
    with pytest.raises(InvalidInput, match=f"is of {source}, .* read s3://bucket alone"):
        source_of({}, "s3://bucket", plan)


def test_a_url_of_a_branch_is_what_it_leads_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    """As plans name the revision that they were made of."""
    monkeypatch.setitem(remote_files.SCHEMES, "memory", lambda _url: MemoryRemote({}))
    plan = _plan(MemoryRemote.location.encode())
    assert source_of({}, "memory://source@main", plan) == plan.source
    with pytest.raises(InvalidInput, match="memory://source@main alone"):
        source_of({}, "memory://source@main", _plan(b"memory://source@other"))


def test_what_stays_in_place_is_read_by_the_settings_of_the_task() -> None:
    """Its endpoint and profile are not in the plan, and another URL of the source is refused."""
    plan = _plan(b"s3://lake/a/b%3F", PlannedInPlace("lake", "b?/", 1 << 20))
    url = b"s3://lake/a/b%3F?endpoint_url=http%3A%2F%2Fh%3A1&profile=me"
    assert source_of(LAKE, "s3://lake/a/b%3F/", plan) == url
    with pytest.raises(InvalidInput, match=r"settings name no source lake: add \[sources.lake\]"):
        source_of({}, None, plan)
    with pytest.raises(InvalidInput, match=r"'b\?/' of the source lake.* here it is 'a/b\?/'"):
        source_of({"lake": SourceSettings("s3://lake")}, None, plan)
    with pytest.raises(InvalidInput, match="not below s3://other"):
        source_of({"lake": SourceSettings("s3://other")}, None, plan)
