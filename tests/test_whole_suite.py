"""The suite repeats what failed."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests import whole_suite

COUNTS = """
from pathlib import Path

def nth():
    count = Path(__file__).with_suffix(".count")
    seen = int(count.read_text()) if count.exists() else 0
    count.write_text(str(seen + 1))
    return seen + 1
"""


@pytest.fixture
def suite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a configuration of its own."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    monkeypatch.setenv("PYTHONPATH", str(whole_suite.ROOT))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # they take most of a small run
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin")
    return tmp_path


def _run(suite: Path, body: str, *words: str) -> bool:
    (suite / "test_it.py").write_text(COUNTS + body)
    return whole_suite.run_suite([*words, "test_it.py"], suite, suite / "flaky.txt")


@pytest.mark.parametrize("words", [(), ("-n", "2")])
def test_a_flaky_test_passes_and_is_told_in_full(
    suite: Path, words: tuple[str, ...], capfd: pytest.CaptureFixture[str]
) -> None:
    """A test that passes at the second repetition does not fail the suite; its first failure is
    printed and written to the report, with what the test had printed."""
    body = "def test_a():\n    n = nth()\n    print('spoke', n)\n    assert n == 3, f'was {n}'\n"
    assert _run(suite, body, *words)
    report = (suite / "flaky.txt").read_text()
    assert "FLAKY test_it.py::test_a" in report
    assert "was 1" in report
    assert "spoke 1" in report
    assert "was 2" not in report
    assert report in capfd.readouterr().out


def test_what_fails_three_times_fails(suite: Path) -> None:
    """It is not called flaky, and is tried three times in all."""
    assert not _run(suite, "def test_a():\n    assert not nth()\n")
    assert (suite / "test_it.count").read_text() == "3"
    assert not (suite / "flaky.txt").exists()


def test_a_failing_teardown_is_a_failure(suite: Path) -> None:
    """A fixture that fails after its test fails the suite, too."""
    fixture = "import pytest\n@pytest.fixture\ndef it():\n    yield\n    assert not nth()\n"
    assert not _run(suite, fixture + "def test_a(it):\n    pass\n")


@pytest.mark.parametrize("body", ["import no_such_module\n", "x = 1\n"])
def test_what_cannot_be_run_fails(suite: Path, body: str) -> None:
    """A module that cannot be imported, and a run without any test, are failures."""
    assert not _run(suite, body)


def test_tests_with_one_id_are_an_error(suite: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """xdist would run one of them and be silent about the others."""
    monkeypatch.setenv("PYTEST_PLUGINS", "xdist.plugin,tests.workers")
    body = "def pytest_itemcollected(item):\n    item._id = item.parent.id.child('test_a')\n"
    (suite / "conftest.py").write_text(body)
    assert not _run(suite, "def test_a():\n    pass\ndef test_b():\n    pass\n")
    (suite / "conftest.py").unlink()
    assert _run(suite, "def test_a():\n    pass\ndef test_b():\n    pass\n")


def test_many_failures_are_not_repeated(suite: Path) -> None:
    """If more tests fail than can be flaky, the suite fails without repeating them."""
    count = whole_suite.REPEATED_MAX + 1
    body = f"import pytest\n@pytest.mark.parametrize('n', range({count}))\n"
    assert not _run(suite, body + "def test_a(n):\n    assert not nth()\n")
    assert (suite / "test_it.count").read_text() == str(count)
