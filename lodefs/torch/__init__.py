"""Training data from snapshots, for PyTorch's DataLoader and whatever takes such datasets.

torch is used where it is installed, and not needed: the classes have what DataLoader calls. Forked
workers, those of forkserver and spawn, and their repetitions all read the one commit that the
dataset was made of. ``FileDataset`` is map-style, with ``PackSampler`` for its order;
``TarDataset`` is iterable, over the shards of a WebDataset.
"""

from lodefs.torch.file_dataset import FileDataset as FileDataset
from lodefs.torch.hints import WarmHints as WarmHints
from lodefs.torch.pack_sampler import PackSampler as PackSampler
from lodefs.torch.tar_dataset import TarDataset as TarDataset
