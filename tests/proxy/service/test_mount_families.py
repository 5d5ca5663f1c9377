"""Mounts of a node at one scrape of its proxy."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lodefs.chunkstore.protocol.figures.mount_counts import Column, MountDescription, Operation
from lodefs.mount.shm.traffic_counters import RowCounter, TrafficTable
from lodefs.proxy.metrics import exposition
from lodefs.proxy.page.live_feed import mounts_in
from lodefs.proxy.service.mount_families import MountFamilies
from tests.support.proxy.scrape import PLAIN_LABELS, Samples, labels_of, samples

BAD = b'/mnt/q"uote\nline\xff\xf0\x9f\x98\x80' + "😀".encode() * 63  # of 255 bytes, and more


@contextmanager
def counting(directory: Path, mountpoint: bytes) -> Iterator[RowCounter]:
    """A mount that counts in a directory until the end."""
    fd = TrafficTable.create(MountDescription(mountpoint, "demo", "c" * 64, "1.0", 9.5), directory)
    try:
        yield TrafficTable(fd).counter(1)
    finally:
        os.close(fd)


def scraped(families: MountFamilies) -> Samples:
    return samples(exposition.text(families()))


def test_a_mount_is_shown_with_all_that_it_counts(tmp_path: Path) -> None:
    """Operations, reads by source, waiting by layer, and what it is of."""
    with counting(tmp_path, b"/mnt/a") as counter:
        counter.answered(Operation.READ, 2 * 10**9)
        counter.read(Column.DIRECT_READS, 100)
        counter.brought(b"store", 50)
        counter.add(Column.STORE_WAIT, 15 * 10**8)
        counter.add(Column.WAITING, 3)
        found = scraped(MountFamilies(tmp_path))
    where = {"mountpoint": "/mnt/a"}

    def value(name: str, **labels: str) -> float:
        return found[f"lodefs_mount_{name}", labels_of(**where, **labels)]

    assert found["lodefs_mounts", PLAIN_LABELS] == 1
    assert value("operation_seconds_count", operation="read") == 1
    assert value("operation_seconds_sum", operation="read") == 2
    assert value("read_bytes_total", source="direct") == 100
    assert value("reads_total", source="store") == 1
    assert value("waiting_seconds_total", layer="store") == 1.5
    assert value("waiting_seconds_total", layer="fuse") == 0.5
    assert value("waiting_requests") == 3
    assert value("start_time_seconds") == 9.5
    user = str(os.geteuid())
    assert value("info", repository="demo", commit="c" * 64, user=user, version="1.0") == 1
    del counter  # its memory holds the file, as a process does
    assert scraped(MountFamilies(tmp_path))["lodefs_mounts", PLAIN_LABELS] == 0


def test_any_name_can_be_shown(tmp_path: Path) -> None:
    """Quotes, line ends, emoji and bytes that are no UTF-8 neither break a scrape nor get lost."""
    with counting(tmp_path, BAD):
        found = scraped(MountFamilies(tmp_path))
        open_ = exposition.openmetrics(MountFamilies(tmp_path)())
    (place,) = {
        dict(labels)["mountpoint"] for name, labels in found if name.endswith("_resends_total")
    }
    assert place.startswith('/mnt/q"uote\nline\\xff😀😀')
    assert open_.decode().endswith("# EOF\n")


@pytest.mark.skipif(os.geteuid() != 0, reason="makes files of another user")
def test_mounts_of_other_users_take_no_series_of_roots(tmp_path: Path) -> None:
    """However much their files say; nor its place on the page."""
    families = MountFamilies(tmp_path, mounts_max=1)
    with counting(tmp_path, b"/forged") as forged, counting(tmp_path, b"/more") as more:
        for path in tmp_path.iterdir():
            os.chown(path, 12345, -1)
        forged.read(Column.DIRECT_READS, 2**60)
        more.read(Column.DIRECT_READS, 2**50)
        scraped(families)
        with counting(tmp_path, b"/roots") as counter:
            counter.read(Column.DIRECT_READS, 10)
            found = scraped(families)
            assert mounts_in(tmp_path)[0].mount == "/roots"
    name = "lodefs_mount_read_bytes_total"
    assert found[name, labels_of(mountpoint="/roots", source="direct")] == 10
    assert found[name, labels_of(mountpoint="/forged", source="direct")] == 2**60
    assert found[name, labels_of(mountpoint="other", source="direct")] == 2**50


def test_mounts_without_series_of_their_own_count_together(tmp_path: Path) -> None:
    """Beyond the limit mounts count as others, and one that waits is among these."""
    families = MountFamilies(tmp_path, mounts_max=1)
    with counting(tmp_path, b"/a") as first, counting(tmp_path, b"/b") as second:
        first.read(Column.DIRECT_READS, 500)
        second.read(Column.DIRECT_READS, 10)
        second.add(Column.WAITING, 2)
        found = scraped(families)
    name = "lodefs_mount_read_bytes_total"
    assert found[name, labels_of(mountpoint="/a", source="direct")] == 500
    assert found[name, labels_of(mountpoint="other", source="direct")] == 10
    assert found["lodefs_mount_waiting_requests", labels_of(mountpoint="other")] == 2
    assert found["lodefs_mounts", PLAIN_LABELS] == 2
