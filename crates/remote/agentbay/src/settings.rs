//! The settings of a provider of kind `agentbay`.

use std::collections::BTreeMap;
use std::time::Duration;

use atoll_provider::ProviderError;
use atoll_remote::ApiKey;
use serde::Deserialize;
use serde_json::Value;

const REGION: &str = "cn-hangzhou";
const IMAGE: &str = "linux_latest";
/// The home of the user of AgentBay's images.
const HOME: &str = "/home/wuying";
/// In front of a region: the hosts of the next release.
const PRE_RELEASE: &str = "pre-";

/// The part `agentbay` of a provider's settings file.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentbaySettings {
    /// The key of the account.
    pub api_key: ApiKey,
    /// The region whose service is used.
    #[serde(default)]
    pub region_id: Option<String>,
    /// Another address of the service: `HOST`, `HOST:PORT`, or a whole address.
    #[serde(default)]
    pub endpoint: Option<String>,
    /// The image of sandboxes whose request names none.
    #[serde(default)]
    pub image_id: Option<String>,
    /// The working directory of sandboxes, made when missing.
    #[serde(default)]
    pub context_path: Option<String>,
    /// Seconds without a call after which the service ends a session; it is kept alive while this server runs. `None`: the service
    /// ends no session by itself.
    #[serde(default)]
    pub timeout: Option<u64>,
}

impl AgentbaySettings {
    /// The settings in the section of a file.
    ///
    /// # Errors
    /// [`ProviderError::Unsupported`] where a field is unknown or has a wrong value.
    pub fn from_section(section: BTreeMap<String, Value>) -> Result<Self, ProviderError> {
        let section = Value::Object(section.into_iter().collect());
        serde_json::from_value(section).map_err(|bad| unusable(&bad.to_string()))
    }

    /// The region that a session is asked for.
    pub(crate) fn region(&self) -> &str {
        let region = self.region_id.as_deref().unwrap_or(REGION);
        region.strip_prefix(PRE_RELEASE).unwrap_or(region)
    }

    /// The address of the service.
    pub(crate) fn base(&self) -> String {
        match &self.endpoint {
            Some(whole) if whole.contains("://") => whole.clone(),
            Some(host) => format!("https://{host}"),
            None => format!("https://{}", self.host_of_region()),
        }
    }

    fn host_of_region(&self) -> String {
        let region = self.region_id.as_deref().unwrap_or(REGION);
        match region.strip_prefix(PRE_RELEASE) {
            Some("ap-southeast-1") => "wuyingai-pre.ap-southeast-1.aliyuncs.com".to_owned(),
            Some(region) => format!("agentbay-pre.{region}.aliyuncs.com"),
            None => format!("agentbay.{region}.aliyuncs.com"),
        }
    }

    pub(crate) fn image(&self) -> &str {
        self.image_id.as_deref().unwrap_or(IMAGE)
    }

    pub(crate) fn workdir(&self) -> &str {
        self.context_path.as_deref().unwrap_or(HOME)
    }

    /// How often a session is kept alive: two attempts may fail.
    pub(crate) fn refresh_every(&self) -> Option<Duration> {
        self.timeout.map(|seconds| Duration::from_millis(seconds.saturating_mul(1_000) / 3))
    }
}

pub(crate) fn unusable(why: &str) -> ProviderError {
    let hint = "correct the settings of this provider".to_owned();
    ProviderError::Unsupported { what: format!("the section agentbay: {why}"), hint }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use serde_json::json;

    fn parse(section: Value) -> Result<AgentbaySettings, ProviderError> {
        let Value::Object(section) = section else { panic!("an object") };
        AgentbaySettings::from_section(section.into_iter().collect())
    }

    #[test]
    fn a_key_is_enough_and_is_never_printed() {
        let settings = parse(json!({ "api_key": "akm-secret" })).unwrap();
        assert_eq!(settings.base(), "https://agentbay.cn-hangzhou.aliyuncs.com");
        assert_eq!((settings.image(), settings.region()), (IMAGE, REGION));
        assert_eq!(settings.refresh_every(), None);
        assert!(!format!("{settings:?}").contains("secret"));
        assert!(
            parse(json!({ "api_key": "k", "colour": "red" })).unwrap_err().to_string().contains("colour")
        );
    }

    #[test]
    fn the_address_is_that_of_the_endpoint_or_of_the_region() {
        let of = |section: Value| parse(section).unwrap();
        let pre = of(json!({ "api_key": "k", "region_id": "pre-ap-southeast-1" }));
        assert_eq!(pre.base(), "https://wuyingai-pre.ap-southeast-1.aliyuncs.com");
        assert_eq!(pre.region(), "ap-southeast-1");
        let host = of(json!({ "api_key": "k", "endpoint": "localhost:8443" }));
        assert_eq!(host.base(), "https://localhost:8443");
        let whole =
            of(json!({ "api_key": "k", "endpoint": "http://127.0.0.1:80", "region_id": "us-east-1" }));
        assert_eq!((whole.base().as_str(), whole.region()), ("http://127.0.0.1:80", "us-east-1"));
    }
}
