"""Figures that others count in files hold up nobody."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

from lodefs.proxy.metrics import metric_names as names
from lodefs.proxy.metrics.exposition import Family, simple
from lodefs.proxy.metrics.other_families import OtherFamilies
from lodefs.proxy.metrics.server_metrics import MetricInputs
from tests.support.proxy.fake_node import DictNode, start_proxy


class Files:
    """Files that can be read, cannot, or hang."""

    def __init__(self) -> None:
        self.reads = 0
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def __call__(self) -> Iterator[Family]:
        self.gate.wait(60)
        self.reads += 1
        if self.error is not None:
            raise self.error
        yield simple(names.MOUNTS, self.reads)


def test_files_that_hang_and_fail() -> None:
    """What they said last stays, scrapes that did not wait are counted, and one read serves all who
    ask; when files can be read again, they are."""
    files = Files()

    async def run() -> None:
        others = OtherFamilies(files, deadline_s=30)
        await asyncio.gather(*(others.read() for _ in range(5)))
        (family,) = others.families
        assert (family.samples[0].value, others.late, files.reads) == (1, 0, 1)
        files.gate.clear()
        hurried = OtherFamilies(files, deadline_s=0)
        await asyncio.gather(*(hurried.read() for _ in range(3)))
        assert (hurried.families, hurried.late) == ((), 3)
        files.gate.set()
        files.error = OSError("gone")
        await others.read()
        assert others.families == (family,)
        files.error = None
        await others.read()
        assert others.families != (family,) and others.late == 0

    asyncio.run(run())


def test_readers_go_on_meanwhile() -> None:
    """A proxy answers others while a scrape waits for files."""
    files = Files()
    files.gate.clear()
    with (
        start_proxy(DictNode({b"a": b"hello"}), inputs=MetricInputs(more=files)) as proxy,
        proxy.client() as scraping,
        proxy.client() as reading,
    ):
        asked = threading.Thread(target=scraping.get, args=("/metrics",))
        asked.start()
        proxy.until(lambda: proxy.server.metrics.total("streams") == 1)
        assert reading.get("/files/demo@main/a").body == b"hello"
        files.gate.set()
        asked.join(60)
        assert b"lodefs_mounts 2" in reading.get("/metrics").body
