#!/bin/sh
# TaskProlog for sites without the plug-in (and without pyxis, which runs it inside of containers):
# tells a job where its datasets are, in LODEFS_ROOT, or why it has none, and then fails the task.
jobs=/run/lodefs/jobs
record=$jobs/$SLURM_JOB_ID.json
[ -e "$record" ] || exit 0
problem=$(sed -n 's/.*"problem":"\(\([^"\\]\|\\.\)*\)".*/\1/p' "$record" | sed 's/\\\(["\\]\)/\1/g')
if [ -n "$problem" ]; then
  printf 'print lodefs: error: %s\n' "$problem"
  printf 'lodefs: error: %s\n' "$problem" >&2
  exit 1
fi
echo "export LODEFS_ROOT=$jobs/$SLURM_JOB_ID"
