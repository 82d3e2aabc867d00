//! The settings of a provider of kind `daytona`.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_provider::ProviderError;
use atoll_remote::{ApiKey, VendorAddress};
use serde::Deserialize;
use serde_json::Value;

/// Daytona's own service.
const API_URL: &str = "https://app.daytona.io/api";
/// The home of the user of Daytona's images.
const HOME: &str = "/home/daytona";
const USER: &str = "daytona";
const TIMEOUT_S: u64 = 3_600;

/// The part `daytona` of a provider's settings file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DaytonaSettings {
    /// The key of the account.
    pub api_key: ApiKey,
    /// The control API.
    #[serde(default = "api_url")]
    pub api_url: String,
    /// The region of new sandboxes; `None`: that of the account.
    #[serde(default)]
    pub target: Option<String>,
    /// The organisation; `None`: that of the key.
    #[serde(default)]
    pub organization: Option<String>,
    /// The snapshot of sandboxes whose request names none; `None`: the service's default.
    #[serde(default)]
    pub snapshot: Option<String>,
    /// The user of sandboxes; `None`: the service's default, which is the user of Daytona's images.
    #[serde(default)]
    pub user: Option<String>,
    /// The working directory of sandboxes, made when missing; `None`: the home of the user of Daytona's images.
    #[serde(default)]
    pub cwd: Option<String>,
    /// Seconds without a sign of this server after which the service stops a sandbox; whole minutes count.
    #[serde(default = "timeout")]
    pub timeout: u64,
}

fn api_url() -> String {
    API_URL.to_owned()
}

const fn timeout() -> u64 {
    TIMEOUT_S
}

impl DaytonaSettings {
    /// The settings in the section of a file.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] where a field is unknown or has a wrong value.
    pub fn from_section(section: BTreeMap<String, Value>) -> Result<Self, ProviderError> {
        let section = Value::Object(section.into_iter().collect());
        let settings: Self = serde_json::from_value(section).map_err(|bad| unusable(&bad.to_string()))?;
        match VendorAddress::of_url(&settings.api_url) {
            Some(_) => Ok(settings),
            None => Err(unusable("api_url is not an address")),
        }
    }

    /// Whether the API speaks TLS: then its sandboxes have to, too.
    pub(crate) fn is_tls(&self) -> bool {
        VendorAddress::of_url(&self.api_url).is_some_and(|address| address.tls)
    }

    pub(crate) fn user(&self) -> &str {
        self.user.as_deref().unwrap_or(USER)
    }

    pub(crate) fn workdir(&self) -> &str {
        self.cwd.as_deref().unwrap_or(HOME)
    }

    /// The interval of Daytona's automatic stop.
    pub(crate) const fn auto_stop_minutes(&self) -> u64 {
        self.timeout.div_ceil(60)
    }

    /// How often the service is told that a sandbox is in use: two calls may fail.
    pub(crate) const fn sign_every(&self) -> Duration {
        Duration::from_secs(self.auto_stop_minutes() * 20)
    }
}

pub(crate) fn unusable(why: &str) -> ProviderError {
    ProviderError::Unsupported {
        what: format!("the section daytona: {why}"),
        hint: "correct the settings of this provider".to_owned(),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(section: Value) -> Result<DaytonaSettings, ProviderError> {
        let Value::Object(section) = section else { panic!("an object") };
        DaytonaSettings::from_section(section.into_iter().collect())
    }

    #[test]
    fn a_key_is_enough_and_is_never_printed() {
        let settings = parse(json!({ "api_key": "dtn_secret" })).unwrap();
        assert_eq!((settings.api_url.as_str(), settings.auto_stop_minutes()), (API_URL, 60));
        assert_eq!(settings.sign_every(), Duration::from_secs(1_200));
        assert!(settings.is_tls() && !format!("{settings:?}").contains("secret"));
        let short = parse(json!({ "api_key": "k", "timeout": 61 })).unwrap();
        assert_eq!((short.auto_stop_minutes(), short.workdir()), (2, HOME));
    }

    #[test]
    fn settings_that_cannot_be_used_are_refused_by_name() {
        for (section, named) in [
            (json!({}), "api_key"),
            (json!({ "api_key": "k", "api_url": "nowhere" }), "api_url"),
            (json!({ "api_key": "k", "colour": "red" }), "colour"),
        ] {
            let refused = parse(section).unwrap_err();
            assert!(refused.to_string().contains(named), "{refused}");
        }
    }
}
