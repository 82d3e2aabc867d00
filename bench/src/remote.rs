//! The providers `e2b` and `daytona` with a second server as the service, beside the vendors' own SDKs against the same service.

use std::net::TcpListener;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::Options;
use crate::http::Client;
use crate::report::{Bar, Report};
use crate::sdk::{self, Timed};
use crate::server::{self, SERVICE, Server};
use crate::stats::Samples;

/// The address of the server whose sandboxes are at the service.
const OURS: &str = "127.0.0.1:7071";
const LISTED: usize = 200;
/// Creates that wait for a service which never answers.
const HANGING: usize = 8;
const VERBS: [&str; 3] = ["create", "run", "delete"];

/// A provider and the SDK of its vendor.
struct Kind {
    name: &'static str,
    script: &'static str,
    probe: &'static str,
}

const KINDS: [Kind; 2] = [
    Kind { name: "e2b", script: "get-e2b-sdk", probe: include_str!("remote/e2b.py") },
    Kind { name: "daytona", script: "get-daytona-sdk", probe: include_str!("remote/daytona.py") },
];

/// All rows.
pub(crate) fn measure(options: &Options, place: &Path, report: &mut Report) -> Result<()> {
    let overcommit = [("ATOLL_OVERCOMMIT", "1000"), ("ATOLL_DISK_OVERCOMMIT", "1000")];
    let service = Server::start_with(options, place, 0, &overcommit)?;
    let key = service.address().1;
    // It takes connections, and never answers.
    let silent = TcpListener::bind("127.0.0.1:0")?;
    let home = place.join("remote");
    write_settings(&home, &key, &format!("http://{}", silent.local_addr()?))?;
    server::prepare_template(&home)?;
    let ours = Server::start_at(options, &home, OURS, 0, &overcommit)?;
    let measured = rows(options, &home, &ours, &key, report);
    drop(ours);
    server::uninstall(options, &home)?;
    measured
}

/// The settings of the providers of a server that has not started yet.
fn write_settings(home: &Path, key: &str, silent: &str) -> Result<()> {
    let files = server::data_dir(home).join("sandboxes");
    std::fs::create_dir_all(&files)?;
    let e2b = |url: &str| {
        let section = json!({ "api_key": key, "api_url": format!("{url}/e2b"), "sandbox_url": url,
            "template": server::TEMPLATE });
        json!({ "provider": "e2b", "e2b": section })
    };
    let url = format!("http://{SERVICE}");
    let daytona = json!({ "provider": "daytona",
        "daytona": { "api_key": key, "api_url": format!("{url}/daytona/api") } });
    for (name, document) in [("e2b", e2b(&url)), ("daytona", daytona), ("silent", e2b(silent))] {
        std::fs::write(files.join(format!("{name}.json")), document.to_string())?;
    }
    Ok(())
}

fn rows(options: &Options, home: &Path, ours: &Server, key: &str, report: &mut Report) -> Result<()> {
    let rounds = if options.quick { 20 } else { 100 };
    for kind in &KINDS {
        let Some(python) = sdk::python(kind.script) else {
            report.note(format!("{}: its SDK cannot be had (scripts/{} says why)", kind.name, kind.script));
            continue;
        };
        let theirs = vendor(&python, kind, home, rounds, key)?;
        let own = verbs(&mut ours.client()?, kind.name, rounds)?;
        for (verb, samples) in VERBS.into_iter().zip(&own) {
            let name = format!("{}: {verb}", kind.name);
            let beside = theirs.samples(verb);
            report.row(&format!("{name} by the provider"), samples, None);
            report.row(&format!("{name} by the vendor's SDK, same service"), &beside, None);
            let over = samples.p50() - beside.p50();
            report.figure(&format!("{name}, over the SDK"), over, "ms", Some(Bar::AtMost(5.0)));
        }
    }
    let listed = list(&mut ours.client()?, rounds)?;
    let bar = Some(Bar::Latency { p50_ms: 20.0, p99_ms: None });
    report.row(&format!("list of {LISTED} remote sandboxes"), &listed, bar);
    beside_silence(ours, rounds, report)
}

fn vendor(python: &Path, kind: &Kind, home: &Path, rounds: u32, key: &str) -> Result<Timed> {
    let (url, api) = (format!("http://{SERVICE}"), format!("http://{SERVICE}/daytona/api"));
    let e2b = format!("{url}/e2b");
    let env = [
        ("E2B_API_URL", e2b.as_str()),
        ("E2B_SANDBOX_URL", &url),
        ("E2B_API_KEY", key),
        ("DAYTONA_API_URL", &api),
        ("DAYTONA_API_KEY", key),
    ];
    Timed::take(python, kind.probe, home, rounds, &env)
}

fn create(client: &mut Client, provider: &str) -> Result<String> {
    let made = client.post("/v1/sandboxes", &json!({ "provider": provider }))?.json()?;
    Ok(made["id"].as_str().with_context(|| format!("no id in {made}"))?.to_owned())
}

/// Create, run and delete over HTTP.
fn verbs(client: &mut Client, provider: &str, rounds: u32) -> Result<[Samples; 3]> {
    let mut taken: [Samples; 3] = Default::default();
    for round in 0..=rounds {
        let begin = Instant::now();
        let id = create(client, provider)?;
        let created = begin.elapsed();
        let begin = Instant::now();
        server::exec(client, &id, &["/bin/sh", "-c", "echo hi"])?;
        let ran = begin.elapsed();
        let begin = Instant::now();
        server::delete(client, &id)?;
        let deleted = begin.elapsed();
        // The first one warms caches.
        if round > 0 {
            [created, ran, deleted].into_iter().zip(&mut taken).for_each(|(took, row)| row.add(took));
        }
    }
    Ok(taken)
}

/// How long the list of sandboxes takes, which are in turn at both services.
fn list(client: &mut Client, rounds: u32) -> Result<Samples> {
    let ids: Vec<_> =
        (0..LISTED).map(|n| create(client, KINDS[n % KINDS.len()].name)).collect::<Result<_>>()?;
    let mut samples = Samples::default();
    for _ in 0..rounds {
        let begin = Instant::now();
        let answer: Value = client.get(&format!("/v1/sandboxes?limit={LISTED}"))?.json()?;
        samples.add(begin.elapsed());
        let count = answer["items"].as_array().map_or(0, Vec::len);
        ensure!(count == LISTED, "{count} sandboxes");
    }
    ids.iter().try_for_each(|id| server::delete(client, id))?;
    Ok(samples)
}

/// A command at one service, while creates wait for another one that never answers.
fn beside_silence(ours: &Server, rounds: u32, report: &mut Report) -> Result<()> {
    let mut client = ours.client()?;
    let id = create(&mut client, "e2b")?;
    let mut commands = || -> Result<Samples> {
        let mut samples = Samples::default();
        for round in 0..=rounds {
            let begin = Instant::now();
            server::exec(&mut client, &id, &["/bin/sh", "-c", "echo hi"])?;
            if round > 0 {
                samples.add(begin.elapsed());
            }
        }
        Ok(samples)
    };
    let before = commands()?;
    for _ in 0..HANGING {
        let mut waiting = ours.client()?;
        // Ends with the server.
        std::thread::spawn(move || waiting.post("/v1/sandboxes", &json!({ "provider": "silent" })).is_ok());
    }
    std::thread::sleep(std::time::Duration::from_millis(500));
    let beside = commands()?;
    report.row("e2b: run, while a service hangs for another provider", &beside, None);
    let later = beside.p50() - before.p50();
    let name = "e2b: run, later because another provider hangs";
    report.figure(name, later.max(0.0), "ms", Some(Bar::AtMost(5.0)));
    server::delete(&mut client, &id)
}
