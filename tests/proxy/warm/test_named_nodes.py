"""Which members of a cluster are meant by names of machines."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.proxy.warm.cluster_jobs import named

MEMBERS = ["n1.cluster:7441", "10.0.0.2:7441", "[fd00::3]:7441", "n4:7441"]


@pytest.mark.parametrize(
    ("names", "meant"),
    [
        (["n1"], [0]),
        (["n4", "n1.cluster"], [0, 3]),
        (["10.0.0.2", "fd00::3"], [1, 2]),
        (["n4:7441", "n4"], [3]),
    ],
)
def test_a_name_is_an_address_a_host_or_a_host_without_its_domain(
    names: list[str], meant: list[int]
) -> None:
    """In the order of the members."""
    assert named(names, MEMBERS) == [MEMBERS[number] for number in meant]


@pytest.mark.parametrize("name", ["n2", "10", "", "n1.other"])
def test_another_name_is_refused_with_those_that_there_are(name: str) -> None:
    """Warming too few nodes would not be noticed before the job runs."""
    with pytest.raises(InvalidInput, match=r"is not a node .*n1\.cluster:7441"):
        named(["n1", name], MEMBERS)


def test_a_proxy_alone_has_no_nodes_to_name() -> None:
    """It says so."""
    with pytest.raises(InvalidInput, match="which has none"):
        named(["n1"], [])
