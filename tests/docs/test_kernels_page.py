"""docs/kernels.md: it has every feature of the kernel that a mount may do without."""

from __future__ import annotations

import re

import pytest

from lodefs.mount.kernel.features import VARIABLE, Feature
from tests.docs.pages import ROOT

PAGE = (ROOT / "docs" / "kernels.md").read_text()


@pytest.mark.parametrize("feature", Feature)
def test_each_feature_has_a_row(feature: Feature) -> None:
    """A row of the table begins with a version of Linux and names the feature."""
    assert re.search(rf"^\| \d\.\d+ \|.*`{feature}`", PAGE, re.MULTILINE)


def test_the_variable_is_named() -> None:
    """The page says how to do without a feature."""
    assert VARIABLE in PAGE
