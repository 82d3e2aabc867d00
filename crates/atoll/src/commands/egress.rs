//! `atoll egress`: what a sandbox wanted to reach, and what was decided.

use jiff::Timestamp;
use serde_json::Value;

use super::{CommandContext, items, learned_policy, moment, network, sandbox_path, suggest, text};
use crate::{
    cli::network::Egress as Args,
    client::{Client, sse::Events},
    failure::Failure,
    human::{Table, bytes, harmless},
    out::{Out, Shade},
};

const HEADINGS: [&str; 7] = ["TIME", "VERDICT", "WHAT", "TO", "SENT", "RECEIVED", "RULE"];

pub(super) async fn egress(context: &CommandContext, args: Args) -> Result<(), Failure> {
    let client = context.client()?;
    let done = match (args.policy, args.follow) {
        (true, _) => policy(context, &client, &args).await,
        (false, true) => follow(context, &client, &args).await,
        (false, false) => list(context, &client, &args).await,
    };
    match done {
        Err(failure) => Err(suggest(&client, &args.sandbox, failure).await),
        done => done,
    }
}

/// The policy is data in both forms; for a person it has lines.
async fn policy(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let learned = client.get(&sandbox_path(&args.sandbox, "/egress/policy")).await?;
    if context.out.json {
        return context.out.json(&learned);
    }
    context.out.line(&network::as_file(&learned))?;
    if learned.as_object().is_some_and(|fields| fields.len() == 1) {
        context.out.tell("nothing is recorded yet; `atoll update SANDBOX --learn` records without refusing");
    }
    learned_policy::refused(context.out, client, &args.sandbox).await;
    Ok(())
}

async fn list(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let path = sandbox_path(&args.sandbox, "/egress");
    let records = items(client.get_query(&path, &query(args)).await?);
    if context.out.json {
        return context.out.json(&records);
    }
    let records = collapsed(records);
    let lines = table(&records).lines();
    for (line, record) in lines.iter().zip(std::iter::once(&Value::Null).chain(&records)) {
        context.out.line(&shaded(context.out, record, line))?;
    }
    if records.is_empty() {
        context.out.tell("nothing is recorded");
    }
    Ok(())
}

async fn follow(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let out = context.out;
    let mut query = query(args);
    query.push(("follow", "1".to_owned()));
    let path = sandbox_path(&args.sandbox, "/egress");
    let request = client.request(reqwest::Method::GET, &path).query(&query);
    let mut events = Events::new(client.send(request).await?);
    if out.is_terminal() && !out.json {
        out.line(&columns(&HEADINGS.map(str::to_owned)))?;
    }
    while let Some(event) = events.next().await? {
        let record = event.json();
        if out.json {
            out.json(&record)?;
        } else if event.name == "lost" {
            out.say(&format!("atoll: {}: this end read too slowly", harmless(text(&record, "rule"))));
        } else {
            out.line(&shaded(out, &record, &line(&record)))?;
        }
    }
    Ok(())
}

fn query(args: &Args) -> Vec<(&'static str, String)> {
    let since = args
        .since
        .and_then(|span| Timestamp::now().checked_sub(std::time::Duration::from_secs_f64(span.0)).ok());
    // None of what is recorded: only what comes after now.
    let (limit, since) = match (args.follow, args.limit) {
        (true, Some(0)) => (None, Some(Timestamp::now())),
        (_, limit) => (limit, since),
    };
    let fields = [
        ("limit", limit.map(|limit| limit.to_string())),
        ("since", since.map(|at| at.to_string())),
        ("verdict", args.verdict.map(|verdict| verdict.as_str().to_owned())),
    ];
    fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect()
}

/// Refused ones catch the eye.
fn shaded(out: Out, record: &Value, line: &str) -> String {
    match text(record, "verdict") {
        "refused" => out.shade(Shade::Bad, line),
        "failed" => out.shade(Shade::Faint, line),
        _ => line.to_owned(),
    }
}

fn table(records: &[Value]) -> Table {
    let mut table = Table::new(&HEADINGS);
    records.iter().for_each(|record| table.row(cells(record).to_vec()));
    table
}

/// One record by itself, in columns that most of them fit into.
fn line(record: &Value) -> String {
    harmless(&columns(&cells(record)))
}

fn columns([time, verdict, what, to, sent, received, rule]: &[String; 7]) -> String {
    format!("{time:<19}  {verdict:<7}  {what:<4}  {to:<44}  {sent:<9}  {received:<9}  {rule}")
}

/// One look-up of a program is several questions: refusals of the same name within a second are one line with a count.
fn collapsed(records: Vec<Value>) -> Vec<Value> {
    let mut kept: Vec<Value> = Vec::with_capacity(records.len());
    for record in records {
        match kept.last_mut().filter(|last| is_same_question(last, &record)) {
            Some(last) => last[TIMES] = (last[TIMES].as_u64().unwrap_or(1) + 1).into(),
            None => kept.push(record),
        }
    }
    kept
}

/// Ours, beside the fields of the API.
const TIMES: &str = "times";

fn is_same_question(last: &Value, next: &Value) -> bool {
    let is_refused = text(last, "what") == "dns" && text(last, "verdict") == "refused";
    let same = ["what", "verdict", "name", "rule"].iter().all(|field| last[*field] == next[*field]);
    let apart =
        moment(last, "at").zip(moment(next, "at")).map(|(a, b)| b.as_millisecond() - a.as_millisecond());
    is_refused && same && apart.is_some_and(|ms| (0..=1_000).contains(&ms))
}

fn cells(record: &Value) -> [String; 7] {
    let at = moment(record, "at").map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let size = |field: &str| match record[field].as_u64().unwrap_or(0) {
        0 => "-".to_owned(),
        count => bytes(count),
    };
    let word = |field: &str| text(record, field).to_owned();
    let times = record[TIMES].as_u64().map(|times| format!(" ×{times}")).unwrap_or_default();
    let rule = format!("{}{times}", text(record, "rule"));
    [at, word("verdict"), word("what"), to(record), size("sent"), size("received"), rule]
}

/// `name:port (address)`, with what is known of it.
fn to(record: &Value) -> String {
    let (name, address) = (text(record, "name"), text(record, "address"));
    let port = record["port"].as_u64().map(|port| format!(":{port}")).unwrap_or_default();
    let protocol = match text(record, "protocol") {
        "" => String::new(),
        word => format!(" {word}"),
    };
    let numbers =
        if address.contains(':') && !port.is_empty() { format!("[{address}]") } else { address.to_owned() };
    match (name, address) {
        ("", "") => "-".to_owned(),
        ("", _) => format!("{numbers}{port}{protocol}"),
        (name, "") => format!("{name}{port}{protocol}"),
        (name, _) => format!("{name}{port}{protocol} ({address})"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn records() -> Vec<Value> {
        vec![
            json!({"at": "2026-01-01T00:00:00.123Z", "what": "dns", "verdict": "refused", "rule": "not in allow_domains",
                "name": "evil\u{1b}[2J.example", "address": null, "port": null, "protocol": null, "sent": 0, "received": 0}),
            json!({"at": "2026-01-01T00:00:01Z", "what": "tls", "verdict": "allowed", "rule": "allow_domains: *.example.com",
                "name": "api.example.com", "address": "203.0.113.7", "port": 443, "sent": 1536, "received": 3_145_728}),
            json!({"at": "2026-01-01T00:00:02Z", "what": "flow", "verdict": "refused", "rule": "never: link-local",
                "name": null, "address": "2001:db8::1", "port": 53, "protocol": "udp", "sent": 64, "received": 0}),
        ]
    }

    #[test]
    fn the_same_refused_question_is_one_line_with_a_count() {
        let ask = |at: &str, name: &str, verdict: &str| {
            json!({"at": at, "what": "dns", "verdict": verdict, "rule": "r",
            "name": name})
        };
        let records = vec![
            ask("2026-01-01T00:00:00.100Z", "a.com", "refused"),
            ask("2026-01-01T00:00:00.200Z", "a.com", "refused"),
            ask("2026-01-01T00:00:01.000Z", "a.com", "refused"),
            ask("2026-01-01T00:00:03.000Z", "a.com", "refused"),
            ask("2026-01-01T00:00:03.000Z", "b.com", "refused"),
            ask("2026-01-01T00:00:03.000Z", "b.com", "allowed"),
            ask("2026-01-01T00:00:03.000Z", "b.com", "allowed"),
        ];
        let shown = collapsed(records);
        assert_eq!(shown.len(), 5);
        assert_eq!((&cells(&shown[0])[6], &cells(&shown[1])[6]), (&"r ×3".to_owned(), &"r".to_owned()));
    }

    #[test]
    fn the_log_is_as_reviewed() {
        insta::assert_snapshot!(table(&records()).lines().join("\n"), @r"
        TIME                 VERDICT  WHAT  TO                                 SENT     RECEIVED  RULE
        2026-01-01 00:00:00  refused  dns   evil\u{1b}[2J.example              -        -         not in allow_domains
        2026-01-01 00:00:01  allowed  tls   api.example.com:443 (203.0.113.7)  1.5 KiB  3 MiB     allow_domains: *.example.com
        2026-01-01 00:00:02  refused  flow  [2001:db8::1]:53 udp               64 B     -         never: link-local
        ");
        insta::assert_snapshot!(line(&records()[1]), @"2026-01-01 00:00:01  allowed  tls   api.example.com:443 (203.0.113.7)             1.5 KiB    3 MiB      allow_domains: *.example.com");
        assert!(!line(&records()[0]).contains('\u{1b}'));
    }
}
