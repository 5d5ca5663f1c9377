"""``python -m loadtests.kube TASK``: see ``--help``."""

from __future__ import annotations

import argparse
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from loadtests.errors import LoadtestError
from loadtests.kube import binary, demo, figures, node
from loadtests.kube.demo import Clock, prepared
from tests.support.chunkstore.child_process import ChildError, private_directory

ROOT = Path(__file__).parents[2]
TASKS = {
    "build": "build Kubernetes, once: ten minutes or more on two processors",
    "demo": "from nothing to a pod that has read and compared a dataset",
    "test": "the tests on a real kubelet; further words go to pytest",
    "figures": "memory of a node, reads under kills and an upgrade, a pod that hangs",
    "shell": "a node with lodefs on it, and a shell with kubectl and helm",
}


def say(line: str) -> None:
    """Prints one line, without buffering."""
    print(line, flush=True)


def run_tests(words: list[str]) -> int:
    """Runs pytest on tests that need a kubelet. Returns its exit code."""
    binary.PROVISIONER.build(say)
    names_tests = any(Path(ROOT, word.partition("::")[0]).exists() for word in words if word)
    argv = [sys.executable, "-m", "pytest", "-q", *words, *([] if names_tests else ["tests/kube"])]
    return subprocess.run(argv, cwd=ROOT, check=False).returncode


def shell(kubenode: Path) -> int:
    """Runs a node for a shell, until the shell ends."""
    with ExitStack() as stack:
        folder = stack.enter_context(private_directory("lks-"))
        made = stack.enter_context(prepared(kubenode, folder, Clock(say).tell))
        made.install()
        words = [*made.node.argv_inside, str(kubenode), "kubectl"]
        words.append(f"--kubeconfig={made.node.folder}/admin.conf")
        say(f'k() {{ {" ".join(words)} "$@"; }}')
        return subprocess.run(["bash"], check=False).returncode


def main(argv: list[str]) -> int:
    """The exit code: 0 fine, 1 failed, 2 cannot run here."""
    parser = argparse.ArgumentParser(prog="./run kube", description="A real Kubernetes of one node")
    parser.add_argument(
        "task", choices=TASKS, help="; ".join(f"{k}: {v}" for k, v in TASKS.items())
    )
    parser.add_argument("words", nargs=argparse.REMAINDER, help="for pytest")
    given = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    if lacking := node.missing():
        say(f"./run kube: missing: {lacking}")
        return 2
    tasks: dict[str, Callable[[Path], int | None]] = {
        "build": lambda path: say(f"{path}\n{binary.PROVISIONER.build(say)}"),
        "demo": lambda path: demo.run(path, say),
        "test": lambda _path: run_tests(given.words),
        "figures": lambda path: figures.run(path, say),
        "shell": shell,
    }
    try:
        return tasks[given.task](binary.KUBENODE.build(say)) or 0
    except (LoadtestError, ChildError) as error:
        say(f"./run kube: {error}")
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
