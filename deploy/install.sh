#!/bin/sh
# Installs Atoll from this folder: ./install.sh [--prefix DIR] [--no-service] [--uninstall]
#
# The default prefix is /usr/local. As root with the prefix /usr/local, and where systemd runs, it also installs the settings
# /etc/atoll/config.toml, the group atoll and the service. --uninstall removes what was installed; sandboxes are stopped, and
# their data and the settings are kept.
set -eu

prefix=/usr/local service=yes action=install
here=$(cd "$(dirname "$0")" && pwd)

say() { echo "install: $*" >&2; }
fail() { say "$*"; exit 1; }

while [ $# -gt 0 ]; do
  case $1 in
    --prefix) [ $# -gt 1 ] || fail "--prefix needs a folder"; prefix=$2; shift 2 ;;
    --prefix=*) prefix=${1#--prefix=}; shift ;;
    --no-service) service=no; shift ;;
    --uninstall) action=uninstall; shift ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0"; exit ;;
    *) fail "unknown option $1; there are --prefix DIR, --no-service and --uninstall" ;;
  esac
done
case $prefix in /*) ;; *) fail "the prefix must be an absolute path, such as /opt/atoll" ;; esac
[ "$prefix" = / ] || prefix=${prefix%/}
# Debian's package has its files there.
[ "$prefix" != /usr ] || fail "/usr belongs to packages; use the Debian package, or another prefix"

list=$prefix/lib/atoll/installed-files
unit=/etc/systemd/system/atoll.service
is_system() { [ "$(id -u)" = 0 ] && [ "$prefix" = /usr/local ] && [ "$service" = yes ]; }
has_systemd() { [ -d /run/systemd/system ]; }

# The C library of this system as a number: 2.36 is 236.
check_machine() {
  needed=$(cat "$here/glibc")
  found=$(getconf GNU_LIBC_VERSION 2>/dev/null | cut -d' ' -f2)
  [ -n "$found" ] || fail "this system has no glibc; Atoll needs glibc $needed or newer"
  [ "$(printf '%s\n%s\n' "$needed" "$found" | sort -V | head -n 1)" = "$needed" ] ||
    fail "this system has glibc $found; Atoll needs $needed or newer (Debian 12, Ubuntu 24.04)"
  missing=
  for program in mkfs.btrfs ip nft tar zstd; do command -v "$program" >/dev/null || missing="$missing $program"; done
  [ -z "$missing" ] || say "for sandboxes these programs are missing:$missing. On Debian: apt-get install $(sed -n 's/^needs: //p' "$here/debian-packages" | tr -d ,)"
}

install_files() {
  mkdir -p "$prefix/lib/atoll" 2>/dev/null && [ -w "$prefix/lib/atoll" ] || fail "$prefix cannot be written; use sudo, or --prefix with a folder of yours"
  new=$list.new
  (cd "$here" && find bin lib share \( -type f -o -type l \) ! -path 'lib/systemd/*') | LC_ALL=C sort >"$new"
  while read -r file; do
    mkdir -p "$prefix/$(dirname "$file")"
    # By a rename, so that a program that runs can be replaced.
    cp -pP "$here/$file" "$prefix/$file.new"
    mv -f "$prefix/$file.new" "$prefix/$file"
  done <"$new"
  # What an earlier version had and this one has not.
  if [ -e "$list" ]; then
    while read -r file; do grep -qxF "$file" "$new" || rm -f "$prefix/$file"; done <"$list"
  fi
  mv "$new" "$list"
}

install_service() {
  getent group atoll >/dev/null || groupadd --system atoll
  mkdir -p /etc/atoll
  [ -e /etc/atoll/config.toml ] || cp "$here/config.toml" /etc/atoll/config.toml
  has_systemd || { say "systemd does not run here; as root: atoll run -- echo hello"; return 0; }
  sed "s|/usr/bin/atoll|$prefix/bin/atoll|" "$here/lib/systemd/system/atoll.service" >"$unit"
  systemctl daemon-reload
  systemctl enable --quiet atoll.service
  # Sandboxes keep running over a restart.
  systemctl restart atoll.service || say "the service did not start; see: systemctl status atoll, atoll doctor"
}

uninstall() {
  [ -e "$list" ] || fail "nothing was installed below $prefix by this script"
  if is_system && has_systemd && [ -e "$unit" ]; then
    systemctl disable --now --quiet atoll.service || true
    rm -f "$unit"
    systemctl daemon-reload
  fi
  if [ "$(id -u)" = 0 ]; then
    # The folder of the settings, that of the service, and that of a server without settings.
    named=$(sed -n 's/^data *= *"\(.*\)".*/\1/p' /etc/atoll/config.toml 2>/dev/null || true)
    for data in "$named" /var/lib/atoll "${HOME:-/root}/.atoll"; do
      [ -n "$data" ] && [ -e "$data/secret.key" ] || continue
      "$prefix/bin/atoll" --data "$data" server uninstall --force --keep-data ||
        fail "the sandboxes of $data could not be stopped; nothing was removed"
      say "kept $data with its sandboxes, volumes and keys"
    done
  fi
  while read -r file; do rm -f "$prefix/$file"; done <"$list"
  rm -f "$list"
  # Folders that are empty now; those of others stay.
  find "$prefix/lib/atoll" "$prefix/share/doc/atoll" -depth -type d -empty -delete 2>/dev/null || true
  if is_system && [ -e /etc/atoll/config.toml ]; then say "kept /etc/atoll/config.toml and the group atoll"; fi
  say "removed Atoll from $prefix"
}

if [ "$action" = uninstall ]; then uninstall; exit; fi
check_machine
install_files
if is_system; then install_service; fi
say "installed $("$prefix/bin/atoll" --version) below $prefix"
case :$PATH: in *:$prefix/bin:*) ;; *) say "add $prefix/bin to PATH" ;; esac
