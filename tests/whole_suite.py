"""``python -m tests.whole_suite WORDS``: runs pytest with these words, and then repeats alone what
failed, up to twice.

A test that fails and then passes alone is flaky. It does not fail the suite, but it is a defect,
often the product's: its first failure is printed in full at the end, and written to
``build/flaky.txt``. A test that fails three times fails the suite.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tests import failure_log

ROOT = Path(__file__).parents[1]
REPORT = ROOT / "build" / "flaky.txt"
REPEATS_MAX = 2
REPEATED_MAX = 30  # more failures than these have one cause, which repetition does not remove
TESTS_FAILED = 1  # pytest's exit code; higher ones say that it could not run


def run_suite(words: Sequence[str], folder: Path, report: Path) -> bool:
    """Whether all tests passed, some of them when they were repeated.

    Args:
        words: for pytest.
        folder: where pytest starts.
        report: the file that gets the first failures of flaky tests; removed if there are none.
    """
    report.unlink(missing_ok=True)
    code, failures = _pytest(words, folder)
    could_run = code == 0 or (code == TESTS_FAILED and bool(failures))
    left = list(failures)
    for _ in range(REPEATS_MAX if len(left) <= REPEATED_MAX else 0):
        left = [test for test in left if _pytest([test], folder)[0] != 0]
    flaky = {test: text for test, text in failures.items() if test not in left}
    if flaky:
        _tell(flaky, report)
    for test in left:
        print(f"FAILED {test}", flush=True)
    return could_run and not left


def _pytest(words: Sequence[str], folder: Path) -> tuple[int, dict[str, str]]:
    """pytest's exit code, and the first failure of each test that failed."""
    with tempfile.TemporaryDirectory(prefix="lodefs-suite-") as scratch:
        log = Path(scratch, "failures")
        plugin = ["-p", failure_log.__name__, failure_log.OPTION, str(log)]
        argv = [sys.executable, "-m", "pytest", *plugin, *words]
        code = subprocess.run(argv, cwd=folder, check=False).returncode
        return code, failure_log.read(log)


def _tell(flaky: dict[str, str], report: Path) -> None:
    lines = [f"{len(flaky)} flaky: failed among others, then passed alone"]
    for test, text in flaky.items():
        lines += ["", f"FLAKY {test}", text]
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text("\n".join(lines) + "\n")
    print("\n".join(["", *lines, "", f"written to {report}"]), flush=True)


if __name__ == "__main__":
    sys.exit(0 if run_suite(sys.argv[1:], ROOT, REPORT) else 1)
