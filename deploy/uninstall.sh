#!/bin/sh
# Removes what install.sh has installed. See --help.
set -eu

usage() {
  cat <<'TEXT'
usage: uninstall.sh [--prefix DIR] [--destdir DIR] [--purge] [--force] [--dry-run] [--yes]

Stops and disables the services, unmounts, and removes exactly what install.sh has installed.
Settings (/etc/lodefs, /etc/default/lodefs), the cache and the Docker volumes' state stay.

  --prefix DIR, --destdir DIR   as they were given to install.sh [/usr, or where this file is
                                installed; none]
  --purge     remove settings, cache and state too, also afterwards; not the user lodefs
  --force     also while mounts are in use: who reads keeps what is open, new reads fail
  --dry-run   say each step, change nothing
  --yes       do not ask
TEXT
}

fail() {
  echo "uninstall.sh: $*" >&2
  exit 1
}

here=$(cd "$(dirname "$0")" && pwd -P)
prefix='' destdir='' purge='' force='' dry='' yes=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --prefix | --destdir)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    --purge) purge=yes ;;
    --force) force=yes ;;
    --dry-run) dry=yes ;;
    --yes) yes=yes ;;
    *) fail "there is no option $1; see --help" ;;
  esac
  shift
done
destdir=${destdir%/}
if [ -z "$prefix" ]; then
  case $here in
    */lib/lodefs)
      root=$(cd "$destdir/" && pwd -P)
      prefix=${here#"${root%/}"} prefix=${prefix%/lib/lodefs}
      ;;
    *) prefix=/usr ;;
  esac
fi
case $prefix in
  /usr) other=/usr/local ;;
  /usr/local) other=/usr ;;
  *) fail "the prefix is /usr or /usr/local, not $prefix; see --prefix and --destdir" ;;
esac
packages=$destdir$prefix/lib/lodefs
[ -n "$dry$destdir" ] || [ "$(id -u)" = 0 ] || fail "needs root"
package='' # what dpkg says of it
[ -n "$destdir" ] || package=$(dpkg-query -W -f '${Status}' lodefs 2>/dev/null) || true
case $package in
  *' installed' | *' unpacked' | *' half-'*)
    fail "the Debian package lodefs is installed; remove that: apt remove lodefs"
    ;;
esac
if [ -n "$purge" ] && [ -e "$destdir$other/lib/lodefs" ]; then # whose data that is, too
  fail "lodefs is installed below $other; remove that first, with --prefix $other"
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
if [ -f "$packages/manifest" ]; then
  cp "$packages/manifest" "$packages/services.sh" "$scratch/" # they go, too
elif [ -n "$purge" ] && [ ! -e "$packages" ]; then # removed before: what that has kept
  case $package in
    *' config-files') fail "settings and data are those of the Debian package: apt purge lodefs" ;;
  esac
  : >"$scratch/manifest"
else
  fail "$packages/manifest is missing: install.sh has not installed here"
fi
data='/etc/lodefs /etc/default/lodefs /etc/default/lodefs-docker /etc/default/lodefs-mounter'
data="$data /var/cache/lodefs /var/lib/lodefs /run/lodefs"

services() { # services COMMAND, where there are any
  [ -n "$destdir" ] || [ ! -s "$scratch/manifest" ] || "$scratch/services.sh" "$1"
}

if [ -z "$force" ] && ! used=$(services in-use); then
  echo "$used" >&2
  fail "mounts are in use; stop their users first, or see --force"
fi
echo "uninstall.sh: this will"
if [ -s "$scratch/manifest" ]; then
  [ -n "$destdir" ] || echo "  stop and disable all units of lodefs, and take its mounts away"
  echo "  remove $packages ($(grep -c "^$prefix/lib/lodefs/" "$scratch/manifest") files)"
  grep -v "^$prefix/lib/lodefs/" "$scratch/manifest" | while read -r file; do
    echo "  remove $destdir$file"
  done
fi
[ -z "$purge" ] && verb=keep || verb=remove
for place in $data; do
  [ ! -e "$destdir$place" ] || echo "  $verb $destdir$place"
done
[ -z "$dry" ] || exit 0
if [ -z "$yes" ]; then
  [ -t 0 ] || fail "no terminal to ask at; give --yes"
  printf 'Go on? [y/N] '
  read -r answer
  case $answer in y | Y | yes) ;; *) fail "nothing was changed" ;; esac
fi

services deactivate
while read -r file; do
  rm -f "$destdir$file"
done <"$scratch/manifest"
# Directories that are empty now; a file that somebody added stays, and its directory.
find "$packages" "$destdir$prefix/share/doc/lodefs" -depth -type d -exec rmdir {} + 2>/dev/null || true
[ ! -e "$packages" ] || echo "uninstall.sh: $packages stays: it has files that are not ours" >&2

drop() { # drop PLACE: not what somebody has mounted below it
  if mountpoint -q "$1"; then
    find "$1" -xdev -mindepth 1 -delete # a file system of its own stays, empty
  else
    rm -rf --one-file-system "$1"
  fi
}
if [ -n "$purge" ]; then
  for place in $data; do
    drop "$destdir$place" || echo "uninstall.sh: $destdir$place could not be removed whole" >&2
  done
fi
if [ -z "$destdir" ] && [ -d /run/systemd/system ]; then
  systemctl daemon-reload || echo "uninstall.sh: systemctl daemon-reload failed" >&2
fi
echo "uninstall.sh: lodefs is removed"
