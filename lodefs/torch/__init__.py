"""Training data from snapshots, for PyTorch's DataLoader and similar loaders.

torch is used if it is installed, and not required: the classes have the methods that DataLoader
calls. Workers of all start methods, and their restarts, read the one commit that the dataset was
made of. ``FileDataset`` is map-style, with ``PackSampler`` for its order; ``TarDataset`` is
iterable, over the shards of a WebDataset.

For checkpoints, ``CheckpointWriter`` and ``CheckpointReader`` are storage for
torch.distributed.checkpoint. ``TrainerPush``, ``LightningPush`` and ``SavePush`` push what trainers
have saved. ``latest`` finds the newest checkpoint. ``load_safetensors`` reads the weights of a
model straight into tensors.
"""

from lodefs.torch.checkpoint_step import Checkpoint as Checkpoint
from lodefs.torch.checkpoint_step import StepCommit as StepCommit
from lodefs.torch.checkpoint_step import latest as latest
from lodefs.torch.checkpoint_storage import CheckpointReader as CheckpointReader
from lodefs.torch.checkpoint_storage import CheckpointWriter as CheckpointWriter
from lodefs.torch.file_dataset import FileDataset as FileDataset
from lodefs.torch.hints import WarmHints as WarmHints
from lodefs.torch.pack_sampler import PackSampler as PackSampler
from lodefs.torch.save_callbacks import LightningPush as LightningPush
from lodefs.torch.save_callbacks import SavePush as SavePush
from lodefs.torch.save_callbacks import TrainerPush as TrainerPush
from lodefs.torch.tar_dataset import TarDataset as TarDataset
from lodefs.torch.weights import load_safetensors as load_safetensors
