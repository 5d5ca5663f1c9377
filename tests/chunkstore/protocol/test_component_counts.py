"""What components of a node count, in files that others may read."""

from __future__ import annotations

import fcntl
import os
from contextlib import closing, suppress
from pathlib import Path
from threading import Thread

import msgspec
import pytest

from lodefs.chunkstore.errors import Denied, LodefsError, NotADirectory, UnknownFormat
from lodefs.chunkstore.protocol.figures.component_counts import (
    ENDING,
    FILE_BYTES,
    NAMES_MAX,
    Calls,
    ComponentCounts,
    ComponentFigures,
    decode,
    encode,
    read_newest,
)


class _PickyDeniedError(Denied):
    """As packages derive classes of their own."""


def _fails(counts: ComponentCounts, operation: str, error: Exception) -> None:
    with suppress(type(error)), counts.call(operation):
        raise error


def _held(path: Path, data: bytes) -> int:
    """A file in which somebody seems to count."""
    path.write_bytes(data)
    fd = os.open(path, os.O_RDONLY)
    fcntl.flock(fd, fcntl.LOCK_SH)
    return fd


def test_calls_and_their_errors_are_counted() -> None:
    """By operation, from all threads; an error by its class in the tree of errors, whatever it was
    derived from it, and what is none of ours as a fault; each is raised on."""
    counts = ComponentCounts("docker", ["Mount", "Get"])

    def mount() -> None:
        for _ in range(500):
            with counts.call("Mount"):
                pass

    threads = [Thread(target=mount) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for error in (_PickyDeniedError("x"), Denied("x"), NotADirectory("x"), ValueError("x")):
        _fails(counts, "Mount", error)
    with pytest.raises(LodefsError), counts.call("Mount"):
        raise LodefsError
    found = counts.figures({"mounted": 3})
    assert found.volumes == {"mounted": 3}
    assert found.calls["Get"] == Calls()
    mounts = found.calls["Mount"]
    assert (mounts.count, mounts.spent_s >= 0) == (2005, True)
    assert mounts.errors == {"Denied": 2, "NotADirectory": 1, "Fault": 1, "LodefsError": 1}


def test_figures_are_seen_while_their_process_lives(tmp_path: Path) -> None:
    """They are published as they are then, also where the directory comes later or the file is
    removed; what is left over is swept."""
    figures = tmp_path / "figures"
    with closing(ComponentCounts("csi", version="1.0", directories=[figures])) as counts:
        counts.publish()
        assert read_newest(figures) == []
        figures.mkdir()
        counts.publish()
        with counts.call("Probe"):
            pass
        (found,) = read_newest(figures)
        assert (found.component, found.version, found.calls) == ("csi", "1.0", {})
        counts.publish({"used": 2})
        (found,) = read_newest(figures, sweep=True)
        assert (found.calls["Probe"].count, found.volumes) == (1, {"used": 2})
        (file,) = figures.iterdir()
        assert file.stat().st_size == FILE_BYTES
        file.unlink()
        counts.publish()
        assert len(read_newest(figures)) == 1
    assert read_newest(figures) == []
    assert len(list(figures.iterdir())) == 1
    assert read_newest(figures, sweep=True) == []
    assert list(figures.iterdir()) == []


def test_the_process_that_started_last_counts(tmp_path: Path) -> None:
    """Of two of a component, as while one takes over from the other, the later one shows; when it
    ends, the other does again. Components do not touch each other."""
    first, other, later = (
        ComponentCounts(name, version=version, directories=[tmp_path])  # type: ignore[arg-type]
        for name, version in (("mounter", "1"), ("docker", "1"), ("mounter", "2"))
    )
    for one in (later, other, first):
        one.publish()

    def seen() -> list[tuple[str, str]]:
        return [(one.component, one.version) for one in read_newest(tmp_path, sweep=True)]

    assert seen() == [("docker", "1"), ("mounter", "2")]
    later.close()
    assert seen() == [("docker", "1"), ("mounter", "1")]
    first.close()
    other.close()
    assert seen() == []


def test_files_of_others_are_passed_over(tmp_path: Path) -> None:
    """Users who may count there for their mounts cannot speak for a component."""
    with closing(ComponentCounts("mounter", directories=[tmp_path])) as counts:
        counts.publish()
        assert len(read_newest(tmp_path, trusted={os.geteuid()})) == 1
        assert read_newest(tmp_path, trusted={os.geteuid() + 1}) == []


def test_rubbish_is_ignored(tmp_path: Path) -> None:
    """Files that are malformed, cut, half written, too large or no files harm nobody, and are not
    believed."""
    good = ComponentFigures("csi", "1", 5.0, {"Probe": Calls(1, 0.5, {"Denied": 1})}, {"used": 1})
    whole = encode(good)
    assert decode(whole + b"\0" * 100) == good
    for size in range(len(whole)):
        with pytest.raises(UnknownFormat):
            decode(whole[:size])
    half_written = whole[:40] + bytes([whole[40] ^ 1]) + whole[41:]
    many = {f"N{'x' * (number % 60)}{chr(65 + number // 60)}": 1 for number in range(NAMES_MAX + 1)}
    changes: tuple[dict[str, object], ...] = (
        {"component": "proxy"},
        {"component": 'c"\n'},
        {"version": "1" * 65},
        {"started_s": float("nan")},
        {"started_s": float("inf")},
        {"volumes": many},
        {"volumes": {'q"\n': 1}},
        {"volumes": {"used\n": 1}},
        {"volumes": {"used": -1}},
        {"volumes": {"used": 0.5}},
        {"calls": {name: {} for name in many}},
        {"calls": {"Probe": {"errors": many}}},
        {"calls": {"Probe": {"spent_s": -1.0}}},
        {"calls": [1]},
    )
    plain = msgspec.to_builtins(good)
    bad = [encode({**plain, **change}) for change in changes]  # type: ignore[arg-type]
    for data in bad:
        with pytest.raises(UnknownFormat):
            decode(data)
    written = [b"", b"x" * 99, b"\xff" * 10**6, half_written, *bad]
    held = [_held(tmp_path / f"{n}{ENDING}", data) for n, data in enumerate(written)]
    (tmp_path / f"link{ENDING}").symlink_to(tmp_path / f"0{ENDING}")
    os.mkfifo(tmp_path / f"pipe{ENDING}")
    (tmp_path / f"dir{ENDING}").mkdir()
    held.append(_held(tmp_path / f"z{ENDING}", whole))
    assert read_newest(tmp_path, sweep=True) == [good]
    assert len(list(tmp_path.iterdir())) == len(written) + 4
    for fd in held:
        os.close(fd)
