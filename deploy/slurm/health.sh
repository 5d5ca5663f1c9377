#!/bin/sh
# HealthCheckProgram of Slurm, as root on each node: sweeps what jobs without an epilog have left,
# drains a node that cannot mount, and resumes one that it has drained.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ ! -r /etc/default/lodefs-slurm ] || . /etc/default/lodefs-slurm
lodefs=${LODEFS_PROGRAM:-lodefs}
node=${SLURMD_NODENAME:-$(hostname -s)}
timeout -k 5 30 "$lodefs" slurm sweep
if why=$(timeout -k 2 15 "$lodefs" health --mounter 2>&1); then
  case $(scontrol --oneliner show node "$node") in
    *"Reason=lodefs: "*) scontrol update "nodename=$node" state=resume ;;
  esac
else
  why=$(printf %s "${why:-lodefs health did not answer}" | head -n 1)
  scontrol update "nodename=$node" state=drain "reason=lodefs: $why"
fi
