"""archive.py OUT.tar NAME:TAG CONFIG.json DIR...: an image of one layer for each directory.

A docker archive (`docker save`), which `docker load`, `ctr images import`, `skopeo` and `crane`
take. Equal directories give equal bytes: sorted, owned by root, of the time SOURCE_DATE_EPOCH.
ARCHITECTURE says for which one it is [this machine's]. CONFIG.json is the "config" of the OCI image
specification. Needs Python's own library alone.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
import tarfile
from datetime import UTC, datetime
from pathlib import Path

ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
CHUNK_BYTES = 1 << 20


def write_layer(directory: Path, out: Path, time_s: int) -> str:
    """A layer of a directory's entries; its digest."""
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in sorted(directory.rglob("*")):
            entry = tar.gettarinfo(str(path), str(path.relative_to(directory)))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = ""
            entry.mtime = time_s
            if entry.islnk():  # a second name of one file: whole, so that the order does not matter
                entry.type, entry.size, entry.linkname = tarfile.REGTYPE, path.stat().st_size, ""
            if entry.isreg():
                with path.open("rb") as data:
                    tar.addfile(entry, data)
            else:
                tar.addfile(entry)
    digest = hashlib.sha256()
    with out.open("rb") as data:
        while chunk := data.read(CHUNK_BYTES):
            digest.update(chunk)
    return f"sha256:{digest.hexdigest()}"


def image_config(config: dict[str, object], digests: list[str], time_s: int) -> bytes:
    """The image's own description."""
    created = datetime.fromtimestamp(time_s, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    return json.dumps(
        {
            "architecture": os.environ.get("ARCHITECTURE")
            or ARCHITECTURES.get(os.uname().machine, os.uname().machine),
            "os": "linux",
            "created": created,
            "config": config,
            "rootfs": {"type": "layers", "diff_ids": digests},
            "history": [{"created": created, "created_by": "lodefs"} for _ in digests],
        },
        sort_keys=True,
    ).encode()


def write_archive(out: Path, name: str, config: dict[str, object], folders: list[Path]) -> None:
    """The whole archive, put into its place when it is complete."""
    time_s = int(os.environ.get("SOURCE_DATE_EPOCH", "0"))
    layers = [out.with_name(f".{out.name}.{i}") for i in range(len(folders))]
    partial = out.with_name(f".{out.name}.partial")
    try:
        digests = [write_layer(*pair, time_s) for pair in zip(folders, layers, strict=True)]
        described = image_config(config, digests, time_s)
        names = [f"{digest.removeprefix('sha256:')}.tar" for digest in digests]
        config_name = f"{hashlib.sha256(described).hexdigest()}.json"
        manifest = [{"Config": config_name, "RepoTags": [name], "Layers": names}]
        with tarfile.open(partial, "w", format=tarfile.PAX_FORMAT) as tar:
            for layer, layer_name in zip(layers, names, strict=True):
                entry = tarfile.TarInfo(layer_name)
                entry.size, entry.mtime = layer.stat().st_size, time_s
                with layer.open("rb") as data:
                    tar.addfile(entry, data)
            for small, data in ((config_name, described), ("manifest.json", _json(manifest))):
                entry = tarfile.TarInfo(small)
                entry.size, entry.mtime = len(data), time_s
                tar.addfile(entry, io.BytesIO(data))
        partial.rename(out)
    finally:
        for path in (*layers, partial):
            path.unlink(missing_ok=True)


def _json(value: object) -> bytes:
    return json.dumps(value, sort_keys=True).encode()


def main() -> None:
    """See the module."""
    if len(sys.argv) < 5:
        raise SystemExit(__doc__)
    out, name, config, *folders = sys.argv[1:]
    described = json.loads(Path(config).read_text())
    write_archive(Path(out), name, described, [Path(folder) for folder in folders])


if __name__ == "__main__":
    main()
