//! Lists sandboxes. The core pages by its own cursor; Daytona has more filters and sort orders, so all sandboxes that a
//! key can see are read here and cut into pages. A cursor is the position of the last sandbox shown, so a page is right
//! even if sandboxes were created or deleted since.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use atoll_front_kit::paging::{READ_AT_ONCE, numbered_page, page_after, read_all};
use atoll_front_kit::{ApiError, Caller, JsonResponse, ok};
use atoll_model::{Lease, Phase, Principal};
use atoll_service::Filter;
use axum::extract::{RawQuery, State};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use super::response::{CLASS, Item, REGION, cores, gib, note};
use crate::DaytonaApp;
use crate::origin::Origin;
use crate::states::{STATES, phases, state};

const PAGE_SIZE: usize = 100;
/// LIMIT: that of the vendor; it fits one response.
const PAGE_SIZE_MAX: usize = 200;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct PageOf {
    items: Vec<Item>,
    next_cursor: Option<String>,
}

/// `GET /sandbox`.
pub(super) async fn list(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    RawQuery(query): RawQuery,
) -> Result<JsonResponse<PageOf>, ApiError> {
    let asked = SandboxListQuery::parse(query.as_deref().unwrap_or_default())?;
    let (leases, next_cursor) = page(all(&app, &who, &asked).await?, &asked);
    let items = leases.iter().map(|lease| Item::of(lease, &origin)).collect();
    Ok(ok(PageOf { items, next_cursor }))
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Numbered {
    items: Vec<Item>,
    total: usize,
    page: usize,
    total_pages: usize,
}

/// `GET /sandbox/paginated`, which older SDKs call: the same by page number.
pub(super) async fn paginated(
    State(app): State<DaytonaApp>,
    Caller(who): Caller,
    origin: Origin,
    RawQuery(query): RawQuery,
) -> Result<JsonResponse<Numbered>, ApiError> {
    let asked = SandboxListQuery::parse(query.as_deref().unwrap_or_default())?;
    let all = all(&app, &who, &asked).await?;
    let (page, size) = (asked.page.unwrap_or(1), asked.limit);
    if page == 0 {
        return Err(ApiError::invalid("page: must be at least 1"));
    }
    let total = all.len();
    let items = numbered_page(all, page, size).iter().map(|lease| Item::of(lease, &origin)).collect();
    Ok(ok(Numbered { items, total, page, total_pages: total.div_ceil(size) }))
}

/// The query of a list.
#[derive(Debug, Default)]
struct SandboxListQuery {
    cursor: Option<Place>,
    limit: usize,
    page: Option<usize>,
    id: Option<String>,
    name: Option<String>,
    labels: BTreeMap<String, String>,
    states: Vec<String>,
    snapshots: Vec<String>,
    regions: Vec<String>,
    classes: Vec<String>,
    with_errored: bool,
    cpu: Range,
    memory: Range,
    disk: Range,
    gpu: Range,
    public: Option<bool>,
    recoverable: Option<bool>,
    created: Range,
    active: Range,
    destroyed: Range,
    sort: Sort,
    ascending: bool,
}

/// From and to, both included.
#[derive(Debug, Default, Clone, Copy)]
struct Range(Option<i64>, Option<i64>);

impl Range {
    fn holds(self, value: i64) -> bool {
        self.0.is_none_or(|least| value >= least) && self.1.is_none_or(|most| value <= most)
    }

    const fn is_open(self) -> bool {
        self.0.is_none() && self.1.is_none()
    }
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
enum Sort {
    Name,
    Cpu,
    Memory,
    Disk,
    Active,
    #[default]
    Created,
}

/// Where a page ended: the sort key and the id of the last sandbox.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
struct Place(SortKey, String);

impl Place {
    fn cursor(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).expect("texts and numbers always serialise"))
    }
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum SortKey {
    #[serde(rename = "n")]
    Number(i64),
    #[serde(rename = "t")]
    Text(String),
}

impl SandboxListQuery {
    fn parse(query: &str) -> Result<Self, ApiError> {
        let mut asked = Self { limit: PAGE_SIZE, ..Self::default() };
        for (name, value) in url::form_urlencoded::parse(query.as_bytes()) {
            // An array of one is sometimes written with brackets.
            asked.take(name.trim_end_matches("[]"), value.as_ref())?;
        }
        Ok(asked)
    }

    fn take(&mut self, name: &str, value: &str) -> Result<(), ApiError> {
        let number = || value.parse::<i64>().map_err(|_| bad(name, "must be a whole number"));
        let flag = || value.parse::<bool>().map_err(|_| bad(name, "must be true or false"));
        let moment = || {
            let at: Result<Timestamp, _> = value.parse();
            at.map(Timestamp::as_millisecond)
                .map_err(|_| bad(name, "must be a time such as 2026-01-31T12:00:00Z"))
        };
        if value.is_empty() {
            return Ok(());
        }
        match name {
            "cursor" => self.cursor = Some(place(value)?),
            "limit" => self.limit = size(number()?)?,
            "page" => self.page = Some(usize::try_from(number()?).unwrap_or(0)),
            "id" => self.id = Some(value.to_lowercase()),
            "name" => self.name = Some(value.to_lowercase()),
            "labels" => {
                self.labels =
                    serde_json::from_str(value).map_err(|_| bad(name, "must be a JSON object of strings"))?;
            }
            "states" => self.states.push(known_state(value)?),
            "snapshots" => self.snapshots.push(value.to_owned()),
            "regionIds" => self.regions.push(value.to_owned()),
            "sandboxClasses" => self.classes.push(value.to_owned()),
            "includeErroredDeleted" => self.with_errored = flag()?,
            "minCpu" => self.cpu.0 = Some(number()?),
            "maxCpu" => self.cpu.1 = Some(number()?),
            "minMemoryGiB" => self.memory.0 = Some(number()?),
            "maxMemoryGiB" => self.memory.1 = Some(number()?),
            "minDiskGiB" => self.disk.0 = Some(number()?),
            "maxDiskGiB" => self.disk.1 = Some(number()?),
            "minGpu" => self.gpu.0 = Some(number()?),
            "maxGpu" => self.gpu.1 = Some(number()?),
            "isPublic" => self.public = Some(flag()?),
            "isRecoverable" => self.recoverable = Some(flag()?),
            "createdAtAfter" => self.created.0 = Some(moment()?),
            "createdAtBefore" => self.created.1 = Some(moment()?),
            "lastEventAfter" => self.active.0 = Some(moment()?),
            "lastEventBefore" => self.active.1 = Some(moment()?),
            "autoDestroyAtAfter" => self.destroyed.0 = Some(moment()?),
            "autoDestroyAtBefore" => self.destroyed.1 = Some(moment()?),
            "sort" => self.sort = sort(value)?,
            "order" => self.ascending = ascending(value)?,
            // Warm instances are not sandboxes here; a newer SDK may send further fields.
            _ => {}
        }
        Ok(())
    }

    fn matches(&self, lease: &Lease) -> bool {
        let begins = |text: &str, with: &Option<String>| {
            with.as_ref().is_none_or(|with| text.to_lowercase().starts_with(with))
        };
        let noted = |word: &str| lease.annotations.get(word).map(String::as_str);
        let snapshot = noted(note::SNAPSHOT).unwrap_or(&lease.template);
        let target = noted(note::TARGET).unwrap_or(REGION);
        let among = |all: &[String], one: &str| all.is_empty() || all.iter().any(|each| each == one);
        let name = lease.name.as_deref().unwrap_or(lease.id.as_str());
        begins(lease.id.as_str(), &self.id)
            && begins(name, &self.name)
            && among(&self.states, state(lease))
            && among(&self.snapshots, snapshot)
            && among(&self.regions, target)
            && among(&self.classes, CLASS)
            && self.cpu.holds(i64::from(cores(lease)))
            && self.memory.holds(i64::from(gib(lease.limits.memory_mib)))
            && self.disk.holds(i64::from(gib(lease.limits.disk_mib)))
            && self.gpu.holds(0)
            && self.public.is_none_or(|public| lease.public == public)
            && self.recoverable.is_none_or(|wanted| (lease.phase == Phase::Failed) == wanted)
            && self.created.holds(lease.created_at.wall_ms)
            && self.active.holds(active_ms(lease))
            && (self.destroyed.is_open()
                || lease.timeout_at.as_ref().is_some_and(|at| self.destroyed.holds(at.wall_ms)))
    }

    fn place(&self, lease: &Lease) -> Place {
        let key = match self.sort {
            Sort::Name => SortKey::Text(lease.name.clone().unwrap_or_else(|| lease.id.to_string())),
            Sort::Cpu => SortKey::Number(i64::from(cores(lease))),
            Sort::Memory => SortKey::Number(i64::from(gib(lease.limits.memory_mib))),
            Sort::Disk => SortKey::Number(i64::from(gib(lease.limits.disk_mib))),
            Sort::Active => SortKey::Number(active_ms(lease)),
            Sort::Created => SortKey::Number(lease.created_at.wall_ms),
        };
        Place(key, lease.id.to_string())
    }

    fn order(&self, a: &Place, b: &Place) -> Ordering {
        if self.ascending { a.cmp(b) } else { b.cmp(a) }
    }
}

fn active_ms(lease: &Lease) -> i64 {
    lease.active_at.as_ref().unwrap_or(&lease.phase_at).wall_ms
}

fn bad(name: &str, why: &str) -> ApiError {
    ApiError::invalid(format!("{name}: {why}"))
}

fn size(asked: i64) -> Result<usize, ApiError> {
    match usize::try_from(asked) {
        Ok(size @ 1..) => Ok(size.min(PAGE_SIZE_MAX)),
        _ => Err(bad("limit", "must be at least 1")),
    }
}

fn known_state(word: &str) -> Result<String, ApiError> {
    if !STATES.contains(&word) {
        return Err(bad("states", &format!("{word:?} is not a state of a sandbox")));
    }
    Ok(word.to_owned())
}

fn sort(word: &str) -> Result<Sort, ApiError> {
    Ok(match word {
        "name" => Sort::Name,
        "cpu" => Sort::Cpu,
        "memoryGib" | "memoryGiB" => Sort::Memory,
        "diskGib" | "diskGiB" => Sort::Disk,
        "lastActivityAt" | "updatedAt" => Sort::Active,
        "createdAt" => Sort::Created,
        _ => return Err(bad("sort", "must be name, cpu, memoryGib, diskGib, lastActivityAt or createdAt")),
    })
}

fn ascending(word: &str) -> Result<bool, ApiError> {
    match word {
        "asc" => Ok(true),
        "desc" => Ok(false),
        _ => Err(bad("order", "must be asc or desc")),
    }
}

fn place(cursor: &str) -> Result<Place, ApiError> {
    let bytes = URL_SAFE_NO_PAD.decode(cursor).map_err(|_| bad("cursor", "is not a cursor of this list"))?;
    serde_json::from_slice(&bytes).map_err(|_| bad("cursor", "is not a cursor of this list"))
}

/// All sandboxes that the key can see and that match the query, in order.
async fn all(app: &DaytonaApp, who: &Principal, asked: &SandboxListQuery) -> Result<Vec<Lease>, ApiError> {
    let wanted: Vec<Phase> = asked.states.iter().flat_map(|word| phases(word)).collect();
    // A filter with only states that sandboxes never have matches none.
    if wanted.is_empty() && !asked.states.is_empty() {
        return Ok(Vec::new());
    }
    let labels: Vec<(String, String)> =
        asked.labels.iter().map(|(key, value)| (key.clone(), value.clone())).collect();
    let keep = |lease: &Lease| asked.matches(lease);
    let mut all = read_all(keep, |cursor| {
        let (phases, labels) = (wanted.clone(), labels.clone());
        app.service
            .sandboxes()
            .list(who, Filter { phases, labels, limit: READ_AT_ONCE, cursor, ..Filter::default() })
    })
    .await?;
    all.sort_by(|a, b| asked.order(&asked.place(a), &asked.place(b)));
    Ok(all)
}

/// The page after the cursor, and the cursor of the next page.
fn page(all: Vec<Lease>, asked: &SandboxListQuery) -> (Vec<Lease>, Option<String>) {
    let behind = |lease: &Lease| match &asked.cursor {
        Some(last) => asked.order(&asked.place(lease), last) == Ordering::Greater,
        None => true,
    };
    page_after(all.into_iter().filter(behind).collect(), asked.limit, |last| asked.place(last).cursor())
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn a_query_as_the_sdks_write_it_is_read() {
        let asked = SandboxListQuery::parse(
            "limit=2&labels=%7B%22a%22%3A%22b%22%7D&states=started&states=stopped&sort=name&order=asc&minCpu=1\
             &isPublic=true&createdAtAfter=2026-01-01T00%3A00%3A00.000Z&unknown=1",
        )
        .unwrap();
        assert_eq!((asked.limit, asked.states.len(), asked.sort, asked.ascending), (2, 2, Sort::Name, true));
        assert_eq!(asked.labels["a"], "b");
        assert!(asked.created.0.is_some() && asked.public == Some(true));
    }

    #[test]
    fn a_question_without_sense_is_named() {
        for query in [
            "limit=0",
            "limit=x",
            "states=nonsense",
            "labels=[]",
            "sort=colour",
            "order=up",
            "cursor=!!",
            "cursor=e30",
            "isPublic=maybe",
            "createdAtAfter=yesterday",
        ] {
            assert_eq!(SandboxListQuery::parse(query).unwrap_err().status().as_u16(), 400, "{query}");
        }
        assert_eq!(SandboxListQuery::parse("limit=100000").unwrap().limit, PAGE_SIZE_MAX);
    }

    #[test]
    fn a_cursor_is_read_back() {
        let last = Place(SortKey::Number(7), "abc".to_owned());
        assert_eq!(place(&last.cursor()).unwrap(), last);
    }

    #[test]
    fn any_query_is_read_or_refused() {
        atoll_robustness::check("list_query", |bytes| {
            let _ = SandboxListQuery::parse(&String::from_utf8_lossy(bytes));
        });
    }
}
