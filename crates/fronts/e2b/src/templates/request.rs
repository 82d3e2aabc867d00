//! Bodies of requests about templates.

use serde::Deserialize;

/// `POST /v3/templates`; older SDKs send the name as `alias`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AnnounceBody {
    pub(super) name: Option<String>,
    pub(super) alias: Option<String>,
    pub(super) tags: Option<Vec<String>>,
    pub(super) cpu_count: Option<u32>,
    #[serde(rename = "memoryMB")]
    pub(super) memory_mb: Option<u32>,
}

/// `POST /v2/templates/{id}/builds/{build}`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct BuildBody {
    pub(super) from_image: Option<String>,
    pub(super) from_template: Option<String>,
    pub(super) from_image_registry: Option<Registry>,
    pub(super) force: Option<bool>,
    pub(super) steps: Option<Vec<StepBody>>,
    pub(super) start_cmd: Option<String>,
    pub(super) ready_cmd: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct StepBody {
    #[serde(rename = "type")]
    pub(super) kind: String,
    pub(super) args: Option<Vec<String>>,
    pub(super) files_hash: Option<String>,
    pub(super) force: Option<bool>,
}

/// Credentials of a registry. There is no `Debug` of its fields, so that they are never logged.
#[derive(Deserialize)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(super) enum Registry {
    #[serde(rename = "registry")]
    Basic {
        username: String,
        password: String,
    },
    #[serde(rename_all = "camelCase")]
    Gcp {
        service_account_json: String,
    },
    Aws {},
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Registry(…)")
    }
}

#[derive(Debug, Deserialize)]
pub(super) struct AssignBody {
    pub(super) target: String,
    pub(super) tags: Vec<String>,
}

#[derive(Debug, Deserialize)]
pub(super) struct RemoveBody {
    pub(super) name: String,
    pub(super) tags: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct ChangeBody {
    pub(super) public: Option<bool>,
}
