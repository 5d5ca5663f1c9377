#!/bin/sh
# Mounts the datasets of LODEFS_DATASETS into a container that enroot starts, without privilege:
# REPO[@REV][:PATH]:DIR[:rw], with commas between them, of the environment or `enroot start --env`.
# Ends at once where there are none. See `lodefs enroot-hook --help`.
set -eu

found=${LODEFS_DATASETS-}
if [ -z "$found" ] && [ -r "${ENROOT_ENVIRON-}" ]; then
  while IFS= read -r line || [ -n "$line" ]; do
    case $line in LODEFS_DATASETS=?*) found=$line ;; esac
  done <"$ENROOT_ENVIRON"
fi
[ -n "$found" ] || exit 0
exec /usr/bin/lodefs enroot-hook
