"""meter.py: progress for people, and only for them."""

from __future__ import annotations

import threading

import pytest

from chunkstore.progress import Progress
from lodefs import meter
from lodefs.meter import metered, told


def test_told() -> None:
    """Totals are shown where they are known."""
    assert told(Progress(files_done=3, bytes_done=2048)) == "3 files  2.0 KiB"
    full = Progress("", 1024, 17614, 1 << 20, 4 << 20, 512)
    assert told(full) == "1,024/17,614 files  1.0 MiB/4.0 MiB  512 B transferred"


@pytest.mark.parametrize("enabled", [None, False, True])
def test_short_work_shows_nothing(capfd: pytest.CaptureFixture[str], enabled: bool | None) -> None:
    """Work that ends at once writes nothing, on a terminal or not."""
    with metered(enabled=enabled) as progress:
        progress.files_done += 1
    assert capfd.readouterr() == ("", "")


def test_an_error_passes_through() -> None:
    """The display ends with the work, also where that fails."""
    with pytest.raises(KeyError), metered(enabled=True):
        raise KeyError("x")


def test_long_work_goes_to_standard_error(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The bar is drawn on standard error; standard output stays clean for scripts."""
    monkeypatch.setattr(meter, "WAIT_S", 0.0)
    original = meter._update
    done = threading.Event()
    monkeypatch.setattr(meter, "_update", lambda *a: (original(*a), done.set()))
    with metered(enabled=True) as progress:
        progress.phase = "pushing"
        assert done.wait(60)
    assert capfd.readouterr().out == ""
