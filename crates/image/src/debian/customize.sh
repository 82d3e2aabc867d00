#!/bin/sh
# Turns a fresh Debian root into the template. Run by mmdebstrap with the root as its argument.
set -eu
root=$1

# The people commands run as; they may become root, since the root inside is nobody outside. Code written for Daytona
# expects to be `daytona`, everybody else is `user`.
uid=1000
for name in user daytona; do
  chroot "$root" useradd --uid "$uid" --user-group --create-home --shell /bin/bash --groups sudo "$name"
  rm -f "$root/home/$name"/.[!.]*
  printf '%s ALL=(ALL:ALL) NOPASSWD: ALL\n' "$name" >"$root/etc/sudoers.d/$name"
  chmod 0440 "$root/etc/sudoers.d/$name"
  uid=$((uid + 1))
done
rm -f "$root"/root/.[!.]*

# A login shell that has nothing to read starts as fast as any other; PATH comes from the manifest.
: >"$root/etc/profile"
rm -f "$root"/etc/profile.d/*.sh

# mmdebstrap copied these from the host.
printf 'sandbox\n' >"$root/etc/hostname"
printf '127.0.0.1\tlocalhost sandbox\n::1\tlocalhost ip6-localhost ip6-loopback\n' >"$root/etc/hosts"
rm -f "$root/etc/resolv.conf"
printf 'nameserver 169.254.0.1\n' >"$root/etc/resolv.conf"
: >"$root/etc/machine-id"

# A sandbox is thrown away: pip may install into the system's Python.
rm -f "$root"/usr/lib/python3*/EXTERNALLY-MANAGED

# The agent's mount point, and what only costs space.
mkdir -p "$root/.atoll"
rm -rf "$root"/var/cache/apt/*.bin "$root"/var/lib/apt/lists/* "$root"/var/cache/debconf/*-old "$root"/var/lib/dpkg/*-old
rm -f "$root"/var/log/*.log "$root"/var/log/apt/* "$root"/etc/*- "$root"/etc/.pwd.lock
