"""The commands of pages as they stand, on one node: a fresh Debian with a real systemd, on which a
reader installs the package, and then does what the pages say. tests/docs/test_shell_blocks.py has
the list of all blocks."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from loadtests.services import S3Server, free_port
from loadtests.services.machine import Machine, write
from tests.deploy.conftest import Packages
from tests.docs.pages import block, typed

pytestmark = [pytest.mark.systemd, pytest.mark.slow, pytest.mark.timeout(600)]

# What a reader has, and this machine has not: the checkout's script (it has built the package
# already), apt (what it would fetch is there), a training program, Slurm's srun, another machine;
# and a log that is followed for ever.
PROGRAMS = {
    "apt": """
case "$1" in
install) exec dpkg -i "$2" ;;
remove) exec dpkg -r "$2" ;;
purge) exec dpkg -P "$2" ;;
esac""",
    "build.sh": "cp /shared/*.deb /tmp && ls /tmp/lodefs_*.deb",
    "python": 'exec ls -l "$3"',
    "srun": 'exec "$@"',
    "ssh": 'shift; exec "$@"',
    "jq": "exec cat",
    "journalctl": """
case " $* " in
*" -f "*) timeout 1 /usr/bin/journalctl "$@"; [ $? = 124 ] ;;
*) exec /usr/bin/journalctl "$@" ;;
esac""",
}
PUSH = """
mkdir -p flickr30k/people cats
seq 1000 >flickr30k/people/ada.jpg && seq 2000 >flickr30k/1.txt && seq 10 >cats/1.txt
lodefs push flickr30k vision/flickr30k -m second && lodefs tag vision/flickr30k v1.0
lodefs push cats vision/cats -m first && lodefs tag vision/cats v1 && lodefs tag vision/cats v1.0
seq 20 >cats/2.txt && lodefs push cats vision/cats -m second && lodefs tag vision/cats v2.0
lodefs init $OTHER && lodefs copy $STORE $OTHER --all
"""


ASK = """/usr/bin/python3 -c '
import sys, urllib.error, urllib.request
url = "http://127.0.0.77:PORT/files/vision/cats@v1.0/1.txt"
asked = urllib.request.Request(url, headers={"Authorization": "Bearer " + sys.argv[1]})
try:
    print(urllib.request.urlopen(asked).status)
except urllib.error.HTTPError as error:
    print(error.code)
'"""
ANSWER = "while echo y; do sleep 0.2; done"  # not `yes`: script(1) keeps all that it is told
_DRAWING = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\r")  # of bars of progress


@dataclass(frozen=True)
class Reader:
    """Somebody at the machine, as root, who types what pages say. ``names``: what stands for what
    the pages call otherwise."""

    machine: Machine
    names: dict[str, str]

    def types(self, *names: str, before: str = "", after: str = "") -> str:
        """What the commands of blocks write; ChildError at the first that fails."""
        return self.does("\n".join([before, *(typed(block(name)) for name in names), after]))

    def does(self, script: str) -> str:
        """What a script writes at a terminal, at which every question is answered with yes."""
        for theirs, ours in self.names.items():
            script = script.replace(theirs, ours)
        environment = "export PATH=/shared/programs:$PATH\nmkdir -p /srv/work && cd /srv/work\n"
        environment += "if [ -f /etc/default/lodefs ]; then set -a; . /etc/default/lodefs; fi\n"
        write(self.machine.root, "/shared/script", f"set -eu\n{environment}{script}\n")
        terminal = "script --quiet --return --echo never --command 'sh /shared/script' /dev/null"
        return _DRAWING.sub("", self.machine.shell(f"{ANSWER} | {terminal}", timeout_s=180))


@pytest.fixture(scope="module")
def reader(debian: Machine, packages: Packages, moto: S3Server) -> Iterator[Reader]:
    """A fresh machine and a reader; what is installed there is gone in the end."""
    shutil.copy(packages.first, debian.root / "shared" / packages.first.name)
    for name, text in PROGRAMS.items():
        write(debian.root, f"/shared/programs/{name}", f"#!/bin/sh\n{text}\n", 0o755)
    bucket = moto.make_bucket()
    names = {
        "deploy/debian/build.sh": "build.sh",
        "s3://bucket/prefix": f"s3://{bucket}/store",
        "s3://here/prefix": f"s3://{bucket}/store",
        "s3://there/prefix": f"s3://{bucket}/other",
        "s3://mirror/prefix": f"s3://{bucket}/other",
        "/srv/store": f"s3://{bucket}/third",
        "$STORE": f"s3://{bucket}/store",
        "$OTHER": f"s3://{bucket}/other",
        "http://node7:7440": "unix:/run/lodefs/proxy.sock",
        "=ACCESS\n": f"={moto.access_key}\n",
        "=SECRET\n": f"={moto.secret_key}\nAWS_ENDPOINT_URL={moto.endpoint_url}\n",
    }
    try:
        yield Reader(debian, names)
    finally:
        debian.shell("systemctl stop 'lodefs-*'; umount -a -t fuse.lodefs; dpkg -P lodefs")
        debian.shell("rm -rf /srv/* /data /mnt/* /shared/* /tmp/lodefs*")


@pytest.fixture(scope="module")
def first_node(reader: Reader) -> str:
    """What the reader saw who installed the package and made the first node, and then has pushed
    what other pages speak of."""
    out = reader.types("install.md#debian-package-1", "install.md#the-first-node-1")
    reader.does(PUSH)
    return out


def test_the_first_node(first_node: str) -> None:
    """A reader who types what the page says has a proxy, and a mount that shows what was pushed."""
    assert "files   1 (1 read)" in first_node
    assert "0 faults" in first_node
    assert "/mnt/flickr30k" in first_node


def test_secrets(reader: Reader, first_node: str) -> None:
    """A secret that is put in its place as told is for the services' group."""
    pages = ("cluster.md#setting-it-up-1", "services.md#settings-of-services-1")
    after = "cd /etc/lodefs; stat -c '%U:%G %a' peer-secret; runuser -u lodefs -- wc -c peer-secret"
    assert "root:lodefs 640\n65 " in reader.types(*pages, after=after)


def test_mounts_at_boot_and_logs(reader: Reader, first_node: str) -> None:
    """A mount at boot that is described as told is tried and started; its log is found."""
    out = reader.types("services.md#mounts-at-boot-1", after="cmp cats/1.txt /data/cats/1.txt")
    assert "1.txt" in out
    assert "lodefs" in reader.types("services.md#logs-1")


def test_jobs(reader: Reader, first_node: str) -> None:
    """A command and a batch script see their dataset."""
    for name in ("1", "2"):
        out = reader.types(f"hpc.md#for-users-a-command-that-sees-datasets-{name}")
        assert "people" in out
        assert "1.txt" in out


def test_what_a_store_costs(reader: Reader, first_node: str) -> None:
    """What it takes is told in the columns that the page shows."""
    name = "space.md#what-a-store-costs-1"
    columns = block(name).splitlines()[1].split()
    lines = [line.split() for line in reader.types(name).splitlines()]
    assert columns in lines, lines
    assert [line[-1] for line in lines[lines.index(columns) + 1 :]][:2] == [
        "vision/flickr30k",
        "vision/cats",
    ]


def test_a_store_over_the_years(reader: Reader, first_node: str) -> None:
    """What is deleted comes back; history, garbage, bundles, repairs and purges go as the page has
    them, and nothing is damaged in the end."""
    back = "lodefs undelete vision/flickr30k@v1.0"
    assert "vision/flickr30k" in reader.types("space.md#deleting-a-dataset-1", after=back)
    reader.types("space.md#keeping-less-history-1")
    reader.types(*(f"space.md#freeing-space-in-a-store-{n}" for n in (1, 2, 3)))
    third = "lodefs init /srv/store; lodefs push cats vision/dogs --store /srv/store"
    reader.types("safety.md#copying-to-another-store-1", before=third)
    reader.types("safety.md#repair-1", "safety.md#repair-2")
    reader.types("space.md#removing-bytes-for-good-1")
    look = "lodefs cat vision/flickr30k:people/ada.jpg || echo gone $?; lodefs verify --data"
    out = reader.does(look)
    assert "gone 8\n" in out
    assert "all is well, 1 file purged" in out


def test_tracing(reader: Reader, first_node: str) -> None:
    """The id of a request that failed is in the log; a mount with a trace reads."""
    out = reader.types(
        "observing.md#tracing-one-request-2",
        before="mkdir -p /mnt/f",
        after="ls /mnt/f; lodefs unmount /mnt/f",
    )
    assert "1.txt" in out


def test_tokens(reader: Reader, first_node: str) -> None:
    """A token that root makes is let in by the service, and one that is deleted no more; a file
    that the service cannot read makes deleting fail, and doctor says what to do."""
    port = free_port()
    ask = ASK.replace("PORT", str(port))
    out = reader.does(f"""
        printf '[serve]\\nlisten = "127.0.0.77:{port}"\\ntokens_file = "/etc/lodefs/tokens"\\n' \\
          >>/etc/lodefs/lodefs.toml
        one=$(lodefs token create one 'vision/*')
        stat -c '%U:%G %a' /etc/lodefs/tokens
        systemctl restart lodefs-proxy
        two=$(lodefs token create two 'vision/*')
        {ask} $one; {ask} $two
        lodefs token delete one
        {ask} $one; {ask} $two
        stat -c '%U:%G %a' /etc/lodefs/tokens
        chown root:root /etc/lodefs/tokens; chmod 600 /etc/lodefs/tokens
        lodefs token delete two || echo failed $?
        {ask} $two
        lodefs doctor || true
        """)
    told = [line for line in out.splitlines() if re.match(r"root:|\d{3}$|failed", line)]
    private = "root:lodefs 640"
    assert told == [private, "200", "200", "401", "200", private, "failed 7", "200"], out
    assert "chown root:lodefs /etc/lodefs/tokens; chmod 0640 /etc/lodefs/tokens" in out


def test_removal(reader: Reader, first_node: str) -> None:
    """Removed and purged as told, nothing of it is left."""
    reader.types("install.md#removal-1", after="! ls -d /usr/lib/lodefs /etc/lodefs")
