"""Callbacks that push what a trainer has saved, for Hugging Face's Trainer and for Lightning.

They have the methods that these call, and import neither of them.
"""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path
from typing import Any, Unpack

from lodefs.api.pushing import SourceOptions, push
from lodefs.chunkstore.errors import Unavailable
from lodefs.chunkstore.format.names import Spec
from lodefs.torch.checkpoint_step import step_metadata


class SavePush:
    """Pushes a directory as a checkpoint of ``REPO[@BRANCH]``, which ``latest`` finds. Training
    waits for it. An unreachable store is a warning, since the files still exist and the next
    checkpoint is pushed again; other errors are raised. ``options``: as for ``push``."""

    def __init__(self, repo: str | Spec, **options: Unpack[SourceOptions]) -> None:
        self._repo = repo
        self._options: dict[str, Any] = dict(options)

    def push(self, directory: str | os.PathLike[str], step: int) -> None:
        """Pushes the directory. Raises what ``lodefs.push`` raises, except Unavailable."""
        metadata = step_metadata(step, self._options.get("metadata", ()))
        options = {"message": f"step {step}", **self._options, "metadata": metadata}
        try:
            push(directory, self._repo, allow_removals=True, **options)
        except Unavailable as error:
            warnings.warn(f"lodefs: step {step} was not pushed: {error}", stacklevel=2)


class TrainerPush(SavePush):
    """A callback for transformers.Trainer: the directory ``checkpoint-STEP`` becomes a checkpoint
    when all processes have saved. Process 0 must see all of the directory."""

    def on_save(self, args: Any, state: Any, _control: Any = None, **_: Any) -> None:
        """An event of TrainerCallback."""
        distributed = sys.modules.get("torch.distributed")
        if distributed and distributed.is_available() and distributed.is_initialized():
            distributed.barrier()
        if state.is_world_process_zero:
            step = state.global_step
            self.push(Path(args.output_dir) / f"checkpoint-{step}", step)

    def __getattr__(self, name: str) -> Any:
        """Other events of TrainerCallback do nothing."""
        if name.startswith("on_"):
            return _nothing
        raise AttributeError(name)


class LightningPush(SavePush):
    """For a callback of Lightning: ``class Push(LightningPush, lightning.pytorch.Callback)``. The
    directory of the trainer's ModelCheckpoint, with all its files, becomes a checkpoint after each
    save: before the next batch, or at the end."""

    _pushed_step = 0

    def on_train_batch_start(self, trainer: Any, *_: Any) -> None:
        """An event of Lightning's Callback."""
        self._push_saved(trainer)

    def on_fit_end(self, trainer: Any, *_: Any) -> None:
        """An event of Lightning's Callback."""
        self._push_saved(trainer)

    def _push_saved(self, trainer: Any) -> None:
        checkpoint = trainer.checkpoint_callback
        saved = checkpoint._last_global_step_saved if checkpoint is not None else 0
        if saved in (0, self._pushed_step):
            return
        self._pushed_step = saved
        if trainer.is_global_zero:
            self.push(checkpoint.dirpath, saved)


def _nothing(*_: Any, **_more: Any) -> None:
    """Handles an event that the callback does not use."""
