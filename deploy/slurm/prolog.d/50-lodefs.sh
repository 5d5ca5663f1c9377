#!/bin/sh
# Prolog of Slurm, as root on each node: mounts what a job asks for. Always exits with 0: a prolog
# that fails drains the node. A job without datasets costs no more than this shell.
case "${SLURM_JOB_COMMENT:-}${SPANK__SLURM_SPANK_OPTION_lodefs_lodefs:+lodefs=}" in
  *lodefs=*) ;;
  *) exit 0 ;;
esac
umask 022 # the job's user looks into what is made
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
set -a # credentials: a job may commit what it changes
[ ! -r /etc/default/lodefs-slurm ] || . /etc/default/lodefs-slurm
set +a
# shellcheck disable=SC2086  # options fall apart into words
timeout -k 5 30 "${LODEFS_PROGRAM:-lodefs}" slurm prolog ${LODEFS_PROLOG_OPTIONS:-}
exit 0
