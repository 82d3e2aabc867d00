"""The workspace of agents: `/workspace`, writable and the working directory, with `python` and `pip` at hand.

Images differ: Debian's have only `python3`, and only root may make a folder in `/`. One short script in the sandbox makes
what is missing; where a template has it all, it changes nothing.
"""

from __future__ import annotations

WORKSPACE = "/workspace"
# Below the working directory, where no user may make a folder in `/`.
FALLBACK = "workspace"

# First as the user of the sandbox, by `sudo` where that needs no password; then, if it failed, as root for OWNER. The first
# line of the output is the user, and the exit code says whether the folder is there and the user may write in it.
PREPARE = r"""
owner=${OWNER:-$(id -u):$(id -g)}
echo "$owner"
as_root() { if [ "$(id -u)" = 0 ]; then "$@"; else sudo -n "$@"; fi; }
add() { as_root sh -c "$1" >/dev/null 2>&1 || true; }
if ! command -v python >/dev/null && command -v python3 >/dev/null; then
  add "mkdir -p /usr/local/bin && ln -s $(command -v python3) /usr/local/bin/python"
fi
if ! command -v pip >/dev/null && python3 -m pip --version >/dev/null 2>&1; then
  add "printf '#!/bin/sh\nexec python3 -m pip \"\$@\"\n' >/usr/local/bin/pip && chmod 755 /usr/local/bin/pip"
fi
if [ -n "$OWNER" ] || ! { [ -d /workspace ] && [ -w /workspace ]; }; then
  as_root mkdir -p /workspace && as_root chown "$owner" /workspace
fi
"""


def owner_of(output: str) -> str:
    """The user and group that the script printed."""
    return output.partition("\n")[0].strip()
