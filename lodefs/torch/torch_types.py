"""The types that torch's DataLoader looks for, without an import of torch if it is not in use."""

from __future__ import annotations

import importlib.util
import sys
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:

    class MapDataset:
        """torch.utils.data.Dataset, which has no methods that a dataset needs."""

    class IterableBase:
        """torch.utils.data.IterableDataset, by which DataLoader decides how to iterate."""

elif importlib.util.find_spec("torch") is None:
    MapDataset = IterableBase = object
else:
    import torch.utils.data

    MapDataset = torch.utils.data.Dataset
    IterableBase = torch.utils.data.IterableDataset


class Share(NamedTuple):
    """The share of this process in the work: number ``number`` of ``total``."""

    number: int
    total: int


def worker_share() -> Share:
    """Returns the share among the workers of a DataLoader; everything outside of one."""
    data: Any = sys.modules.get("torch.utils.data")
    info = None if data is None else data.get_worker_info()
    return Share(0, 1) if info is None else Share(info.id, info.num_workers)


def rank_share(rank: int | None, ranks: int | None) -> Share:
    """Returns the share among the processes of a job: as given, else from torch.distributed."""
    if rank is not None and ranks is not None:
        if not 0 <= rank < ranks:
            raise ValueError(f"rank {rank} is not one of {ranks}")
        return Share(rank, ranks)
    if rank is not None or ranks is not None:
        raise ValueError("give both rank and ranks, or neither")
    distributed: Any = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return Share(distributed.get_rank(), distributed.get_world_size())
    return Share(0, 1)
