"""The wheel: what it puts beside other people's packages."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

SCRIPT = """
import sys
sys.path.insert(0, sys.argv[1])
import proxy, lodefs, lodefs.proxy, lodefs.chunkstore.format.names
print(proxy.__file__, lodefs.proxy.__file__, hasattr(proxy, "Proxy"))
"""


def pip(*words: str | Path) -> None:
    subprocess.run([sys.executable, "-m", "pip", "-q", *words], check=True, timeout=300)


def test_the_wheel_has_one_name_at_the_top(wheels: Path) -> None:
    """Nothing but lodefs is put into site-packages."""
    (own,) = wheels.glob("lodefs-*.whl")
    names = {name.partition("/")[0] for name in zipfile.ZipFile(own).namelist()}
    assert {name for name in names if not name.endswith(".dist-info")} == {"lodefs"}


def test_it_lives_beside_a_package_that_owns_a_folder_name(wheels: Path, tmp_path: Path) -> None:
    """PyPI's proxy.py has a package `proxy`: both are whole when both are installed."""
    (own,) = wheels.glob("lodefs-*.whl")
    place = tmp_path / "site"
    pip("install", "--no-deps", "--target", place, "proxy.py==2.4.10", own)
    command = [sys.executable, "-I", "-c", SCRIPT, str(place)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    theirs, ours, is_whole = done.stdout.split()
    assert Path(theirs) == place / "proxy" / "__init__.py"
    assert Path(ours) == place / "lodefs" / "proxy" / "__init__.py"
    assert is_whole == "True"
