"""The journal's native protocol: fields, priorities, large lines, and a journal that is away."""

from __future__ import annotations

import logging
import os
import socket
import struct
import syslog
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lodefs.chunkstore.system.systemd.journald import (
    NAME_CHARS_MAX,
    Journal,
    JournalHandler,
    encode,
    is_stderr,
    marked,
    priority_of,
)


def decode(message: bytes) -> list[tuple[str, bytes]]:
    """The fields of a message, as journald reads them."""
    found = []
    while message:
        line, _, rest = message.partition(b"\n")
        name, equals, value = line.partition(b"=")
        if not equals:
            size = struct.unpack("<Q", rest[:8])[0]
            value, rest = rest[8 : 8 + size], rest[8 + size :]
            assert rest.startswith(b"\n")
            rest = rest[1:]
        found.append((name.decode(), value))
        message = rest
    return found


@contextmanager
def journald(path: Path) -> Iterator[socket.socket]:
    """A socket where lines arrive."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind(str(path))
        receiver.settimeout(60)
        yield receiver


def heard(receiver: socket.socket) -> dict[str, bytes]:
    """The next line's fields, also of one in a memory file."""
    data, fds, _, _ = socket.recv_fds(receiver, 1 << 20, 1)
    if fds:
        with open(fds[0], "rb") as file:
            file.seek(0)
            data = file.read()
    return dict(decode(data))


@given(st.lists(st.tuples(st.text(), st.one_of(st.text(), st.binary(), st.integers()))))
def test_every_value_comes_back(fields: list[tuple[str, object]]) -> None:
    """Whatever names and values are, the message has each field once, with a name that counts."""
    back = decode(encode(fields))
    assert len(back) == len(fields)
    for (name, value), (_, given_value) in zip(back, fields, strict=True):
        assert name.isascii()
        assert name.replace("_", "").isalnum()
        assert name[0].isupper()
        assert len(name) <= NAME_CHARS_MAX
        if isinstance(given_value, bytes):
            assert value == given_value
        elif isinstance(given_value, int):
            assert value == str(given_value).encode()


def test_a_record_has_its_level_place_and_extras(tmp_path: Path) -> None:
    """What a logger says arrives with priority, place, and extras as LODEFS_ fields."""
    logger = logging.Logger("lodefs.try")
    with journald(tmp_path / "journal") as receiver:
        journal = Journal("lodefs-proxy", tmp_path / "journal")
        logger.addHandler(JournalHandler(journal))
        logger.error("pack %s\nis bad", "ab", extra={"pack": "ab", "size_bytes": 5})
        found = heard(receiver)
        journal.close()
    assert found["MESSAGE"] == b"pack ab\nis bad"
    assert found["PRIORITY"] == b"3"
    assert found["SYSLOG_IDENTIFIER"] == b"lodefs-proxy"
    assert found["CODE_FILE"] == __file__.encode()
    assert found["CODE_FUNC"] == b"test_a_record_has_its_level_place_and_extras"
    assert found["LODEFS_LOGGER"] == b"lodefs.try"
    assert (found["LODEFS_PACK"], found["LODEFS_SIZE_BYTES"]) == (b"ab", b"5")


def test_an_exception_is_told_whole(tmp_path: Path) -> None:
    """The traceback of ``exc_info`` is part of the message."""
    logger = logging.Logger("lodefs.try")
    with journald(tmp_path / "journal") as receiver:
        logger.addHandler(JournalHandler(Journal("t", tmp_path / "journal")))
        try:
            raise ValueError("why")
        except ValueError:
            logger.exception("what")
        assert b"what\nTraceback" in heard(receiver)["MESSAGE"]


def test_large_lines_come_in_a_file(tmp_path: Path) -> None:
    """A line that no datagram holds arrives whole."""
    text = "x" * 3_000_000
    with journald(tmp_path / "journal") as receiver:
        Journal("t", tmp_path / "journal").send(text, syslog.LOG_INFO)
        assert heard(receiver)["MESSAGE"] == text.encode()


def test_a_new_journal_and_lost_lines(tmp_path: Path) -> None:
    """Lines without a journal are lost, counted, and the next journal hears how many."""
    path = tmp_path / "journal"
    with journald(path):
        journal = Journal("t", path)
    for _ in range(3):
        journal.send("lost", syslog.LOG_INFO)
    path.unlink()
    with journald(path) as receiver:
        journal.send("here", syslog.LOG_INFO)
        found = heard(receiver)
        assert (found["MESSAGE"], found["LODEFS_LOST_LINES"]) == (b"here", b"3")
        journal.send("again", syslog.LOG_INFO)
        assert "LODEFS_LOST_LINES" not in heard(receiver)


def test_a_journal_that_hangs_costs_lines_and_no_time(tmp_path: Path) -> None:
    """Where nobody reads, saying something ends anyway."""
    with journald(tmp_path / "journal") as receiver:
        journal = Journal("t", tmp_path / "journal")
        sent = 0
        while not journal.lost and sent < 10_000:
            journal.send("more", syslog.LOG_INFO)
            sent += 1
        assert journal.lost == 1
        heard(receiver)
        journal.send("then", syslog.LOG_INFO)
        assert journal.lost == 0


def test_no_journal(tmp_path: Path) -> None:
    """Where there is none, that is told at once."""
    with pytest.raises(OSError, match="No such file"):
        Journal("t", tmp_path / "none")


def test_whether_stderr_is_the_journal(tmp_path: Path) -> None:
    """Only the stream that systemd names counts."""
    with (tmp_path / "stream").open("w") as stream:
        found = os.fstat(stream.fileno())
        place = f"{found.st_dev}:{found.st_ino}"
        assert is_stderr({"JOURNAL_STREAM": place}, stream.fileno())
        assert not is_stderr({"JOURNAL_STREAM": "1:2"}, stream.fileno())
        assert not is_stderr({}, stream.fileno())
    assert not is_stderr({"JOURNAL_STREAM": place}, 9999)


def test_priorities() -> None:
    """Each level has syslog's priority, levels between count as the lower one."""
    levels = [logging.CRITICAL, logging.ERROR, logging.WARNING, logging.INFO, logging.DEBUG, 35]
    assert [priority_of(level) for level in levels] == [2, 3, 4, 6, 7, 4]
    assert marked("a\nb", syslog.LOG_ERR) == "<3>a\n<3>b"
