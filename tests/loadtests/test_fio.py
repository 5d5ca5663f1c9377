"""fio's job files and its answers, without fio."""

from __future__ import annotations

import json
from configparser import ConfigParser
from pathlib import Path

import pytest

from loadtests.bench.fio import (
    EXTRA_JOBS,
    MMAP_RANDOM_4K,
    MOUNTPOINT_JOBS,
    RANDOM_4K_16,
    Job,
    escaped,
    parse,
)

# one job's answer of fio 3.33, cut down to what tells something
ANSWER = """\
note: both iodepth >= 1 and synchronous I/O engine are selected, queue depth will be capped at 1
{
  "fio version" : "fio-3.33",
  "jobs" : [
    {
      "jobname" : "random_read_4k",
      "groupid" : 0,
      "error" : 0,
      "read" : {
        "io_bytes" : 1703538688,
        "bw_bytes" : 1701999688,
        "bw" : 1662109,
        "iops" : 415525.896414,
        "runtime" : 1001,
        "total_ios" : 415903,
        "clat_ns" : { "mean" : 2118.9, "percentile" : { "50.000000" : 1960, "99.000000" : 4128 } }
      }
    }
  ]
}
"""


def parsed(job: Job, *, endless: bool = False) -> ConfigParser:
    """A job file, which is of the form that ConfigParser reads."""
    config = ConfigParser(allow_no_value=True, delimiters=("=",), interpolation=None)
    config.read_string(job.text(Path("/corpus"), size_bytes=1 << 30, seconds=3, endless=endless))
    return config


def test_names_of_mountpoints_jobs() -> None:
    """There are the sixteen jobs of mountpoint-s3's set, each with a name of its own."""
    names = {job.name for job in MOUNTPOINT_JOBS}
    assert len(names) == len(MOUNTPOINT_JOBS) == 16
    assert {
        "sequential_read",
        "random_read_direct_io",
        "sequential_read_four_threads_small_file",
        "random_read_four_threads_direct_io_small_file",
    } <= names


@pytest.mark.parametrize("job", MOUNTPOINT_JOBS, ids=lambda job: job.name)
def test_parameters_of_mountpoints_jobs(job: Job) -> None:
    """A job's name tells its parameters, as in mountpoint-s3's files."""
    section = parsed(job)[job.name]
    assert section["rw"] == ("read" if job.name.startswith("sequential") else "randread")
    assert section["numjobs"] == ("4" if "four_threads" in job.name else "1")
    assert section.get("direct") == ("1" if "direct_io" in job.name else None)
    assert section["ioengine"] == "sync"
    assert section["directory"].endswith("small") == ("small_file" in job.name)
    assert parsed(job)["global"]["bs"] == str(256 << 10)


@pytest.mark.parametrize("job", [*MOUNTPOINT_JOBS, *EXTRA_JOBS], ids=lambda job: job.name)
def test_jobs_never_write_and_end(job: Job) -> None:
    """Every job has an end, creates no file and leaves the page cache to the benchmark."""
    common = parsed(job)["global"]
    assert common["runtime"] == "3s"
    assert (common["allow_file_create"], common["invalidate"]) == ("0", "0")
    assert "time_based" not in common
    assert "time_based" in parsed(job, endless=True)["global"]


def test_files_of_the_readers() -> None:
    """Readers have files of their own, except where they share one."""
    assert parsed(MMAP_RANDOM_4K)[MMAP_RANDOM_4K.name]["filename_format"] == "$jobnum.bin"
    assert parsed(RANDOM_4K_16)[RANDOM_4K_16.name]["filename"] == "0.bin"


def test_units() -> None:
    """Jobs of large pieces are told in megabytes, of small ones in reads."""
    assert {job.unit for job in MOUNTPOINT_JOBS} == {"MB/s"}
    assert {job.unit for job in EXTRA_JOBS} == {"/s"}


def test_path_with_a_colon() -> None:
    """A colon, which separates names in a job file, is escaped."""
    assert escaped(Path("/a:b\\c")) == "/a\\:b\\\\c"


def test_parse() -> None:
    """Rate, throughput and the slowest percent are read, also after a line of warning."""
    figures = parse(ANSWER)
    assert figures.per_s == 415525.896414
    assert figures.mb_per_s == pytest.approx(1701.999688)
    assert figures.p99_ms == pytest.approx(0.004128)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ("fio: file not found", "0 jobs"),
        ('{"jobs": []}', "0 jobs"),
        (ANSWER.replace('"error" : 0', '"error" : 5'), "error 5"),
        (ANSWER.replace('"total_ios" : 415903', '"total_ios" : 0'), "nothing was read"),
        (json.dumps({"jobs": json.loads(ANSWER[ANSWER.index("{") :])["jobs"] * 2}), "2 jobs"),
    ],
)
def test_parse_refuses(answer: str, message: str) -> None:
    """An answer that tells of a failure, or not of one job, is no figure."""
    with pytest.raises(ValueError, match=message):
        parse(answer)
