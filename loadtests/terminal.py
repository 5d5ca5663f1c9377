"""``python -m loadtests.terminal FILE``: the first minute of README.md as a picture (SVG).

The commands under its heading "Five commands" are run one after the other on a dataset of 10,000
generated images, and the picture shows what they print, from the first push to the last listing.
Only the name of the directory is replaced.
"""

from __future__ import annotations

import os
import random
import re
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple
from xml.sax.saxutils import escape

ROOT = Path(__file__).parents[1]
HEADING = "Five commands"
HOME = "/home/ada"
ENDING_TIMEOUT_S = 60
IMAGES = 10_000
IMAGE_BYTES = (20_000, 80_000)

WIDTH, MARGIN, LINE_HEIGHT, SIZE = 860, 20, 17, 12
COLOURS = {"page": "#0d1117", "text": "#c9d1d9", "typed": "#ffffff", "prompt": "#3fb950"}
_COMMENT = re.compile(r"\s+# .*$")


class Line(NamedTuple):
    """A line of a terminal. ``is_typed``: it is a command, and a prompt stands before it."""

    text: str
    is_typed: bool


def commands_of(document: str) -> list[str]:
    """The commands under the heading, without their comments."""
    part = document.partition(f"\n## {HEADING}\n")[2].partition("\n## ")[0]
    lines = part.partition("```sh\n")[2].partition("```")[0].splitlines()
    return [_COMMENT.sub("", line) for line in lines]


def write_images(folder: Path, images: int) -> None:
    """The dataset: random bytes as images, the same each time, and a file of captions."""
    (folder / "images").mkdir(parents=True)
    chance = random.Random(0)
    for number in range(1, images + 1):
        size = chance.randint(*IMAGE_BYTES)
        (folder / "images" / f"{number:05}.jpg").write_bytes(chance.randbytes(size))
    captions = "".join(f"{number:05}.jpg,cat {number}\n" for number in range(1, images + 1))
    (folder / "captions.csv").write_text(captions)


def recorded(commands: Sequence[str], folder: Path) -> list[Line]:
    """What a terminal shows of commands that run in ``folder``. CalledProcessError where one
    fails."""
    script = "exec 2>&1\nset -e\n" + "".join(f"printf '\\036'\n{one}\n" for one in commands)
    environment = {
        **os.environ,
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "HOME": str(folder),
        "XDG_CACHE_HOME": str(folder / "cache"),
        "LODEFS_CONFIG": os.devnull,
    }
    try:
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=folder,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    finally:
        end_proxies(folder)
    printed = done.stdout.replace(str(folder), HOME).split("\x1e")[1:]
    lines = []
    for command, output in zip(commands, printed, strict=True):
        lines.append(Line(command, is_typed=True))
        lines += [Line(line, is_typed=False) for line in output.splitlines()]
    return lines


def shown(lines: Sequence[Line]) -> Sequence[Line]:
    """Those of the picture, without what comes before the first push and after the last listing."""
    typed = [number for number, line in enumerate(lines) if line.is_typed]
    first = next(number for number in typed if lines[number].text.startswith("lodefs push"))
    return lines[first : typed[-1]]


def end_proxies(folder: Path) -> None:
    """Ends those that commands have started with their cache in ``folder``, and waits for it."""
    for path in folder.glob("cache/lodefs/*/pid"):
        with suppress(ProcessLookupError):
            process = os.pidfd_open(int(path.read_text()))
            signal.pidfd_send_signal(process, signal.SIGTERM)
            select.select([process], [], [], ENDING_TIMEOUT_S)
            os.close(process)


def drawn(lines: Sequence[Line]) -> str:
    """The picture of a terminal (SVG)."""
    height = 2 * MARGIN + LINE_HEIGHT * len(lines)
    css = "".join(f".{name}{{fill:{colour}}}" for name, colour in COLOURS.items())
    mono = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
    size = f'width="{WIDTH}" height="{height}" viewBox="0 0 {WIDTH} {height}"'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
        "<title>The first minute with lodefs</title>",
        f"<style>text{{font:{SIZE}px {mono};white-space:pre}}{css}</style>",
        f'<rect class="page" width="{WIDTH}" height="{height}" rx="8"/>',
        *_texts(lines),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _texts(lines: Sequence[Line]) -> Iterator[str]:
    for number, line in enumerate(lines):
        y = MARGIN + LINE_HEIGHT * number + SIZE
        place = f'x="{MARGIN}" y="{y}" xml:space="preserve"'
        if line.is_typed:
            prompt = '<tspan class="prompt">$ </tspan>'
            yield f'<text class="typed" {place}>{prompt}{escape(line.text)}</text>'
        else:
            yield f'<text class="text" {place}>{escape(line.text)}</text>'


def main(file: str) -> int:
    """Draws the picture; always 0."""
    commands = commands_of((ROOT / "README.md").read_text())
    with tempfile.TemporaryDirectory(prefix="lodefs-terminal-") as name:
        folder = Path(name)
        write_images(folder / "cats", IMAGES)
        lines = recorded(commands, folder)
    Path(file).write_text(drawn(shown(lines)), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
