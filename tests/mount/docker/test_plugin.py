"""The plugin's process, as far as it is no matter of its parts."""

from __future__ import annotations

from pathlib import Path

import pytest

from lodefs.chunkstore.errors import Unavailable
from lodefs.mount.docker.plugin import Settings, _Plugin
from lodefs.mount.docker.upkeep import Upkeep
from tests.support.docker.rig import Rig, split_url


@pytest.mark.parametrize("error", [Unavailable("no thread can be started"), RuntimeError("ours")])
def test_upkeep_that_fails_ends_no_plugin(
    rig: Rig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    error: Exception,
) -> None:
    """A round that raises is in the log, and the next one comes."""

    def fail(_upkeep: Upkeep) -> None:
        raise error

    monkeypatch.setattr(Upkeep, "round", fail)
    settings = Settings(state=tmp_path / "state")
    plugin = _Plugin(settings, rig.records, rig.service, split_url, lambda _source: None, None)
    plugin.round()
    plugin.round()
    assert len([one for one in caplog.records if one.getMessage().startswith("upkeep")]) == 2
