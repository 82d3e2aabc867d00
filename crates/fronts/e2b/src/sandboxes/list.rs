//! Lists of sandboxes: filtered, ordered and paged by the core.

use atoll_front_kit::paging::{READ_AT_ONCE, read_all};
use atoll_front_kit::{ApiError, Caller, JsonResponse, ok};
use atoll_model::{Lease, Principal};
use atoll_service::{Filter, SortBy};
use axum::extract::State as Given;
use axum::http::{HeaderName, HeaderValue, Uri};
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use percent_encoding::percent_decode_str;
use url::form_urlencoded;

use super::Listed;
use crate::E2bApp;
use crate::states::{SandboxState, state_of};

/// LIMIT: that of E2B.
const PAGE_MAX: u32 = 100;
const NEXT_TOKEN: HeaderName = HeaderName::from_static("x-next-token");

/// COMPAT(e2b): the first version has neither pages nor paused sandboxes.
pub(super) async fn first(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    uri: Uri,
) -> Result<JsonResponse<Vec<Listed>>, ApiError> {
    let asked = SandboxListQuery::parse(uri.query().unwrap_or_default())?;
    let states = if asked.states.is_empty() { vec![SandboxState::Running] } else { asked.states.clone() };
    let asked = SandboxListQuery { states, limit: Some(READ_AT_ONCE), ..asked };
    let filter = asked.into_filter(&app, &who).await?;
    let all =
        read_all(|_| true, |cursor| app.service.sandboxes().list(&who, Filter { cursor, ..filter.clone() }))
            .await?;
    Ok(ok(shown(&all)))
}

pub(super) async fn second(
    Given(app): Given<E2bApp>,
    Caller(who): Caller,
    uri: Uri,
) -> Result<Response, ApiError> {
    let asked = SandboxListQuery::parse(uri.query().unwrap_or_default())?;
    let page = app.service.sandboxes().list(&who, asked.into_filter(&app, &who).await?).await?;
    Ok(paged(shown(&page.items), page.next_cursor))
}

/// The sandboxes that have a state there.
fn shown(leases: &[Lease]) -> Vec<Listed> {
    leases.iter().filter(|lease| state_of(lease).is_some()).map(Listed::from).collect()
}

/// A page, with the token of the next one in a header.
pub(crate) fn paged<T: serde::Serialize>(items: Vec<T>, next: Option<String>) -> Response {
    let mut response = ok(items).into_response();
    if let Some(next) = next.and_then(|next| HeaderValue::from_str(&next).ok()) {
        response.headers_mut().insert(NEXT_TOKEN, next);
    }
    response
}

/// The size of a page.
pub(crate) fn page_size(text: &str) -> Result<u32, ApiError> {
    let number = text.parse().ok().filter(|n| (1..=PAGE_MAX).contains(n));
    number.ok_or_else(|| ApiError::field("limit", "must be between 1 and 100"))
}

/// The parameters of the query.
#[derive(Debug, Default, PartialEq, Eq)]
struct SandboxListQuery {
    metadata: Vec<(String, String)>,
    states: Vec<SandboxState>,
    ascending: bool,
    started_after_ms: Option<i64>,
    template: Option<String>,
    limit: Option<u32>,
    next_token: Option<String>,
}

impl SandboxListQuery {
    fn parse(query: &str) -> Result<Self, ApiError> {
        let mut asked = Self::default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match name.as_ref() {
                "metadata" => asked.metadata.extend(metadata(&value)?),
                "state" => asked.states.extend(states(&value)?),
                "order" => asked.ascending = is_ascending(&value)?,
                "startedAfter" => asked.started_after_ms = Some(moment(&value)?),
                "template" => asked.template = Some(value.into_owned()).filter(|word| !word.is_empty()),
                "limit" => asked.limit = Some(page_size(&value)?),
                "nextToken" => asked.next_token = Some(value.into_owned()).filter(|token| !token.is_empty()),
                // A newer SDK may send further parameters.
                _ => {}
            }
        }
        Ok(asked)
    }

    async fn into_filter(self, app: &E2bApp, who: &Principal) -> Result<Filter, ApiError> {
        let states = if self.states.is_empty() {
            vec![SandboxState::Running, SandboxState::Paused]
        } else {
            self.states
        };
        let template = match self.template {
            Some(word) => Some(super::origin(app, who, &word).await?),
            None => None,
        };
        Ok(Filter {
            phases: states.into_iter().flat_map(|state| state.phases().iter()).collect(),
            labels: self.metadata,
            made_from: template.into_iter().collect(),
            sort: SortBy::Started,
            ascending: self.ascending,
            started_after_ms: self.started_after_ms,
            limit: self.limit.unwrap_or(PAGE_MAX),
            cursor: self.next_token,
            ..Filter::default()
        })
    }
}

/// COMPAT(e2b): a form within the query, whose names and values are encoded twice.
fn metadata(form: &str) -> Result<Vec<(String, String)>, ApiError> {
    let plain = |text: &str| percent_decode_str(text).decode_utf8().map(|text| text.into_owned());
    let pairs =
        form_urlencoded::parse(form.as_bytes()).map(|(key, value)| Ok((plain(&key)?, plain(&value)?)));
    let pairs: Result<Vec<_>, std::str::Utf8Error> = pairs.collect();
    pairs.map_err(|_| ApiError::field("metadata", "is not encoded text"))
}

fn states(list: &str) -> Result<Vec<SandboxState>, ApiError> {
    let words = list.split(',').map(str::trim).filter(|word| !word.is_empty());
    let states = words.map(SandboxState::parse).collect::<Option<Vec<_>>>();
    states.ok_or_else(|| ApiError::field("state", "must be running or paused, or both with a comma"))
}

fn is_ascending(word: &str) -> Result<bool, ApiError> {
    match word {
        "desc" => Ok(false),
        "asc" => Ok(true),
        _ => Err(ApiError::field("order", "must be asc or desc")),
    }
}

fn moment(text: &str) -> Result<i64, ApiError> {
    let at = text.parse::<Timestamp>().map(Timestamp::as_millisecond);
    at.map_err(|_| ApiError::field("startedAfter", "must be a time such as 2026-01-01T00:00:00Z"))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_query_as_the_sdks_write_it_is_read() {
        let python = "metadata=a%252520b%3Db%252526c&state=running%2Cpaused&order=asc&startedAfter=2027-01-15T09%3A00%3A00%2B01%3A00\
                      &template=base&limit=5&nextToken=t";
        let asked = SandboxListQuery::parse(python).unwrap();
        assert_eq!(asked.metadata, [("a b".to_owned(), "b&c".to_owned())]);
        assert_eq!(asked.states, [SandboxState::Running, SandboxState::Paused]);
        assert!(asked.ascending);
        assert_eq!(asked.started_after_ms, Some(1_800_000_000_000));
        assert_eq!(
            (asked.template.as_deref(), asked.limit, asked.next_token.as_deref()),
            (Some("base"), Some(5), Some("t"))
        );
        let javascript = SandboxListQuery::parse("state=running,paused&metadata=").unwrap();
        assert_eq!((javascript.states, javascript.metadata), (asked.states, vec![]));
        assert_eq!(SandboxListQuery::parse("").unwrap(), SandboxListQuery::default());
        assert_eq!(SandboxListQuery::parse("state=running&state=paused").unwrap().states.len(), 2);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (query, word) in [
            ("state=killed", "state"),
            ("order=up", "order"),
            ("limit=0", "limit"),
            ("limit=101", "limit"),
            ("limit=x", "limit"),
            ("startedAfter=yesterday", "startedAfter"),
            ("metadata=%2525ff%3Dx", "metadata"),
        ] {
            let refused = SandboxListQuery::parse(query).unwrap_err();
            assert!(
                refused.status().as_u16() == 400 && refused.message.starts_with(word),
                "{query}: {}",
                refused.message
            );
        }
    }

    #[test]
    fn any_query_is_read_or_refused() {
        atoll_robustness::check("list_query", |bytes| {
            let _ = SandboxListQuery::parse(&String::from_utf8_lossy(bytes));
        });
    }
}
