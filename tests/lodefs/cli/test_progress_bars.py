"""progress_bars.py: progress for people, and only for them."""

from __future__ import annotations

import dataclasses
import gc
import io
import threading

import pytest
from rich.console import Console

from lodefs.chunkstore.system.progress import Progress
from lodefs.cli import progress_bars
from lodefs.cli.progress_bars import progress_text, show_progress

FULL = Progress("", 4081, 7734, 1 << 30, 2 << 30, 3 << 20)


def test_told() -> None:
    """Figures are shown where they are known, and none that are not."""
    assert progress_text(Progress(), None, None, 80) == ""
    assert (
        progress_text(Progress(files_done=3, bytes_done=2048), None, None, 80) == "3 files  2.0 KiB"
    )
    assert progress_text(Progress(bytes_done=2048), 1024.0, None, 80) == "2.0 KiB  1.0 KiB/s"
    assert progress_text(FULL, 3e9, 0.4, 100) == (
        "4,081/7,734 files  1.0 GiB/2.0 GiB  3.0 MiB transferred  2.8 GiB/s  left 0:00:01"
    )


@pytest.mark.parametrize(
    ("room_chars", "words"),
    [
        (47, "1.0 GiB/2.0 GiB  2.8 GiB/s  left 0:00:01"),
        (30, "1.0 GiB/2.0 GiB  left 0:00:01"),
        (15, "1.0 GiB/2.0 GiB"),
        (14, ""),
    ],
)
def test_told_in_little_room(room_chars: int, words: str) -> None:
    """On a narrow terminal figures are left out whole, the least important ones first."""
    assert progress_text(FULL, 3e9, 1.0, room_chars) == words


def test_eighty_columns() -> None:
    """A line of a long operation fits into 80 columns: nothing in it is cut."""
    file = io.StringIO()
    console = Console(width=80, file=file, force_terminal=True)
    with progress_bars.bars(console) as bar:
        task = bar.add_task("", total=None, words="")
        progress_bars._update(
            bar, task, dataclasses.replace(FULL, phase="checking vision/flickr30k")
        )
        bar.refresh()
        drawn = file.getvalue()
    assert "1.0 GiB/2.0 GiB" in drawn
    assert "…" not in drawn


@pytest.mark.parametrize("enabled", [None, False, True])
def test_short_work_shows_nothing(capfd: pytest.CaptureFixture[str], enabled: bool | None) -> None:
    """Work that ends at once writes nothing, on a terminal or not."""
    with show_progress(enabled=enabled) as progress:
        progress.files_done += 1
    assert capfd.readouterr() == ("", "")


def test_an_error_passes_through() -> None:
    """The display ends with the work, also where that fails."""
    with pytest.raises(KeyError), show_progress(enabled=True):
        raise KeyError("x")


def test_long_work_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar is drawn on standard error; standard output stays clean for scripts."""
    monkeypatch.setattr(progress_bars, "WAIT_S", 0.0)
    original = progress_bars._update
    done = threading.Event()
    monkeypatch.setattr(progress_bars, "_update", lambda *a: (original(*a), done.set()))
    with show_progress(enabled=True) as progress:
        progress.phase = "pushing"
        assert done.wait(60)
    assert capfd.readouterr().out == ""


def test_garbage_is_searched_for_seldom_meanwhile() -> None:
    """Also when the operation fails, all is as before afterwards."""
    before = gc.get_threshold()
    meanwhile: list[int] = []

    def fail() -> None:
        with show_progress():
            meanwhile.append(gc.get_threshold()[0])
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert meanwhile == [progress_bars.YOUNG_MAX]
    assert gc.get_threshold() == before
