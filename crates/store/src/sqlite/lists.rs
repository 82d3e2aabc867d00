//! Pages of `sandbox_leases`. A cursor names the last row of a page by its sort key and its number, so that inserts and
//! deletes do not change a page.

use atoll_model::Lease;
use rusqlite::types::Value;
use rusqlite::{Connection, params_from_iter};

use super::leases::{cursor, from_json, parse_cursor};
use crate::{LeaseQuery, Page, SortBy, Span, StoreError};

pub(crate) fn list(conn: &Connection, query: &LeaseQuery) -> Result<Page<Lease>, StoreError> {
    let key = sort_key(query.sort);
    let Conditions { wheres, mut values } = conditions(query, key)?;
    values.push(Value::Integer(i64::from(query.limit) + 1));
    let way = if query.ascending { "ASC" } else { "DESC" };
    let order = key.map_or(format!("l.n {way}"), |key| format!("{key} {way}, l.n {way}"));
    let sql = format!(
        "SELECT l.n, l.lease, {} FROM sandbox_leases l WHERE {} ORDER BY {order} LIMIT ?",
        key.unwrap_or("NULL"),
        wheres.join(" AND "),
    );
    let mut statement = conn.prepare(&sql)?;
    let rows = statement.query_map(params_from_iter(values), |row| {
        Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?, row.get::<_, Value>(2)?))
    })?;
    let mut rows = rows.collect::<Result<Vec<_>, _>>()?;
    let more = rows.len() > query.limit as usize;
    rows.truncate(query.limit as usize);
    let next_cursor = rows.last().filter(|_| more).map(|(n, _, key)| cursor_of(*n, key));
    let items =
        rows.iter().map(|(_, text, _)| from_json("sandbox_leases", text)).collect::<Result<_, _>>()?;
    Ok(Page { items, next_cursor })
}

/// The sort key of a row, before its number; never NULL.
const fn sort_key(sort: SortBy) -> Option<&'static str> {
    match sort {
        SortBy::Created => None,
        SortBy::Started => Some("l.started_ms"),
        SortBy::Name => Some("coalesce(l.name, l.id)"),
        SortBy::Cpu => Some("l.cpu_milli"),
        SortBy::Memory => Some("l.memory_mib"),
        SortBy::Disk => Some("l.disk_mib"),
        SortBy::Active => Some("coalesce(json_extract(l.lease, '$.active_at.wall_ms'), l.started_ms)"),
    }
}

fn cursor_of(n: i64, key: &Value) -> String {
    match key {
        Value::Integer(key) => format!("{}.i{key}", cursor(n)),
        Value::Text(key) => format!("{}.t{}", cursor(n), hex::encode(key)),
        Value::Null | Value::Real(_) | Value::Blob(_) => cursor(n),
    }
}

fn parse_sorted(text: &str) -> Result<(i64, Value), StoreError> {
    let (n, key) = text.split_once('.').ok_or(StoreError::BadCursor)?;
    let key = match key.split_at_checked(1) {
        Some(("i", number)) => number.parse().ok().map(Value::Integer),
        Some(("t", hex)) => {
            hex::decode(hex).ok().and_then(|text| String::from_utf8(text).ok()).map(Value::Text)
        }
        _ => None,
    };
    Ok((parse_cursor(n)?, key.ok_or(StoreError::BadCursor)?))
}

#[derive(Default)]
struct Conditions {
    wheres: Vec<String>,
    values: Vec<Value>,
}

impl Conditions {
    fn add(&mut self, sql: &str, values: impl IntoIterator<Item = Value>) {
        self.wheres.push(sql.to_owned());
        self.values.extend(values);
    }

    fn within(&mut self, what: &str, span: Span) {
        if let Some(min) = span.min {
            self.add(&format!("{what} >= ?"), [Value::Integer(min)]);
        }
        if let Some(max) = span.max {
            self.add(&format!("{what} <= ?"), [Value::Integer(max)]);
        }
    }

    /// Compares a prefix instead of using LIKE, because the text could contain LIKE wildcards. Names and ids are ASCII.
    fn begins(&mut self, what: &str, word: &str) {
        let length = i64::try_from(word.chars().count()).unwrap_or(i64::MAX);
        let sql = format!("substr(lower({what}), 1, ?) = ?");
        self.add(&sql, [Value::Integer(length), text(&word.to_ascii_lowercase())]);
    }
}

fn text(text: &str) -> Value {
    Value::Text(text.to_owned())
}

fn conditions(query: &LeaseQuery, key: Option<&str>) -> Result<Conditions, StoreError> {
    let mut all = Conditions::default();
    all.add("l.build IS NULL", []);
    if let Some(tenant) = &query.tenant {
        all.add("l.tenant = ?", [text(tenant.as_str())]);
    }
    if !query.phases.is_empty() {
        let marks = vec!["?"; query.phases.len()].join(",");
        all.add(&format!("l.observed IN ({marks})"), query.phases.iter().map(|phase| text(phase.as_str())));
    } else if !query.include_deleted {
        all.add("l.observed <> 'deleted'", []);
    }
    for (key, value) in &query.labels {
        let sql = "EXISTS (SELECT 1 FROM json_each(l.lease, '$.labels') e WHERE e.key = ? AND e.value = ?)";
        all.add(sql, [text(key), text(value)]);
    }
    if let Some(name) = &query.name {
        all.add("l.name = ?", [text(name)]);
    }
    if let Some(prefix) = &query.name_prefix {
        all.begins("coalesce(l.name, l.id)", prefix);
    }
    if let Some(prefix) = &query.id_prefix {
        all.begins("l.id", prefix);
    }
    if let Some(provider) = &query.provider {
        all.add("l.provider = ?", [text(provider)]);
    }
    if let Some(template) = &query.template {
        all.add(OF_TEMPLATE, of_template(template));
    }
    if !query.made_from.is_empty() {
        let one = format!("{OF_TEMPLATE} OR json_extract(l.lease, '$.source.snapshot') = ?");
        let sql = vec![one; query.made_from.len()].join(" OR ");
        let words = query.made_from.iter().flat_map(|word| of_template(word).into_iter().chain([text(word)]));
        all.add(&format!("({sql})"), words);
    }
    if let Some(public) = query.public {
        let sql = "coalesce(json_extract(l.lease, '$.public'), 0) = ?";
        all.add(sql, [Value::Integer(i64::from(public))]);
    }
    all.within("l.started_ms", Span { min: query.started_after_ms, max: None });
    all.within("json_extract(l.lease, '$.created_at.wall_ms')", query.created_ms);
    all.within("l.cpu_milli", query.cpu_milli);
    all.within("l.memory_mib", query.memory_mib);
    all.within("l.disk_mib", query.disk_mib);
    if let Some(at) = &query.cursor {
        after(&mut all, at, key, query.ascending)?;
    }
    Ok(all)
}

/// `name` matches all its tags; a range instead of LIKE, because a name could contain LIKE wildcards.
const OF_TEMPLATE: &str = "(l.template = ? OR (l.template >= ? AND l.template < ?))";

fn of_template(template: &str) -> [Value; 3] {
    [text(template), text(&format!("{template}:")), text(&format!("{template};"))]
}

fn after(all: &mut Conditions, cursor: &str, key: Option<&str>, ascending: bool) -> Result<(), StoreError> {
    let than = if ascending { ">" } else { "<" };
    match key {
        None => all.add(&format!("l.n {than} ?"), [Value::Integer(parse_cursor(cursor)?)]),
        Some(key) => {
            let (n, value) = parse_sorted(cursor)?;
            all.add(&format!("({key}, l.n) {than} (?, ?)"), [value, Value::Integer(n)]);
        }
    }
    Ok(())
}
