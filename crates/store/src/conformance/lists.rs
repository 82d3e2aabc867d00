//! Cases of lists: filters and order.

use atoll_model::SnapshotId;

use super::*;
use crate::{SortBy, Span};

async fn ids(store: &Subject, query: LeaseQuery) -> Vec<i64> {
    let page = store.list(LeaseQuery { limit: 100, ..query }).await.unwrap();
    page.items.iter().map(|lease| lease.created_at.wall_ms).collect()
}

/// Three leases: a big public one that was resumed late, one of a snapshot, one without a name.
async fn three(store: &Subject) -> TenantId {
    let mine = tenant(store, 1, Quota::default()).await;
    let limits = Limits { cpu_milli: 2_000, memory_mib: 4_096, ..Limits::default() };
    let big = Lease { name: Some("Big-1".to_owned()), public: true, limits, ..lease(1, &mine) };
    store.insert(new(&big)).await.unwrap();
    let source =
        Source::Snapshot { snapshot: SnapshotId::from_entropy(entropy(9)), memory: false, fork: false };
    let two = Lease { name: Some("big-2".to_owned()), source, ..lease(2, &mine) };
    store.insert(new(&two)).await.unwrap();
    store.insert(new(&Lease { template: "py:3".to_owned(), ..lease(3, &mine) })).await.unwrap();
    let resumed = Lease {
        phase: Phase::Running,
        generation: 2,
        started_at: Some(at(50)),
        active_at: Some(at(40)),
        ..big
    };
    let change =
        Advance { lease: resumed, instance: InstanceChange::Keep, admit: Admit::Nothing, events: vec![] };
    store.advance(change).await.unwrap();
    mine
}

pub(super) async fn lists_filter_by_beginnings_origin_size_and_time(store: Subject) {
    let mine = three(&store).await;
    let none = LeaseQuery { tenant: Some(mine.clone()), ..Default::default() };
    let word = |text: &str| Some(text.to_owned());
    let third = lease(3, &mine).id;
    for (query, wanted) in [
        (none.clone(), vec![3, 2, 1]),
        (LeaseQuery { name_prefix: word("BIG"), ..none.clone() }, vec![2, 1]),
        (LeaseQuery { name_prefix: word("big-2"), ..none.clone() }, vec![2]),
        (LeaseQuery { name_prefix: word("%"), ..none.clone() }, vec![]),
        (LeaseQuery { name_prefix: word(third.as_str()), ..none.clone() }, vec![3]),
        (LeaseQuery { id_prefix: word(&third.as_str().to_uppercase()), ..none.clone() }, vec![3]),
        (LeaseQuery { id_prefix: word("zzzz"), ..none.clone() }, vec![]),
        (LeaseQuery { made_from: vec!["py".to_owned()], ..none.clone() }, vec![3]),
        (
            LeaseQuery {
                made_from: vec!["py:3".to_owned(), SnapshotId::from_entropy(entropy(9)).to_string()],
                ..none.clone()
            },
            vec![3, 2],
        ),
        (LeaseQuery { public: Some(true), ..none.clone() }, vec![1]),
        (LeaseQuery { public: Some(false), ..none.clone() }, vec![3, 2]),
        (LeaseQuery { started_after_ms: Some(3), ..none.clone() }, vec![3, 1]),
        (LeaseQuery { created_ms: Span { min: Some(2), max: Some(2) }, ..none.clone() }, vec![2]),
        (LeaseQuery { cpu_milli: Span { min: Some(1_001), max: None }, ..none.clone() }, vec![1]),
        (LeaseQuery { memory_mib: Span { min: None, max: Some(4_095) }, ..none.clone() }, vec![3, 2]),
        (LeaseQuery { disk_mib: Span { min: Some(i64::MAX), max: None }, ..none.clone() }, vec![]),
    ] {
        assert_eq!(ids(&store, query.clone()).await, wanted, "{query:?}");
    }
}

pub(super) async fn every_order_pages_stably_both_ways(store: Subject) {
    let mine = three(&store).await;
    for (sort, wanted) in [
        (SortBy::Created, [3, 2, 1]),
        (SortBy::Started, [1, 3, 2]),
        (SortBy::Name, if lease(3, &mine).id.as_str() > "big" { [3, 2, 1] } else { [2, 3, 1] }),
        (SortBy::Cpu, [1, 3, 2]),
        (SortBy::Memory, [1, 3, 2]),
        (SortBy::Disk, [3, 2, 1]),
        (SortBy::Active, [1, 3, 2]),
    ] {
        for ascending in [false, true] {
            let mut wanted = wanted.to_vec();
            if ascending {
                wanted.reverse();
            }
            let mut query = LeaseQuery { sort, ascending, limit: 1, ..Default::default() };
            let mut seen = Vec::new();
            loop {
                let page = store.list(query.clone()).await.unwrap();
                seen.extend(page.items.iter().map(|lease| lease.created_at.wall_ms));
                match page.next_cursor {
                    Some(cursor) => query.cursor = Some(cursor),
                    None => break,
                }
            }
            assert_eq!(seen, wanted, "{sort:?} {ascending}");
        }
    }
    for odd in ["", "c1", "c1.", "c1.i", "c1.ix", "c1.tzz", "x.i1", "c1.t'; DROP"] {
        let query =
            LeaseQuery { cursor: Some(odd.to_owned()), sort: SortBy::Name, limit: 1, ..Default::default() };
        assert!(matches!(store.list(query).await, Err(StoreError::BadCursor)), "{odd}");
    }
}
