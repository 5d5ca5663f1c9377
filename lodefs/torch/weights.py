"""``load_safetensors``: the weights of a model, from a snapshot straight into tensors.

Many ranges are read at once, from the cache's files or through the proxy, into the memory of the
tensors themselves. Nothing is mapped, so no page is faulted in alone. For another device each
thread reads into a buffer of its own, which is pinned for CUDA, and copies from there.
"""

from __future__ import annotations

import posixpath
import random
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from lodefs.api.snapshots import snapshot
from lodefs.chunkstore.errors import InvalidInput, NotFound
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.protocol.wire import Entry
from lodefs.reading.urls import decoded_path, parse_url
from lodefs.torch.safetensors_layout import (
    DTYPES,
    Piece,
    StoredTensor,
    header_end,
    parse_header,
    pieces,
)
from lodefs.torch.tensor_memory import TensorMemory, memory_of

if TYPE_CHECKING:
    import torch

    from lodefs.reading.snapshot import Snapshot

SUFFIX = ".safetensors"
INDEX = f"{SUFFIX}.index.json"
INDEX_BYTES_MAX = 100_000_000
HEAD_BYTES = 64 << 10  # read of each file at first: mostly its whole header
THREADS = 8


class _Index(msgspec.Struct, frozen=True):
    """An index: the name of the file that has each tensor."""

    weight_map: dict[str, str]


class WeightsFile(NamedTuple):
    """A safetensors file of a snapshot, and those of its tensors that are wanted."""

    node: Entry
    tensors: list[StoredTensor]


def load_safetensors(
    url: str,
    *,
    device: str | torch.device = "cpu",
    shards: Collection[str] | None = None,
    tensors: Collection[str] | None = None,
    proxy: str | None = None,
    store: str | None = None,
    token: str | None = None,
) -> dict[str, torch.Tensor]:
    """Returns the tensors of a model by name: of one safetensors file, or of all in a directory.

    ``url`` is ``REPO@REV/PATH``, with or without ``lodefs://``. If the directory has an index
    (``*.safetensors.index.json``), the files that it names are read. ``shards`` are the names of
    the only files to read, and ``tensors`` those of the only tensors to read. ``proxy``, ``store``,
    ``token``: as for ``lodefs.snapshot``.

    Raises: InvalidInput if a file is malformed, two have the same tensor, or torch lacks a dtype;
    NotFound if the path, a shard or a tensor does not exist; Unavailable, Denied, Corrupt.
    """
    import torch

    made: dict[str, torch.Tensor] = {}
    memory = memory_of(torch.device(device))

    def destination(stored: StoredTensor) -> TensorMemory:
        dtype = getattr(torch, DTYPES[stored.dtype].torch_name, None)
        if dtype is None:
            raise InvalidInput(f"torch {torch.__version__} has no dtype for {stored.dtype}")
        made[stored.name] = torch.empty(stored.shape, dtype=dtype, device=device)
        return memory(made[stored.name])

    spec = parse_url(url)
    with snapshot(f"{spec.repo}@{spec.rev}", proxy=proxy, store=store, token=token) as found:
        read_tensors(
            found, weights_files(found, decoded_path(spec.path), shards, tensors), destination
        )
    return made


def weights_files(
    found: Snapshot,
    path: str,
    shards: Collection[str] | None = None,
    tensors: Collection[str] | None = None,
) -> list[WeightsFile]:
    """Returns the files to read for a path, by their headers. The arguments, and errors, are those
    of ``load_safetensors``."""
    paths = _paths(found, path, shards, tensors)
    if not paths:
        raise NotFound(f"{found}/{path} has no {SUFFIX} files")
    nodes = [found.file(one) for one in paths]
    heads = found.bytes.read_many([(node, (0, HEAD_BYTES)) for node in nodes])
    files: list[WeightsFile] = []
    names: set[str] = set()
    for one, node, head in zip(paths, nodes, heads, strict=True):
        try:
            end = header_end(head, node.size_bytes)
            if end > len(head):
                head += found.bytes.read(node, len(head), end)
            stored = parse_header(head[:end], node.size_bytes)
        except InvalidInput as error:
            raise InvalidInput(f"{found}/{one} is not a safetensors file: {error}") from error
        wanted = [one for one in stored if tensors is None or one.name in tensors]
        if twice := names.intersection(tensor.name for tensor in wanted):
            raise InvalidInput(f"{found}/{one} has {min(twice)!r}, and so has another file")
        names.update(tensor.name for tensor in wanted)
        files.append(WeightsFile(node, wanted))
    if tensors is not None and (missing := set(tensors) - names):
        raise NotFound(f"{found}/{path} has no tensor {min(missing)!r}")
    return files


def _paths(
    found: Snapshot,
    path: str,
    shards: Collection[str] | None,
    tensors: Collection[str] | None,
) -> list[str]:
    """Returns the paths of the safetensors files to read."""
    if path.endswith(INDEX):
        folder, names = posixpath.dirname(path), _indexed(found, path, tensors)
    elif path.endswith(SUFFIX):
        return [path]
    else:
        folder = path
        here = [posixpath.basename(one.path) for one in found.list(path)]
        indexes = [name for name in here if name.endswith(INDEX)]
        if len(indexes) > 1:
            raise InvalidInput(f"{found}/{path} has several indexes; name one: {indexes}")
        if indexes:
            names = _indexed(found, posixpath.join(path, indexes[0]), tensors)
        else:
            names = [name for name in here if name.endswith(SUFFIX)]
    if shards is not None:
        if missing := set(shards) - set(names):
            raise NotFound(f"{found}/{path} has no shard {min(missing)!r}")
        names = [name for name in names if name in shards]
    return [posixpath.join(folder, name) for name in names]


def _indexed(found: Snapshot, path: str, tensors: Collection[str] | None) -> list[str]:
    """Returns the files that an index names, or those with the wanted tensors."""
    node = found.file(path)
    if node.size_bytes > INDEX_BYTES_MAX:
        raise InvalidInput(f"{found}/{path} is too large for an index: {node.size_bytes} bytes")
    try:
        places = from_json(found.bytes.read(node, 0, node.size_bytes), _Index).weight_map
    except InvalidInput as error:
        raise InvalidInput(f"{found}/{path} is not an index of safetensors: {error}") from error
    return sorted({file for name, file in places.items() if tensors is None or name in tensors})


def read_tensors(
    found: Snapshot,
    files: Sequence[WeightsFile],
    destination: Callable[[StoredTensor], TensorMemory],
) -> None:
    """Reads the tensors of files, each into its ``destination``, in a random order. Raises the
    first error."""
    targets = {one.name: destination(one) for file in files for one in file.tensors}
    jobs = [(file.node, piece) for file in files for piece in pieces(file.tensors)]
    # Nodes that load a model together would wait for the same owner at each moment
    random.shuffle(jobs)
    threads = ThreadPoolExecutor(THREADS, "lodefs-weights")
    try:
        for done in [threads.submit(_read_piece, found, *job, targets) for job in jobs]:
            done.result()
    finally:
        threads.shutdown(cancel_futures=True)


def _read_piece(
    found: Snapshot, node: Entry, piece: Piece, targets: Mapping[str, TensorMemory]
) -> None:
    if len(piece.parts) == 1:
        (part,) = piece.parts
        with targets[part.tensor.name].room(part.first, part.end) as memory:
            found.bytes.read_into(node, piece.first, memory)
        return
    data = memoryview(found.bytes.read(node, piece.first, piece.first + piece.size_bytes))
    for part in piece.parts:
        with targets[part.tensor.name].room(part.first, part.end) as memory:
            memory[:], data = data[: len(memory)], data[len(memory) :]
