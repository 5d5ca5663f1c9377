"""FileMembers: the members that a file lists, in the shape of Prometheus' file_sd.

``[{"targets": ["10.0.0.1:7441", "node2"], "labels": {"weight": "2"}}, ...]``
(https://prometheus.io/docs/prometheus/latest/configuration/configuration/#file_sd_config), as JSON
only. Other labels are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import InvalidInput
from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.system.watched_files import WatchedFiles
from lodefs.proxy.peers.membership.members import distinct, log, log_change
from lodefs.proxy.peers.membership.peer import Peer, parse_peer, parse_weight
from lodefs.proxy.runtime.thread_pools import Pool

REFRESH_S = 2.0
FILE_BYTES_MAX = 16 << 20


class _TargetGroup(msgspec.Struct):
    targets: list[str]
    labels: dict[str, str] = {}


class FileMembers:
    """The members in a file, which is looked at every two seconds."""

    def __init__(self, path: Path, disk: Pool) -> None:
        """Reads nothing yet: the first refresh does. ``disk`` runs what blocks."""
        none: tuple[Peer, ...] = ()
        self._file = WatchedFiles([path], lambda: read_members(path), log, initial=none)
        self._disk = disk

    def members(self) -> tuple[Peer, ...]:
        """As of Membership."""
        return self._file.value

    async def refresh(self) -> float:
        """As of Membership."""
        before = self._file.value
        if await self._disk.run(self._file.refresh) and self._file.value != before:
            log_change(before, self._file.value)
        return REFRESH_S


def read_members(path: Path) -> tuple[Peer, ...]:
    """The members that a file lists. InvalidInput, which names the file and what is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise InvalidInput(f"peers_file {path}: {error.strerror}") from error
    if len(data) > FILE_BYTES_MAX:
        raise InvalidInput(f"peers_file {path}: is larger than {FILE_BYTES_MAX >> 20} MiB")
    try:
        return distinct(_peers(from_json(data, list[_TargetGroup])))
    except InvalidInput as error:
        raise InvalidInput(f"peers_file {path}: {error}") from error


def _peers(groups: list[_TargetGroup]) -> Iterator[Peer]:
    for group in groups:
        label = group.labels.get("weight")
        for target in group.targets:
            peer = parse_peer(target)
            yield peer if label is None else Peer(peer.address, parse_weight(label, target))
