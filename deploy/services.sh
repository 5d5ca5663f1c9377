#!/bin/sh
# The services of lodefs on a machine, for those who install, upgrade and remove it: install.sh,
# uninstall.sh, and the maintainer scripts of the Debian package.
set -eu

usage() {
  cat <<'TEXT'
usage: services.sh COMMAND

  activate     make the user and directories; restart what runs, in the right order, for a new
               version; mounts and their readers live on. What fails is said
  in-use       list mounts that containers or other processes use; exit code 1 if there are any
  deactivate   stop and disable all units, take all mounts away, end proxies of other stores
TEXT
}

bin=/usr/bin/lodefs
# Of other stores: see lodefs/proxies/store_proxies.py.
proxies='/var/lib/lodefs/mounter/proxies /var/lib/lodefs/docker/proxies'
restart_timeout_s=60 proxy_end_timeout_s=20
has_systemd() { [ -d /run/systemd/system ]; }
say() { printf 'lodefs: %s\n' "$*" >&2; }

units() { # units PATTERN...: those that are loaded, one a line
  systemctl list-units --all --plain --no-legend "$@" | cut -d ' ' -f 1
}

bounded() { # bounded VERB UNIT...: systemd goes on with what takes longer
  timeout "$restart_timeout_s" systemctl "$@" || say "systemctl $*: failed, or takes longer; see its status"
}

# What fails here is not ours to mend: it is said, and the installation goes on.
activate() {
  if command -v systemd-sysusers >/dev/null; then
    systemd-sysusers lodefs.conf || say 'the user lodefs could not be made: systemd-sysusers failed'
  fi
  has_systemd || return 0
  systemd-tmpfiles --create lodefs.conf || say '/run/lodefs could not be made: systemd-tmpfiles failed'
  systemctl daemon-reload || say 'systemd does not know the new units: systemctl daemon-reload failed'
  # The proxy first: mounts and plugin ask it, and wait at its socket meanwhile.
  bounded try-restart lodefs-proxy.service
  bounded try-restart lodefs-mounter.service lodefs-docker.service
  # The mounter starts them anew; without it nobody would.
  if systemctl -q is-active lodefs-mounter.service; then end_proxies; fi
  mounted=$(units --state=active 'lodefs-mount@*.service')
  # shellcheck disable=SC2086  # names of units have no spaces
  [ -z "$mounted" ] || bounded reload $mounted
}

# Proxies that were started for volumes of other stores outlive who did it.
end_proxies() {
  ended=''
  # shellcheck disable=SC2086  # two directories, without spaces
  for file in $(printf '%s/*/pid ' $proxies); do
    pid=$(cat "$file" 2>/dev/null) || continue
    # Not another process that has its number now. Of a user's the title is not asked for.
    grep -qs '^Uid:[[:space:]]0[[:space:]]' "/proc/$pid/status" || continue
    grep -qsF "${file%pid}sock" "/proc/$pid/cmdline" || continue
    if kill "$pid"; then ended="$ended $pid"; fi
  done
  for pid in $ended; do
    timeout "$proxy_end_timeout_s" tail -s 0.1 --pid="$pid" -f /dev/null || kill -KILL "$pid" || true
  done
}

# Mounts of this machine: DEVICE PLACE, which mountinfo writes with \040 for a space, and printf %b
# reads with \0040. Those of the managed plugin are its own, below the data of dockerd.
mounts() {
  sed -n -e 's/^[^ ]* [^ ]* \([^ ]*\) [^ ]* \([^ ]*\) .* - fuse\.lodefs .*/\1 \2/; t ours' -e d \
    -e ': ours' -e 's/\\/\\0/g; p' /proc/self/mountinfo \
    | grep -v '/plugins/[0-9a-f]*/propagated-mount' || true
}

# held DEVICE TABLE: whether a mount namespace has a mount of its own, as a container does. Services
# that hide parts of the machine see ours, at the same place and with a master: it goes with ours.
held() {
  awk -v device="$1" '
    $3 != device || !/ - fuse\.lodefs / { next }
    FNR == NR { ours[$5]; next }
    !(/ master:/ && $5 in ours) { held = 1 }
    END { exit !held }' /proc/self/mountinfo "$2" 2>/dev/null
}

in_use() {
  here=$(readlink /proc/self/ns/mnt)
  mounts | while read -r device place; do
    holders=''
    # shellcheck disable=SC2013  # no such path has a space
    for table in $(grep -ls "^[^ ]* [^ ]* $device .* - fuse\.lodefs" /proc/[0-9]*/mountinfo); do
      process=${table%/mountinfo}
      there=$(readlink "$process/ns/mnt") || continue
      [ "$there" != "$here" ] || continue
      held "$device" "$table" || continue
      holders="$holders ${process#/proc/}"
    done
    shown=$(printf %b "$place")
    pattern=$(printf '%s\n' "$shown" | sed 's/[][*?\\]/\\&/g')
    opened=$(find /proc/[0-9]*/cwd /proc/[0-9]*/root /proc/[0-9]*/fd /proc/[0-9]*/map_files \
      -maxdepth 1 \( -lname "$pattern" -o -lname "$pattern/*" \) 2>/dev/null | cut -d / -f 3 | sort -un) || true
    for process in $holders $opened; do printf '%s is used by process %s\n' "$shown" "$process"; done
  done
}

deactivate() {
  if has_systemd; then
    for unit in $(units 'lodefs-mount@*.service'); do
      systemctl stop "$unit" || true
    done
    systemctl disable --now lodefs-docker.socket lodefs-docker.service lodefs-mounter.service \
      lodefs-proxy.socket lodefs-proxy.service 2>/dev/null || true
  fi
  mounts | while read -r _ place; do
    "$bin" unmount "$(printf %b "$place")" || say "$place could not be unmounted"
  done
  end_proxies
}

case ${1:-} in
  activate) activate ;;
  in-use)
    found=$(in_use)
    [ -z "$found" ] || { printf '%s\n' "$found" && exit 1; }
    ;;
  deactivate) deactivate ;;
  -h | --help) usage ;;
  *) usage >&2 && exit 2 ;;
esac
