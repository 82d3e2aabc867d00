#!/bin/sh
# Turns a fresh Debian root into the template. Run by mmdebstrap with the root as its argument.
set -eu
root=$1

# The person commands run as; may become root, since the root inside is nobody outside.
chroot "$root" useradd --uid 1000 --user-group --create-home --shell /bin/bash --groups sudo user
rm -f "$root"/home/user/.[!.]* "$root"/root/.[!.]*
printf 'user ALL=(ALL:ALL) NOPASSWD: ALL\n' >"$root/etc/sudoers.d/user"
chmod 0440 "$root/etc/sudoers.d/user"

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
