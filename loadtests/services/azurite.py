"""Azurite, Microsoft's emulator of Azure Storage, from npm: blobs alone, kept in memory."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.errors import LoadtestError
from loadtests.services import HOST, free_port, wait_for_port
from tests.support.chunkstore.child_process import Child

VERSION = "3.35.0"
INSTALL_TIMEOUT_S = 900.0
# The account of all emulators, which is public (Azurite's README, "Storage Accounts")
ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


def installed() -> Path:
    """Azurite's program, fetched by npm if it is not there. Raises: LoadtestError."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "lodefs-clients" / f"azurite-{VERSION}"
    program = folder / "node_modules" / ".bin" / "azurite-blob"
    if program.exists():
        return program
    if not shutil.which("npm"):
        raise LoadtestError("Azurite is a package of npm: install Node.js and npm")
    folder.mkdir(parents=True, exist_ok=True)
    print(f"azurite: installing {VERSION}", flush=True)
    command = ["npm", "install", "--no-fund", "--no-audit", "--prefix", str(folder)]
    done = subprocess.run(
        [*command, f"azurite@{VERSION}"], check=False, timeout=INSTALL_TIMEOUT_S, cwd=folder
    )
    if done.returncode or not program.exists():
        raise LoadtestError("npm could not install Azurite")
    return program


@contextmanager
def azurite() -> Iterator[dict[str, str]]:
    """A running Azurite; yields the environment that names its account."""
    program, port = installed(), free_port()
    argv = [str(program), "--blobHost", HOST, "--blobPort", str(port), "--inMemoryPersistence"]
    with Child([*argv, "--skipApiVersionCheck", "--disableTelemetry", "--silent"]) as child:
        if not wait_for_port(child, port):
            raise child.failed(f"does not listen on port {port}")
        parts = {
            "DefaultEndpointsProtocol": "http",
            "AccountName": ACCOUNT,
            "AccountKey": KEY,
            "BlobEndpoint": f"http://{HOST}:{port}/{ACCOUNT}",
        }
        text = ";".join(f"{name}={value}" for name, value in parts.items())
        yield {"AZURE_STORAGE_CONNECTION_STRING": text}
