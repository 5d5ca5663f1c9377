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

suite=bookworm version=3.11 # the Debian that the plugin is made of, and its Python

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
"$python" -c "import sys; sys.exit('%d.%d' % sys.version_info[:2] != '$version')" \
  || fail "$python is not Python $version, which Debian $suite has; see --python"
here=$(cd "$(dirname "$0")" && pwd)
umask 022
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

# Packages are only unpacked: no shell, no package manager, nothing that an attacker could start.
root=$dir/rootfs
mkdir -p "$dir"
"$here/../debian/root.sh" --suite "$suite" ${mirror:+--mirror "$mirror"} extract "$scratch/debian" \
  "python$version-minimal" "libpython$version-stdlib" libgcc-s1 libstdc++6 ca-certificates
debian=$scratch/debian
keep() { # keep PATH...: into the root file system
  (cd "$debian" && tar -cf - "$@") | tar -xf - -C "$root"
}
mkdir -p "$root"
libraries=$(cd "$debian" && find usr/lib/*-linux-gnu* -maxdepth 1 -name '*.so*' \
  ! -name 'libdb-*' ! -name 'libperl*')
# shellcheck disable=SC2086  # words are meant
keep bin lib lib64 "usr/bin/python$version" "usr/lib/python$version" usr/lib64 $libraries
cat "$debian"/usr/share/ca-certificates/mozilla/*.crt >"$scratch/ca-certificates.crt"
install -Dm 644 "$scratch/ca-certificates.crt" "$root/etc/ssl/certs/ca-certificates.crt"
ln -s certs/ca-certificates.crt "$root/etc/ssl/cert.pem"
mkdir -p "$root/usr/share/doc"
for package in "python$version" libc6 openssl; do
  [ ! -d "$debian/usr/share/doc/$package" ] || keep "usr/share/doc/$package"
done

"$here/../stage.sh" --python "$python" ${wheel:+--wheel "$wheel"} "$scratch/lodefs" >/dev/null
(cd "$scratch/lodefs" && tar -cf - usr/bin usr/lib/lodefs) | tar -xf - -C "$root"
sed -i "1s:.*:#!/usr/bin/python$version -IS:" "$root/usr/bin/lodefs"
install -m 644 "$here/init.py" "$root/usr/lib/lodefs-init.py"
"$python" -m compileall -q -s "$root" --invalidation-mode unchecked-hash "$root/usr/lib/python$version"

mkdir -p "$root/etc/lodefs" "$root/run/docker/plugins" "$root/run/lodefs" "$root/run/lodefs-proxy" \
  "$root/var/cache/lodefs" "$root/var/lib/lodefs/docker" "$root/root" "$root/proc" "$root/sys" \
  "$root/dev"
mkdir -m 1777 "$root/tmp"
echo 'root:x:0:0:root:/root:/usr/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
install -m 644 "$here/config.json" "$dir/config.json"
echo "build.sh: $dir is ready, $(du -sm "$root" | cut -f 1) MB" >&2
if [ -n "$create" ]; then docker plugin create "$create" "$dir" >&2; fi
