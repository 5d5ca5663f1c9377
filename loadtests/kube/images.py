"""Images for the node, made without a registry: lodefs, busybox, and the pause image."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

from loadtests.errors import LoadtestError
from loadtests.kube import configs
from loadtests.kube.binary import cache_directory
from tests.support.chunkstore.child_process import run

DEPLOY = Path(__file__).parents[2] / "deploy"
BUSYBOX = "/bin/busybox"
BOX = "docker.io/library/busybox:1.36"  # as in the examples
LODEFS = "docker.io/library/lodefs"
PROVISIONER = "lodefs.test/csi-provisioner:1"
BUILD_TIMEOUT_S = 600.0


def lodefs_image(out: Path, tag: str) -> Path:
    """The image of this checkout."""
    layers = cache_directory() / "layers"
    words = ["--cache", str(layers), "--name", LODEFS, "--tag", tag]
    run([DEPLOY / "images/build.sh", *words, out], timeout_s=BUILD_TIMEOUT_S)
    return out


def box_images(folder: Path) -> list[Path]:
    """busybox with links to all that it can do, and the pause image: busybox as well, asleep."""
    if not shutil.which(BUSYBOX):
        raise LoadtestError(f"{BUSYBOX} is missing; apt-get install busybox-static")
    root = folder / "busybox"
    for name in ("bin", "etc", "tmp"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin/busybox")
    listed = subprocess.run([BUSYBOX, "--list"], capture_output=True, check=True, text=True)
    for applet in set(listed.stdout.split()) - {"busybox"}:
        (root / "bin" / applet).symlink_to("busybox")
    (root / "etc/passwd").write_text("root:x:0:0:root:/:/bin/sh\n")
    shell, sleep = ["/bin/sh"], ["/bin/sleep", "1000000000"]
    return [
        _archive(folder / "box.tar", BOX, root, {"Cmd": shell}),
        _archive(folder / "pause.tar", configs.PAUSE_IMAGE, root, {"Cmd": sleep}),
    ]


def provisioner_image(binary: Path, folder: Path) -> Path:
    """The image of the external-provisioner."""
    root = folder / "provisioner"
    root.mkdir()
    shutil.copy(binary, root / "csi-provisioner")
    (root / "tmp").mkdir()
    start = {"Entrypoint": ["/csi-provisioner"]}
    return _archive(folder / "provisioner.tar", PROVISIONER, root, start)


def _archive(out: Path, name: str, root: Path, start: dict[str, list[str]]) -> Path:
    config = out.with_suffix(".json")
    config.write_text(json.dumps({**start, "Env": ["PATH=/bin"]}))
    run([sys.executable, DEPLOY / "images/archive.py", out, name, config, root])
    return out
