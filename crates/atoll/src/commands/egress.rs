//! `atoll egress`: the connection attempts of a sandbox, and the decisions.

use atoll_client::egress::{Egress, EgressVerdict, EgressWhat, LogQuery};
use jiff::Timestamp;

use super::{CommandContext, learned_policy, moment, suggest};
use crate::{
    cli::network::Egress as Args,
    client::Client,
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
    let learned = client.learned_policy(&args.sandbox).await?;
    if context.out.json {
        return context.out.json(&learned);
    }
    let policy = learned_policy::kept(&learned)?;
    context.out.line(&policy.as_file())?;
    if policy.is_mode_alone() {
        context.out.tell("there are no records yet; `atoll update SANDBOX --learn` records without refusing");
    }
    learned_policy::refused(context.out, client, &args.sandbox).await;
    Ok(())
}

async fn list(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let records = client.egress(&args.sandbox, &query(args)).await?;
    if context.out.json {
        return context.out.json(&records);
    }
    let records = collapsed(records.items);
    let lines = table(&records).lines();
    for (line, record) in lines.iter().zip(std::iter::once(None).chain(records.iter().map(Some))) {
        let verdict = record.map_or(EgressVerdict::Allowed, |(record, _)| record.verdict);
        context.out.styled_line(&shaded(context.out, verdict, line))?;
    }
    if records.is_empty() {
        context.out.tell("there are no records");
    }
    Ok(())
}

async fn follow(context: &CommandContext, client: &Client, args: &Args) -> Result<(), Failure> {
    let out = context.out;
    let mut events = client.follow_egress(&args.sandbox, &query(args)).await?;
    if out.is_terminal() && !out.json {
        out.line(&columns(&HEADINGS.map(str::to_owned)))?;
    }
    while let Some(event) = events.next().await? {
        let record = events.read::<Egress>(&event)?;
        if out.json {
            out.json(&record)?;
        } else if record.what == EgressWhat::Lost {
            out.say(&format!("atoll: {}: this client read too slowly", harmless(&record.rule)));
        } else {
            out.styled_line(&shaded(out, record.verdict, &line(&record)))?;
        }
    }
    Ok(())
}

fn query(args: &Args) -> LogQuery {
    let since = args
        .since
        .and_then(|span| Timestamp::now().checked_sub(std::time::Duration::from_secs_f64(span.0)).ok());
    // No existing records: only new ones.
    let (limit, since) = match (args.follow, args.limit) {
        (true, Some(0)) => (None, Some(Timestamp::now())),
        (_, limit) => (limit, since),
    };
    LogQuery {
        limit,
        since: since.map(|at| at.to_string()),
        verdict: args.verdict.map(Into::into),
        follow: None,
    }
}

/// Highlights refused ones.
fn shaded(out: Out, verdict: EgressVerdict, line: &str) -> String {
    match verdict {
        EgressVerdict::Refused => out.shade(Shade::Bad, line),
        EgressVerdict::Failed => out.shade(Shade::Faint, line),
        EgressVerdict::Allowed => line.to_owned(),
    }
}

/// A record, and how many times it occurred in a row.
type Counted = (Egress, u32);

fn table(records: &[Counted]) -> Table {
    let mut table = Table::new(&HEADINGS);
    records.iter().for_each(|(record, times)| table.row(cells(record, *times).to_vec()));
    table
}

/// A single record, in columns that fit most records.
fn line(record: &Egress) -> String {
    harmless(&columns(&cells(record, 1)))
}

fn columns([time, verdict, what, to, sent, received, rule]: &[String; 7]) -> String {
    format!("{time:<19}  {verdict:<7}  {what:<4}  {to:<44}  {sent:<9}  {received:<9}  {rule}")
}

/// One lookup of a program causes several queries: refusals of the same name within a second become one line with a
/// count.
fn collapsed(records: Vec<Egress>) -> Vec<Counted> {
    let mut kept: Vec<Counted> = Vec::with_capacity(records.len());
    for record in records {
        match kept.last_mut().filter(|(last, _)| is_same_question(last, &record)) {
            Some((_, times)) => *times += 1,
            None => kept.push((record, 1)),
        }
    }
    kept
}

fn is_same_question(last: &Egress, next: &Egress) -> bool {
    let is_refused = last.what == EgressWhat::Dns && last.verdict == EgressVerdict::Refused;
    let same = last.what == next.what
        && last.verdict == next.verdict
        && last.name == next.name
        && last.rule == next.rule;
    let apart = moment(last.at.as_str())
        .zip(moment(next.at.as_str()))
        .map(|(a, b)| b.as_millisecond() - a.as_millisecond());
    is_refused && same && apart.is_some_and(|ms| (0..=1_000).contains(&ms))
}

fn cells(record: &Egress, times: u32) -> [String; 7] {
    let at = moment(record.at.as_str())
        .map_or_else(String::new, |at| at.strftime("%Y-%m-%d %H:%M:%S").to_string());
    let size = |count: u64| if count == 0 { "-".to_owned() } else { bytes(count) };
    let times = if times > 1 { format!(" ×{times}") } else { String::new() };
    let rule = format!("{}{times}", record.rule);
    [
        at,
        record.verdict.as_str().to_owned(),
        record.what.as_str().to_owned(),
        to(record),
        size(record.sent),
        size(record.received),
        rule,
    ]
}

/// `name:port (address)`, with the known parts.
fn to(record: &Egress) -> String {
    let (name, address) = (record.name.as_deref().unwrap_or(""), record.address.as_deref().unwrap_or(""));
    let port = record.port.map(|port| format!(":{port}")).unwrap_or_default();
    let protocol = record.protocol.as_ref().map(|word| format!(" {word}")).unwrap_or_default();
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

    fn read(records: serde_json::Value) -> Vec<Egress> {
        serde_json::from_value(records).expect("records")
    }

    fn records() -> Vec<Egress> {
        read(json!([
            {"at": "2026-01-01T00:00:00.123Z", "what": "dns", "verdict": "refused", "rule": "not in allow_domains",
                "name": "evil\u{1b}[2J.example", "address": null, "port": null, "protocol": null, "sent": 0, "received": 0},
            {"at": "2026-01-01T00:00:01Z", "what": "tls", "verdict": "allowed", "rule": "allow_domains: *.example.com",
                "name": "api.example.com", "address": "203.0.113.7", "port": 443, "sent": 1536, "received": 3_145_728},
            {"at": "2026-01-01T00:00:02Z", "what": "flow", "verdict": "refused", "rule": "never: link-local",
                "name": null, "address": "2001:db8::1", "port": 53, "protocol": "udp", "sent": 64, "received": 0},
        ]))
    }

    #[test]
    fn the_same_refused_question_is_one_line_with_a_count() {
        let ask = |at: &str, name: &str, verdict: &str| {
            read(json!([{"at": at, "what": "dns", "verdict": verdict, "rule": "r", "name": name, "sent": 0,
                "received": 0}]))
            .remove(0)
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
        assert_eq!(
            (&cells(&shown[0].0, shown[0].1)[6], &cells(&shown[1].0, shown[1].1)[6]),
            (&"r ×3".to_owned(), &"r".to_owned())
        );
    }

    #[test]
    fn the_log_is_as_reviewed() {
        insta::assert_snapshot!(table(&collapsed(records())).lines().join("\n"), @r"
        TIME                 VERDICT  WHAT  TO                                 SENT     RECEIVED  RULE
        2026-01-01 00:00:00  refused  dns   evil\u{1b}[2J.example              -        -         not in allow_domains
        2026-01-01 00:00:01  allowed  tls   api.example.com:443 (203.0.113.7)  1.5 KiB  3 MiB     allow_domains: *.example.com
        2026-01-01 00:00:02  refused  flow  [2001:db8::1]:53 udp               64 B     -         never: link-local
        ");
        insta::assert_snapshot!(line(&records()[1]), @"2026-01-01 00:00:01  allowed  tls   api.example.com:443 (203.0.113.7)             1.5 KiB    3 MiB      allow_domains: *.example.com");
        assert!(!line(&records()[0]).contains('\u{1b}'));
    }
}
