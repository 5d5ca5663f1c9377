"""Gives the mount service the mounts and references that an older plugin has made, once.

An older plugin mounted each volume on a directory of its own, and wrote the references into the
volume's file. Running containers read on through those mounts. The service now owns them, and
unmounts them after their last user.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import LodefsError, NotFound
from lodefs.mount.docker.volume import Volume, about
from lodefs.mount.docker.volumes import ReadToken, Volumes, wanted_of
from lodefs.mount.helper.interface import ResolvedCommit
from lodefs.mount.service.interface import DOCKER, MountService, User

TIMEOUT_S = 10.0
_NOBODY = "earlier"  # a temporary ID for a mount without references
_log = logging.getLogger("lodefs.docker")


def hand_over(
    volumes: Volumes, service: MountService, folder: Path, boot: str, read_token: ReadToken
) -> bool:
    """Makes the service hold the mounts in ``folder``, and the references of this boot, and removes
    both from the volumes' files. Returns False if it must be repeated."""
    is_done, there = True, set()
    try:
        there = set(os.listdir(folder))
    except FileNotFoundError:
        pass
    except OSError as error:
        _log.warning("%s: earlier mounts are not taken over: %s", folder, error.strerror)
        is_done = False
    for volume in volumes.records():
        if isinstance(volume, Volume) and (volume.boot or volume.key in there):
            try:
                with volumes.using(volume.key, alone=True):
                    _hand_over(volume, volumes, service, str(folder / volume.key), boot, read_token)
            except LodefsError as error:
                told = "volume %s: its earlier mount is not taken over: %s"
                _log.warning(told, volume.name, error, extra=about(volume.name))
                is_done = False
    return is_done


def _hand_over(
    volume: Volume,
    volumes: Volumes,
    service: MountService,
    place: str,
    boot: str,
    read_token: ReadToken,
) -> None:
    held = {one.place for one in service.holdings(DOCKER, volume.name, TIMEOUT_S)}
    references = volume.references if volume.boot == boot else {}
    if references or place not in held:
        source = volume.options.source
        wanted, token = wanted_of(source, volume.commit), read_token(source)
        found = ResolvedCommit(volume.commit, volume.files, volume.size_bytes)
        nobody = User(volume.name, _NOBODY, driver=DOCKER)
        with suppress(NotFound):  # it died with its processes, and no container has it
            service.adopt(nobody, wanted, token, place, found, TIMEOUT_S)
            for mount_id, reference in references.items():
                user = User(volume.name, mount_id, driver=DOCKER)
                for _ in range(reference.count):
                    service.adopt(user, wanted, token, place, found, TIMEOUT_S)
        service.release(nobody, TIMEOUT_S)
        if references:
            _log.info("volume %s: the mount service now owns its mount", volume.name)
    volumes.write(
        msgspec.structs.replace(
            volume, boot="", references={}, pinned_until_s=0.0, pin_tried_at_s=0.0, pin_error=""
        )
    )
