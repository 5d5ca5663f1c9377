"""``./run bench weights``: all nodes of a cluster load the same model at once.

Each node is in a network namespace, with a link that one machine can fill for all of them at once,
and has an empty cache. ``lodefs.torch.load_safetensors`` and ``safetensors.torch.load_file`` from a
mount take turns.
"""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Literal, NamedTuple

import msgspec
from blake3 import blake3

from loadtests import examples
from loadtests.cluster.cluster import Cluster, Site, Variant
from loadtests.cluster.dataset import Dataset
from loadtests.cluster.network import Host, Link, Network
from loadtests.cluster.node import NUMBER_FIRST, Node
from loadtests.cluster.origin import REPO, Origin
from loadtests.cluster.scenario import Nodes, Reading, Scenario
from loadtests.errors import LoadtestError
from loadtests.measure import drop_page_cache, load_note
from loadtests.results import Result
from tests.support.chunkstore.child_process import Child

SIZE_BYTES = 1 << 30
SHARDS, NODES, ROUNDS = 4, 8, 3
LINK = Link(bytes_per_s=30_000_000)
TENSOR_BYTES, NORM_BYTES = 16 << 20, 16 << 10
CHILD = Path(__file__).parents[1] / "weights_child.py"
READY_TIMEOUT_S, LOAD_TIMEOUT_S = 300.0, 3600.0
LOADER, MOUNT, LOCAL = "load_safetensors", "load_file from a mount", "load_file from the local disk"


class Model(NamedTuple):
    """A model: its folder, the size of its files, and the BLAKE3 of all its tensors."""

    folder: Path
    size_bytes: int
    digest: str


class Load(NamedTuple):
    """One load by all nodes: seconds from the first one's begin to the last one's end, the most
    memory beyond the tensors, and what S3 sent for each byte of the model."""

    seconds: float
    beyond_bytes: int
    egress: float = 0.0


class Loaded(msgspec.Struct, frozen=True):
    """What one process says after it has loaded the model."""

    start_s: float
    end_s: float
    beyond_bytes: int
    digest: str


def weights(scratch: Path, size_bytes: int, *, quick: bool) -> Result:
    """A model of ``size_bytes`` loaded by one node, and by eight. ``quick``: one round."""
    model = write_model(scratch / "model", size_bytes)
    loads: dict[tuple[int, str], list[Load]] = {}
    with Network.made() as network, Origin.started(network, scratch / "s3", "rgw") as origin:
        hosts = [network.add(f"n{number}", NUMBER_FIRST + number) for number in range(NODES)]
        for host in hosts:
            network.shape(host, LINK)
        data = Dataset(model.folder, {})
        origin.push(data)
        site = Site(network, origin, hosts, data, scratch)
        for number in range(1 if quick else ROUNDS):
            drop_page_cache()
            gate = scratch / f"gate-{number}"
            local = _load([_started(hosts[0], gate, str(model.folder))], gate, model)
            loads.setdefault((1, LOCAL), []).append(local)
            for count in (1, NODES):
                for how in (LOADER, MOUNT):
                    load = _load_cold(site, model, count, how, number)
                    loads.setdefault((count, how), []).append(load)
    return _report(model, loads)


def write_model(folder: Path, size_bytes: int) -> Model:
    """Writes a model of random bytes in shards, with an index. The tensors of the layers are large,
    and each has a small one beside it."""
    folder.mkdir()
    source, digest = random.Random(8), blake3()
    layers = max(1, round(size_bytes / SHARDS / (TENSOR_BYTES + NORM_BYTES)))
    index: dict[str, str] = {}
    written_bytes = 0
    for shard in range(SHARDS):
        file = folder / f"model-{shard + 1:05}-of-{SHARDS:05}.safetensors"
        sizes = dict(_sizes(shard, layers))
        index |= dict.fromkeys(sizes, file.name)
        with file.open("wb") as target:
            target.write(_header(sizes))
            for tensor_bytes in sizes.values():
                data = source.randbytes(tensor_bytes)
                digest.update(data)  # the names are in their order
                target.write(data)
            written_bytes += target.tell()
    text = json.dumps({"metadata": {}, "weight_map": index})
    (folder / "model.safetensors.index.json").write_text(text)
    return Model(folder, written_bytes, digest.hexdigest())


def _sizes(shard: int, layers: int) -> Iterator[tuple[str, int]]:
    for layer in range(layers):
        yield f"{shard}.{layer:05}.mlp", TENSOR_BYTES
        yield f"{shard}.{layer:05}.norm", NORM_BYTES


def _header(sizes: dict[str, int]) -> bytes:
    entries, at = {}, 0
    for name, size_bytes in sizes.items():
        offsets = [at, at + size_bytes]
        entries[name] = {"dtype": "BF16", "shape": [size_bytes // 2], "data_offsets": offsets}
        at += size_bytes
    text = json.dumps({"__metadata__": {"format": "pt"}, **entries}).encode()
    return len(text).to_bytes(8, "little") + text


def _load_cold(site: Site, model: Model, count: int, how: str, number: int) -> Load:
    """One load by ``count`` nodes with empty caches."""
    via: Literal["mount", "proxy"] = "mount" if how == MOUNT else "proxy"
    reading = Reading(pattern="everything", via=via)
    scenario = Scenario(title="", dataset=[], reading=reading, nodes=Nodes(count=count))
    variant = Variant(f"weights-{count}-{via}-{number}")
    gate = site.scratch / f"gate-{variant.name}"
    with Cluster(replace(site, hosts=site.hosts[:count]), scenario, variant).running() as cluster:
        places = [_place(node, site.origin.commit, how) for node in cluster.nodes]
        children = [
            _started(node.host, gate, *place)
            for node, place in zip(cluster.nodes, places, strict=True)
        ]
        site.origin.begin_counting()
        load = _load(children, gate, model)
        counts, _ = site.origin.sent()
    return load._replace(egress=counts.total_bytes / model.size_bytes)


def _place(node: Node, commit: str, how: str) -> tuple[str, ...]:
    """What a process on a node loads."""
    if how == MOUNT:
        return (str(node.mountpoint),)
    return f"{REPO}@{commit}", f"unix:{node.socket}"


def _started(host: Host, gate: Path, *place: str) -> Child:
    env = {"LODEFS_CONFIG": os.devnull, "LODEFS_STORE": ""}
    return Child(host.argv([examples.made_with_torch(), CHILD, gate, *place]), env=env)


def _load(children: Sequence[Child], gate: Path, model: Model) -> Load:
    """Lets all processes load the model at once. Raises: LoadtestError for other bytes."""
    with ExitStack() as running:
        for child in children:
            running.enter_context(child)
        for child in children:
            child.wait_for("^ready$", timeout_s=READY_TIMEOUT_S)
        gate.touch()
        found = []
        for child in children:
            if child.wait(timeout_s=LOAD_TIMEOUT_S):
                raise child.failed("did not load the model")
            found.append(msgspec.json.decode(child.output.splitlines()[-1], type=Loaded))
    if any(one.digest != model.digest for one in found):
        raise LoadtestError("a node has loaded other bytes than were pushed")
    seconds = max(one.end_s for one in found) - min(one.start_s for one in found)
    return Load(seconds, max(one.beyond_bytes for one in found))


def _report(model: Model, loads: dict[tuple[int, str], list[Load]]) -> Result:
    result = Result("weights")
    seconds = {side: median(one.seconds for one in of_side) for side, of_side in loads.items()}
    result.add("the model", model.size_bytes / 1e6, "MB")
    result.add("each node's link", LINK.bytes_per_s / 1e6, "MB/s")
    for (count, how), median_s in seconds.items():
        result.add(f"{count} {'node' if count == 1 else 'nodes'}, {how}", median_s, "s")
    for how, at_most in ((LOADER, 1.3), (MOUNT, None)):
        ratio = seconds[NODES, how] / seconds[1, how]
        result.add(f"{how}: {NODES} nodes / one", ratio, "x", at_most=at_most)
    ratio = seconds[NODES, MOUNT] / seconds[NODES, LOADER]
    result.add(f"{NODES} nodes: {MOUNT} / {LOADER}", ratio, "x")
    for count in (1, NODES):
        for how in (LOADER, MOUNT):
            egress = max(one.egress for one in loads[count, how])
            result.add(f"{count}: S3 bytes / the model, {how}", egress, "x", at_most=1.02)
    beyond = max(one.beyond_bytes for count in (1, NODES) for one in loads[count, LOADER])
    result.add("memory beyond the tensors", beyond / (1 << 20), "MiB", at_most=256)
    result.notes.append(load_note())
    return result
