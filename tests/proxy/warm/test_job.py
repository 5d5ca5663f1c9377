"""What a job tells of itself."""

from __future__ import annotations

from lodefs.chunkstore.errors import Corrupt
from lodefs.chunkstore.protocol.cache_control import ERRORS_MAX, WarmRequest
from lodefs.chunkstore.protocol.wire import Entry, Snapshot
from lodefs.proxy.warm.job import Job, Rate, eta_s
from lodefs.proxy.warm.path_patterns import Selection

ROOT = Entry(1, 1, b"", 2, executable=False, size_bytes=0, digest=b"", target=b"")
SNAPSHOT = Snapshot("data/set", "ab" * 32, ROOT, 0, 3, 1, 3000)


def test_rate_is_of_the_last_seconds() -> None:
    """A job that was fast and is slow now says so."""
    rate = Rate()
    done = 0
    for second in range(60):
        rate.see(second, done)
        done += 1000 if second < 30 else 10
    assert 9 <= rate.of(60, done) <= 11
    assert Rate().of(5, 100) == 0


def test_eta() -> None:
    """What is left by the rate; unknown without a total or a rate."""
    assert eta_s(500, 1500, 100.0) == 10
    assert eta_s(1500, 1500, 100.0) == 0
    assert eta_s(0, None, 100.0) is None
    assert eta_s(0, 10, 0.0) is None


def test_errors_are_bounded_and_counted() -> None:
    """Of many errors some are told, and the number of all."""
    job = Job(WarmRequest("data/set"), SNAPSHOT, Selection())
    for n in range(100):
        job.add_error(Corrupt(f"bad {n}"), b"\xff/%d" % n)
    status = job.status()
    assert (len(status.errors), status.errors_total) == (ERRORS_MAX, 100)
    assert (status.errors[3].error, status.errors[3].path) == ("Corrupt", "%FF/3")


def test_the_first_end_counts() -> None:
    """A job that was cancelled is not done afterwards, and its clock stands."""
    now_s = 10.0
    job = Job(WarmRequest("data/set"), SNAPSHOT, Selection(), clock_s=lambda: now_s)
    now_s = 12.0
    job.add_progress(3000, 1000, files=3)
    job.end("cancelled")
    now_s = 99.0
    job.end("done")
    status = job.status()
    assert (status.state, status.elapsed_s, status.bytes_per_s) == ("cancelled", 2.0, 1500.0)
    assert (status.files_done, status.fetched_bytes) == (3, 1000)
