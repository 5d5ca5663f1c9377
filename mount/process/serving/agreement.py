"""The agreement of a mount with the kernel at the start, and the decision on passthrough."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import msgspec

from lodefs.chunkstore.errors import LodefsError
from lodefs.chunkstore.nodecache.layout import FLAT_DIR
from lodefs.chunkstore.protocol.connection import parse_address
from lodefs.chunkstore.protocol.read_client import Client
from lodefs.mount.fs import passthrough
from lodefs.mount.kernel import device, features
from lodefs.mount.kernel.session import Session
from lodefs.mount.mount_spec import Job
from lodefs.mount.options import MountOptions
from lodefs.mount.read import memory_fit

ASK_TIMEOUT_S = 5.0


def passthrough_objection(job: Job) -> str | None:
    """Returns the reason why the kernel must not read complete files of the cache by itself; None
    if it may."""
    options = job.options
    fits = memory_fit.fits(job.snapshot.size_bytes, memory_fit.total_bytes())
    return passthrough.objection(
        options.passthrough, job.snapshot, lambda: cache_dir(options), fits_memory=fits
    )


def agree(fd: int, job: Job, objection: str | None, log: Callable[[str], None]) -> Session:
    """Answers INIT. Returns the agreement, and the reason if there is no passthrough."""
    options = job.options
    session = device.handshake(fd, passthrough=objection is None, without=options.without)
    if options.without:
        left_out = ", ".join(sorted(options.without))
        log(f"{options.mountpoint}: {features.VARIABLE} disables {left_out}")
    if session.passthrough:
        return session
    reason = objection or (
        "the kernel does not offer it (Linux 6.9 or newer, CONFIG_FUSE_PASSTHROUGH)"
    )
    if options.passthrough != "off":
        log(f"{options.mountpoint}: no passthrough: {reason}")
    return msgspec.structs.replace(session, objection=reason)


def cache_dir(options: MountOptions) -> Path | None:
    """Returns the directory of the node's cache; None if the proxy does not tell it, or this
    process cannot read it."""
    address = parse_address(options.proxy)
    if not address.path:
        return None
    client = Client(address, timeout_s=ASK_TIMEOUT_S)
    try:
        place = client.cache_place()
    except LodefsError:
        return None
    finally:
        client.close()
    directory = Path(os.fsdecode(place.directory))
    return directory if os.access(directory / FLAT_DIR, os.R_OK | os.X_OK) else None
