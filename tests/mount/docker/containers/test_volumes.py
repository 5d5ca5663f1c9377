"""Volumes as containers of a real dockerd see them, with the plugin as its users start it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from loadtests.services.containers import BIG, BIG_BYTES, REPO, SUMS, Containers
from loadtests.services.dockercalls import DockerCalls
from loadtests.services.dockerd import IMAGE
from tests.support.chunkstore.child_process import ChildError

pytestmark = [pytest.mark.docker, pytest.mark.fuse, pytest.mark.slow]


def test_a_container_reads_what_was_pushed(box: Containers) -> None:
    """Every byte in the container is that of the commit, without a download before."""
    volume = box.volume(REPO)
    assert box.run(volume, f"cd /data && sha256sum -c {SUMS}").count(": OK") == 3


def test_it_needs_no_rights(box: Containers) -> None:
    """A container without capabilities, and of another user, reads it."""
    volume = box.volume(REPO)
    script = f"grep CapEff /proc/self/status; cd /data && sha256sum -s -c {SUMS} && id -u"
    words = ("--cap-drop", "ALL", "--user", "4321:4321", "--security-opt", "no-new-privileges")
    cap_eff, uid = box.run(volume, script, *words).splitlines()
    assert int(cap_eff.split()[1], 16) == 0
    assert uid == "4321"


def test_a_container_cannot_write(box: Containers) -> None:
    """Writing, removing, renaming and changing modes all find a read-only file system."""
    volume = box.volume(REPO)
    script = f"""cd /data
    for act in 'touch new' 'rm {BIG}' 'mv {BIG} other' 'chmod 777 {BIG}' 'mkdir d'; do
      $act 2>&1 | grep -q 'Read-only file system' && echo refused
    done"""
    assert box.run(volume, script).split() == ["refused"] * 5


def test_two_containers_share_one_mount_and_the_last_releases_it(box: Containers) -> None:
    """There is one mount for both; it stays for the second when the first is gone."""
    volume = box.volume(REPO)
    first, second = box.start(volume), box.start(volume)
    assert len(box.node.mounts()) == 1
    box.remove(first)
    assert len(box.node.mounts()) == 1
    assert box.dockerd.docker("exec", second, "cat", "/data/labels/a.txt") == "rose"
    box.remove(second)
    assert box.node.until(lambda: not box.node.mounts())


def test_a_copy_out_of_a_running_container_leaves_its_mount(
    box: Containers, tmp_path: Path
) -> None:
    """docker cp mounts again under the container's mount ID: it keeps its own mount afterwards."""
    volume = box.volume(REPO)
    name = box.start(volume)
    box.dockerd.docker("cp", f"{name}:/data/labels/b.txt", tmp_path / "b.txt")
    assert (tmp_path / "b.txt").read_bytes() == b"tulip\n"
    assert len(box.node.mounts()) == 1
    assert box.dockerd.docker("exec", name, "cat", "/data/labels/b.txt") == "tulip"
    box.remove(name)
    assert box.node.until(lambda: not box.node.mounts())


def test_volumes_from_another_container(box: Containers) -> None:
    """A container that takes another's volumes shares its mount."""
    name = box.start(box.volume(REPO))
    words = ("run", "--rm", "--network", "none", "--volumes-from", name, IMAGE)
    assert box.dockerd.docker(*words, "cat", "/data/labels/a.txt") == "rose"
    assert len(box.node.mounts()) == 1


def test_a_volume_without_a_name_goes_with_its_container(box: Containers) -> None:
    """`docker run --rm --mount` with options and no source makes a volume and removes it."""
    plugin = DockerCalls(box.node.socket)
    before = plugin.volume_ls()
    mount = f"type=volume,target=/data,volume-driver={box.driver},volume-opt=repo={REPO}"
    words = ("run", "--rm", "--network", "none", "--mount", mount, IMAGE)
    assert box.dockerd.docker(*words, "cat", "/data/labels/a.txt") == "rose"
    assert plugin.volume_ls() == before


def test_a_directory_of_the_repository(box: Containers) -> None:
    """With path= only that directory is seen."""
    volume = box.volume(REPO, path="labels")
    assert box.run(volume, "ls /data").split() == ["a.txt", "b.txt"]


def test_inspect_tells_commit_size_files_mount_and_bytes_read(box: Containers, commit: str) -> None:
    """`docker volume inspect` shows what is in the volume, whether it is mounted, what was read."""
    volume = box.volume(REPO)
    status = box.status(volume)
    assert (status["repo"], status["commit"], status["files"]) == (REPO, commit, 4)
    assert status["size_bytes"] > BIG_BYTES
    assert (status["state"], status["references"]) == ("not mounted", 0)
    box.start(volume, f"cat /data/{BIG} > /dev/null; sleep 600")
    assert (box.status(volume)["state"], box.status(volume)["references"]) == ("mounted", 1)

    def all_is_counted() -> bool:
        read = box.status(volume)["read"]
        counted = sum(read[f"{source}_bytes"] for source in ("cache", "peers", "store"))
        return bool(counted >= BIG_BYTES or read["kernel_opens"])

    assert box.node.until(all_is_counted), box.status(volume)


@pytest.mark.parametrize("name", ["my-project_training.data", "a/b", "n" * 255, "v1.0-rc.1"])
def test_names_of_volumes(box: Containers, name: str) -> None:
    """Whatever dockerd takes as a name works: compose's, with a slash, of 255 bytes."""
    volume = box.volume(REPO, name)
    assert volume == name
    if "/" in name:  # -v takes a path for it
        mount = f"type=volume,source={name},target=/data"
        words = ("run", "--rm", "--network", "none", "--mount", mount, IMAGE)
        assert box.dockerd.docker(*words, "cat", "/data/labels/a.txt") == "rose"
    else:
        assert box.run(volume, "cat /data/labels/a.txt") == "rose"
    box.remove_volume(name)


def test_a_volume_in_use_is_not_removed(box: Containers) -> None:
    """`docker volume rm` is refused while a container has it, and works afterwards."""
    volume = box.volume(REPO)
    name = box.start(volume)
    with pytest.raises(ChildError, match="in use"):
        box.remove_volume(volume)
    assert box.dockerd.docker("exec", name, "cat", "/data/labels/a.txt") == "rose"
    box.remove(name)
    box.remove_volume(volume)
    assert volume not in DockerCalls(box.node.socket).volume_ls()


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"repo": "team/nobody"}, "team/nobody"),
        ({"repo": REPO, "commit": "no-such-branch"}, "no-such-branch"),
        ({"repo": REPO, "commit": "0" * 64}, "0" * 12),
        ({"repo": REPO, "path": "labels/none"}, "labels/none"),
        ({"repo": REPO, "path": BIG}, BIG),
        ({"repo": REPO, "colour": "blue"}, "colour"),
        ({"repo": REPO, "follow": "often"}, "follow"),
        ({"commit": "main"}, "repo"),
        ({"repo": REPO, "token_file": "/nowhere/token"}, "/nowhere/token"),
    ],
)
def test_what_is_wrong_is_told_when_the_volume_is_made(
    box: Containers, options: dict[str, str], told: str
) -> None:
    """A volume that cannot be is refused at once, in one line that names what is wrong."""
    done = box.try_volume(**options)
    assert done.returncode != 0
    assert told in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert "Traceback" not in done.stderr


def test_an_unknown_option_comes_with_the_known_ones(box: Containers) -> None:
    """Whoever misspells an option is told all that there are."""
    told = box.try_volume(repo=REPO, comit="main").stderr
    assert all(word in told for word in ("comit", "commit", "repo", "path", "follow", "token_file"))


def test_a_password_is_refused_and_found_nowhere(box: Containers) -> None:
    """XetHub's `pat` is refused with the safe way; it is in no log, file, list or argument."""
    secret = f"secret-{os.urandom(12).hex()}"
    done = box.try_volume("with-password", repo=REPO, username="anne", pat=secret)
    assert done.returncode != 0
    assert "token_file" in done.stderr
    assert_nowhere(box, secret, done.stderr)


def test_a_token_is_found_nowhere(box: Containers, token_file: Path) -> None:
    """A token that a volume refers to is in no log, file, list or argument."""
    volume = box.volume(REPO, token_file=str(token_file))
    name = box.start(volume)
    seen = [box.dockerd.docker("inspect", name), box.dockerd.docker("volume", "inspect", volume)]
    assert str(token_file) in seen[1]
    assert_nowhere(box, token_file.read_text().strip(), *seen)


def assert_nowhere(box: Containers, secret: str, *texts: str) -> None:
    """The secret is in none of the texts, logs, files of the plugin's state, nor in /proc."""
    places = {
        "what docker says": "\n".join(texts),
        "docker info": box.dockerd.docker("info"),
        "dockerd's log": box.dockerd.log,
        "logs of proxy and plugin": box.node.log,
    }
    for folder in (box.node.state, box.node.folder / "home"):
        for file in folder.rglob("*"):
            if not str(file).startswith(f"{box.node.state}/mounts/") and file.is_file():
                places[str(file)] = file.read_text("utf-8", "replace")
    own = str(os.getpid())
    for pid in (name for name in os.listdir("/proc") if name.isdigit() and name != own):
        for what in ("cmdline", "environ"):
            try:
                places[f"{what} of {pid}"] = Path(f"/proc/{pid}/{what}").read_text(
                    "utf-8", "replace"
                )
            except OSError:
                continue
    assert [place for place, text in places.items() if secret in text] == []
