//! Packets of Engine.IO 4 and Socket.IO 5, as text. Only the default namespace is supported.

use serde::{Deserialize, Serialize};

/// A packet of a client.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Packet {
    /// The client wants events, and sends a key.
    Connect {
        token: Option<String>,
    },
    /// The client will disconnect.
    Close,
    Ping,
    Pong,
    /// Events of the client, which are ignored.
    Other,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Auth {
    token: Option<String>,
}

impl Packet {
    pub(super) fn parse(text: &str) -> Self {
        let mut kinds = text.chars();
        match (kinds.next(), kinds.next()) {
            (Some('1'), _) | (Some('4'), Some('1')) => Self::Close,
            (Some('2'), _) => Self::Ping,
            (Some('3'), _) => Self::Pong,
            (Some('4'), Some('0')) => {
                let rest = kinds.as_str();
                // A namespace is before a comma; the default one may be left out.
                let rest = match rest.strip_prefix('/') {
                    Some(named) => named.split_once(',').map_or("", |(_, rest)| rest),
                    None => rest,
                };
                let auth: Auth = serde_json::from_str(rest).unwrap_or_default();
                Self::Connect { token: auth.token.filter(|token| !token.is_empty()) }
            }
            _ => Self::Other,
        }
    }
}

/// An event of the default namespace.
pub(super) fn event(name: &str, payload: &impl Serialize) -> String {
    let text = serde_json::to_string(&(name, payload)).expect("wire types hold string keys only");
    format!("42{text}")
}

/// A session id; it gives no access.
pub(super) fn session_id() -> Option<String> {
    let mut random = [0; 15];
    getrandom::fill(&mut random).ok()?;
    Some(hex::encode(random))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_of_the_official_clients_are_read() {
        for (text, wanted) in [
            ("40{\"token\":\"dtn_1\"}", Packet::Connect { token: Some("dtn_1".into()) }),
            ("40/,{\"token\":\"dtn_1\"}", Packet::Connect { token: Some("dtn_1".into()) }),
            ("40", Packet::Connect { token: None }),
            ("40{\"token\":\"\"}", Packet::Connect { token: None }),
            ("40{", Packet::Connect { token: None }),
            ("41", Packet::Close),
            ("1", Packet::Close),
            ("2", Packet::Ping),
            ("3", Packet::Pong),
            ("42[\"x\",1]", Packet::Other),
            ("", Packet::Other),
            ("ü", Packet::Other),
        ] {
            assert_eq!(Packet::parse(text), wanted, "{text}");
        }
    }

    #[test]
    fn an_event_is_its_name_and_its_payload() {
        assert_eq!(
            event("sandbox.created", &serde_json::json!({ "id": "x" })),
            "42[\"sandbox.created\",{\"id\":\"x\"}]"
        );
    }

    #[test]
    fn any_packet_is_read() {
        atoll_robustness::check("socket_packet", |bytes| {
            let text = String::from_utf8_lossy(bytes);
            if let Packet::Connect { token } = Packet::parse(&text) {
                assert!(token.is_none_or(|token| !token.is_empty() && token.len() < text.len()));
            }
        });
    }
}
