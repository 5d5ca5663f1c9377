"""One Kubernetes for all tests here, with lodefs installed by helm. They run where kubenode is
built already (`./run kube build`), or where LODEFS_TEST_KUBE=1 asks for it to be."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from loadtests.kube import binary
from loadtests.kube.demo import prepared
from loadtests.kube.installation import Installation
from loadtests.kube.node import Node, missing
from loadtests.services.containers import write_flowers
from tests.kube.readers import REPO, Readers
from tests.support.chunkstore.child_process import private_directory

NEXT_TAG = "next"


_is_asked = os.environ.get("LODEFS_TEST_KUBE") == "1"
if not _is_asked and (missing() or not binary.KUBENODE.binary.exists()):
    collect_ignore_glob = ["test_*.py"]  # not a part of this run
elif not _is_asked and not binary.PROVISIONER.binary.exists():
    collect_ignore_glob = ["test_provisioning.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.kube)
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(900))


@pytest.fixture(scope="session")
def kubenode() -> Path:
    """The binary; it is built only where that was asked for."""
    if lacking := missing():
        pytest.fail(f"LODEFS_TEST_KUBE=1, but there is no {lacking}")
    return binary.KUBENODE.build(print)


@dataclass(frozen=True)
class Dataset:
    """What is in REPO: the commit of the tag v1.0, and the files that were pushed."""

    commit: str
    source: Path


@pytest.fixture(scope="session")
def _made(kubenode: Path) -> Iterator[tuple[Installation, Dataset]]:
    with private_directory("lkt-") as folder, prepared(kubenode, folder, print) as made:
        source = folder / "flowers"
        source.mkdir()
        write_flowers(source)
        dataset = Dataset(made.push(source, REPO), source)
        made.lodefs("tag", REPO, "v1.0")
        tagged = ["ctr", "-n", "k8s.io", "images", "tag"]
        image = "docker.io/library/lodefs"
        assert made.node.run(*tagged, f"{image}:{made.tag}", f"{image}:{NEXT_TAG}").returncode == 0
        made.install()
        yield made, dataset


@pytest.fixture(scope="session")
def lodefs(_made: tuple[Installation, Dataset]) -> Installation:
    """lodefs on the node, installed by helm."""
    return _made[0]


@pytest.fixture(scope="session")
def dataset(_made: tuple[Installation, Dataset]) -> Dataset:
    """A dataset in its store."""
    return _made[1]


@pytest.fixture
def node(lodefs: Installation) -> Iterator[Node]:
    """The node; objects that a test has made in the namespace default go at its end."""
    yield lodefs.node
    kinds = "pods,jobs,persistentvolumeclaims,secrets,configmaps"
    lodefs.node.kubectl("delete", kinds, "--all", "--wait=true", "--timeout=120s")
    lodefs.node.kubectl("delete", "persistentvolumes", "--all", "--timeout=120s")


@pytest.fixture
def readers(node: Node, dataset: Dataset) -> Readers:
    """Pods that read and compare until the test ends."""
    return Readers(node)
