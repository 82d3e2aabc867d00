//! `atoll env leap0|e2b|daytona`: prints the variables that point an official SDK at this server.
//!
//! A key is printed only on request. Stdout contains only shell code; everything else goes to stderr.

use std::{
    collections::BTreeMap, net::ToSocketAddrs, os::unix::fs::PermissionsExt, path::Path, time::Duration,
};

use atoll_client::keys::{KeyBody, Scope};

use super::CommandContext;
use crate::{
    cli::tls::{Env, Proxy, Shell},
    client::{Client, address::Address},
    environment,
    failure::Failure,
    server::{server_file, tls_files::TlsFiles},
};

/// LIMIT: a server on this machine answers in milliseconds; a starting shell must not wait for one that does not run.
const ANSWERS_WITHIN: Duration = Duration::from_secs(2);

/// The environment variables of one vendor's SDK.
#[derive(Debug)]
pub(crate) struct SdkEnvironment {
    /// As in `atoll env NAME`. Keys that are made for it are called `env-NAME`.
    pub(crate) name: &'static str,
    key_variable: &'static str,
    /// The prefix of a key that the SDK expects.
    key_prefix: &'static str,
    /// The variables without the key; the flag is `--tls`.
    variables: fn(bool, &SdkServer) -> Vec<(&'static str, String)>,
    uses_names: UsesNames,
    /// Printed with the variables for plain HTTP.
    plain_note: Option<&'static str>,
}

/// Whether an SDK reaches sandboxes by their own host names, which are served only over TLS.
#[derive(Debug, PartialEq, Eq)]
enum UsesNames {
    Always,
    WithTls,
    /// The SDK itself does not, but its previews do.
    InPreviews,
}

/// One row for each SDK.
pub(crate) static SDKS: &[SdkEnvironment] = &[
    SdkEnvironment {
        name: "leap0",
        key_variable: "LEAP0_API_KEY",
        key_prefix: "atl_",
        variables: |_, server| {
            let base = format!("{}/leap0", server.url);
            vec![("LEAP0_BASE_URL", base), ("LEAP0_SANDBOX_DOMAIN", server.hosts.clone())]
        },
        uses_names: UsesNames::Always,
        plain_note: None,
    },
    SdkEnvironment {
        name: "e2b",
        key_variable: "E2B_API_KEY",
        key_prefix: "e2b_",
        variables: e2b_variables,
        uses_names: UsesNames::WithTls,
        // Examples for the vendor's cloud contain `https://` themselves.
        plain_note: Some(
            "atoll: sandbox.get_host() speaks plain HTTP with these variables; programs that put https:// in front of \
             it need TLS: `atoll tls init` once, then `atoll env e2b --tls`",
        ),
    },
    SdkEnvironment {
        name: "daytona",
        key_variable: "DAYTONA_API_KEY",
        key_prefix: "dtn_",
        variables: |tls, server| {
            let url = if tls { &server.tls_url } else { &server.url };
            vec![
                ("DAYTONA_API_URL", format!("{url}/daytona/api")),
                // The only region of a server.
                ("DAYTONA_TARGET", "local".to_owned()),
            ]
        },
        uses_names: UsesNames::InPreviews,
        plain_note: None,
    },
];

fn e2b_variables(tls: bool, server: &SdkServer) -> Vec<(&'static str, String)> {
    let url = &server.url;
    match tls {
        // Its control API is below that domain too.
        true => vec![("E2B_DOMAIN", server.hosts.clone())],
        false => vec![
            ("E2B_API_URL", format!("{url}/e2b")),
            // Its requests name their sandbox in a header field, so they need no host name for it.
            ("E2B_SANDBOX_URL", url.clone()),
            ("E2B_VOLUME_API_URL", format!("{url}/e2b")),
        ],
    }
}

/// The properties of a server that an SDK needs.
#[derive(Debug)]
struct SdkServer {
    url: String,
    /// The same with TLS.
    tls_url: String,
    /// The `NAME:PORT` with TLS below which sandboxes are.
    hosts: String,
    files: Option<TlsFiles>,
}

pub(super) async fn env(context: &CommandContext, args: &Env) -> Result<(), Failure> {
    let address = Address::of_port(&context.global)?;
    let server = find(context, &address, needs_names(args));
    let mut variables = (args.sdk.variables)(args.tls, &server);
    if needs_names(args) {
        variables.extend(trust(context, &server));
        variables.extend(proxy(context, args.proxy, &server));
    }
    if let Some(note) = args.sdk.plain_note.filter(|_| !args.tls) {
        context.out.say(note);
    }
    if args.sdk.uses_names == UsesNames::InPreviews && args.tls {
        variables.extend(trust(context, &server));
    } else if args.sdk.uses_names == UsesNames::InPreviews
        && let Some(files) = &server.files
    {
        // Its previews use TLS too. The SDK itself does not without --tls, and fails if it cannot read the file.
        let trusted = trust(context, &server);
        variables.extend(trusted.into_iter().filter(|_| is_for_the_user(&files.bundle)));
    }
    let SdkEnvironment { key_variable: name, key_prefix: prefix, .. } = args.sdk;
    if args.with_key {
        let key = match key(context, &address, args).await {
            Ok(key) => key,
            Err(failure) => return Err(to_fail(context, failure)),
        };
        variables.push((name, with_prefix(&key, prefix)));
    } else {
        context.out.say(&format!(
            "atoll: {name} is not set; `atoll key create` creates a key, --with-key creates and prints one"
        ));
        answers(context).await;
    }
    if context.out.json {
        return context.out.json(&variables.into_iter().collect::<BTreeMap<_, _>>());
    }
    variables.iter().try_for_each(|(name, value)| context.out.line(&assignment(args.shell, name, value)))
}

/// The shell that evaluates the output ignores the exit status of this program: so a failing command is printed for it.
fn to_fail(context: &CommandContext, failure: Failure) -> Failure {
    if !context.out.json {
        // If stdout is closed, the failure itself is reported.
        let _ = context.out.line("false");
    }
    failure
}

/// Warns if the server does not answer: the variables are correct, but no server uses the address.
async fn answers(context: &CommandContext) {
    let asked = async { context.client()?.health().await };
    match tokio::time::timeout(ANSWERS_WITHIN, asked).await {
        Ok(Err(failure)) if failure.is("no_server") => context.out.say(&format!(
            "atoll: {}{}",
            failure.message,
            failure.hint.map(|hint| format!("; {hint}")).unwrap_or_default()
        )),
        Err(_) => context.out.say("atoll: the server does not answer"),
        Ok(_) => {}
    }
}

/// A key to be printed: never the admin key, unless requested.
async fn key(context: &CommandContext, address: &Address, args: &Env) -> Result<String, Failure> {
    if !args.admin && Address::find(&context.global)?.unix_socket().is_some() {
        return new_key(context, args).await;
    }
    let Some(mine) = address.key(&context.global)? else {
        // If no server ever ran, there is no key either; the missing server is the actual problem.
        context.client()?.health().await?;
        return Err(Failure::new("no_key", "there is no key to print").hint(address.key_hint()));
    };
    if args.admin {
        context.out.say("atoll: this is the key that you use; an admin key sees and changes everything");
        return Ok(mine);
    }
    match new_key(context, args).await {
        Ok(made) => Ok(made),
        // A caller that may not create keys has a key that can be passed on.
        Err(failure) if failure.is("forbidden") || failure.is("quota_exceeded") => {
            context.out.say("atoll: this is the key that you use");
            Ok(mine)
        }
        Err(failure) if failure.is("unauthenticated") => {
            Err(failure.hint(unknown_key(context.global.api_key.is_some(), address)))
        }
        Err(failure) => Err(failure),
    }
}

/// A new key of the caller's tenant.
async fn new_key(context: &CommandContext, args: &Env) -> Result<String, Failure> {
    let body = KeyBody {
        name: Some(format!("env-{}", args.sdk.name)),
        scope: Some(Scope::User),
        ..KeyBody::default()
    };
    let made = Client::new(&context.global)?.create_key(&body).await?;
    let (id, tenant) = (&made.record.id, &made.record.tenant);
    context.out.say(&format!(
        "atoll: this is a new key for the tenant {tenant} alone; `atoll key rm {id}` removes it"
    ));
    Ok(made.secret.clone())
}

/// The hint for a key that the server does not know: it belongs to another server, or was removed.
fn unknown_key(was_said: bool, address: &Address) -> String {
    if was_said {
        format!(
            "ATOLL_API_KEY (or --api-key) is not a key of {address}: unset it to use the admin key of this machine, or set another"
        )
    } else {
        format!(
            "the admin key in this machine's data folder is not a key of {address}: {}",
            address.key_hint()
        )
    }
}

fn find(context: &CommandContext, address: &Address, needs_tls: bool) -> SdkServer {
    let data = context.global.data_dir();
    let note = server_file::read(&data);
    let domain = note.as_ref().and_then(|note| note.domain.clone()).unwrap_or_else(|| "localhost".to_owned());
    // A certificate for the name `localhost` is one for 127.0.0.1 too, which every client resolves.
    let own = if domain == "localhost" { "127.0.0.1".to_owned() } else { domain.clone() };
    let below = atoll_proxy::Domain::parse(&domain).map_or(domain, |domain| domain.for_tls().to_owned());
    if needs_tls && note.as_ref().is_some_and(|note| note.tls_port.is_none() && note.is_alive()) {
        context.out.say("atoll: TLS is off at this server; start it with another --tls-port");
    }
    let port = note.as_ref().and_then(|note| note.tls_port).unwrap_or(7443);
    let files = Some(TlsFiles::of(&data)).filter(|files| files.bundle.exists());
    let url = address.to_string();
    let tls_url = if url.starts_with("https://") { url.clone() } else { format!("https://{own}:{port}") };
    SdkServer { url, tls_url, hosts: format!("{below}:{port}"), files }
}

fn needs_names(args: &Env) -> bool {
    match args.sdk.uses_names {
        UsesNames::Always => true,
        UsesNames::WithTls => args.tls,
        UsesNames::InPreviews => false,
    }
}

/// Python reads one file with all roots (`requests` from its own variable); Node adds this one to its own.
fn trust(context: &CommandContext, server: &SdkServer) -> Vec<(&'static str, String)> {
    let Some(files) = &server.files else {
        context.out.say("atoll: there is no certificate that you can read; `atoll tls init` creates one");
        return Vec::new();
    };
    let whole = |path: &Path| std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    let (bundle, ca) = (whole(&files.bundle), whole(&files.ca));
    if !is_for_the_user(&bundle) {
        context.out.say(&format!(
            "atoll: {} is readable by root only; for other users: sudo install -D -m 644 -t /etc/atoll '{}' '{}', and set \
             SSL_CERT_FILE=/etc/atoll/bundle.pem REQUESTS_CA_BUNDLE=/etc/atoll/bundle.pem \
             NODE_EXTRA_CA_CERTS=/etc/atoll/ca.pem",
            bundle.display(),
            bundle.display(),
            ca.display()
        ));
    }
    let bundle = bundle.display().to_string();
    vec![
        ("SSL_CERT_FILE", bundle.clone()),
        ("REQUESTS_CA_BUNDLE", bundle),
        ("NODE_EXTRA_CA_CERTS", ca.display().to_string()),
    ]
}

/// Whether the user who will use the variables can read a file: with `sudo` that user is not root.
fn is_for_the_user(file: &Path) -> bool {
    !environment::through_sudo() || everybody_reads(file)
}

/// Whether a user without special permissions can read this file.
fn everybody_reads(file: &Path) -> bool {
    let lets = |path: &Path, bit: u32| {
        std::fs::metadata(path).is_ok_and(|found| found.permissions().mode() & bit != 0)
    };
    lets(file, 0o004) && file.ancestors().skip(1).all(|folder| lets(folder, 0o001))
}

/// The host names of sandboxes must resolve. This server as an HTTPS proxy is exported only on request: it connects
/// only to sandboxes, so every other HTTPS request of the same program would fail.
fn proxy(context: &CommandContext, when: Proxy, server: &SdkServer) -> Vec<(&'static str, String)> {
    let hosts = &server.hosts;
    match when {
        Proxy::Always => {
            context.out.say("atoll: this server is now the HTTPS proxy; it connects to sandboxes only");
            vec![("HTTPS_PROXY", server.url.clone()), ("NO_PROXY", "127.0.0.1,::1".to_owned())]
        }
        Proxy::Auto if !resolves(hosts) => {
            context.out.say(&format!(
                "atoll: names below {hosts} do not resolve on this machine: `apt-get install libnss-myhostname` makes names below \
                 localhost resolve; --proxy always uses this server as proxy instead, and then no other HTTPS works"
            ));
            Vec::new()
        }
        Proxy::Auto | Proxy::Never => Vec::new(),
    }
}

/// Whether a name below the domain resolves; many systems resolve `localhost` and nothing below it.
fn resolves(hosts: &str) -> bool {
    format!("a.{hosts}").to_socket_addrs().is_ok_and(|mut found| found.next().is_some())
}

/// The same key with the prefix that an SDK expects.
fn with_prefix(key: &str, prefix: &str) -> String {
    let bare = SDKS.iter().find_map(|sdk| key.strip_prefix(sdk.key_prefix)).unwrap_or(key);
    format!("{prefix}{bare}")
}

fn assignment(shell: Shell, name: &str, value: &str) -> String {
    match shell {
        Shell::Sh => format!("export {name}='{}'", value.replace('\'', "'\\''")),
        Shell::Fish => format!("set -gx {name} '{}'", value.replace('\\', "\\\\").replace('\'', "\\'")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_keeps_its_digits_behind_another_prefix() {
        assert_eq!(with_prefix("atl_00ff", "e2b_"), "e2b_00ff");
        assert_eq!(with_prefix("00ff", "dtn_"), "dtn_00ff");
    }

    #[test]
    fn a_value_is_one_word_whatever_it_holds() {
        assert_eq!(assignment(Shell::Sh, "A", "a'b c$(x)"), r"export A='a'\''b c$(x)'");
        assert_eq!(assignment(Shell::Fish, "A", r"a'\b"), r"set -gx A 'a\'\\b'");
    }

    #[test]
    fn a_file_below_a_shut_folder_is_not_for_everybody() {
        let folder = tempfile::tempdir().expect("temporary folder");
        let file = folder.path().join("bundle.pem");
        std::fs::write(&file, "x").expect("writable");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).expect("ours");
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o700)).expect("ours");
        assert!(!everybody_reads(&file));
        std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).expect("ours");
        assert!(everybody_reads(&file));
    }

    #[test]
    fn every_sdk_is_pointed_at_this_server() {
        let server = SdkServer {
            url: "http://127.0.0.1:7070".into(),
            tls_url: "https://127.0.0.1:7443".into(),
            hosts: "atoll.localhost:7443".into(),
            files: None,
        };
        for sdk in SDKS {
            let all = (sdk.variables)(false, &server);
            assert!(all.iter().any(|(_, value)| value.starts_with("http://127.0.0.1:7070/")), "{all:?}");
            assert!(all.iter().all(|(name, _)| !name.contains("KEY")), "{all:?}");
        }
        assert_eq!(e2b_variables(true, &server), [("E2B_DOMAIN", "atoll.localhost:7443".to_owned())]);
        let daytona = SDKS.iter().find(|sdk| sdk.name == "daytona").expect("a row");
        let url = ("DAYTONA_API_URL", "https://127.0.0.1:7443/daytona/api".to_owned());
        assert_eq!((daytona.variables)(true, &server)[0], url);
    }
}
