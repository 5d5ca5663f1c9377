#!/bin/sh
# Epilog of Slurm, as root on each node: takes the mounts of a job away. Always exits with 0.
jobs=/run/lodefs/jobs
[ -e "$jobs/${SLURM_JOB_ID:-}.json" ] || [ -e "$jobs/${SLURM_JOB_ID:-none}" ] || exit 0
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
[ ! -r /etc/default/lodefs-slurm ] || . /etc/default/lodefs-slurm
timeout -k 5 30 "${LODEFS_PROGRAM:-lodefs}" slurm epilog
exit 0
