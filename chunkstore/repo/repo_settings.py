"""The settings of a repository: a log of put-if-absent objects, like a ref."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace

from lodefs.chunkstore.errors import AlreadyExists, Corrupt
from lodefs.chunkstore.format import keys
from lodefs.chunkstore.format.names import check_repo
from lodefs.chunkstore.format.repo_settings import (
    SIZE_BYTES_MAX,
    RepoSettings,
    decode_settings,
    encode_settings,
)
from lodefs.chunkstore.objects.interface import ObjectStore, exists, read_whole
from lodefs.chunkstore.repo.gallop import last_of_row


class SettingsLog:
    """The log of one repository. Raises: Corrupt, UnknownFormat; what the store raises."""

    def __init__(
        self, objects: ObjectStore, repo: str, clock: Callable[[], float] = time.time
    ) -> None:
        self._objects = objects
        self._repo = check_repo(repo)
        self._clock = clock

    def newest(self) -> RepoSettings:
        """Returns the current settings by a list; one request if nothing was ever set."""
        return self.entry(self._listed())

    def surely_newest(self, known: int = -1) -> RepoSettings:
        """Returns the current settings even if a list lacks entries. It checks for the entry after
        the one that the list shows, or after ``known``, which must exist, or for the first. Takes
        one more request."""
        return self.entry(last_of_row(self._has, max(self._listed(), known)))

    def entry(self, sequence: int) -> RepoSettings:
        """Returns one entry; the one before the first sets nothing."""
        if sequence < 0:
            return RepoSettings()
        key = keys.settings_entry(self._repo, sequence)
        data = read_whole(self._objects, key, SIZE_BYTES_MAX).data
        try:
            return decode_settings(data, self._repo, sequence, key)
        except Corrupt as error:
            raise Corrupt(f"{error} (`lodefs repair`)") from error

    def change(self, change: Callable[[RepoSettings], RepoSettings]) -> RepoSettings:
        """Puts what ``change`` makes of the newest entry as the next entry, and returns it. Puts
        nothing if that is no change. It calls ``change`` again if another writer was faster."""
        known = -1
        while True:
            now = self.surely_newest(known)
            wanted = change(now)
            if wanted == now:
                return now
            wanted = replace(wanted, sequence=now.sequence + 1, time_s=int(self._clock()))
            key = keys.settings_entry(self._repo, wanted.sequence)
            try:
                self._objects.put(key, [encode_settings(self._repo, wanted)], if_absent=True)
            except AlreadyExists:
                known = wanted.sequence  # even if lists lack it
                continue
            return wanted

    def restore(self, sequence: int) -> None:
        """Overwrites a damaged entry with one that sets nothing. With it, a deletion or policy may
        be lost. For repairs only."""
        nothing = RepoSettings(sequence, int(self._clock()), may_lack_history=True)
        key = keys.settings_entry(self._repo, sequence)
        self._objects.put(key, [encode_settings(self._repo, nothing)])

    def _listed(self) -> int:
        prefix = keys.settings(self._repo)
        newest = next(iter(self._objects.list(prefix, limit=1)), None)
        return -1 if newest is None else keys.settings_sequence(newest.key)

    def _has(self, sequence: int) -> bool:
        return exists(self._objects, keys.settings_entry(self._repo, sequence))
