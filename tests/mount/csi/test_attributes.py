"""What volumes ask for."""

from __future__ import annotations

import pytest

from lodefs.chunkstore.errors import InvalidInput
from lodefs.mount.csi.attributes import VALID, parse_secrets, parse_volume
from lodefs.mount.csi.capabilities import check_capability
from lodefs.mount.csi.generated import csi_pb2 as pb
from lodefs.mount.service.interface import MountClaim, Source
from tests.support.csi.kubelet import MODE, capability

REPO = {"repo": "vision/cats"}


def test_all_attributes() -> None:
    """Each attribute and mount option has its place in what is wanted."""
    options = parse_volume(
        {
            **REPO,
            "commit": "v1.0",
            "path": "train/images",
            "store": "s3://bucket/prefix?region=eu-1",
            "cachePin": "12h",
            "mountOptions": "uid=1000, mode=0550 ,noexec",
            "csi.storage.k8s.io/pod.name": "trainer-0",
            "storage.kubernetes.io/csiProvisionerIdentity": "x",
        },
        ["ro", "gid=5"],
        "2000",
    )
    source = Source(
        repo="vision/cats",
        store="s3://bucket/prefix?region=eu-1",
        path=b"train/images",
        uid=1000,
        gid=2000,
        mode=0o550,
    )
    assert options.wanted == MountClaim(source=source, rev="v1.0", pin_s=12 * 3600)
    assert options.noexec


def test_a_git_repository() -> None:
    """The URL of a Git repository is a repository of lodefs, at an id or a name of Git."""
    url = {"repo": "https://host/org/cats.git"}
    for given, rev in (
        ({"commit": "3f1c9a2" * 5 + "abcde"}, "git:" + "3f1c9a2" * 5 + "abcde"),
        ({"ref": "feature/x"}, "git:feature+x"),
        ({}, "git:HEAD"),
    ):
        wanted = parse_volume({**url, **given}).wanted
        assert (wanted.source.repo, wanted.rev) == ("git/host/org/cats.git", rev)
    for wrong, said in (
        ({**url, "commit": "main"}, "ref names a branch"),
        ({**url, "ref": "a", "commit": "3f1c9a2"}, "not both"),
        ({**url, "ref": "--exec=x"}, "not a revision of Git"),
        ({**url, "write": "true"}, "not for a Git repository"),
        ({**REPO, "ref": "main"}, "for the URL of a Git repository"),
        ({"repo": "https://me:hunter2@host/x"}, "no password"),
    ):
        with pytest.raises(InvalidInput, match=said) as caught:
            parse_volume(wrong)
        assert "hunter2" not in str(caught.value)


def test_least_attributes() -> None:
    """A repository is enough: the root of its main branch."""
    assert parse_volume(REPO).wanted == MountClaim(source=Source(repo="vision/cats"), rev="main")
    assert parse_volume({**REPO, "cachePin": "true"}).wanted.pin_s == 0
    assert parse_volume({**REPO, "cachePin": "false"}).wanted.pin_s is None


@pytest.mark.parametrize(
    ("attributes", "named"),
    [
        ({}, "repo is missing"),
        ({"repo": ""}, "repo is missing"),
        ({"repo": "../etc"}, "volumeAttributes repo"),
        ({**REPO, "commit": "a..b~x"}, "volumeAttributes commit"),
        ({**REPO, "path": "../../etc"}, "volumeAttributes path"),
        ({**REPO, "store": "http://x"}, "volumeAttributes store"),
        ({**REPO, "store": "s3://key:hunter2@bucket"}, "volumeAttributes store"),
        ({**REPO, "store": "s3://b?secret=hunter2"}, "volumeAttributes store"),
        ({**REPO, "cachePin": "soon"}, "volumeAttributes cachePin"),
        ({**REPO, "cachePin": "99999d"}, "volumeAttributes cachePin"),
        ({**REPO, "token": "hunter2"}, "nodePublishSecretRef"),
        ({**REPO, "Commit": "main"}, "'Commit'"),
        ({**REPO, "mountOptions": "rw"}, "read-only"),
        ({**REPO, "mountOptions": "uid=me"}, "mount option uid"),
        ({**REPO, "mountOptions": "mode=0777"}, "mount option mode"),
        ({**REPO, "mountOptions": "compress"}, "'compress'"),
    ],
)
def test_mistakes_are_named(attributes: dict[str, str], named: str) -> None:
    """A mistake is InvalidInput that names the field and what there is, and tells no secret."""
    with pytest.raises(InvalidInput) as error:
        parse_volume(attributes)
    assert named in str(error.value)
    assert all(name in str(error.value) for name in VALID)
    assert "hunter2" not in str(error.value)


def test_all_mistakes_at_once() -> None:
    """Who makes three mistakes hears of all three."""
    with pytest.raises(InvalidInput) as error:
        parse_volume({"cachePin": "x", "mountOptions": "rw"}, ["gid=y"])
    for named in ("repo", "cachePin", "rw", "gid"):
        assert named in str(error.value)


def test_tokens() -> None:
    """A Secret has one key; what is no token is refused without being repeated."""
    assert parse_secrets({}) == (None, {})
    assert parse_secrets({"token": " s3cr3t\n"}).token == "s3cr3t"
    for bad in ({"token": ""}, {"token": "hunter2 x"}, {"token": "hunter2é"}, {"pat": "hunter2"}):
        with pytest.raises(InvalidInput, match="secrets") as error:
            parse_secrets(bad)
        assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("mode", MODE.Mode.values())
def test_access_modes(mode: int) -> None:
    """Modes that read are fine; others are refused by name, unless the pod says that it reads."""
    name = MODE.Mode.Name(mode)
    if name.endswith("READER_ONLY"):
        check_capability(capability(mode))
        return
    with pytest.raises(InvalidInput, match="access_mode") as error:
        check_capability(capability(mode))
    if name != "UNKNOWN":
        assert name in str(error.value)
        check_capability(capability(mode), read_only=True)


def test_other_capabilities() -> None:
    """A block device, another file system and nothing at all are refused."""
    block = pb.VolumeCapability(
        block=pb.VolumeCapability.BlockVolume(),
        access_mode=MODE(mode=MODE.MULTI_NODE_READER_ONLY),
    )
    ext4 = capability()
    ext4.mount.fs_type = "ext4"
    for bad, named in ((block, "block"), (ext4, "ext4"), (pb.VolumeCapability(), "access_type")):
        with pytest.raises(InvalidInput, match=named):
            check_capability(bad, read_only=True)
