//! Network checks of `atoll doctor`. They change nothing.

use std::fs;
use std::process::Command;

use serde_json::Value;

use crate::address::Block;
use crate::{sysctl, tool};

/// The facts about the network namespace of the calling thread.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct NetworkFacts {
    /// The version of `nft`; without it sandboxes have no network.
    pub nft_version: Option<String>,
    /// Whether the host forwards on every interface. Not required: Atoll enables forwarding only on the interfaces that
    /// its packets use.
    pub ip_forward: bool,
    /// Chains of other programs that drop forwarded packets, each with the command that lets Atoll's packets pass.
    pub foreign_drops: Vec<ForeignDrop>,
}

/// A chain of another program that drops unknown packets.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct ForeignDrop {
    /// Family, table and chain, as `nft` writes them.
    pub chain: String,
    /// The command that opens it for this server's uplink, in both directions.
    pub opened_by: String,
}

/// Collects the facts.
pub fn network_facts(block: Block) -> NetworkFacts {
    let mut foreign_drops = output(tool::nft().args(["-j", "list", "ruleset"]))
        .and_then(|text| serde_json::from_str(&text).ok())
        .map(|ruleset| foreign_drops(&ruleset, block))
        .unwrap_or_default();
    foreign_drops.extend(legacy_drop(block));
    NetworkFacts { nft_version: nft_version(), ip_forward: sysctl::is_forwarding_everywhere(), foreign_drops }
}

fn nft_version() -> Option<String> {
    let said = output(tool::nft().arg("--version"))?;
    Some(said.split_whitespace().nth(1)?.trim_start_matches('v').to_owned())
}

/// Chains at the forward hook that drop by policy or by a last rule without conditions.
fn foreign_drops(ruleset: &Value, block: Block) -> Vec<ForeignDrop> {
    let items = ruleset["nftables"].as_array().map(Vec::as_slice).unwrap_or_default();
    let chains = items.iter().filter_map(|item| item.get("chain")).filter(|chain| chain["hook"] == "forward");
    chains
        .filter_map(|chain| {
            let (family, table, name) =
                (chain["family"].as_str()?, chain["table"].as_str()?, chain["name"].as_str()?);
            let sees_ipv4 = matches!(family, "ip" | "inet");
            let is_ours = table.strip_prefix("atoll_").is_some_and(|rest| rest.parse::<u16>().is_ok());
            let rules = items.iter().filter_map(|item| item.get("rule"));
            let mut rules = rules
                .filter(|rule| rule["family"] == family && rule["table"] == table && rule["chain"] == name);
            let drops = chain["policy"] == "drop" || rules.any(drops_everything);
            let is_opened = items
                .iter()
                .any(|item| item.to_string().contains(&address_text(block)) && item["rule"]["chain"] == name);
            (sees_ipv4 && drops && !is_ours && !is_opened).then(|| ForeignDrop {
                chain: format!("{family} {table} {name}"),
                opened_by: format!(
                    "nft insert rule {family} {table} {name} ct original ip saddr {} accept",
                    block.network()
                ),
            })
        })
        .collect()
}

/// A rule without any condition whose verdict is drop or reject.
fn drops_everything(rule: &Value) -> bool {
    let statements = rule["expr"].as_array().map(Vec::as_slice).unwrap_or_default();
    let has_condition = statements.iter().any(|statement| {
        !["counter", "log", "drop", "reject", "comment"].iter().any(|plain| statement.get(plain).is_some())
    });
    let refuses = statements
        .iter()
        .any(|statement| statement.get("drop").is_some() || statement.get("reject").is_some());
    refuses && !has_condition
}

/// The uplink's network in the form of a rule.
fn address_text(block: Block) -> String {
    block.network().trim_end_matches("/30").to_owned()
}

/// Rules of the old iptables are invisible to nft; checked only if the kernel says that they are in use.
fn legacy_drop(block: Block) -> Option<ForeignDrop> {
    let tables = fs::read_to_string("/proc/thread-self/net/ip_tables_names").ok()?;
    if !tables.lines().any(|table| table == "filter") {
        return None;
    }
    let rules = output(Command::new("iptables-legacy").args(["-S", "FORWARD"]))?;
    legacy_drops(&rules, block).then(|| ForeignDrop {
        chain: "iptables-legacy filter FORWARD".to_owned(),
        opened_by: format!(
            "iptables-legacy -I FORWARD -m conntrack --ctorigsrc {} -j ACCEPT",
            block.network()
        ),
    })
}

fn legacy_drops(rules: &str, block: Block) -> bool {
    let drops = rules
        .lines()
        .any(|line| matches!(line.trim(), "-P FORWARD DROP" | "-A FORWARD -j DROP" | "-A FORWARD -j REJECT"));
    drops && !rules.contains(&address_text(block))
}

fn output(command: &mut Command) -> Option<String> {
    let finished = tool::run(command, "").ok()?;
    finished.status.success().then_some(finished.stdout)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use serde_json::json;

    fn chain(family: &str, table: &str, name: &str, policy: &str) -> Value {
        json!({"chain": {"family": family, "table": table, "name": name, "hook": "forward", "policy": policy}})
    }

    fn rule(table: &str, name: &str, expr: Value) -> Value {
        json!({"rule": {"family": "ip", "table": table, "chain": name, "expr": expr}})
    }

    #[test]
    fn a_foreign_drop_is_found_with_the_line_that_opens_it() {
        let block = Block::new(7).unwrap();
        let ruleset = json!({"nftables": [
            chain("ip", "filter", "FORWARD", "drop"),
            chain("inet", "atoll_7", "forward", "accept"),
            chain("inet", "fine", "forward", "accept"),
            chain("ip6", "filter", "FORWARD", "drop"),
            chain("ip", "closed", "fw", "accept"),
            rule("closed", "fw", json!([{"counter": null}, {"reject": null}])),
            rule("fine", "forward", json!([{"match": {}}, {"drop": null}])),
        ]});
        let found = foreign_drops(&ruleset, block);
        let chains: Vec<_> = found.iter().map(|drop| drop.chain.as_str()).collect();
        assert_eq!(chains, ["ip filter FORWARD", "ip closed fw"]);
        assert_eq!(
            found[0].opened_by,
            "nft insert rule ip filter FORWARD ct original ip saddr 198.18.0.28/30 accept"
        );
    }

    #[test]
    fn legacy_rules_are_read_too() {
        let block = Block::new(0).unwrap();
        assert!(legacy_drops("-P FORWARD DROP\n", block));
        assert!(!legacy_drops("-P FORWARD ACCEPT\n", block));
        assert!(!legacy_drops(
            "-P FORWARD DROP\n-A FORWARD -m conntrack --ctorigsrc 198.18.0.0/30 -j ACCEPT\n",
            block
        ));
    }
}
