//! `atoll update` and `atoll resize`: change labels, limits, network, lifetime and timers of a live sandbox.

use std::{collections::BTreeMap, num::NonZeroU64};

use atoll_client::{client::Answer, sandbox_requests::UpdateBody, sandboxes::Sandbox};

use super::{
    CommandContext, lifecycle,
    network::{self, WithPolicy},
    policy::Policy,
};
use crate::{
    cli::{
        life::Resize,
        sandbox::Update,
        values::{Mebibytes, Pair},
    },
    client::Client,
    failure::Failure,
};

pub(super) async fn update(context: &CommandContext, args: Update) -> Result<(), Failure> {
    let mut body = changes(&args);
    let relabels = !args.label.is_empty() || !args.remove_label.is_empty();
    if body == UpdateBody::default() && !relabels && args.reach.is_silent() && !args.no_learn {
        return Err(Failure::usage("nothing to change", "`atoll update --help` lists the options"));
    }
    network::mistaken(&args.reach)?;
    let client = context.client()?;
    let answer = apply(&client, &args, &mut body, relabels).await;
    lifecycle::one(context, &client, &args.sandbox, answer).await
}

pub(super) async fn resize(context: &CommandContext, args: Resize) -> Result<(), Failure> {
    let body = UpdateBody {
        cpu: args.cpu,
        memory_mib: args.memory.map(Mebibytes::as_limit),
        disk_mib: args.disk.map(Mebibytes::as_limit),
        pids: args.pids.map(i64::from),
        ..UpdateBody::default()
    };
    if body == UpdateBody::default() {
        return Err(Failure::usage("nothing to change", "set --cpu, --memory, --disk or --pids"));
    }
    let client = context.client()?;
    let answer = client.update_sandbox(&args.sandbox, &body).await;
    lifecycle::one(context, &client, &args.sandbox, answer).await
}

async fn apply(
    client: &Client,
    args: &Update,
    body: &mut UpdateBody,
    relabels: bool,
) -> Result<Answer<Sandbox>, Failure> {
    if relabels {
        // The API replaces all labels at once, so the others are read first.
        let now = client.sandbox(&args.sandbox).await?;
        body.labels = Some(relabelled(now.labels.clone(), args));
    }
    let mut network = None;
    if !args.reach.is_silent() || args.no_learn {
        let mut policy = match &args.reach.network {
            Some(_) => network::asked(&args.reach)?.unwrap_or_default(),
            // The current policy stays, and the options are added; hidden values stay too.
            None => present(client, &args.sandbox).await?.with(&args.reach),
        };
        policy.fields.learn &= !args.no_learn;
        network = Some(policy);
    }
    client.update_sandbox(&args.sandbox, &WithPolicy { body: &*body, network }).await
}

/// The current policy of a sandbox, including fields that only a newer server knows.
async fn present(client: &Client, sandbox: &str) -> Result<Policy, Failure> {
    let now = client.sandbox(sandbox).await?;
    Policy::read(now.raw_field("network"))
        .map_err(|cause| Failure::new("bad_answer", format!("the policy is invalid: {cause}")))
}

fn changes(args: &Update) -> UpdateBody {
    let timers = &args.timers;
    let timeout = args.timeout.map(|v| NonZeroU64::new(v.whole()));
    UpdateBody {
        cpu: args.cpu,
        memory_mib: args.memory.map(Mebibytes::as_limit),
        disk_mib: args.disk.map(Mebibytes::as_limit),
        pids: args.pids.map(i64::from),
        timeout_s: timeout.or(args.no_timeout.then_some(None)),
        on_timeout: args.on_timeout.map(Into::into),
        auto_pause_s: timers.auto_pause.map(|v| v.0),
        auto_stop_s: timers.auto_stop.map(|v| v.0),
        checkpoint_after_s: timers.checkpoint_after.map(|v| v.0),
        auto_archive_s: timers.auto_archive.map(|v| v.0),
        auto_delete_s: timers.auto_delete.map(|v| v.0),
        on_exit: timers.on_exit.map(Into::into),
        wake: timers.wake.map(Into::into),
        ..UpdateBody::default()
    }
}

fn relabelled(mut labels: BTreeMap<String, String>, args: &Update) -> BTreeMap<String, String> {
    for key in &args.remove_label {
        labels.remove(key);
    }
    for Pair(key, value) in &args.label {
        labels.insert(key.clone(), value.clone());
    }
    labels
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::{Cli, Command};
    use clap::Parser;
    use serde_json::json;

    fn parsed(words: &[&str]) -> Update {
        let line = ["atoll", "update", "box"].iter().chain(words);
        let Command::Update(args) = Cli::try_parse_from(line).expect("valid").command else {
            panic!("update")
        };
        args
    }

    fn sent(words: &[&str]) -> serde_json::Value {
        serde_json::to_value(changes(&parsed(words))).expect("JSON")
    }

    #[test]
    fn a_removed_lifetime_is_sent_as_null() {
        assert_eq!(sent(&["--no-timeout"]), json!({"timeout_s": null}));
        assert_eq!(sent(&["--timeout", "1m"]), json!({"timeout_s": 60}));
        assert_eq!(
            sent(&["--auto-pause", "10m", "--auto-stop", "never"]),
            json!({"auto_pause_s": 600, "auto_stop_s": -1})
        );
        assert_eq!(sent(&[]), json!({}));
    }

    #[test]
    fn labels_that_were_not_named_stay() {
        let args = parsed(&["--label", "a=2", "--remove-label", "b"]);
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
        };
        let now = labels(&[("a", "1"), ("b", "1"), ("c", "1")]);
        assert_eq!(relabelled(now, &args), labels(&[("a", "2"), ("c", "1")]));
    }
}
