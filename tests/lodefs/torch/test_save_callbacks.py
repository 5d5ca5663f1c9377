"""What trainers have saved is pushed: by callbacks, as Hugging Face's Trainer and Lightning call
them."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import lodefs
from lodefs.chunkstore.errors import NotFound, Unavailable
from lodefs.chunkstore.objects.directory import DirectoryObjects
from lodefs.chunkstore.repo.store import create_store
from lodefs.torch import LightningPush, TrainerPush, latest, save_callbacks

pytestmark = pytest.mark.slow


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where a trainer saves; the environment names a store."""
    store = str(tmp_path / "store")
    create_store(DirectoryObjects(store))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LODEFS_STORE", store)
    monkeypatch.setenv("LODEFS_CONFIG", os.devnull)
    return tmp_path / "out"


def steps() -> list[str]:
    """Of the commits of runs/bert, the newest first."""
    return [dict(entry.commit.metadata)["step"] for entry in lodefs.log("runs/bert")]


def saved(directory: Path, text: str) -> None:
    """What a trainer does."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "model").write_text(text)


def test_hugging_face(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 0 pushes the step's directory when all have saved, and does nothing at other events.
    A store that cannot be reached is a warning; a directory that is not there is an error."""
    callback = TrainerPush("runs/bert", workers=0, metadata=["run=7"])
    args = SimpleNamespace(output_dir=str(place))
    for step, is_zero in ((500, True), (1000, False), (1500, True)):
        saved(place / f"checkpoint-{step}", f"model of {step}")
        state = SimpleNamespace(is_world_process_zero=is_zero, global_step=step)
        assert callback.on_step_end(args, state, None, model=None) is None
        callback.on_save(args, state, None, model=None)
    assert steps() == ["1500", "500"]
    found = latest("runs/bert")
    assert found is not None
    lodefs.pull(found.spec, str(place / "again"))
    assert (place / "again" / "model").read_text() == "model of 1500"
    assert not hasattr(callback, "other")
    state.global_step = 2000
    with pytest.raises(NotFound, match="checkpoint-2000"):
        callback.on_save(args, state)

    def unreachable(*_: Any, **_more: Any) -> None:
        raise Unavailable("the store is away")

    monkeypatch.setattr(save_callbacks, "push", unreachable)
    with pytest.warns(UserWarning, match="step 2000 was not pushed: the store is away"):
        callback.on_save(args, state)


def test_lightning(place: Path) -> None:
    """Each save is pushed once, before the next batch or at the end, by the global zero; a trainer
    without a ModelCheckpoint has none."""
    callback = LightningPush("runs/bert", workers=0)
    checkpoint = SimpleNamespace(dirpath=str(place), _last_global_step_saved=0)
    trainer = SimpleNamespace(checkpoint_callback=checkpoint, is_global_zero=True)
    for step in range(4):
        callback.on_train_batch_start(trainer, None, None, step)
        if step % 2:
            saved(place, f"model of {step}")
            checkpoint._last_global_step_saved = step
    callback.on_fit_end(trainer, None)
    callback.on_fit_end(trainer, None)
    assert steps() == ["3", "1"]
    trainer.is_global_zero = False
    checkpoint._last_global_step_saved = 5
    callback.on_fit_end(trainer, None)
    trainer.checkpoint_callback = None
    callback.on_train_batch_start(trainer, None, None, 0)
    assert steps() == ["3", "1"]
