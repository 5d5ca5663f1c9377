"""The proxies of other stores that services.sh ends: root's own, by their title."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "deploy/services.sh"
NOBODY = 65534
TIMEOUT_S = 60.0


@pytest.mark.parametrize(("user", "is_ended"), [(0, True), (NOBODY, False)])
def test_only_proxies_of_root_are_ended(tmp_path: Path, user: int, is_ended: bool) -> None:
    """A user's process that has the number of one, and calls itself so, is left alone."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to become another user")
    proxy = tmp_path / "proxy-1"
    proxy.mkdir()
    words = ["sh", "-c", "read -r line", str(proxy / "sock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, user=user) as process:
        (proxy / "pid").write_text(f"{process.pid}\n")
        found = re.search(
            r"^end_proxies\(\) \{$.*?^\}$", SCRIPT.read_text(), re.MULTILINE | re.DOTALL
        )
        assert found is not None
        program = f"proxies={tmp_path} proxy_end_timeout_s=1\n{found[0]}\nend_proxies"
        subprocess.run(["sh", "-euc", program], check=True, timeout=TIMEOUT_S)
        process.communicate(b"\n", timeout=TIMEOUT_S)
    assert (process.returncode != 0) == is_ended
