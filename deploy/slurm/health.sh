#!/bin/sh
# HealthCheckProgram of Slurm, as root on each node: sweeps what jobs without an epilog have left,
# commits what jobs changed where that has not been done,
# drains a node that cannot mount, and resumes one that it has drained.
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -a # credentials for commits
[ ! -r /etc/default/lodefs-slurm ] || . /etc/default/lodefs-slurm
set +a
lodefs=${LODEFS_PROGRAM:-lodefs}
node=${SLURMD_NODENAME:-$(hostname -s)}
timeout -k 5 30 "$lodefs" slurm sweep
for one in /var/lib/lodefs/slurm/*.json; do # what jobs changed, whose commit failed or was killed
  [ -e "$one" ] || break
  setsid -f timeout -k 5 3600 "$lodefs" slurm commit </dev/null >/dev/null 2>&1
  break
done
if why=$(timeout -k 2 15 "$lodefs" health --mounter 2>&1); then
  case $(scontrol --oneliner show node "$node") in
    *"Reason=lodefs: "*) scontrol update "nodename=$node" state=resume ;;
  esac
else
  why=$(printf %s "${why:-lodefs health did not answer}" | head -n 1)
  scontrol update "nodename=$node" state=drain "reason=lodefs: $why"
fi
