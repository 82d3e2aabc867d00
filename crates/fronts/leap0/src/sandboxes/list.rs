//! Lists by page number. The core pages by cursor, newest first; Leap0 sorts, counts and numbers its pages, so all
//! sandboxes that a key can see are read here and cut into pages.

use std::cmp::Ordering;

use atoll_front_kit::paging::{READ_AT_ONCE, numbered_page, read_all};
use atoll_front_kit::{ApiError, rfc3339};
use atoll_model::{Lease, Principal};
use atoll_service::Filter;
use serde::{Deserialize, Serialize};

use crate::Leap0App;
use crate::states::{phases, state};

/// LIMIT: that of the vendor.
const PAGE_SIZE_MAX: usize = 100;
const PAGE_SIZE: usize = 20;

/// The page and its order.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Paging {
    pub(crate) sort: Option<String>,
    #[serde(rename = "order-by")]
    pub(crate) order_by: Option<String>,
    pub(crate) page: Option<usize>,
    #[serde(rename = "page-size")]
    pub(crate) page_size: Option<usize>,
}

#[derive(Debug, Default, Deserialize)]
pub(super) struct SandboxListQuery {
    // Flattened numbers of a query string are texts, so the fields are repeated here.
    sort: Option<String>,
    #[serde(rename = "order-by")]
    order_by: Option<String>,
    page: Option<usize>,
    #[serde(rename = "page-size")]
    page_size: Option<usize>,
    state: Option<String>,
}

#[derive(Debug, Serialize)]
pub(super) struct SandboxPage {
    items: Vec<ListItem>,
    total_items: usize,
}

#[derive(Debug, Serialize)]
struct ListItem {
    id: String,
    template_id: String,
    state: &'static str,
    launch_time: String,
    state_change_time: String,
    /// Unix seconds.
    timeout_at: Option<i64>,
    created_at: String,
}

impl From<Lease> for ListItem {
    fn from(lease: Lease) -> Self {
        Self {
            id: lease.id.into(),
            template_id: lease.template,
            state: state(lease.phase),
            launch_time: rfc3339(lease.created_at.wall_ms),
            state_change_time: rfc3339(lease.phase_at.wall_ms),
            timeout_at: lease.timeout_at.map(|at| at.wall_ms / 1_000),
            created_at: rfc3339(lease.created_at.wall_ms),
        }
    }
}

pub(super) async fn list(
    app: &Leap0App,
    who: &Principal,
    query: SandboxListQuery,
) -> Result<SandboxPage, ApiError> {
    let SandboxListQuery { sort, order_by, page, page_size, state: wanted } = query;
    let paging = Paging { sort, order_by, page, page_size };
    let phases = match wanted.as_deref() {
        None | Some("") => Vec::new(),
        Some(word) => match phases(word) {
            none if none.is_empty() => return Err(ApiError::field("state", "is not a state of a sandbox")),
            some => some,
        },
    };
    let mut all = read_all(
        |_| true,
        |cursor| {
            let filter = Filter { phases: phases.clone(), limit: READ_AT_ONCE, cursor, ..Filter::default() };
            app.service.sandboxes().list(who, filter)
        },
    )
    .await?;
    let by_time =
        |a: &Lease, b: &Lease| a.created_at.wall_ms.cmp(&b.created_at.wall_ms).then(a.id.cmp(&b.id));
    match paging.sort.as_deref().unwrap_or("created_at") {
        "created_at" => in_order(&mut all, &paging, by_time)?,
        "state" => in_order(&mut all, &paging, |a, b| {
            state(a.phase).cmp(state(b.phase)).then_with(|| by_time(a, b))
        })?,
        _ => return Err(ApiError::field("sort", "must be created_at or state")),
    }
    let total_items = all.len();
    let items = page_of(all, &paging)?.into_iter().map(ListItem::from).collect();
    Ok(SandboxPage { items, total_items })
}

/// Sorts by the requested field; by default the newest, or the last, is first.
pub(crate) fn in_order<T>(
    all: &mut [T],
    paging: &Paging,
    by: impl Fn(&T, &T) -> Ordering,
) -> Result<(), ApiError> {
    match paging.order_by.as_deref().unwrap_or("desc") {
        "asc" => all.sort_by(by),
        "desc" => all.sort_by(|a, b| by(b, a)),
        _ => return Err(ApiError::field("order-by", "must be asc or desc")),
    }
    Ok(())
}

/// One page of the items; a page beyond the last one is empty.
pub(crate) fn page_of<T>(all: Vec<T>, paging: &Paging) -> Result<Vec<T>, ApiError> {
    let (page, size) = (paging.page.unwrap_or(1), paging.page_size.unwrap_or(PAGE_SIZE));
    if page == 0 {
        return Err(ApiError::field("page", "must be at least 1"));
    }
    if !(1..=PAGE_SIZE_MAX).contains(&size) {
        return Err(ApiError::field("page-size", format!("must be between 1 and {PAGE_SIZE_MAX}")));
    }
    Ok(numbered_page(all, page, size))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn paging(page: usize, size: usize, order: &str) -> Paging {
        Paging { sort: None, order_by: Some(order.to_owned()), page: Some(page), page_size: Some(size) }
    }

    #[test]
    fn pages_are_numbered_from_one_and_end() {
        let mut all = vec![3, 1, 2, 5, 4];
        in_order(&mut all, &paging(1, 2, "asc"), i32::cmp).unwrap();
        assert_eq!(page_of(all.clone(), &paging(1, 2, "asc")).unwrap(), [1, 2]);
        assert_eq!(page_of(all.clone(), &paging(3, 2, "asc")).unwrap(), [5]);
        assert!(page_of(all.clone(), &paging(4, 2, "asc")).unwrap().is_empty());
        assert!(page_of(all.clone(), &paging(usize::MAX, 100, "asc")).unwrap().is_empty());
        in_order(&mut all, &paging(1, 2, "desc"), i32::cmp).unwrap();
        assert_eq!(all, [5, 4, 3, 2, 1]);
        for (page, size) in [(0, 2), (1, 0), (1, 101)] {
            assert!(page_of(all.clone(), &paging(page, size, "asc")).unwrap_err().field.is_some());
        }
        assert!(in_order(&mut all, &paging(1, 2, "sideways"), i32::cmp).is_err());
    }

    #[test]
    fn a_query_as_the_sdk_writes_it_is_read() {
        let uri =
            "/v1/sandboxes?sort=created_at&order-by=desc&page=2&page-size=7&state=paused".parse().unwrap();
        let query = axum::extract::Query::<SandboxListQuery>::try_from_uri(&uri).unwrap().0;
        assert_eq!((query.page, query.page_size, query.state.as_deref()), (Some(2), Some(7), Some("paused")));
    }
}
