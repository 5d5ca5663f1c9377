"""The real dockerd of tests: containers run, outlive it where they shall, and nothing is left."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from loadtests.services.dockerd import IMAGE, Dockerd
from loadtests.services.dockerd import dockerd as running_dockerd
from tests.support.chunkstore.child_process import ChildError
from tests.support.mount.mounts import alive

pytestmark = [pytest.mark.docker, pytest.mark.slow]


def test_a_container_runs_what_busybox_can(dockerd: Dockerd) -> None:
    """A container of the image runs a command, and its output comes back."""
    words = ("run", "--rm", "--network", "none", IMAGE, "echo", "as told")
    assert dockerd.docker(*words) == "as told"


def test_what_docker_refuses_is_told(dockerd: Dockerd) -> None:
    """A call that fails raises with docker's own words."""
    with pytest.raises(ChildError, match=r"(?i)no such volume"):
        dockerd.docker("volume", "inspect", "nobody")


def test_containers_outlive_dockerd_with_live_restore_and_nothing_outlives_its_end() -> None:
    """A container runs on while dockerd is killed and started; the end ends the container."""
    with running_dockerd(live_restore=True) as daemon:
        daemon.docker("run", "-d", "--name", "stays", "--network", "none", IMAGE, "sleep", "60")
        pid = daemon.docker("inspect", "--format", "{{.State.Pid}}", "stays")
        daemon.restart(signal.SIGKILL)
        assert daemon.docker("inspect", "--format", "{{.State.Pid}}", "stays") == pid
        daemon.end(signal.SIGKILL)  # nobody is there now who could stop the container in order
        directory = daemon.directory
    assert not alive(int(pid))
    assert not directory.exists()
    assert str(directory) not in Path("/proc/self/mountinfo").read_text()


def test_what_dockerd_has_forgotten_is_ended_and_nothing_else(dockerd: Dockerd) -> None:
    """A container that dockerd knows is no orphan, and runs on."""
    name = dockerd.docker("run", "-d", "--rm", "--network", "none", IMAGE, "sleep", "60")
    assert dockerd.end_orphans() == 0
    assert dockerd.docker("exec", name, "echo", "alive") == "alive"
    dockerd.docker("kill", name)


def test_a_plugin_has_a_name_only_while_it_is_lent(dockerd: Dockerd, tmp_path: Path) -> None:
    """dockerd looks for a driver at the socket lent to it, and its file is gone afterwards."""
    with dockerd.plugin(tmp_path / "plugin.sock") as name:
        link = Path(f"/run/docker/plugins/{name}.sock")
        assert os.readlink(link) == str(tmp_path / "plugin.sock")
    assert not os.path.lexists(link)
