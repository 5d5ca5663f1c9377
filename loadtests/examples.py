"""Runs the examples of docs/python.md, each with the packages that it names: ``./run examples``.

A block begins with ``python`` and the packages that it needs. Environments are made below
``~/.cache/lodefs-dev/examples`` and kept; torch is Debian's (python3-torch).
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
DOCUMENT = ROOT / "docs" / "python.md"
PACKAGES = ["pandas", "pyarrow", "polars", "duckdb", "zarr", "datasets", "webdataset"]
PACKAGES += ["universal_pathlib"]
