"""``lodefs profile``."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import unquote_to_bytes

from lodefs.cli import options as cli
from lodefs.cli import text
from lodefs.cli.parsed_type import FiniteRange, UntouchedPath
from lodefs.cli.progress_bars import show_progress
from lodefs.settings.session import Session

if TYPE_CHECKING:
    from lodefs.job_profile.profile import Profile

OPERATIONS_SHOWN_MAX = 6
_LAYERS = {
    "store": "the store",
    "peers": "other nodes",
    "cache disk": "the cache's disk",
    "cpu": "proxy and workers",
    "job": "the job itself",
}


@cli.command("lodefs profile /mnt/flickr30k", "lodefs profile . --seconds 10 --json")
def profile(
    session: Session,
    directory: str = cli.argument("DIR", type=UntouchedPath()),
    seconds: float = cli.option(
        "How long to watch [30]; Ctrl-C ends it early and shows what was seen.",
        default=30.0,
        type=FiniteRange(min=0.1, max=3600.0),
        metavar="S",
    ),
    as_json: bool = cli.JSON,
) -> None:
    """Show what a job does on the mount that contains DIR, and what it waits for.

    It shows operations, sizes and order of reads, the slowest files, and the share of waiting that
    each layer causes (the store, other nodes, the cache's disk, proxy and workers, or the job
    itself), with advice. It watches the requests of the mount, which keeps working and traces
    requests only during this time, and the threads of its readers. Files that the kernel reads by
    itself (passthrough) are counted when they are opened; waiting for them is waiting for the
    cache's disk. Only the owner of a mount may run it.
    """
    import msgspec

    from lodefs.job_profile.profile import profile as watched

    with show_progress() as progress:
        progress.phase = f"watching for {seconds:g} s"
        found = watched(directory, seconds, session.environment.get("LODEFS_TOKEN"))
    if as_json:
        cli.write_json(msgspec.to_builtins(found))
    else:
        for line in lines(found):
            cli.write_line(line)


def lines(found: Profile) -> list[str]:
    """Returns the profile as lines for people."""
    place = text.escaped(unquote_to_bytes(found.mountpoint))
    shown = [f"{place}  {found.repo}@{found.commit[:12]}  {found.seconds:.1f} s", ""]
    shown += [f"=> {text.escaped(one)}" for one in found.advice]
    shown += ["", "waiting"]
    for layer, share in found.waiting.items():
        bar = "█" * round(40 * share)
        shown.append(f"  {_LAYERS[layer]:<20}{100 * share:5.1f} %  {bar}".rstrip())
    shown += ["", f"{'operation':<16}{'requests':>10}{'mean ms':>10}{'errors':>8}"]
    for one in found.operations[:OPERATIONS_SHOWN_MAX]:
        mean_ms = 1000 * one.seconds / one.requests
        shown.append(f"  {one.operation:<14}{one.requests:>10,}{mean_ms:>10.2f}{one.errors:>8,}")
    if found.lost_requests:
        shown.append(f"  {found.lost_requests:,} more requests came too fast to be traced")
    return [*shown, *_reads(found)]


def _reads(found: Profile) -> list[str]:
    reads = found.reads
    if not reads.reads:
        return []
    files = text.count(reads.files, "file")
    order = f"{100 * reads.sequential_share:.0f} % in order"
    shown = ["", f"reads: {text.size(reads.read_bytes)} of {files}, {order}"]
    sizes = [f"{n:,} {'' if size == 'larger' else 'to '}{size}" for size, n in reads.sizes.items()]
    shown.append(f"  {', '.join(one for one in sizes if not one.startswith('0 '))}")
    shown += ["", "slowest files"]
    for file in found.slowest:
        path = text.escaped(unquote_to_bytes(file.path)) if file.path else f"inode {file.ino}"
        what = f"{file.seconds:8.2f} s  {text.size(file.read_bytes):>10}"
        shown.append(f"  {what}  {_LAYERS[file.layer]:<18}  {path}")
    return shown
