# Debian with language servers: Python's is in debian already, TypeScript's and JavaScript's come from npm. The code interpreters have
# them too.
FROM debian
USER root
ARG NPM_CONFIG_REGISTRY
RUN npm install --global --prefix /usr/local --no-fund --no-audit typescript@5.9 typescript-language-server@5 \
 && npm cache clean --force \
 && typescript-language-server --version
USER user
WORKDIR /home/user
