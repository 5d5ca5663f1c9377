"""The supervisor on a device without a kernel; with one: test_survival.py."""

from __future__ import annotations

import pytest

from tests.support.mount.mounts import in_child

# A supervisor forks, so it gets a process of its own. The device is a socket, which cannot be
# cloned: the workers share it.
BEGIN = """
import os, socket, sys
from lodefs.mount.kernel.session import Session
from lodefs.mount.process.supervisor import Supervisor, SupervisorConfig
kernel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
said = []
def run(work, ready, on_ready, say=said.append, resend=True, timeout_s=60.0):
    session = Session(minor=44, no_open=True, no_opendir=True, resend=resend, epochs=True)
    config = SupervisorConfig(theirs.fileno(), session, work, 1, 1, 60.0, say)
    made = Supervisor(config)
    made.run(ready, on_ready, timeout_s)
    theirs.detach()
"""

pytestmark = pytest.mark.slow


def test_a_worker_that_always_dies_is_replaced_until_the_connection_ends() -> None:
    """Every death is followed by another worker and a RESEND, and the end of the mount by none."""
    script = """
def say(text):
    said.append(text)
    if sum("another takes its place" in line for line in said) == 4:
        kernel.close()
seen = []
def work(post):
    pass
run(work, lambda: 0, lambda code: True, say)
print(sum("status 0" in line for line in said))
"""
    assert in_child(BEGIN + script) == "4"


def test_a_worker_whose_end_could_not_be_seen_is_no_worker() -> None:
    """Where the process has no descriptor to spare, the new worker is ended, and another one is
    started once there is."""
    script = """
import errno, lodefs.mount.process.worker_place
from contextlib import suppress
lodefs.mount.process.worker_place.RESTART_PAUSE_S_MAX = 0.01
pidfd_open, started = os.pidfd_open, []
def none_left(pid):
    if len(started) == 1:
        started.append(pid)
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    if pid != os.getpid():
        started.append(pid)
    return pidfd_open(pid)
os.pidfd_open = none_left
def work(post):
    os._exit(3)
def say(text):
    said.append(text)
    if sum("status 3" in line for line in said) == 2:
        kernel.close()
run(work, None, lambda code: True, say)
print(any("no worker can be started" in line for line in said), len(started))
with suppress(ProcessLookupError):
    os.kill(started[1], 0)
    print("it lives")
"""
    assert in_child(BEGIN + script) == "True 4"


def test_resend_follows_a_new_worker() -> None:
    """The notification is written to the device after a worker was replaced, not before."""
    script = """
def work(post):
    os._exit(3)
def say(text):
    if "status 3" in text:
        said.append(text)
        if len(said) == 2:
            print(kernel.recv(100).hex())
            kernel.close()
run(work, lambda: 0, lambda code: True, say)
"""
    assert in_child(BEGIN + script) == "10000000070000000000000000000000"


def test_without_resend_a_shared_descriptor_is_given_up() -> None:
    """Where a dead worker's requests can be neither sent again nor failed, the mount ends."""
    script = """
run(lambda post: os._exit(3), lambda: 0, lambda code: True, resend=False)
print(said[-1])
"""
    assert in_child(BEGIN + script).endswith("giving up")


def test_without_resend_a_dead_workers_requests_fail_whatever_others_do() -> None:
    """Only the worker ever has the descriptor it reads, so that its death closes it, and fails
    what it had read, even if one started after it is stopped before it does anything."""
    script = """
import select, signal
import lodefs.mount.process.supervisor as module
module.END_TIMEOUT_S = 0.0
closed = []
def open_clone(_connection):
    end, clone = socket.socketpair()
    closed.append(end)
    return clone.detach()
module.device.open_clone = open_clone
die_with_parent = module.die_with_parent
def at_start(parent):
    die_with_parent(parent)
    if len(closed) == 2:
        signal.pause()
module.die_with_parent = at_start
last_word, say_it = os.pipe()
def work(post):
    os.read(last_word, 1)
    os._exit(3)
def on_ready(_code):
    os.write(say_it, b"xx")  # one for its successor
    return True
def say(text):
    if "status 3" in text:
        print(select.select([closed[0]], [], [], 30)[0] == [closed[0]])
        kernel.shutdown(socket.SHUT_RDWR)
session = Session(minor=44, no_open=True, no_opendir=True, resend=False, epochs=True)
config = SupervisorConfig(theirs.fileno(), session, work, 2, 1, 60.0, say)
Supervisor(config).run(None, on_ready, 60.0)
"""
    assert in_child(BEGIN + script) == "True"


def test_a_worker_that_is_stopped_is_replaced() -> None:
    """It has not said that it is busy, and may have taken a request before it could."""
    script = """
import signal
import lodefs.mount.process.supervisor as module
module.CHECK_S = 0.01
def work(post):
    os.kill(os.getpid(), signal.SIGSTOP)
def say(text):
    said.append(text)
    if "another takes its place" in text:
        kernel.close()
session = Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True)
config = SupervisorConfig(theirs.fileno(), session, work, 1, 1, 0.01, say)
Supervisor(config).run(None, lambda code: True, 60.0)
print("it is killed" in said[0], "status -9" in said[1])
"""
    assert in_child(BEGIN + script) == "True True"


def test_a_process_that_is_called_starts_when_somebody_calls() -> None:
    """It is started when its descriptor gets readable and not before, once for a call, again when
    it has ended and another call comes; no request is sent again for it."""
    script = """
import select
called, call = os.pipe()
told, tell = os.pipe()
def work(post):
    kernel.close()
    if post.index == 0:
        os.write(tell, b"w")
        os.read(post.fd, 1)  # until the connection ends
        return
    os.read(called, 1)
    os.write(tell, b"c")
    os._exit(4)
def say(text):
    if "status 4" in text:
        said.append(text)
        if len(said) == 2:
            if select.select([kernel], [], [], 0)[0]:
                notified.append(kernel.recv(100))
            kernel.close()
        else:
            os.write(call, b"2")
notified = []
def on_ready(code):
    print(os.read(told, 9).decode(), select.select([told], [], [], 0)[0])
    os.write(call, b"1")
    return True
session = Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True)
clones = [os.dup(theirs.fileno()) for _ in range(2)]
made = Supervisor(SupervisorConfig(theirs.fileno(), session, work, 1, 1, 60.0, say,
                                   clones=clones, call_fd=called))
made.run(None, on_ready, 60.0)
print(os.read(told, 9).decode(), len(said), notified)
"""
    assert in_child(BEGIN + script) == "w []\ncc 2 []"


def test_what_the_probe_says_decides() -> None:
    """A probe that fails ends the mount, with its errno; so does one that does not end in time."""
    script = """
import signal
codes = []
def on_ready(code):
    codes.append(code)
    return code == 0
run(lambda post: signal.pause(), lambda: 5, on_ready)
kernel, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
run(lambda post: signal.pause(), signal.pause, on_ready, timeout_s=0.0)
print(codes)
"""
    assert in_child(BEGIN + script) == "[5, -1]"


def test_a_successor_that_fails_fails_no_requests() -> None:
    """Workers that it has not replaced answer them: they are only sent again."""
    script = """
import signal
import lodefs.mount.process.supervisor as module
from lodefs.chunkstore.errors import Unavailable
module.START_TIMEOUT_S = 0.0
module.KILL_S = module.END_TIMEOUT_S = 0.05
failed = []
module.is_over = lambda fd, timeout_s=0: False
module.device.fail_request = failed.append
class Table:
    def reserve(self):
        return 1
    def pid(self, slot):
        return 0
    def living(self):
        return [(2, os.getpid(), os.pidfd_open(os.getpid()))]
session = Session(minor=44, no_open=True, no_opendir=True, resend=True, epochs=True)
config = SupervisorConfig(theirs.fileno(), session, lambda post: signal.pause(), 1, 1, 60.0,
                          said.append, process_table=Table())
try:
    Supervisor(config).run(None, lambda code: True, 60.0)
except Unavailable:
    print(failed, kernel.recv(100).hex())
"""
    assert in_child(BEGIN + script) == "[] 10000000070000000000000000000000"


def test_a_killed_process_that_ends_as_it_is_looked_at() -> None:
    """The supervisor ends as it should."""
    script = """
import signal
import lodefs.mount.process.supervisor as module
is_over, answers = module.is_over, iter([False, False])
module.is_over = lambda fd, timeout_s=0: next(answers, None) is None and is_over(fd, timeout_s)
run(lambda post: signal.pause(), lambda: 5, lambda code: False)
print(next(answers, "looked at"))
"""
    assert in_child(BEGIN + script) == "looked at"


def test_an_error_in_a_worker_is_said_and_does_not_spread() -> None:
    """A worker that raises ends with status 1; the supervisor's own code never runs in it."""
    script = """
def work(post):
    raise ValueError("broken")
def say(text):
    sys.stdout.write(text.split(": ", 1)[-1] + "\\n")
    sys.stdout.flush()
    if "status 1" in text:
        kernel.close()
run(work, lambda: 0, lambda code: True, say)
"""
    lines = in_child(BEGIN + script).splitlines()
    assert "ValueError: broken" in lines
    told = sum("status 1" in line for line in lines)  # another may die before the end is seen
    assert 1 <= told <= lines.count("ValueError: broken")
