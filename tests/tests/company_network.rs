//! A server in the network of a company: authorities, proxies and mirrors, with an intercepting proxy of the test's own.

#![allow(clippy::unwrap_used, reason = "tests")]

use std::net::SocketAddr;
use std::process::Stdio;

use atoll_tests::company_proxy::{CompanyProxy, ProxyRequest};
use atoll_tests::connection_probes::{came_to_nothing, logged, try_one};
use atoll_tests::internet::{EVIL, GOOD, GREETING, OTHER};
use atoll_tests::namespaces::HOST_ADDRESS;
use atoll_tests::registry::{ADDRESS, Registry};
use atoll_tests::{Client, Options, World, json, run_with};
use nix::sys::signal::Signal;
use reqwest::Method;

/// A password that must not be found anywhere.
const SECRET: &str = "canary-of-the-proxy";
/// The proxy of the company, on the machine itself.
const PROXY: &str = "127.0.0.1:3128";
/// A name that only the proxy knows.
const REGISTRY: &str = "registry.only-inside.test";
/// Another one, which is a web server.
const FILES: &str = "files.only-inside.test";

fn web(address: std::net::Ipv4Addr) -> SocketAddr {
    SocketAddr::from((address, 80))
}

fn with_login() -> String {
    format!("http://atoll:{SECRET}@{PROXY}")
}

/// `Proxy-Authorization` of that login.
const LOGIN: &str = "Basic YXRvbGw6Y2FuYXJ5LW9mLXRoZS1wcm94eQ==";

/// Writes the authority of the proxy where the next start of the server finds it.
fn trust(w: &World, proxy: &CompanyProxy) -> String {
    let file = w.folder().join("company.pem");
    std::fs::write(&file, format!("# the company's\n{}", proxy.authority_pem)).unwrap();
    file.to_str().unwrap().to_owned()
}

async fn restart(w: &World, settings: &[(&str, &str)]) {
    assert!(w.stop_server(Signal::SIGTERM).await.success());
    settings.iter().for_each(|(name, value)| w.set_env(name, value));
    w.start_server().await;
}

fn to(requests: &[ProxyRequest], to: &str) -> usize {
    requests.iter().filter(|request| request.to == to).count()
}

/// Searches the environment, the files and the processes of a sandbox as its root.
async fn no_secret_inside(client: &Client, id: &str) {
    // A pattern that does not match itself, because the search is a process too.
    let pattern = format!("{}[{}]{}", &SECRET[..6], &SECRET[6..7], &SECRET[7..]);
    let search = format!(
        "env | grep -c '{pattern}'; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline 2>/dev/null | grep -ac '{pattern}'; \
         grep -rsl '{pattern}' /etc /run /tmp /home /root /var /.atoll 2>/dev/null | grep -c ."
    );
    let ran = client.sh_root(id, &search).await;
    assert_eq!(ran.stdout.trim(), "0\n0\n0", "{ran:?}");
}

#[test]
fn images_are_pulled_through_the_proxy_that_intercepts() {
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        let registry = Registry::start(w).await;
        registry.push(&atoll_tests::image::busybox(), "tools", "1").await;
        let hosts = [(REGISTRY, ADDRESS.parse().unwrap())];
        let proxy = CompanyProxy::intercepting(PROXY, &hosts, Some(LOGIN)).await;
        let (ca, url) = (trust(w, &proxy), with_login());
        let admin = w.admin();
        let image = format!("{REGISTRY}/tools:1");
        let unknown = admin.pull(&image).await.unwrap_err();
        restart(w, &[("HTTPS_PROXY", &url)]).await;
        let untrusted = admin.pull(&image).await.unwrap_err();
        assert_ne!(unknown, untrusted);
        restart(w, &[("ATOLL_EXTRA_CA", &ca)]).await;
        let template = admin.pull(&image).await.expect("a pull through the proxy");
        assert!(template.to_string().contains("tools"), "{template}");
        let seen = proxy.seen();
        assert!(to(&seen, &format!("{REGISTRY}:443")) > 1, "{seen:?}");
        assert!(seen.iter().all(|request| request.login.as_deref() == Some(LOGIN)), "{seen:?}");
        // Without a proxy for this name, nothing leads there; the rule of a suffix is enough.
        restart(w, &[("NO_PROXY", ".only-inside.test")]).await;
        let direct = admin.pull(&format!("{REGISTRY}/tools:2")).await.unwrap_err();
        assert!(!direct.to_string().contains("through the proxy"), "{direct}");
        assert_eq!(proxy.seen().len(), seen.len());
        restart(w, &[("NO_PROXY", "")]).await;
        drop(proxy);
        let down = admin.pull(&format!("{REGISTRY}/tools:3")).await.unwrap_err().to_string();
        assert!(down.contains(&format!("through the proxy http://{PROXY}")), "{down}");
        for text in [down, w.log(), untrusted.to_string()] {
            assert!(!text.contains(SECRET), "{text}");
        }
    });
}

/// Fetches a page as the programs of a sandbox do, each with its own list of authorities.
fn programs(url: &str) -> [(&'static str, String); 3] {
    let python =
        format!("import urllib.request; print(urllib.request.urlopen('{url}').read().decode(), end='')");
    let node = format!(
        "require('https').get('{url}', a => a.on('data', d => process.stdout.write(d))).on('error', e => console.log(e.message))"
    );
    [
        ("curl", format!("curl -sS {url}")),
        ("python", format!("python3 -c \"{python}\"")),
        ("node", format!("node -e \"{node}\"")),
    ]
}

#[test]
fn programs_inside_reach_allowed_names_through_the_interceptor_only() {
    run_with(Options { audit: false, ..Options::debian() }, async |w| {
        let hosts = [("good.test", web(GOOD)), (FILES, web(GOOD)), ("evil.test", web(EVIL))];
        let proxy = CompanyProxy::intercepting(PROXY, &hosts, Some(LOGIN)).await;
        let (ca, url) = (trust(w, &proxy), with_login());
        restart(w, &[("ATOLL_EXTRA_CA", &ca), ("ATOLL_EGRESS_PROXY", &url)]).await;
        let client = w.tenant("acme").await;
        let policy = json!({ "mode": "custom", "allow_domains": ["good.test", FILES] });
        let id = client.create(json!({ "network": policy })).await;
        for host in ["good.test", FILES] {
            for (program, line) in programs(&format!("https://{host}/")) {
                let ran = client.sh(&id, &line).await;
                assert_eq!(ran.stdout, GREETING, "{program} {host}: {ran:?}");
            }
        }
        assert_eq!(client.sh(&id, &format!("curl -sS http://{FILES}/")).await.stdout, GREETING);
        let seen = proxy.seen();
        assert!(to(&seen, "good.test:443") >= 3 && to(&seen, &format!("{FILES}:80")) == 1, "{seen:?}");
        logged(&client, &id, json!({ "what": "tls", "verdict": "allowed", "name": FILES })).await;
        // Another name in the hello than the one that was resolved.
        w.internet.forget();
        let other = json!({ "do": "tls", "host": "good.test", "port": 443, "sni": "evil.test", "send": "GET / HTTP/1.0\r\n\r\n" });
        assert!(came_to_nothing(&try_one(&client, &id, other).await));
        logged(&client, &id, json!({ "what": "tls", "verdict": "refused", "name": "evil.test" })).await;
        // What is no TCP has no way, and is told.
        let udp = json!({ "do": "udp", "host": GOOD, "port": 443 });
        assert!(came_to_nothing(&try_one(&client, &id, udp).await));
        let rule = "egress proxy: only tcp is carried";
        logged(&client, &id, json!({ "verdict": "refused", "protocol": "udp", "rule": rule })).await;
        w.internet.unharmed("a name that is not allowed");
        assert_eq!(to(&proxy.seen(), "evil.test:443"), 0);
        no_secret_inside(&client, &id).await;
        everything_goes_through(w, &client, &proxy).await;
        proxy_down(w, &client, &id, proxy).await;
    });
}

/// A sandbox without lists has no other way out either.
async fn everything_goes_through(w: &World, client: &Client, proxy: &CompanyProxy) {
    let open = client.create(json!({})).await;
    w.internet.forget();
    let ran = client.sh(&open, &format!("curl -sS https://{FILES}/")).await;
    assert_eq!(ran.stdout, GREETING, "{ran:?}");
    let refused = client.sh(&open, &format!("curl -sS -m 9 http://{OTHER}/")).await;
    assert_ne!(refused.code, 0, "the proxy refuses it: {refused:?}");
    assert_eq!(to(&proxy.seen(), &format!("{OTHER}:80")), 1);
    w.internet.untouched(OTHER, "a way around the proxy");
    logged(client, &open, json!({ "verdict": "failed", "address": OTHER })).await;
    let own = client.sh(&open, &format!("curl -sS -m 9 http://{HOST_ADDRESS}:7070/health")).await;
    assert_ne!(own.code, 0, "the host is not reached: {own:?}");
    assert_eq!(to(&proxy.seen(), &format!("{HOST_ADDRESS}:7070")), 0);
    let inner = client.sh(&open, "curl -sS -m 9 http://metadata.google.internal/").await;
    assert_eq!(inner.code, 6, "a name of the proxy's surroundings is not resolved: {inner:?}");
}

/// There is no way around a proxy that is down, and the sandbox is told.
async fn proxy_down(w: &World, client: &Client, id: &str, proxy: CompanyProxy) {
    drop(proxy);
    w.internet.forget();
    let plain = client.sh(id, "curl -sS http://good.test/").await;
    assert!(plain.stdout.contains("egress proxy: the proxy is not reached"), "{plain:?}");
    let tls = client.sh(id, "curl -sS https://good.test/").await;
    assert_ne!(tls.code, 0);
    assert!(tls.stderr.contains("alert"), "{tls:?}");
    let rule = "egress proxy: the proxy is not reached: nothing listens there";
    logged(client, id, json!({ "what": "tls", "verdict": "failed", "rule": rule })).await;
    w.internet.untouched(GOOD, "a way around the proxy");
    assert!(!w.log().contains(SECRET));
}

#[test]
fn a_sandbox_of_e2b_has_a_socks_proxy_of_its_own() {
    run_with(Options { audit: false, ..Options::debian() }, async |w| {
        let hosts = [("good.test", SocketAddr::from((GOOD, 443))), (FILES, web(GOOD))];
        let login = format!("me:{SECRET}");
        let proxy = CompanyProxy::socks5(&format!("{HOST_ADDRESS}:1080"), &hosts, &login).await;
        // A public address leads to it, as a service somewhere would.
        w.internet.relays(1080, proxy.address).await;
        let client = w.tenant("acme").await;
        let asked = |password: &str| {
            json!({ "templateID": "debian", "timeout": 300, "network": { "egressProxy": {
                "address": format!("{OTHER}:1080"), "username": "me", "password": password } } })
        };
        let made = client.raw(Method::POST, "/e2b/sandboxes").header("x-api-key", client.key());
        let made: atoll_tests::Value = made.json(&asked(SECRET)).send().await.unwrap().json().await.unwrap();
        let id = made["sandboxID"].as_str().unwrap_or_else(|| panic!("{made}")).to_owned();
        let fetched =
            client.sh(&id, &format!("curl -sS http://{FILES}/ && curl -sSk https://good.test/")).await;
        assert_eq!(fetched.stdout, GREETING.repeat(2), "{fetched:?}");
        let seen = proxy.seen();
        assert_eq!((to(&seen, &format!("{FILES}:80")), to(&seen, "good.test:443")), (1, 1), "{seen:?}");
        assert!(seen.iter().all(|request| request.login.as_deref() == Some(login.as_str())), "{seen:?}");
        no_secret_inside(&client, &id).await;
        let shown =
            client.raw(Method::GET, &format!("/e2b/sandboxes/{id}")).header("x-api-key", client.key());
        let shown = shown.send().await.unwrap().text().await.unwrap();
        assert!(shown.contains("egressProxy") && !shown.contains(SECRET), "{shown}");
        assert!(!client.sandbox(&id).await.to_string().contains(SECRET));
        // It goes on over a restart of the server, and a wrong password is told.
        w.crash_server().await;
        let again = client.sh(&id, &format!("curl -sS http://{FILES}/")).await;
        assert_eq!(again.stdout, GREETING, "{again:?}");
        let made = client.raw(Method::POST, "/e2b/sandboxes").header("x-api-key", client.key());
        let made: atoll_tests::Value = made.json(&asked("wrong")).send().await.unwrap().json().await.unwrap();
        let wrong = made["sandboxID"].as_str().unwrap().to_owned();
        let refused = client.sh(&wrong, &format!("curl -sS http://{FILES}/")).await;
        assert!(refused.stdout.contains("does not accept the credentials"), "{refused:?}");
        drop(proxy);
        let down = client.sh(&id, &format!("curl -sS http://{FILES}/")).await;
        assert!(down.stdout.contains("egress proxy"), "{down:?}");
        assert!(!w.log().contains(SECRET));
        let database = std::fs::read(w.data().join("sandbox.db")).unwrap();
        let is_plain = |bytes: &[u8]| bytes.windows(SECRET.len()).any(|part| part == SECRET.as_bytes());
        assert!(!is_plain(&database), "sealed in the database");
    });
}

#[test]
fn authorities_and_mirrors_are_files_of_every_new_sandbox() {
    run_with(Options { audit: false, templates: vec!["busybox"], ..Options::debian() }, async |w| {
        let [first, second] = [
            CompanyProxy::intercepting("127.0.0.1:0", &[], None).await,
            CompanyProxy::intercepting("127.0.0.1:0", &[], None).await,
        ];
        let client = w.tenant("acme").await;
        let before = client.create(json!({})).await;
        let ca = trust(w, &first);
        let mirrors = [
            ("ATOLL_EXTRA_CA", ca.as_str()),
            ("ATOLL_MIRROR_DEBIAN", "http://mirror.corp.test/debian"),
            ("ATOLL_MIRROR_PYPI", "https://mirror.corp.test/simple"),
            ("ATOLL_MIRROR_NPM", "https://mirror.corp.test/npm"),
        ];
        restart(w, &mirrors).await;
        assert_ne!(client.sh(&before, "ls /etc/atoll/authorities.pem").await.code, 0, "it runs on as it was");
        let body: String = first.authority_pem.lines().filter(|line| !line.contains("---")).collect();
        for template in ["debian", "busybox"] {
            let id = client.create(json!({ "template": template })).await;
            for file in ["/etc/atoll/authorities.pem", "/etc/ssl/certs/ca-certificates.crt"] {
                let ran = client.sh(&id, &format!("tr -d '\\n' < {file} | grep -c '{body}'")).await;
                assert_eq!(ran.stdout.trim(), "1", "{template} {file}: {ran:?}");
            }
            let conf = client.sh(&id, "cat /etc/pip.conf /etc/npmrc; echo $NODE_EXTRA_CA_CERTS").await;
            assert!(conf.stdout.contains("index-url = https://mirror.corp.test/simple"), "{conf:?}");
            assert!(conf.stdout.contains("registry=https://mirror.corp.test/npm"), "{conf:?}");
            assert!(!conf.stdout.trim_end().ends_with("npm"), "a variable is set: {conf:?}");
        }
        let id = client.create(json!({})).await;
        let sources = "printf 'deb http://deb.debian.org/debian x main\\n' > /etc/apt/sources.list; rm /etc/atoll/company";
        client.sh_root(&id, sources).await;
        client.act(&id, "stop").await.ok();
        std::fs::write(&ca, &second.authority_pem).unwrap();
        restart(w, &[]).await;
        client.act(&id, "start").await.ok();
        let list = client
            .sh(&id, "cat /etc/apt/sources.list; npm config get registry; pip config --global get global.index-url")
            .await;
        assert_eq!(
            list.stdout,
            "deb http://mirror.corp.test/debian x main\nhttps://mirror.corp.test/npm\nhttps://mirror.corp.test/simple\n",
            "{list:?}"
        );
        let count = "grep -c BEGIN /etc/atoll/authorities.pem; tr -d '\\n' < /etc/ssl/certs/ca-certificates.crt | grep -c ";
        let old = client.sh(&id, &format!("{count}'{body}'")).await;
        assert_eq!(old.stdout, "1\n0\n", "the earlier one is gone: {old:?}");
    });
}

#[test]
fn settings_that_cannot_be_used_end_the_start_without_their_secrets() {
    run_with(Options { audit: false, ..Options::default() }, async |w| {
        assert!(w.stop_server(Signal::SIGTERM).await.success());
        let bad = w.folder().join("bad.pem");
        std::fs::write(&bad, "# one\n-----BEGIN CERTIFICATE-----\nnot base64!\n-----END CERTIFICATE-----\n")
            .unwrap();
        let proxy = format!("https://me:{SECRET}@proxy.test:1");
        for (flags, says) in [
            (vec!["--extra-ca", bad.to_str().unwrap()], "line 3"),
            (vec!["--proxy", &proxy], "--proxy is not a proxy"),
            (vec!["--egress-proxy", &proxy], "--egress-proxy is not a proxy"),
            (vec!["--mirror-pypi", "mirror.test"], "--mirror-pypi"),
        ] {
            let mut command = w.command();
            command.arg("serve").args(&flags).stdin(Stdio::null());
            let done = w.output(command).await;
            let text =
                String::from_utf8_lossy(&done.stderr).into_owned() + &String::from_utf8_lossy(&done.stdout);
            assert!(
                !done.status.success() && text.contains(says) && !text.contains(SECRET),
                "{flags:?}: {text}"
            );
        }
        let mut doctor = w.command();
        doctor
            .args(["doctor"])
            .env("HTTPS_PROXY", format!("http://me:{SECRET}@127.0.0.1:1"))
            .env("NO_COLOR", "1");
        let done = w.output(doctor).await;
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        assert!(
            text.contains("http://127.0.0.1:1 for https does not answer") && !text.contains(SECRET),
            "{text}"
        );
        // The command line reaches its own server whatever the variables say.
        w.start_server().await;
        let mut list = w.command();
        list.args(["ls"]).env("HTTP_PROXY", "http://127.0.0.1:1").env("http_proxy", "http://127.0.0.1:1");
        let done = w.output(list).await;
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    });
}
