//! A network policy from a file. The policy's own types are those of the API.

use atoll_client::network::Network;

/// Reads a policy from a file, in the form of the API. The error names the field.
pub fn read_policy(json: &[u8]) -> Result<atoll_model::NetworkPolicy, String> {
    let network: Network = serde_json::from_slice(json).map_err(|error| {
        let mut from = serde_json::Deserializer::from_slice(json);
        let place = serde_path_to_error::deserialize::<_, Network>(&mut from).err();
        match place.map(|error| error.path().to_string()).as_deref() {
            None | Some("." | "?") => format!("the policy is not valid: {error}"),
            Some(field) => format!("{field} is not valid: {error}"),
        }
    })?;
    Ok(network.into())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json;
    use atoll_model::HeaderText;
    use serde::Deserialize;
    use serde_json::{Value, json};

    #[derive(Debug, Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Body {
        network: Network,
    }

    fn read(network: &Value) -> Result<Network, String> {
        let body = json!({ "network": network }).to_string();
        parse_json::<Body>(body.as_bytes()).map(|body| body.network).map_err(|error| error.message)
    }

    fn whole() -> Value {
        json!({
            "mode": "custom",
            "allow_domains": ["example.com", "*.example.org"],
            "allow_cidrs": ["203.0.113.0/24", "2001:db8::/32"],
            "deny_cidrs": ["203.0.113.7/32"],
            "transforms": [{ "domain": "api.example.com", "inject_headers": { "Authorization": "Bearer {secret:K}" },
                "strip_headers": ["Cookie"], "plain_http": true }],
            "limits": { "up_bytes_per_s": 1000, "down_bytes_per_s": 2000, "connections": 5, "bytes_per_destination": 9 },
            "learn": true,
        })
    }

    #[test]
    fn what_is_asked_is_shown_but_for_the_values_of_headers() {
        for plain in ["allow-all", "deny-all"] {
            let model = atoll_model::NetworkPolicy::from(read(&json!(plain)).unwrap());
            assert!(model.is_plain());
            assert_eq!(serde_json::to_value(Network::from(model)).unwrap(), plain);
        }
        let asked = read(&whole()).unwrap();
        assert!(!format!("{asked:?}").contains("secret:K"), "{asked:?}");
        let model = atoll_model::NetworkPolicy::from(asked);
        let value = &model.transforms[0].inject_headers["Authorization"];
        assert_eq!(*value, HeaderText::Plain("Bearer {secret:K}".to_owned()));
        let mut shown = whole();
        shown["transforms"][0]["inject_headers"]["Authorization"] = json!("…");
        assert_eq!(serde_json::to_value(Network::from(model)).unwrap(), shown);
    }

    #[test]
    fn a_mode_written_as_an_object_means_the_same() {
        let model = atoll_model::NetworkPolicy::from(read(&json!({ "mode": "deny-all" })).unwrap());
        assert_eq!(model, atoll_model::NetworkPolicy::deny_all());
        let nothing = atoll_model::NetworkPolicy::from(read(&json!({ "mode": "custom" })).unwrap());
        assert_eq!(serde_json::to_value(Network::from(nothing)).unwrap(), json!({ "mode": "custom" }));
    }

    #[test]
    fn every_fault_names_its_field_and_says_what_would_be_right() {
        for (network, field, says) in [
            (json!("sometimes"), "network", "allow-all"),
            (json!("custom"), "network", "mode"),
            (json!(7), "network", "allow-all"),
            (json!([]), "network", "object"),
            (json!({}), "network.mode", "is required"),
            (json!({ "mode": "some" }), "network.mode", "custom"),
            (json!({ "mode": "custom", "allow_domain": [] }), "network", "allow_domain"),
            (json!({ "mode": "custom", "allow_domains": "x" }), "network.allow_domains", "list"),
            (
                json!({ "mode": "custom", "allow_domains": ["a.com", "http://b.com/"] }),
                "network.allow_domains[1]",
                "without scheme",
            ),
            (
                json!({ "mode": "custom", "allow_domains": ["a.*.com"] }),
                "network.allow_domains[0]",
                "beginning",
            ),
            (
                json!({ "mode": "custom", "allow_cidrs": ["10.0.0.5/8"] }),
                "network.allow_cidrs[0]",
                "10.0.0.0/8",
            ),
            (
                json!({ "mode": "custom", "deny_cidrs": ["example.com"] }),
                "network.deny_cidrs[0]",
                "address range",
            ),
            (json!({ "mode": "custom", "transforms": [{}] }), "network.transforms[0].domain", "is required"),
            (
                json!({ "mode": "custom", "transforms": [{ "domain": "a.com", "inject_headers": { "A": 1 } }] }),
                "network.transforms[0].inject_headers.A",
                "string",
            ),
            (
                json!({ "mode": "custom", "limits": { "connections": -1 } }),
                "network.limits.connections",
                "whole number from 0",
            ),
            (json!({ "mode": "custom", "limits": { "speed": 1 } }), "network.limits", "speed"),
            (json!({ "mode": "custom", "learn": "yes" }), "network.learn", "true or false"),
        ] {
            let message = read(&network).unwrap_err();
            assert!(
                message.starts_with(&format!("{field}: ")) || message.starts_with(&format!("{field}.")),
                "{network}: {message}"
            );
            assert!(message.contains(says), "{network}: {message}");
        }
    }

    #[test]
    fn a_policy_that_is_read_is_written_back_the_same() {
        atoll_robustness::check("network_policy", |bytes| {
            // Values of headers are not written back.
            if let Ok(policy) = read_policy(bytes)
                && policy.transforms.is_empty()
            {
                let written = serde_json::to_vec(&Network::from(policy.clone())).unwrap();
                assert_eq!(read_policy(&written), Ok(policy));
            }
        });
    }
}
