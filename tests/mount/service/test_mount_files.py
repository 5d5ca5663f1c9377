"""The files of a mount service."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from lodefs.chunkstore.errors import Corrupt, InUse, Unavailable, UnknownFormat
from lodefs.mount.helper import state_files
from lodefs.mount.helper.interface import ResolvedCommit, Source
from lodefs.mount.service.interface import MountClaim, User
from lodefs.mount.service.mount_files import MountFiles, decode_mount, encode_mount
from lodefs.mount.service.shared_mount import SharedMount, Usage, made, new_key, used

GOLDEN = Path(__file__).parents[2] / "golden" / "shared-mount-1.json"
COMMIT = "c1" * 32


def mount() -> SharedMount:
    source = Source(repo="vision/cats", path=b"train", gid=7)
    wanted = MountClaim(source=source, rev="main", pin_s=0)
    fresh = made("vision_cats-1", source, ResolvedCommit(COMMIT, 3, 3000), "boot", has_token=True)
    return used(fresh, Usage(User("v1", "/t1"), wanted, 1_700_000_000.0))


@pytest.fixture
def files(tmp_path: Path) -> MountFiles:
    return MountFiles(tmp_path / "state", tmp_path / "run", tmp_path / "mounts")


def test_golden() -> None:
    """A file of version 1 is read as it always was, and written the same."""
    assert decode_mount(GOLDEN.read_bytes()) == mount()
    assert encode_mount(mount()) == GOLDEN.read_bytes().rstrip(b"\n")


def test_bytes_that_are_wrong() -> None:
    """A changed byte is Corrupt, another version is named."""
    data = encode_mount(mount())
    with pytest.raises(Corrupt, match="digest"):
        decode_mount(data.replace(b"cats", b"dogs"))
    for bad in (b"", b"{}x", b"[]"):
        with pytest.raises(Corrupt):
            decode_mount(bad)
    with pytest.raises(UnknownFormat, match="version 9"):
        decode_mount(data.replace(b'"version":1', b'"version":9'))


def test_a_directory_in_a_files_way_harms_that_file_alone(
    files: MountFiles, tmp_path: Path
) -> None:
    """A service starts, and writes the others; of that one it says what is in the way."""
    files.close()
    (tmp_path / "state" / "mounts" / "vision_cats-1.json.new" / "x").mkdir(parents=True)
    again = MountFiles(tmp_path / "state", tmp_path / "run", tmp_path / "mounts")
    again.write(msgspec.structs.replace(mount(), key="other"))
    assert [one.key for one in again.load()] == ["other"]
    with pytest.raises(Unavailable, match=r"vision_cats-1\.json: Is a directory"):
        again.write(mount())
    again.close()


def test_a_damaged_file_is_put_aside(files: MountFiles, tmp_path: Path) -> None:
    """One damaged file does not touch the others, and is kept, to be looked at."""
    files.write(mount())
    folder = tmp_path / "state" / "mounts"
    (folder / "bad.json").write_bytes(b"{")
    other = msgspec.structs.replace(mount(), key="other")
    (folder / "renamed.json").write_bytes(encode_mount(other))
    assert files.load() == [mount()]
    assert sorted(path.name for path in folder.glob("*.damaged")) == [
        "bad.damaged",
        "renamed.damaged",
    ]


def test_files_are_private(files: MountFiles, tmp_path: Path) -> None:
    """Records and tokens are their owner's alone; a token that was lent is gone afterwards."""
    files.write(mount())
    files.keep_token("key", "s3cr3t")
    with files.lent("s3cr3t") as path:
        assert Path(path).read_text() == "s3cr3t"
    assert not Path(path).exists()
    with files.lent(None) as nothing:
        assert nothing == ""
    assert files.token("key") == "s3cr3t"
    for file in (*(tmp_path / "state").rglob("*"), *(tmp_path / "run").rglob("*")):
        assert file.stat().st_mode & 0o077 == 0
    files.remove("key")
    assert files.token("key") is None


def test_mounts_are_private(tmp_path: Path) -> None:
    """The root of the mounts is closed to other users, also one that an earlier lodefs left open:
    mounts allow everybody who gets there."""
    (tmp_path / "mounts").mkdir(mode=0o755)
    MountFiles(tmp_path / "state", tmp_path / "run", tmp_path / "mounts")
    assert (tmp_path / "mounts").stat().st_mode & 0o777 == 0o700


def test_tokens_of_keys_alike(files: MountFiles, tmp_path: Path) -> None:
    """Keys that differ after a dot alone have files of their own while they are written, and what a
    kill left unfinished is gone after a start."""
    tokens = tmp_path / "run" / "tokens"
    written = []

    def noted(path: str, flags: int) -> int:
        written.append(path)
        return os.open(path, flags, 0o600)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(state_files, "_private", noted)
        for key in ("a-1.x", "a-1.y"):
            files.keep_token(key, key)
    assert len(set(written)) == 2
    Path(written[0]).write_text("s3cr3t")
    files.close()
    MountFiles(tmp_path / "state", tmp_path / "run", tmp_path / "mounts")
    assert sorted(path.name for path in tokens.iterdir()) == ["a-1.x", "a-1.y"]


@pytest.mark.slow
def test_one_service_for_a_state(files: MountFiles, tmp_path: Path) -> None:
    """A second service on one state is InUse: locks are of a process, so it is another one."""
    script = (
        "import sys; from pathlib import Path; from lodefs.mount.service.mount_files import "
        "MountFiles; d = Path(sys.argv[1]); MountFiles(d / 'state', d / 'run', d / 'mounts')"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert InUse.__name__ in done.stderr
    assert "lodefs mounter" in done.stderr


def test_keys() -> None:
    """A key is a safe file name that tells the repository and the commit."""
    assert new_key("vision/cats", COMMIT, "ab") == "vision_cats-c1c1c1c1c1c1-ab"
    assert new_key("../x" * 40, COMMIT, "ab").startswith("_x")
