#!/bin/sh
# Epilog of Slurm, as root on each node: takes the mounts of a job away, and has what it changed
# committed, or kept, once Slurm says how it ended. Always exits with 0.
job=${SLURM_JOB_ID:-none}
jobs=/run/lodefs/jobs
set -- "/var/lib/lodefs/slurm/$job"-*.json # what it may have changed
[ -e "$jobs/$job.json" ] || [ -e "$jobs/$job" ] || [ -e "$1" ] || exit 0
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -a # credentials for commits
[ ! -r /etc/default/lodefs-slurm ] || . /etc/default/lodefs-slurm
set +a
lodefs=${LODEFS_PROGRAM:-lodefs}
timeout -k 5 30 "$lodefs" slurm epilog
if [ -e "$1" ]; then # Slurm ends what an epilog leaves behind in its session
  setsid -f timeout -k 5 3600 "$lodefs" slurm commit "$job" --wait 3500 </dev/null >/dev/null 2>&1
fi
exit 0
