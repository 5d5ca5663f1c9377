#!/bin/sh
# Makes the managed plugin: a directory with config.json and a root file system of Debian's Python
# and lodefs, for `docker plugin create`. Needs root, mmdebstrap, Python with venv.
set -eu

usage() {
  cat <<'TEXT'
usage: build.sh [--wheel FILE] [--python PATH] [--mirror SOURCE] [--create NAME] DIR

  --wheel FILE     a wheel of lodefs [built from this checkout]
  --python PATH    a Python of the version that Debian has (3.11) [/usr/bin/python3]
  --mirror SOURCE  an address, a line of sources.list or a file of apt [the machine's own sources
                   of Debian]
  --create NAME    also `docker plugin create NAME`, for example lodefs:latest

DIR must not exist. Afterwards: docker plugin create NAME DIR
TEXT
}

version=3.11 # Debian's Python, of which the plugin is made

fail() {
  echo "build.sh: $*" >&2
  exit 1
}

wheel='' python=/usr/bin/python3 mirror='' create='' dir=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --wheel | --python | --mirror | --create)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    -*) fail "there is no option $1; see --help" ;;
    *)
      [ -z "$dir" ] || fail "one DIR only"
      dir=$1
      ;;
  esac
  shift
done
[ -n "$dir" ] || fail "DIR is missing; see --help"
[ ! -e "$dir" ] || fail "$dir is there already"
[ "$(id -u)" = 0 ] || fail "needs root: files of the root file system are root's"
"$python" -I -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
  || fail "$python is not Python $version, which Debian has; see --python"
here=$(cd "$(dirname "$0")" && pwd)
umask 022
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

root=$dir/rootfs
mkdir -p "$dir"
"$here/../debian/python-root.sh" ${mirror:+--mirror "$mirror"} "$root"
"$here/../stage.sh" --python "$python" ${wheel:+--wheel "$wheel"} "$scratch/lodefs" >/dev/null
(cd "$scratch/lodefs" && tar -cf - usr/bin usr/lib/lodefs) | tar -xf - -C "$root"
sed -i "1s:.*:#!/usr/bin/python$version -IS:" "$root/usr/bin/lodefs"
install -m 644 "$here/init.py" "$root/usr/lib/lodefs-init.py"
mkdir -p "$root/run/docker/plugins" "$root/run/lodefs-proxy" "$root/var/lib/lodefs/docker"
install -m 644 "$here/config.json" "$dir/config.json"
echo "build.sh: $dir is ready, $(du -sm "$root" | cut -f 1) MB" >&2
if [ -n "$create" ]; then docker plugin create "$create" "$dir" >&2; fi
