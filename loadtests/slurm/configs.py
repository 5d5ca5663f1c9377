"""The files of /etc/slurm on the cluster."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ADDRESS = "10.77.0.1"  # Slurm resolves no name where there are only loopback addresses
HOST = "slurmhost"
NODES = ("n1", "n2", "n3")
USER = "games"  # of base-passwd: somebody who is not root
SECRET = "secret"  # repositories below it are not for USER
WRITTEN = "written"  # jobs of USER may commit to repositories below it, on the nodes
CHANGES = Path("/var/lib/lodefs")  # of each node: what its jobs change, which a reboot keeps
KILL_WAIT_S = 3
RUN = Path("/run/lodefs")
# A Debian package to install on the cluster, in place of this checkout
PACKAGE = os.environ.get("LODEFS_SLURM_PACKAGE", "")
PROGRAM = Path("/usr/bin/lodefs") if PACKAGE else Path(sys.executable).with_name("lodefs")
SCRIPTS = Path("/usr/share/lodefs/slurm") if PACKAGE else Path(__file__).parents[2] / "deploy/slurm"

CGROUPS = Path("/run/cgroup")  # on the cluster: a control group of its own, by controller
FREEZER = Path("/sys/fs/cgroup/freezer")

_SLURM_CONF = f"""\
ClusterName=lodefs
SlurmctldHost={HOST}({ADDRESS})
SlurmctldPort=17001
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
StateSaveLocation=/var/spool/slurm/ctld
SlurmdSpoolDir=/var/spool/slurm/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldDebug=info
SlurmdDebug=info
SwitchType=switch/none
TaskPlugin=task/none
ProctrackType=proctrack/{{proctrack}}
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_interval=2,bf_interval=1
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait={KILL_WAIT_S}
MinJobAge=60
InactiveLimit=0
PrologFlags=Alloc,Contain
PrologEpilogTimeout=60
Prolog=/etc/slurm/prolog.d/*
Epilog=/etc/slurm/epilog.d/*
TaskProlog=/etc/slurm/task_prolog.sh
PlugStackConfig=/etc/slurm/plugstack.conf
CliFilterPlugins=lua
BurstBufferType=burst_buffer/lua
NodeName=n[1-3] NodeHostname={HOST} NodeAddr=n[1-3] Port=[17101-17103] CPUs=2 State=UNKNOWN
PartitionName=all Nodes=n[1-3] Default=YES MaxTime=10 OverTimeLimit=0 State=UP
"""

CGROUP_CONF = f"""\
CgroupPlugin=cgroup/v1
CgroupMountpoint={CGROUPS}
ConstrainCores=no
ConstrainRAMSpace=no
"""


def has_cgroups() -> bool:
    """Whether Slurm can have control groups on this machine, which tell the node whose a process
    is; else jobs are tracked by their parents."""
    return (FREEZER / "cgroup.procs").exists() and os.access(FREEZER, os.W_OK)


def slurm_conf() -> str:
    """slurm.conf."""
    return _SLURM_CONF.format(proctrack="cgroup" if has_cgroups() else "linuxproc")


def plugstack(plugin: Path, program: Path) -> str:
    """plugstack.conf."""
    return f"optional {plugin} lodefs={program}\n"


def defaults(program: Path, options: str, log: Path) -> str:
    """/etc/default/lodefs-slurm. Slurm itself keeps nothing of what its scripts write; here it
    comes into files of the directory ``log``."""
    return f"""\
LODEFS_PROGRAM={program}
LODEFS_CONFIG={log.parent}/$SLURMD_NODENAME.toml
LODEFS_PROLOG_OPTIONS="{options}"
[ -z "$SLURM_SCRIPT_CONTEXT" ] || exec >>"{log}/scripts-$SLURMD_NODENAME" 2>&1
"""


def address_of(node: str) -> str:
    """A node's own address."""
    return f"10.77.0.{11 + NODES.index(node)}"


def proxy_toml(folder: Path, node: str) -> str:
    """lodefs.toml of a node; "" is the submit host, and the controller."""
    place, socket = folder / f"proxy/{node}", RUN / "proxy.sock"
    listen = f'peer_listen = "{address_of(node)}:7441"' if node else ""
    members = ", ".join(f'"{name}:7441"' for name in NODES)
    access = "" if node else f'[access]\n"{SECRET}/*" = ["4242424"]\n'
    writers = f'[writers]\n"{WRITTEN}/*" = ["{USER}"]\n' if node else ""
    return f"""\
store = "{folder}/store"
[serve]
cache_dir = "{place}/cache"
socket_path = "{socket if node else folder / "proxy/proxy.sock"}"
peers = [{members}]
peer_secret_file = "{folder}/peer-secret"
{listen}
{access}
{writers}"""
