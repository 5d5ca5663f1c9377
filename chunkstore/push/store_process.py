"""The beginning of each process that writes into a store for a proxy, and its answers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager

import msgspec

from lodefs.chunkstore.format.decoding import from_json
from lodefs.chunkstore.objects.interface import ObjectStore
from lodefs.chunkstore.objects.open_url import StoreOptions, open_objects
from lodefs.chunkstore.protocol.orders.store_place import StorePlace
from lodefs.chunkstore.system.processes import die_with_parent


@contextmanager
def store_of_parent() -> Iterator[tuple[ObjectStore, StorePlace]]:
    """Reads the first line of standard input, and opens the objects of the store for a block. The
    process ends with its parent, so a proxy that is killed leaves none behind."""
    die_with_parent(os.getppid())
    place = from_json(sys.stdin.buffer.readline(), StorePlace)
    options = StoreOptions(endpoint_url=place.endpoint_url, region=place.region)
    with closing(open_objects(place.store, options)) as objects:
        yield objects, place


def tell(answer: object) -> None:
    """Writes a structure as a line of JSON to standard output."""
    sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
    sys.stdout.buffer.flush()
