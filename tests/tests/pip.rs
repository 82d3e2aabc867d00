//! What programs find in the built-in templates: packages that `pip install` and npm put there, by the user and by root, the
//! certificate authorities of this machine, and the tables of sockets.

#![allow(clippy::unwrap_used, reason = "tests")]

use atoll_tests::{Options, json, run_with};

/// Makes a wheel by hand and installs it without an index.
const INSTALL: &str = r#"set -e
cd "$(mktemp -d)"
python3 - <<'END'
import zipfile
with zipfile.ZipFile("of_test-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("of_test.py", "answer = 42\n")
    wheel.writestr("of_test-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: of-test\nVersion: 1.0\n")
    wheel.writestr("of_test-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
    wheel.writestr("of_test-1.0.dist-info/RECORD", "")
END
/usr/bin/python3 -m pip install --no-index --disable-pip-version-check --quiet ./of_test-1.0-py3-none-any.whl
cd / && /usr/bin/python3 -c 'import of_test; print(of_test.answer)'"#;

#[test]
fn pip_installs_into_the_python_of_every_built_in_template() {
    run_with(Options { templates: vec!["host"], ..Options::debian() }, async |world| {
        let client = world.tenant("acme").await;
        for template in ["debian", "host"] {
            let id = client.create(json!({ "template": template })).await;
            for ran in [client.sh(&id, INSTALL).await, client.sh_root(&id, INSTALL).await] {
                assert_eq!((ran.code, ran.stdout.as_str()), (0, "42\n"), "{template}: {ran:?}");
            }
        }
    });
}

/// Installs a program for the user, and finds it as every kind of shell does.
const USERS_PROGRAM: &str = r#"set -e
mkdir -p "$HOME/.local/bin"
printf '#!/bin/sh\necho mine\n' > "$HOME/.local/bin/own-tool"
chmod +x "$HOME/.local/bin/own-tool"
own-tool
bash -c own-tool
bash -l -c own-tool
sh -l -c own-tool
bash -i -c own-tool 2>/dev/null"#;

#[test]
fn programs_that_a_user_installs_are_found_by_every_shell() {
    run_with(Options { templates: vec!["host"], ..Options::debian() }, async |world| {
        let client = world.tenant("acme").await;
        for (template, users) in [("debian", &["user", "daytona", "root"][..]), ("host", &["user", "root"])] {
            let id = client.create(json!({ "template": template })).await;
            for user in users {
                let install = json!({ "argv": ["/bin/sh", "-c", USERS_PROGRAM], "user": user });
                let ran = client.exec(&id, install).await;
                assert_eq!(
                    (ran.code, ran.stdout.as_str()),
                    (0, "mine\n".repeat(5).as_str()),
                    "{template} {user}: {ran:?}"
                );
                let direct = client.exec(&id, json!({ "argv": ["own-tool"], "user": user })).await;
                assert_eq!(
                    (direct.code, direct.stdout.as_str()),
                    (0, "mine\n"),
                    "{template} {user}: {direct:?}"
                );
            }
            let given =
                json!({ "argv": ["/bin/sh", "-c", "echo $PATH"], "env": { "PATH": "/usr/bin:/bin" } });
            assert_eq!(client.exec(&id, given).await.stdout, "/usr/bin:/bin:/.atoll/bin\n");
        }
    });
}

#[test]
fn ss_lists_listeners_without_an_error() {
    run_with(Options { templates: vec!["host"], ..Options::debian() }, async |world| {
        let client = world.tenant("acme").await;
        for template in ["debian", "host"] {
            let id = client.create(json!({ "template": template })).await;
            let listed = "python3 -m http.server 8123 >/dev/null 2>&1 & \
                i=0; until ss -Hltn | grep -q :8123 || [ $i -ge 100 ]; do i=$((i+1)); sleep 0.1; done; ss -ltnu";
            let ran = client.sh(&id, listed).await;
            assert!(ran.stdout.contains(":8123"), "{template}: {ran:?}");
            assert_eq!(ran.stderr, "", "{template}");
        }
    });
}

/// Node and npm work, also for packages that root installs for all.
const NODE: &str = r#"set -e
node -e 'console.log(Number(process.versions.node.split(".")[0]) >= 20)'
mkdir -p /tmp/pack && cd /tmp/pack
printf '{"name": "of-test", "version": "1.0.0", "bin": "main.js"}' > package.json
printf '#!/usr/bin/env node\nconsole.log("from npm")\n' > main.js
npm install --global --offline --no-audit --no-fund --silent /tmp/pack >/dev/null
of-test
npx --version >/dev/null"#;

#[test]
fn debian_has_a_node_that_runs_todays_packages() {
    run_with(Options::debian(), async |world| {
        let client = world.tenant("acme").await;
        let id = client.create(json!({})).await;
        let ran = client.sh_root(&id, NODE).await;
        assert_eq!((ran.code, ran.stdout.as_str()), (0, "true\nfrom npm\n"), "{ran:?}");
        assert_eq!(client.sh(&id, "of-test").await.stdout, "from npm\n");
    });
}

/// Certificates whose subject is in the folder of the host and which Python and Node trust.
const TRUSTED: &str = r#"set -e
for file in /usr/local/share/ca-certificates/*.crt; do
  openssl verify "$file" >/dev/null
  openssl verify -no-CAfile -CApath /etc/ssl/certs "$file" >/dev/null
done
python3 -c 'import ssl, sys; sys.exit(len(ssl.create_default_context(cafile="/etc/ssl/certs/ca-certificates.crt").get_ca_certs()) < 2)'
test "$NODE_EXTRA_CA_CERTS" = /etc/ssl/certs/ca-certificates.crt
node -e 'require("tls").createSecureContext(); process.exit(require("fs").existsSync(process.env.NODE_EXTRA_CA_CERTS) ? 0 : 1)'
ls /usr/local/share/ca-certificates | wc -l"#;

#[test]
fn debian_trusts_the_authorities_of_this_machine() {
    let is_certificate = |entry: &std::fs::DirEntry| {
        let text = std::fs::read_to_string(entry.path()).unwrap_or_default();
        entry.path().extension().is_some_and(|end| end == "crt") && text.contains("BEGIN CERTIFICATE")
    };
    let own = std::fs::read_dir("/usr/local/share/ca-certificates")
        .map_or(0, |entries| entries.filter_map(Result::ok).filter(is_certificate).count());
    run_with(Options::debian(), async |world| {
        let client = world.tenant("acme").await;
        let id = client.create(json!({})).await;
        if own == 0 {
            let none = client
                .sh(&id, "echo \"$NODE_EXTRA_CA_CERTS\"; ls /usr/local/share/ca-certificates | wc -l")
                .await;
            assert_eq!(none.stdout, "\n0\n", "{none:?}");
            return;
        }
        let ran = client.sh(&id, TRUSTED).await;
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(ran.stdout.trim().parse::<usize>().unwrap() >= own, "{ran:?}");
    });
}
