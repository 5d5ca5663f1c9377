"""``python -m loadtests [NAME ...]``: runs benchmarks; without a name, lists them."""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from loadtests.bench import (
    accounts,
    cachewrites,
    changing,
    checkpoints,
    coldpeers,
    coldsequential,
    collections,
    collectspeed,
    compactions,
    copies,
    docker,
    fairshares,
    firstbytes,
    hooks,
    hostile,
    imports,
    largestores,
    latencies,
    lfs,
    merges,
    metriccosts,
    missmodules,
    mixtures,
    mountcorpus,
    mountrates,
    mounts,
    partkills,
    proxies,
    pulls,
    pushes,
    pushparts,
    pushurl,
    pythons,
    readcheck,
    readpaths,
    repaireach,
    repairs,
    s3ranges,
    sequentials,
    sharedmounts,
    slowdisks,
    slurmwarming,
    smallcaches,
    soaks,
    statuspage,
    survival,
    systemd,
    throttlings,
    transactions,
    unreadanswers,
    volumes,
    walks,
    warmreads,
    warms,
    weights,
    writable,
)
from loadtests.errors import LoadtestError
from loadtests.regression import changes, read_results, tell
from loadtests.results import Result
from loadtests.rootraces import races
from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.config import parse_size

Benchmark = Callable[[Path], Result]

BENCHMARKS: dict[str, tuple[Benchmark, str]] = {
    "push-tree": (pushes.tree, "push of a real tree against restic, borg, casync, hf_xet"),
    "push-random": (pushes.random_file, "push of 1 GiB of random bytes against the same"),
    "push-unchanged": (pushes.unchanged, "push again, nothing changed"),
    "push-one-byte": (pushes.one_byte, "one byte changed in a 1 GiB file"),
    "changes": (changing.one_of_many, "one byte changed of 100,000 files, without the directory"),
    "checkpoints": (
        checkpoints.checkpoints,
        "a checkpoint of four ranks, 2 GB: how long the step is blocked",
    ),
    "changes-million": (
        changing.one_of_a_million,
        "a commit of a writable mount of 1,000,000 files, of which one was changed",
    ),
    "changes-hostile": (
        changing.hostile,
        "commits of writable mounts with very many empty files, and with a file of one hole",
    ),
    "transaction": (
        transactions.four_processes,
        "100,000 small files by four processes in one transaction, against a push",
    ),
    "push-million": (pushes.million, "one file changed among 1,000,000"),
    "pull": (pulls.pull, "pull from Ceph RGW against boto3 with 8 threads"),
    "import": (
        imports.import_in_place,
        "import of 10 GiB in place, and cold reads of an imported file against a pushed one",
    ),
    "copy": (copies.copy, "copy from store to store on Ceph RGW, against rclone copy of the packs"),
    "push-parts": (
        pushparts.push_parts,
        "push in parts against a plain push, two processes against one, a plan of 10,000,000 files",
    ),
    "part-kills": (
        partkills.part_kills,
        "pushes in parts by all executors and as an array, with tasks killed: the same tree",
    ),
    "push-large-store": (
        largestores.push_large_store,
        "three versions by machines that know only hooks; a worker's memory with 10^9 chunks",
    ),
    "lfs": (
        lfs.push_lfs,
        "push of 1 GiB by git-lfs, against giftless; what the agent sends for a changed MB",
    ),
    "push-url": (
        pushurl.push_url,
        "push of 1 GiB and 20,000 objects from a bucket on Ceph RGW, against rclone copy",
    ),
    "warm": (warms.warm, "warm of a node's cache against pull; small files, S3 answering late"),
    "range-get": (proxies.range_get, "range GETs that hit, against nginx with one worker"),
    "metrics-cost": (metriccosts.costs, "what counting costs on the hot path, and a scrape"),
    "miss-modules": (
        missmodules.miss_modules,
        "the modules that a GET and a READ of a mount go through if their bytes are not cached",
    ),
    "read-path": (
        readpaths.read_path,
        "processor time of hits, and of cold reads by bytes and by places, in one process",
    ),
    "s3-range-get": (s3ranges.s3_range_get, "signed range GETs over S3 against /files/"),
    "proxy-restart": (proxies.restart, "ready again with 1,000,000 chunks cached"),
    "proxy-memory": (proxies.memory, "memory under a cold full-speed read of 4 GiB"),
    "mount-cold": (mounts.cold, "cold sequential read through the mount against rclone mount"),
    "cold-sequential": (
        coldsequential.cold_sequential,
        "processor seconds and memory of a cold sequential read, by process",
    ),
    "cache-writes": (
        cachewrites.cache_writes,
        "ways to write the cache's files, by file system: processor seconds",
    ),
    "cold-peers": (
        coldpeers.cold_peers,
        "cold reads from a new mount against mount-s3, JuiceFS and rclone, if they are installed",
    ),
    "mount-latency": (latencies.random_reads, "cold random reads, S3 answering after 20 ms"),
    "first-byte": (firstbytes.first_bytes, "cold places of a large file against bare GETs"),
    "survival": (survival.killing, "kill -9 of workers, proxy, supervisor under a verifying load"),
    "systemd": (
        systemd.service,
        "kill -9 of a mount's unit under a real systemd, while it is read",
    ),
    "page": (statuspage.page, "the status page: first paint with 1,000,000 files, axe-core"),
    "hostile": (hostile.hostile, "10,000 histories of honest and lying repositories in one store"),
    "gc-speed": (collectspeed.speed, "gc of a store with 1,000 commits, 10 million chunks"),
    "compaction": (
        compactions.compactions,
        "compactions on Ceph RGW while a mount reads the packs and pushes use them again",
    ),
    "merge": (merges.merges, "500 small pushes on Ceph RGW before and after gc merges their packs"),
    "repair-each": (repaireach.each, "every object of a store of 200 lost and damaged in turn"),
    "repair-memory": (repairs.memory, "every pack of 2 GiB lost, back from the directory"),
    "du": (accounts.accounts, "du of all repositories of the same store"),
    "docker": (docker.docker, "containers on volumes against bind mounts; many; under kills"),
    "shared-mounts": (
        sharedmounts.shared_mounts,
        "100 volumes of Docker and 100 of Kubernetes, of 10 snapshots, on one node",
    ),
    "writable": (
        writable.writable_mounts,
        "1,000 writable mounts of one commit; reads against an overlay over the local disk",
    ),
    "csi": (volumes.volumes, "volumes of Kubernetes: one, a hundred, while the driver is killed"),
    "mount-directories": (
        walks.directories,
        "find over 5,000 directories unknown to the node",
    ),
    "mount-mixtures": (mixtures.mixtures, "a large file read whole after other reads beside it"),
    "mount-sequential": (
        sequentials.sequential_reads,
        "a large file among small ones, in order: from the disk, from memory, by 1 and 8 readers",
    ),
    "mount-warm": (warmreads.warm_reads, "reads from the cache's disk; the dataset exceeds memory"),
    "slurm-warming": (
        slurmwarming.slurm_warming,
        "a job of Slurm whose nodes are warmed before it",
    ),
    "enroot-hook": (hooks.enroot_hook, "what lodefs' hook costs a container of enroot"),
    "python": (pythons.python, "fsspec against its local file system; glob against find"),
    "dataloader": (pythons.dataloader, "PyTorch's DataLoader against ext4 and s3fs; 100 runs"),
    "fair-shares": (fairshares.fair_shares, "one user beside another who scans three caches"),
    "throttling": (throttlings.throttling, "a minute of 503 SlowDown under 1 and 100 readers"),
    "unread-answers": (
        unreadanswers.unread_answers,
        "500 connections that ask for much and read nothing, beside another token's reads",
    ),
    "slow-disk": (slowdisks.slow_disk_reads, "a cache on a disk that is slower than the network"),
    "small-cache": (
        smallcaches.small_caches,
        "sets larger than the cache, at random and in order: what is fetched for what is asked",
    ),
    "mount-walk": (walks.million, "walk of 1,000,000 files, memory of the mount, time to ready"),
}
MOUNT = "mount"
MOUNT_TEXT = "reads of many kinds: local disk, lodefs, rclone mount, any --peer"
GC_SCHEDULES = "gc-schedules"
GC_SCHEDULES_TEXT = "random schedules of writers and collections, --count, --store rgw"
FSX = "fsx"
RACES = "root-races"
RACES_TEXT = "a user changes paths while root works on them, --count tries: nothing else is touched"
SOAK = "soak"
WEIGHTS = "weights"
WEIGHTS_TEXT = "a model of --size loaded by 1 and 8 nodes at once, against load_file from a mount"
SOAK_TEXT = (
    "epochs, evictions, pushes, restarts, --minutes long: nothing fails, nothing is left over"
)
FSX_TEXT = "every byte of reads checked while workers and proxies are killed, --minutes long"


def main() -> int:
    """Runs the named benchmarks. Exits with 2 for an unknown name, 1 if one cannot run here."""
    options = _parser().parse_args()
    benchmarks = {
        **BENCHMARKS,
        MOUNT: (_mount(options), MOUNT_TEXT),
        GC_SCHEDULES: (
            lambda scratch: collections.schedules(scratch, options.count, options.store),
            GC_SCHEDULES_TEXT,
        ),
        FSX: (
            lambda scratch: readcheck.check(scratch, options.minutes or readcheck.MINUTES),
            FSX_TEXT,
        ),
        RACES: (
            lambda scratch: races.root_races(scratch, options.count or races.TRIES),
            RACES_TEXT,
        ),
        WEIGHTS: (
            lambda scratch: weights.weights(scratch, options.size, quick=options.quick),
            WEIGHTS_TEXT,
        ),
        SOAK: (lambda scratch: soaks.soak(scratch, options.minutes or soaks.MINUTES), SOAK_TEXT),
    }
    if options.write_corpus:
        mountcorpus.write(options.write_corpus, _mount_options(options).shape)
        return 0
    if not options.names:
        for name, (_, text) in benchmarks.items():
            print(f"{name:16} {text}")
        return 0
    names = list(benchmarks) if options.names == ["all"] else options.names
    unknown = [name for name in names if name not in benchmarks]
    if unknown:
        print(f"unknown: {', '.join(unknown)}; known: {', '.join(benchmarks)}", file=sys.stderr)
        return 2
    os.umask(0o022)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # ends mounts and servers
    try:
        before = read_results(options.compare) if options.compare else []
    except LoadtestError as error:
        print(error, file=sys.stderr)
        return 2
    seen = []
    for name in names:
        with tempfile.TemporaryDirectory(prefix=f"lodefs-{name}-", dir=options.dir) as scratch:
            try:
                result = benchmarks[name][0](Path(scratch))
            except LoadtestError as error:
                print(error, file=sys.stderr)
                return 1
        print(result.json() if options.json else result.table(), flush=True)
        seen.append(result)
    return tell(changes(before, seen)) if options.compare else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./run bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="which ones; 'all' for all")
    parser.add_argument("--json", action="store_true", help="one JSON object a line")
    parser.add_argument("--compare", type=Path, metavar="OLD.json",
                        help="exit code 1 if a ratio is worse by over 10 %%")  # fmt: skip
    parser.add_argument("--dir", type=Path, help="where scratch files go (default: a new one)")
    parser.add_argument("--minutes", type=float, metavar="N",
                        help="how long fsx reads (default: 10), and a soak lasts (30)")  # fmt: skip
    parser.add_argument("--count", type=int, metavar="N",
                        help="how many schedules gc-schedules plays (10000; rgw: 300), or tries "
                             "of root-races (10000)")  # fmt: skip
    parser.add_argument("--store", choices=collections.SCHEDULES, default=collections.MEMORY,
                        help="where gc-schedules plays: in memory, or over a Ceph RGW")  # fmt: skip
    parser.add_argument("--size", type=_size, metavar="SIZE", default=weights.SIZE_BYTES,
                        help="of the model of weights (1GiB), which each node loads")  # fmt: skip
    group = parser.add_argument_group("mount")
    group.add_argument("--peer", action="append", default=[], type=_peer, metavar="NAME=DIR",
                       help="another mount that holds the corpus; may be repeated")  # fmt: skip
    group.add_argument("--picture", type=Path, metavar="FILE", help="draw the ratios (SVG)")
    group.add_argument("--quick", action="store_true", help="less data, one round")
    group.add_argument("--write-corpus", type=Path, metavar="DIR",
                       help="only write the files that peers are to show")  # fmt: skip
    return parser


def _peer(text: str) -> tuple[str, Path]:
    """Splits ``NAME=DIR``."""
    name, equals, folder = text.partition("=")
    if not (name and equals and folder) or name in ("native", "lodefs", "rclone"):
        raise argparse.ArgumentTypeError(f"{text}: not NAME=DIR with a name of its own")
    return name, Path(folder).absolute()


def _size(text: str) -> int:
    """Parses a number of bytes."""
    try:
        return parse_size(text)
    except InvalidInput as error:
        raise argparse.ArgumentTypeError(f"{text} {error}") from None


def _mount_options(options: argparse.Namespace) -> mountrates.Options:
    return mountrates.Options(dict(options.peer), options.picture, options.quick)


def _mount(options: argparse.Namespace) -> Benchmark:
    return lambda scratch: mountrates.mount(scratch, _mount_options(options))


if __name__ == "__main__":
    sys.exit(main())
