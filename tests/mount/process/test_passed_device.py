"""Mounts that a container's runtime makes and passes on, as ``apptainer --fusemount`` does."""

from __future__ import annotations

import os

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.kernel import passed_device
from tests.support.hpc.job_user import JobUser
from tests.support.mount.fake_proxy import FakeProxy


@pytest.mark.fuse
@pytest.mark.slow
def test_a_mount_that_the_runtime_has_made_is_served(user: JobUser, group_proxy: FakeProxy) -> None:
    """By a program outside of the container, which ends with it."""
    place = user.owned(user.home / "data")
    serve = user.lodefs("--proxy", group_proxy.address, "mount", "--foreground", "demo")
    runtime = [user.python, str(user.folder / "code/tests/support/hpc/fusemount.py")]
    command = f"cat {place}/a; touch {place}/new || wc -c < {place}/big; ls {place}/many | wc -l"
    code, out, err = user.run(*runtime, str(place), command, "--", *serve)
    assert out.split("hello")[-1] == "5000000\n5000\n", err
    assert "cannot touch" in err
    assert "served: 0" in err
    assert code == 0
    user.wait_for_end()


def test_a_descriptor_that_is_no_mount_is_refused() -> None:
    """It says what is wrong with it."""
    with open(os.devnull) as file, pytest.raises(InvalidInput, match="is not a mounted /dev/fuse"):
        passed_device.take(file.fileno())
    with pytest.raises(InvalidInput, match="is not open"):
        passed_device.take(987654)


@pytest.mark.parametrize("place", ["/dev/fd", "/dev/fd/", "/dev/fd/1/x", "/dev/fd/x", "/mnt"])
def test_other_places_are_directories(place: str) -> None:
    """Only what libfuse takes for a descriptor is one."""
    assert passed_device.passed(place) is None
    assert passed_device.passed("/dev/fd/12") == 12
