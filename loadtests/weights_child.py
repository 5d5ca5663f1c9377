"""Loads a model in an environment that has torch and safetensors: ``GATE FOLDER`` by the package
safetensors, or ``GATE REPO@REV PROXY`` by lodefs.

The process prints ``ready`` when all modules are there, and loads when the file GATE is there.
Then it prints one JSON object: when it began and when it had every page of every tensor (the
monotonic clock), the bytes of memory beyond the tensors at the highest, and the BLAKE3 of all
tensors in the order of their names.
"""

from __future__ import annotations

import ctypes
import json
import sys
from pathlib import Path
from time import monotonic, sleep

import torch
from blake3 import blake3
from safetensors.torch import load_file

from lodefs.torch import load_safetensors

PAGE_BYTES = 4096
GATE_S = 0.005


def loaded(place: str, proxy: str) -> dict[str, torch.Tensor]:
    """The tensors of a model. Those of the safetensors package are mappings of its files."""
    if proxy:
        return load_safetensors(place, proxy=proxy)
    tensors: dict[str, torch.Tensor] = {}
    for file in sorted(Path(place).glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The memory of a tensor."""
    size_bytes = tensor.numel() * tensor.element_size()
    memory = (ctypes.c_char * size_bytes).from_address(tensor.data_ptr())
    return memoryview(memory).cast("B")


def memory_bytes(field: str) -> int:
    """A field of this process' status, as VmHWM. Source: proc_pid_status(5)."""
    text = Path("/proc/self/status").read_text()
    return int(text.partition(f"{field}:")[2].split()[0]) << 10


def main(gate: str, place: str, proxy: str = "") -> None:
    """Loads one model."""
    before_bytes = memory_bytes("VmRSS")
    print("ready", flush=True)
    while not Path(gate).exists():
        sleep(GATE_S)
    start_s = monotonic()
    tensors = loaded(place, proxy)
    for tensor in tensors.values():
        sum(bytes_of(tensor)[::PAGE_BYTES])  # as a model that runs, and a copy to a device, do
    end_s = monotonic()
    peak_bytes = memory_bytes("VmHWM")
    digest, size_bytes = blake3(), 0
    for name in sorted(tensors):
        content = bytes_of(tensors[name])
        digest.update(content)
        size_bytes += len(content)
    told = {
        "start_s": start_s,
        "end_s": end_s,
        "beyond_bytes": peak_bytes - before_bytes - size_bytes,
        "digest": digest.hexdigest(),
    }
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
