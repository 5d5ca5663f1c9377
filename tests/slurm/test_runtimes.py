"""Containers of real runtimes in jobs, without privilege: Charliecloud and rootless Podman."""

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


@pytest.mark.parametrize("by", ["option", "run"])
def test_a_container_of_rootless_podman_reads_a_dataset(
    cluster: Cluster, dataset: Dataset, image: Path, by: str
) -> None:
    """Bound into it, from the job's option; and from `lodefs run` inside of `podman unshare`. The
    runtime is runc: crun refuses machines with both versions of control groups."""
    home = cluster.folder / "jobs" / f"podman-{by}"
    place = dataset.directory if by == "option" else f"{home}/cats"
    cluster.output("mkdir", "-p", home, "--mode=700")
    cluster.output("mkdir", home / "run", "--mode=700")
    cluster.output("cp", "-r", image, home / "image")  # Podman writes into it
    inside = "cat /data/version; touch /data/x"
    podman = "podman --runtime=runc run --rm --network=none --ulimit=nofile=1024:1024 "
    podman += f"--volume={place}:/data:ro --rootfs {home}/image sh -c '{inside}'"
    if by == "run":
        podman = f"podman unshare {LODEFS} run {REPO}@main:{place} -- {podman}"
    env = ("env", f"HOME={home}", f"XDG_RUNTIME_DIR={home}/run")
    option = [dataset.option] if by == "option" else []
    script = f"{podman}; podman system migrate"  # which ends the process that it leaves
    done = cluster.call("srun", *option, *env, "sh", "-c", script)
    assert done.stdout.strip() == dataset.text, done.stderr
    assert "Read-only file system" in done.stderr
