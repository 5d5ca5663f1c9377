"""``python -m loadtests.headline FILE``: README.md's picture of ratios in docs/benchmarks.md."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

from loadtests.picture import Group, Panel, picture


class Ratio(NamedTuple):
    """A ratio, what it is of, and the words of docs/benchmarks.md that say it."""

    label: str
    value: float
    said: str


OTHERS = (
    Ratio("cold files of 10 KB (rclone mount)", 40, "40x, 22x rclone mount"),
    Ratio("the same with 8 readers", 22, "40x, 22x rclone mount"),
    Ratio(
        "100 clients read cold (each from S3)", 11.1, "11.1x, 6.5x, 3.2x as fast as reading S3 each"
    ),
    Ratio("push of 22,084 files (borg)", 2.5, "2.5x borg"),
    Ratio("the same (restic)", 2.0, "2.0x restic"),
    Ratio("the same (hf_xet)", 1.73, "1.81x and 1.73x hf_xet"),
    Ratio("pull of 1 GiB (boto3)", 0.95, "0.95x boto3"),
    Ratio("1 GiB cold in one stream (rclone mount)", 1.09, "1.09x rclone mount"),
    Ratio("copy of a store (rclone copy)", 0.63, "0.82x and 0.63x `rclone copy`"),
)
DISK = (
    Ratio("random 4 KiB", 7.7, "7.7x; 0.83x; 1.10x of the local disk"),
    Ratio("files of 10 KB, in a container", 3.39, "2.57x, 8.26x; 3.39x, 1.09x of the bind mount"),
    Ratio("the same with 8 readers", 1.09, "2.57x, 8.26x; 3.39x, 1.09x of the bind mount"),
    Ratio("1 GiB in sequence", 1.10, "7.7x; 0.83x; 1.10x of the local disk"),
    Ratio("mapped, at random", 0.83, "7.7x; 0.83x; 1.10x of the local disk"),
    Ratio("1 GiB in sequence, from memory", 0.79, "0.79x of the local disk"),
)


def drawn() -> str:
    """The picture (SVG). Where two runs differ, it shows the lower ratio."""
    return picture(
        ["lodefs"],
        [
            Panel(
                "Times as fast as others",
                "the same work by the program named, in the same run; longer bars are cut off",
                [Group(one.label, [one.value]) for one in OTHERS],
                limit=12,
                ticks=(0, 1, 2, 4, 6, 8, 10, 12),
            ),
            Panel(
                "Times as fast as the local disk",
                "reads of a mount whose data is in the node's cache",
                [Group(one.label, [one.value]) for one in DISK],
                limit=8,
                ticks=(0, 1, 2, 4, 6, 8),
            ),
        ],
    )


def main(file: str) -> int:
    """Draws the picture; always 0."""
    Path(file).write_text(drawn(), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
