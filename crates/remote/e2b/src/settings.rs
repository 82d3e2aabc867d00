//! The settings of a provider of kind `e2b`.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_provider::ProviderError;
use atoll_remote::{ApiKey, VendorAddress};
use serde::Deserialize;
use serde_json::Value;

/// E2B's own service.
const API_URL: &str = "https://api.e2b.app";
const TEMPLATE: &str = "base";
/// The home of the user of E2B's templates.
const HOME: &str = "/home/user";
const TIMEOUT_S: u64 = 300;

/// The part `e2b` of a provider's settings file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct E2bSettings {
    /// The key of the account.
    pub api_key: ApiKey,
    /// The control API.
    #[serde(default = "api_url")]
    pub api_url: String,
    /// One host for the requests of all sandboxes; `None`: each sandbox has hosts of its own below the domain that the API names.
    #[serde(default)]
    pub sandbox_url: Option<String>,
    /// The template of sandboxes whose request names none.
    #[serde(default = "template")]
    pub template: String,
    /// The working directory of sandboxes, made when missing; `None`: the home of the template's user.
    #[serde(default)]
    pub cwd: Option<String>,
    /// The lifetime, in seconds, that a sandbox has at the service whenever it is extended.
    #[serde(default = "timeout")]
    pub timeout: u64,
}

fn api_url() -> String {
    API_URL.to_owned()
}

fn template() -> String {
    TEMPLATE.to_owned()
}

const fn timeout() -> u64 {
    TIMEOUT_S
}

impl E2bSettings {
    /// The settings in the section of a file.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] where a field is unknown or has a wrong value.
    pub fn from_section(section: BTreeMap<String, Value>) -> Result<Self, ProviderError> {
        let section = Value::Object(section.into_iter().collect());
        let settings: Self = serde_json::from_value(section).map_err(|bad| unusable(&bad.to_string()))?;
        settings.addresses()?;
        Ok(settings)
    }

    /// Whether the API speaks TLS, and the host of all sandboxes if there is one.
    pub(crate) fn addresses(&self) -> Result<(bool, Option<VendorAddress>), ProviderError> {
        let api =
            VendorAddress::of_url(&self.api_url).ok_or_else(|| unusable("api_url is not an address"))?;
        let shared = self
            .sandbox_url
            .as_deref()
            .map(|url| VendorAddress::of_url(url).ok_or_else(|| unusable("sandbox_url is not an address")));
        Ok((api.tls, shared.transpose()?))
    }

    /// The domain of sandboxes' hosts where the API names none: E2B's API is at `api.DOMAIN`.
    pub(crate) fn own_domain(&self) -> Option<String> {
        let authority = VendorAddress::of_url(&self.api_url)?.authority();
        Some(authority.strip_prefix("api.").unwrap_or(&authority).to_owned())
    }

    pub(crate) fn workdir(&self) -> &str {
        self.cwd.as_deref().unwrap_or(HOME)
    }

    /// How often the lifetime of a running sandbox is extended: two extensions may fail.
    pub(crate) const fn extend_every(&self) -> Duration {
        Duration::from_millis(self.timeout.saturating_mul(1_000) / 3)
    }
}

fn unusable(why: &str) -> ProviderError {
    ProviderError::Unsupported {
        what: format!("the section e2b: {why}"),
        hint: "correct the settings of this provider".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(section: Value) -> Result<E2bSettings, ProviderError> {
        let Value::Object(section) = section else { panic!("an object") };
        E2bSettings::from_section(section.into_iter().collect())
    }

    #[test]
    fn a_key_is_enough_and_is_never_printed() {
        let settings = parse(json!({ "api_key": "e2b_secret" })).unwrap();
        assert_eq!((settings.api_url.as_str(), settings.timeout), (API_URL, 300));
        assert_eq!(settings.own_domain().as_deref(), Some("e2b.app"));
        assert_eq!(settings.extend_every(), Duration::from_secs(100));
        assert!(!format!("{settings:?}").contains("secret"));
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused_by_name() {
        for (section, named) in [
            (json!({}), "api_key"),
            (json!({ "api_key": "k", "api_url": "nowhere" }), "api_url"),
            (json!({ "api_key": "k", "sandbox_url": "::" }), "sandbox_url"),
            (json!({ "api_key": "k", "colour": "red" }), "colour"),
        ] {
            let refused = parse(section).unwrap_err();
            assert!(refused.to_string().contains(named), "{refused}");
        }
    }
}
