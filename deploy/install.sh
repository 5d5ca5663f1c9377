#!/bin/sh
# Installs lodefs on a machine with systemd, or brings it to a newer version. See --help.
set -eu
export LC_ALL=C
umask 022

usage() {
  cat <<'TEXT'
usage: install.sh [--wheel FILE] [--python PATH] [--prefix DIR] [--destdir DIR]
                  [--enable] [--dry-run] [--yes]

Installs lodefs and all Python packages that it needs, its units, and an example of its settings.
Again: an upgrade. What runs is started anew then; mounts and their readers live on.

  --wheel FILE    a wheel of lodefs [built from this checkout]
  --python PATH   Python 3.11 or newer, with venv, that will run it [/usr/bin/python3]
  --prefix DIR    /usr or /usr/local [/usr]
  --destdir DIR   install below DIR, for an image of another machine; nothing is started
  --enable        enable and start the proxy, and the Docker plugin where there is a dockerd;
                  else nothing is enabled or started
  --dry-run       say each step, change nothing
  --yes           do not ask

Python packages come from where pip is told to look (PIP_*, pip.conf). On Debian 12
debian/build.sh makes a package instead. From a bundle, it installs what lies beside it, with a
Python of its own, below /usr. uninstall.sh removes exactly what this has installed.
TEXT
}

fail() {
  echo "install.sh: $*" >&2
  exit 1
}

wheel='' python=/usr/bin/python3 prefix=/usr destdir='' enable='' dry='' yes=''
while [ $# -gt 0 ]; do
  case $1 in
    -h | --help) usage && exit 0 ;;
    --wheel | --python | --prefix | --destdir)
      [ $# -ge 2 ] || fail "$1 needs a value"
      eval "${1#--}=\$2"
      shift
      ;;
    --enable) enable=yes ;;
    --dry-run) dry=yes ;;
    --yes) yes=yes ;;
    *) fail "there is no option $1; see --help" ;;
  esac
  shift
done
here=$(cd "$(dirname "$0")" && pwd)
case $prefix in
  /usr) other=/usr/local ;;
  /usr/local) other=/usr ;;
  *) fail "--prefix must be /usr or /usr/local: systemd looks for units there" ;;
esac
bundle=$here/tree
[ -d "$bundle/usr/lib/lodefs/python" ] || bundle=''
destdir=${destdir%/}
packages=$destdir$prefix/lib/lodefs
manifest=$packages/manifest
config=$destdir/etc/lodefs/lodefs.toml
mounts=/etc/lodefs/mounts.d

# Checks first: nothing is touched before all of them have passed.
[ -n "$dry$destdir" ] || [ "$(id -u)" = 0 ] || fail "needs root"
if [ -n "$bundle" ]; then
  [ -z "$wheel" ] && [ "$prefix" = /usr ] \
    || fail "--wheel and --prefix are not for a bundle; install without them"
  "$bundle/usr/bin/lodefs" version >/dev/null || fail "this bundle is for another kind of machine"
else
  "$python" -I -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null \
    || fail "$python must be Python 3.11 or newer with venv (Debian: python3 python3-venv); see" \
      "--python, or take a bundle, which has one"
fi
[ -n "$destdir" ] || [ -d /run/systemd/system ] || [ -n "$dry" ] \
  || fail "systemd does not run here; --destdir installs for another machine"
if [ -z "$destdir" ] && dpkg-query -W -f '${Status}' lodefs 2>/dev/null | grep -q ' installed'; then
  fail "the Debian package lodefs is installed; upgrade that, or remove it first"
fi
[ ! -e "$destdir$other/lib/lodefs/manifest" ] \
  || fail "lodefs is installed below $other; upgrade that (--prefix $other), or remove it first"
[ ! -e "$packages" ] || [ -f "$manifest" ] || fail "$packages is there, but not from install.sh"
[ -z "$enable" ] || [ -z "$destdir" ] || fail "--enable and --destdir do not go together"
if [ -n "$enable" ] && ! grep -qs '^ *store *=' "$config"; then
  fail "$config does not say where the store is; install without --enable, set \`store\`, and repeat"
fi
[ -n "$dry$yes" ] || [ -t 0 ] || fail "no terminal to ask at; give --yes"

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
trap 'exit 1' HUP INT TERM
echo "install.sh: gathering lodefs and what it needs in $scratch"
tree=$scratch/tree
if [ -n "$bundle" ]; then
  cp -R -p "$bundle" "$tree"
  version=$(echo "$tree"/usr/lib/lodefs/lodefs-*.dist-info | sed 's/.*lodefs-\(.*\)\.dist-info/\1/')
else
  version=$("$here/stage.sh" --python "$python" --prefix "$prefix" ${wheel:+--wheel "$wheel"} "$tree")
fi
install -m 755 "$here/uninstall.sh" "$tree$prefix/lib/lodefs/uninstall.sh"
: >"$tree$prefix/lib/lodefs/manifest"
(cd "$tree" && find . -type f ! -path './etc/*' | sed 's/^\.//' | sort) >"$scratch/files"
cp "$scratch/files" "$tree$prefix/lib/lodefs/manifest"
others=$(grep -v "^$prefix/lib/lodefs/" "$scratch/files")
: >"$scratch/stale" # what the version before had and this one has not
if [ -f "$manifest" ]; then
  sort "$manifest" | comm -23 - "$scratch/files" | grep -v "^$prefix/lib/lodefs/" >"$scratch/stale" \
    || true
fi
settings='/etc/lodefs/lodefs.toml /etc/default/lodefs'

echo "install.sh: this will"
if [ -f "$manifest" ]; then echo "  bring lodefs to $version"; else echo "  install lodefs $version"; fi
echo "  write $packages ($(grep -c "^$prefix/lib/lodefs/" "$scratch/files") files)"
doc=$prefix/share/doc/lodefs
echo "  write $destdir$doc ($(grep -c "^$doc/" "$scratch/files") files)"
echo "$others" | grep -v "^$doc/" | while read -r file; do echo "  write $destdir$file"; done
while read -r file; do echo "  remove $destdir$file"; done <"$scratch/stale"
for file in $settings; do
  if [ -e "$destdir$file" ]; then
    echo "  keep $destdir$file"
  else
    echo "  write $destdir$file, an example"
  fi
done
[ -d "$destdir$mounts" ] || echo "  make $destdir$mounts, for mounts at boot"
if [ -z "$destdir" ]; then
  echo "  make the user lodefs, have systemd read its units, start anew what runs of lodefs"
fi
[ -z "$enable" ] || echo "  enable and start lodefs-proxy, and lodefs-docker where there is a dockerd"
[ -z "$dry" ] || exit 0
if [ -z "$yes" ]; then
  printf 'Go on? [y/N] '
  read -r answer
  case $answer in y | Y | yes) ;; *) fail "nothing was changed" ;; esac
fi

place() { # place MODE FILE: a process that has the old one open keeps it
  mkdir -p "$destdir$(dirname "$2")"
  install -m "$1" "$tree$2" "$destdir$2.new"
  mv -f "$destdir$2.new" "$destdir$2"
}

# The packages change all at once, so that no program sees two versions of them.
mkdir -p "$destdir$prefix/lib"
rm -rf "$packages.new" "$packages.old"
cp -R -p "$tree$prefix/lib/lodefs" "$packages.new"
[ ! -e "$packages" ] || mv "$packages" "$packages.old"
mv "$packages.new" "$packages"
rm -rf "$packages.old"
for file in $others; do
  place "$(stat -c %a "$tree$file")" "$file"
done
while read -r file; do rm -f "$destdir$file"; done <"$scratch/stale"
mkdir -p "$destdir$mounts"
for file in $settings; do
  [ -e "$destdir$file" ] || place "$(stat -c %a "$tree$file")" "$file"
done

if [ -z "$destdir" ]; then
  "$packages/services.sh" activate
fi
if [ -n "$enable" ]; then
  systemctl enable --now lodefs-proxy.socket lodefs-proxy.service
  if command -v dockerd >/dev/null; then
    systemctl enable --now lodefs-docker.socket lodefs-docker.service
  fi
fi
echo "install.sh: lodefs $version is installed"
if [ -z "$enable$destdir" ]; then
  echo "install.sh: set \`store\` in $config, then: systemctl enable --now lodefs-proxy"
fi
