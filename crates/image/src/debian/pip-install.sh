#!/bin/sh
# Installs Python packages that Debian does not have into a fresh Debian root: ROOT PACKAGE... Run by mmdebstrap.
#
# The index, proxies and certificates are the host's: pip's variables and /etc/pip.conf, and the host's own authorities. What
# Debian has installed already is left as it is.
set -eu
root=$1
shift

settings=$root/tmp/atoll-pip
mkdir "$settings"
authorities=${PIP_CERT:-${REQUESTS_CA_BUNDLE:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}}
unset PIP_CERT REQUESTS_CA_BUNDLE CURL_CA_BUNDLE SSL_CERT_FILE SSL_CERT_DIR
if [ -r "$authorities" ]; then
  cp "$authorities" "$settings/authorities.crt"
  # The first is pip's own variable; the second would win over it.
  export PIP_CERT=/tmp/atoll-pip/authorities.crt REQUESTS_CA_BUNDLE=/tmp/atoll-pip/authorities.crt
fi
if [ -r /etc/pip.conf ]; then cp /etc/pip.conf "$settings/pip.conf"; else : >"$settings/pip.conf"; fi
export PIP_CONFIG_FILE=/tmp/atoll-pip/pip.conf PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1
# A folder of the host is none of the root's.
unset PIP_FIND_LINKS

chroot "$root" python3 - >"$settings/constraints.txt" <<'END'
from importlib.metadata import PackageNotFoundError, version

for name in ("numpy", "pandas", "scipy", "matplotlib", "scikit-learn", "numba", "ipykernel", "tornado"):
    try:
        print(name + "==" + version(name))
    except PackageNotFoundError:
        pass
END
chroot "$root" pip install --break-system-packages --no-cache-dir --quiet --constraint /tmp/atoll-pip/constraints.txt "$@" >&2
home=$root/root
rm -rf "$settings" "$home"/.cache "$home"/.config
