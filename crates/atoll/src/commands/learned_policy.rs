//! The result of learning: the smallest policy for the recorded traffic, and the destinations that were refused anyway.

use std::{collections::BTreeMap, path::Path, time::Duration};

use atoll_client::{
    client::Answer,
    egress::{Egress, EgressVerdict, LogQuery},
    network::NetworkPolicy,
};

use super::{CommandContext, policy::Policy};
use crate::{
    client::Client,
    failure::Failure,
    human::{harmless, harmless_lines},
    out::Out,
};

/// Decisions of the kernel are recorded up to a second later.
const SETTLES: Duration = Duration::from_millis(1_500);
/// LIMIT: refused destinations that are printed; the log has all.
const TOLD: usize = 5;

/// Prints the policy of a sandbox whose command has ended: to the file, or to stderr with instructions.
pub(super) async fn after_run(
    context: &CommandContext,
    client: &Client,
    id: &str,
    file: Option<&Path>,
) -> Result<Answer<NetworkPolicy>, Failure> {
    tokio::time::sleep(SETTLES).await;
    let policy = client.learned_policy(id).await?;
    let text = kept(&policy)?.as_file();
    if let Some(file) = file {
        std::fs::write(file, format!("{text}\n"))
            .map_err(|cause| Failure::new("io", format!("{} cannot be written: {cause}", file.display())))?;
    }
    if context.out.json {
        return Ok(policy);
    }
    let out = context.out;
    match file {
        Some(file) => out.say(&format!(
            "atoll: the smallest policy for this run is in {0}; review it, then: atoll run --network {0} -- …",
            file.display()
        )),
        None => {
            out.say("atoll: the smallest policy for this run; review it, save it to FILE (or use --policy-out FILE), then: \
                     atoll run --network FILE -- …");
            out.say(&harmless_lines(&text));
        }
    }
    refused(out, client, id).await;
    Ok(policy)
}

/// The policy including fields that only a newer server knows.
pub(super) fn kept(learned: &Answer<NetworkPolicy>) -> Result<Policy, Failure> {
    Policy::read(learned.raw())
        .map_err(|cause| Failure::new("bad_answer", format!("the policy is invalid: {cause}")))
}

/// Prints what was refused although the sandbox learns: the policy of the tenant or operator forbids it, or it is never
/// reachable.
pub(super) async fn refused(out: Out, client: &Client, sandbox: &str) {
    let query = LogQuery { verdict: Some(EgressVerdict::Refused), limit: Some(1_000), ..LogQuery::default() };
    // The policy is the result; it is complete without this.
    let Ok(records) = client.egress(sandbox, &query).await else { return };
    for line in told(&records.items) {
        out.say(&line);
    }
}

fn told(records: &[Egress]) -> Vec<String> {
    let mut found: BTreeMap<String, String> = BTreeMap::new();
    for record in records {
        if let Some(to) = record.name.as_ref().or(record.address.as_ref()) {
            found.insert(harmless(to), harmless(&record.rule));
        }
    }
    let more = found.len().saturating_sub(TOLD);
    let lines = found
        .iter()
        .take(TOLD)
        .map(|(to, rule)| format!("atoll: not in the policy, because it was refused: {to} ({rule})"));
    lines.chain((more > 0).then(|| format!("atoll: and {more} more; `atoll egress` shows them"))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn each_refused_destination_is_told_once_and_by_whom() {
        let record = |name: Option<&str>, rule: &str| -> Egress {
            serde_json::from_value(json!({"at": "2026-01-01T00:00:00Z", "what": "dns", "verdict": "refused",
                "name": name, "rule": rule, "sent": 0, "received": 0}))
            .expect("a record")
        };
        let refused = |name: &str| record(Some(name), "tenant: not in allow_domains");
        let mut records = vec![refused("b.example"), refused("b.example"), record(None, "many more")];
        assert_eq!(
            told(&records),
            ["atoll: not in the policy, because it was refused: b.example (tenant: not in allow_domains)"]
        );
        records.extend((0..9).map(|n| refused(&format!("h{n}.example"))));
        assert_eq!(told(&records).len(), TOLD + 1);
        assert!(told(&records)[TOLD].contains("5 more"));
    }
}
