"""One node reads a file from another's cache, in turns with curl from nginx in the same namespaces.

The first node has next to all the weight among the two, so that the second never turns to S3 for
packs that it would own itself. nginx serves the first node's own cache file, a complete flat file,
which is the dataset file: both sides start from the same pages. What curl wrote to disk is read
again and hashed in one stream (BLAKE3); the second node's proxy verifies what comes and writes it
to its cache, and its client verifies it once more.
"""

from __future__ import annotations

import shutil
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

from blake3 import blake3

from loadtests.cluster import plans
from loadtests.cluster.cluster import Cluster, Site, Variant
from loadtests.cluster.dataset import File
from loadtests.cluster.figures import Outcome, Seen
from loadtests.cluster.network import Host
from loadtests.cluster.playing import address_of, folder_of, manner_of, targets_of
from loadtests.cluster.readers import Readers
from loadtests.cluster.scenario import Scenario
from loadtests.errors import LoadtestError
from loadtests.services.nginx import Nginx, nginx
from lodefs.chunkstore.nodecache import layout
from tests.support.chunkstore.child_process import run

OWNER, READER = 0, 1
WEIGHTS = {OWNER: 1e6, READER: 1e-3}  # the most and the least that lodefs takes
CURL_TIMEOUT_S = 600
PIECE_BYTES = 1 << 20


def play(site: Site, scenario: Scenario, variant: Variant) -> Outcome:
    """Reads the one file of the dataset repeatedly on either side, and compares the rates."""
    assert scenario.peer_hit is not None
    (file,) = site.dataset.files
    outcome = Outcome(file.size_bytes, scenario.nodes.count)
    ours: list[float] = []
    theirs: list[float] = []
    with Cluster(site, scenario, variant, WEIGHTS).running() as cluster:
        shutil.rmtree(site.dataset.root)  # its pages make room for those of the caches
        read = _reader(site, scenario, variant, cluster)
        read(OWNER)
        flat = _flat_file(cluster.nodes[OWNER].cache, file)
        target = site.scratch / "curl.bin"
        site.origin.begin_counting()
        with site.hosts[OWNER].entered():
            serving = nginx(flat.parent, host="0.0.0.0")
            server = serving.__enter__()
        try:
            for _ in range(scenario.peer_hit.rounds):
                theirs.append(_curl(site.hosts, server, flat, target, file))
                _empty(cluster, READER)
                seen, seconds = read(READER)
                ours.append(seconds)
                outcome.seen.add(seen)
        finally:
            serving.__exit__(None, None, None)
        outcome.take_egress(*site.origin.sent())
        outcome.statuses = cluster.statuses()
    outcome.epochs_s = ours
    outcome.more = _more(file, ours, theirs)
    return outcome


def _more(file: File, ours: list[float], theirs: list[float]) -> dict[str, float]:
    """The results that only a peer hit has."""
    seconds, curl_s = statistics.median(ours), statistics.median(theirs)
    return {
        "peer_rate_ratio": curl_s / seconds,
        "peer_bytes_per_s": file.size_bytes / seconds,
        "curl_bytes_per_s": file.size_bytes / curl_s,
    }


def _reader(
    site: Site, scenario: Scenario, variant: Variant, cluster: Cluster
) -> Callable[[int], tuple[Seen, float]]:
    """What reads the file once on a node, in one stream: what was seen, and seconds."""
    work = [[plans.whole(file)] for file in site.dataset.files]
    reading, rounds = scenario.reading, iter(range(100))

    def read(number: int) -> tuple[Seen, float]:
        node = cluster.live[number]
        with Readers(folder_of(site, variant, f"round{next(rounds)}")) as readers:
            targets = targets_of(site, reading)
            address = address_of(node, reading)
            readers.add(number, node.host, address, work, targets, manner_of(reading))
            readers.begin()
            readers.wait(scenario.seconds_max, lambda: None)
            return readers.collect()

    return read


def _empty(cluster: Cluster, number: int) -> None:
    """Starts a node again with an empty cache."""
    node = cluster.live[number]
    node.stop()
    shutil.rmtree(node.cache)
    node.launch()
    node.wait_ready()


def _flat_file(cache: Path, file: File) -> Path:
    """The complete flat file of a dataset file in a cache."""
    folder = cache / layout.FLAT_DIR
    found = list(folder.glob(f"*/{file.digest}-*"))
    if len(found) != 1 or found[0].stat().st_size != file.size_bytes:
        raise LoadtestError(f"{folder} does not hold {file.name}: was it read?")
    return found[0]


def _curl(hosts: Sequence[Host], server: Nginx, flat: Path, target: Path, file: File) -> float:
    """Seconds of curl into a file, and of hashing that file; it is removed afterwards."""
    url = f"http://{hosts[OWNER].address}:{server.port}/{flat.name}"
    start = perf_counter()
    run(hosts[READER].argv(["curl", "-sS", "--fail", "-o", target, url]), timeout_s=CURL_TIMEOUT_S)
    digest = blake3()
    with target.open("rb", buffering=0) as got:
        while piece := got.read(PIECE_BYTES):
            digest.update(piece)
    seconds = perf_counter() - start
    target.unlink()
    if digest.hexdigest() != file.digest:
        raise LoadtestError("nginx did not send the file that was pushed")
    return seconds
