#!/bin/sh
# Makes a root file system of Debian's Python and no more: no shell, no package manager, nothing
# that an attacker could start. Packages are only unpacked. Plugin and images begin with it.
set -eu

usage() {
  cat <<'TEXT'
usage: python-root.sh [--mirror SOURCE] [--architecture NAME] DIR

  --mirror SOURCE, --architecture NAME  see root.sh
TEXT
}

suite=bookworm version=3.11 # the Debian that it is made of, and its Python

mirror='' architecture=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --mirror | --architecture)
      [ $# -ge 2 ] || { usage >&2 && exit 2; }
      eval "${1#--}=\$2"
      shift 2
      ;;
    *) break ;;
  esac
done
[ $# -eq 1 ] || { usage >&2 && exit 2; }
root=$1
here=$(cd "$(dirname "$0")" && pwd)
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM

"$here/root.sh" --suite "$suite" ${mirror:+--mirror "$mirror"} \
  ${architecture:+--architecture "$architecture"} extract "$scratch/debian" \
  "python$version-minimal" "libpython$version-stdlib" libgcc-s1 libstdc++6 ca-certificates
debian=$scratch/debian
keep() { # keep PATH...: into the root file system
  (cd "$debian" && tar -cf - "$@") | tar -xf - -C "$root"
}
mkdir -p "$root"
libraries=$(cd "$debian" && find usr/lib/*-linux-gnu* -maxdepth 1 -name '*.so*' \
  ! -name 'libdb-*' ! -name 'libperl*')
# amd64 has it in lib64, arm64 in lib
loader=$(cd "$debian" && ls -d lib64 usr/lib64 usr/lib/ld-linux-*.so.* 2>/dev/null) || true
# shellcheck disable=SC2086  # words are meant
keep bin lib "usr/bin/python$version" "usr/lib/python$version" $loader $libraries
cat "$debian"/usr/share/ca-certificates/mozilla/*.crt >"$scratch/ca-certificates.crt"
install -Dm 644 "$scratch/ca-certificates.crt" "$root/etc/ssl/certs/ca-certificates.crt"
ln -s certs/ca-certificates.crt "$root/etc/ssl/cert.pem"
mkdir -p "$root/usr/share/doc"
# Source packages and their versions, of which files are here: for bills of materials.
for log in "$debian"/usr/share/doc/*/changelog.Debian*.gz "$debian"/usr/share/doc/*/changelog.gz; do
  [ ! -f "$log" ] || gzip -dc "$log" | sed -n \
    '1s/^\([a-z0-9][^ ]*\) (\([0-9][^)]*\)).*urgency.*/\1 \2/p' | sed 's/+b[0-9]*$//'
done | sort -u >"$root/usr/share/doc/debian-packages"
for package in "python$version" libc6 openssl; do
  [ ! -d "$debian/usr/share/doc/$package" ] || keep "usr/share/doc/$package"
done
"${PYTHON:-/usr/bin/python$version}" -Ps -m compileall -q -s "$root" \
  --invalidation-mode unchecked-hash "$root/usr/lib/python$version"
mkdir -p "$root/etc/lodefs" "$root/run/lodefs" "$root/root" "$root/proc" "$root/sys" "$root/dev" \
  "$root/var/cache/lodefs" "$root/var/lib/lodefs"
mkdir -m 1777 "$root/tmp"
echo 'root:x:0:0:root:/root:/usr/sbin/nologin' >"$root/etc/passwd"
echo 'root:x:0:' >"$root/etc/group"
echo 'hosts: files dns' >"$root/etc/nsswitch.conf"
