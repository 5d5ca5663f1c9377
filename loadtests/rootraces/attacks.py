"""What root does, in the product's own functions, and what a user does to its paths meanwhile."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, cast

from loadtests.rootraces.user import Move, plants, swaps
from loadtests.rootraces.world import COMMIT, SOURCE, USER, World
from lodefs.chunkstore.errors import Denied, LodefsError
from lodefs.chunkstore.nodecache import damage_reports, index_logs
from lodefs.chunkstore.objects.directory import TEMPORARY, DirectoryObjects
from lodefs.chunkstore.protocol.figures import figure_files
from lodefs.chunkstore.system.safe_open import closing
from lodefs.commands.enroot_hook import inside
from lodefs.doctor import cache_checks
from lodefs.mount.attach.client import Attached
from lodefs.mount.csi import targets
from lodefs.mount.kernel import detached_mounts, mount_syscalls, mountpoints, namespaces
from lodefs.mount.process import control_socket
from lodefs.mount.process.mount_log import Logs
from lodefs.mount.process.mount_target import check_mountpoint
from lodefs.mount.service.interface import MountClaim, MountHandle, MountService, User
from lodefs.mount.service.mount_files import MountFiles
from lodefs.slurm import job_namespace
from lodefs.slurm.job_mounts import JobMounts
from lodefs.slurm.job_record import JobRecord, JobRecords

_JOB = 7


class Attack(NamedTuple):
    """``work``: one try of root's, which raises LodefsError or OSError where it refuses. ``moves``:
    of the user's processes meanwhile."""

    work: Callable[[], None]
    moves: Sequence[Sequence[Move]]


def mount_dir(world: World) -> Attack:
    """`lodefs mount` and `unmount` of root's, of a directory of the user's."""
    target = str(world.home / "d/m")

    def work() -> None:
        fd = mount_syscalls.attach(check_mountpoint(target), SOURCE, allow_other=True)
        try:
            mount_syscalls.detach(mountpoints.plain(target), lazy=True)
        finally:
            os.close(fd)

    world.owned(world.home / "d/m")
    return Attack(work, [swaps(str(world.home / "d"), str(world.roots))])


def unmount_dir(world: World) -> Attack:
    """`lodefs unmount` where something else is mounted at the same name, elsewhere."""
    target = str(world.home / "d/mounted")

    def work() -> None:
        mount_syscalls.detach(mountpoints.plain(target), lazy=True)

    return Attack(work, [swaps(str(world.home / "d"), str(world.roots))])


def make_dir(world: World) -> Attack:
    """Directories to mount on, which `lodefs mount --from` and `lodefs run` make."""

    def work() -> None:
        mountpoints.make(mountpoints.real(str(world.home / "d/new/below")))

    at = str(world.home / "d")
    return Attack(work, [swaps(at, str(world.roots)), swaps(f"{at}/new", str(world.roots))])


def mount_log(world: World) -> Attack:
    """`lodefs mount --log` into a directory of the user's."""
    at = world.home / "d"

    def work() -> None:
        _in_child(lambda: Logs().redirect(str(at / "log")))

    return Attack(work, [swaps(str(at), str(world.roots)), plants(f"{at}/log", str(world.roots))])


def csi_target(world: World) -> Attack:
    """A volume of Kubernetes at a target whose parent is the user's."""
    target, held = str(world.home / "d/m"), world.held()

    def work() -> None:
        try:
            targets.make(target)
            targets.bind(held, target, noexec=True)
        finally:
            targets.unbind(target)
            targets.remove(target)

    return Attack(work, [swaps(str(world.home / "d"), str(world.roots))])


def docker_place(world: World) -> Attack:
    """A volume of Docker, in the state of a plugin that mounts by itself."""
    state = world.folder / "docker"
    place = str(state / "mounts/key")

    def work() -> None:
        files = MountFiles(state / "mounter", world.folder / "run", state / "mounts")
        try:
            at = files.place("key")
            files.make_place(at)
            os.close(mount_syscalls.attach(check_mountpoint(at), SOURCE, allow_other=True))
            mount_syscalls.detach(mountpoints.plain(at), lazy=True)
            files.remove_place(at)
        finally:
            files.close()

    moves = [swaps(one, str(world.roots)) for one in (str(state), place)]
    return Attack(work, moves)


class _Service:
    """The node's mount service, with one mount for all."""

    def __init__(self, place: str) -> None:
        self._held = MountHandle(place, COMMIT, 1, 1)

    def acquire(
        self, _user: User, _wanted: MountClaim, _token: str | None, _timeout_s: float
    ) -> MountHandle:
        """The mount."""
        return self._held

    def release(self, _user: User, _timeout_s: float) -> None:
        """It stays."""


class _Job:
    """A job whose dataset is to be shown on ``directory``."""

    def __init__(self, world: World, directory: str) -> None:
        self.records = JobRecords(world.folder / "jobs")
        self.tree = self.records.tree(_JOB)
        self._comment = f"lodefs=cats@{COMMIT}:{directory}"
        self._mounts = JobMounts(self.records, cast("MountService", _Service(world.held())))

    def begin(self) -> None:
        """As the prolog."""
        record = JobRecord(job=_JOB, uid=USER)
        problem = self._mounts.begin(record, self._comment, pinned=False, timeout_s=1.0)
        if problem:
            raise Denied(problem)

    def end(self) -> None:
        """As the epilog."""
        self._mounts.end(_JOB)


def prolog(world: World) -> Attack:
    """A job that is requeued: its prolog builds where its user has made names in the tree."""
    job = _Job(world, "/tmp/w/m")

    def work() -> None:
        try:
            job.begin()
        finally:
            job.end()

    tree = str(job.tree)
    opened = [lambda: os.chmod(tree, 0o777), lambda: os.mkdir(f"{tree}/d")]
    moves = [swaps(f"{tree}/tmp/w", str(world.roots)), plants(tree, str(world.roots)), opened]
    return Attack(work, moves)


def enter(world: World) -> Attack:
    """`lodefs slurm enter`, on the directory of `--lodefs`, in the mount namespace of a step. The
    user leads it to where only root may go: elsewhere a job may have its datasets anyhow."""
    job = _Job(world, str(world.home / "d/m"))
    world.owned(world.home / "d/m")
    job.begin()

    def entered() -> None:
        namespaces.enter_new(user=False)
        try:
            job_namespace.enter(job.records, _JOB, [])
        finally:
            _check(world)

    at = str(world.home / "d")
    return Attack(
        lambda: _in_child(entered),
        [swaps(at, str(world.secret)), swaps(f"{at}/m", str(world.secret))],
    )


def enroot_hook(world: World) -> Attack:
    """The hook of a container of root's, whose tree is the user's."""
    held = world.held()

    def hooked() -> None:
        with closing(os.open(held, os.O_PATH)) as root_fd:
            copy_fd = detached_mounts.copied_from(root_fd, held)
        namespaces.enter_new(user=False)
        place = inside(str(world.home), "/d/new/m")
        try:
            mountpoints.make(place)
            Attached(copy_fd, COMMIT).put(place)
        finally:
            _check(world)

    at = str(world.home / "d")
    moves = [swaps(at, "../roots"), swaps(f"{at}/new", str(world.roots))]
    return Attack(lambda: _in_child(hooked), moves)


def sockets(world: World) -> Attack:
    """The socket of a mount of root's, in the directory for temporary files."""
    folder = world.shared / "lodefs-mounts-0"

    def work() -> None:
        listener, place = control_socket.listen("0:53", [folder])
        listener.close()
        control_socket.sweep(folder)
        place.remove()
        folder.rmdir()

    return Attack(work, [plants(str(folder), str(world.roots))])


def leftovers(world: World) -> Attack:
    """What killed workers left among temporary files, as a user names such things."""
    name = str(world.shared / "lodefs-index-4194999-x")

    def work() -> None:
        index_logs.remove_leftovers(world.shared)

    moves = [swaps(name, str(world.roots)), swaps(f"{name}/LOG", str(world.roots / "LOG"))]
    return Attack(work, moves)


def figures(world: World) -> Attack:
    """Files of figures, in the directory where users have theirs."""
    folder = world.shared / "figures"
    folder.mkdir()
    folder.chmod(0o1777)

    def work() -> None:
        os.close(figure_files.create(folder, ".mount", b"head", 4096))
        for _ in figure_files.living(folder, ".mount", sweep=True):
            pass

    moves = [plants(str(folder / f"{n}.mount"), str(world.roots)) for n in (1, 2)]
    return Attack(work, moves)


def reports(world: World) -> Attack:
    """`lodefs verify --cache --repair` of root's, in the cache of the proxy's user."""
    suspects = world.home / "suspects"

    def work() -> None:
        damage_reports.report_damage(world.home, [7, 8])

    moves = [
        swaps(str(suspects), str(world.roots)),
        plants(str(suspects / "00000008"), str(world.roots / "absent")),
    ]
    return Attack(work, moves)


def store(world: World) -> Attack:
    """Leftovers of writers, in a store to which the user may write."""
    folder = world.owned(world.home / "store")

    def work() -> None:
        DirectoryObjects(str(folder)).put("key", [b"x"])

    return Attack(work, [swaps(str(folder / TEMPORARY), str(world.roots))])


def doctor(world: World) -> Attack:
    """`lodefs doctor` of root's, which measures the disk of the cache of the proxy's user."""
    cache = world.home / "d"
    victim = world.roots / "file"

    def replace() -> None:
        for name in os.listdir(cache):
            os.unlink(cache / name)
            os.symlink(victim, cache / name)

    return Attack(lambda: _in_child(lambda: _measured(cache)), [[replace], [replace]])


def _measured(cache: Path) -> None:
    cache_checks.TRIAL_BYTES = 1 << 20
    cache_checks.measured(cache)


ATTACKS: dict[str, Callable[[World], Attack]] = {
    "mount": mount_dir,
    "unmount": unmount_dir,
    "mount-point": make_dir,
    "mount-log": mount_log,
    "csi-target": csi_target,
    "docker-place": docker_place,
    "slurm-prolog": prolog,
    "slurm-enter": enter,
    "enroot-hook": enroot_hook,
    "sockets": sockets,
    "leftovers": leftovers,
    "figures": figures,
    "cache-reports": reports,
    "store": store,
    "doctor": doctor,
}


class Touched(Exception):
    """Root has changed what it was not asked to."""


def _check(world: World) -> None:
    """In a mount namespace of a child, whose mounts nobody else sees. Raises: Touched."""
    if world.mounted_elsewhere() != world.mounted_before:
        raise Touched


REFUSED, TOUCHED, FAULT = 1, 2, 3


def _in_child(work: Callable[[], None]) -> None:
    """Do it in a process of its own. Raises: OSError where it refuses, Touched, RuntimeError."""
    child = os.fork()
    if not child:
        code = FAULT
        try:
            work()
            code = 0
        except Touched:
            code = TOUCHED
        except Exception as error:  # noqa: BLE001 - it is told by its code
            code = REFUSED if is_refusal(error) else FAULT
        finally:
            os._exit(code)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == TOUCHED:
        raise Touched
    if code == REFUSED:
        raise PermissionError("refused")
    if code:
        raise RuntimeError(f"it ended with {code}")


def is_refusal(error: BaseException) -> bool:
    """Whether root says no, as it may."""
    return isinstance(error, LodefsError | OSError)
