//! Variables of the sandbox: for every process that starts from now on, also after the next start of the sandbox.

use std::collections::BTreeMap;

use atoll_front_kit::{ApiError, Json, JsonResponse, ok};
use atoll_model::UpdateSandbox;
use axum::Router;
use axum::extract::State;
use axum::routing::post;
use serde::Deserialize;
use serde_json::{Value, json};

use super::execute::variables;
use super::inside::Inside;
use crate::DaytonaApp;

pub(super) fn routes() -> Router<DaytonaApp> {
    Router::new().route("/env", post(update))
}

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct UpdateBody {
    set: Option<BTreeMap<String, String>>,
    unset: Option<Vec<String>>,
    /// Variables whose value begins with this are removed too.
    unset_value_prefix: Option<String>,
}

async fn update(
    State(app): State<DaytonaApp>,
    inside: Inside,
    Json(body): Json<UpdateBody>,
) -> Result<JsonResponse<Value>, ApiError> {
    let Some(who) = &inside.who else {
        return Err(ApiError::new(atoll_model::Code::Forbidden, "variables are changed with a key"));
    };
    let set = variables(body.set)?;
    let env = changed(&inside.lease().env, set, body.unset, body.unset_value_prefix.as_deref());
    let change = UpdateSandbox { env: Some(env), ..UpdateSandbox::default() };
    app.service.sandboxes().update(who, inside.lease().id.as_str(), change).await?;
    Ok(ok(json!({ "message": "environment updated" })))
}

fn changed(
    before: &BTreeMap<String, String>,
    set: BTreeMap<String, String>,
    unset: Option<Vec<String>>,
    prefix: Option<&str>,
) -> BTreeMap<String, String> {
    let unset = unset.unwrap_or_default();
    let prefix = prefix.filter(|prefix| !prefix.is_empty());
    let mut env = before.clone();
    env.retain(|name, value| !unset.contains(name) && prefix.is_none_or(|prefix| !value.starts_with(prefix)));
    env.extend(set);
    env
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_wins_over_what_is_unset() {
        let map = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
        };
        let before = map(&[("A", "1"), ("B", "2"), ("C", "secret-x")]);
        let after = changed(
            &before,
            map(&[("B", "3"), ("D", "4")]),
            Some(vec!["A".into(), "B".into()]),
            Some("secret-"),
        );
        assert_eq!(after, map(&[("B", "3"), ("D", "4")]));
        assert_eq!(changed(&before, BTreeMap::new(), None, Some("")), before);
    }
}
