"""Containers of a real runtime in jobs: Charliecloud, which needs no privilege."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from loadtests.slurm.cluster import LODEFS, Cluster
from tests.slurm.dataset import REPO, Dataset

_FOLDERS = ("bin", "data", "dev", "etc", "home", "proc", "sys", "tmp", "usr", "var", "run", "root")


@pytest.fixture(scope="session")
def image(dataset: Dataset) -> Path:
    """A container's directory, with busybox alone."""
    place = dataset.folder / "image"
    for name in _FOLDERS:
        (place / name).mkdir(parents=True)
    for name in ("hosts", "resolv.conf", "passwd", "group"):
        (place / "etc" / name).touch()
    busybox = shutil.which("busybox")
    assert busybox is not None, "busybox-static is missing"
    shutil.copy(busybox, place / "bin/busybox")
    for name in ("sh", "cat", "touch"):
        (place / "bin" / name).symlink_to("busybox")
    return place


@pytest.mark.parametrize("by", ["option", "run"])
def test_a_container_of_charliecloud_reads_a_dataset(
    cluster: Cluster, dataset: Dataset, image: Path, by: str
) -> None:
    """Bound into it, from the job's option as well as from ``lodefs run``."""
    place = dataset.directory if by == "option" else f"{cluster.folder}/jobs/run-cats"
    script = "cat /data/version; touch /data/x"
    inside: list[str | Path] = ["ch-run", f"--bind={place}:/data", image, "--", "sh", "-c", script]
    if by == "option":
        done = cluster.call("srun", dataset.option, *inside)
    else:
        Path(place).mkdir(mode=0o777)
        Path(place).chmod(0o777)
        done = cluster.call("srun", LODEFS, "run", f"{REPO}@main:{place}", "--", *inside)
    assert done.stdout.strip() == dataset.text, done.stderr
    assert "Read-only file system" in done.stderr
