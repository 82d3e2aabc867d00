//! Ends this server, a backup or a restore, or makes it wait, at a place that a test chooses. Debug builds only; a release
//! ignores it.
//!
//! - `ATOLL_FAIL_AT=PLACE:TIME:abort|panic`: when it reaches that place for the nth time.
//! - `ATOLL_FAIL_AT=@FILE`: it aborts when it reaches the place that the file names, and removes the file first. So a
//!   test can name one place after the other without a new server for each. If the file says `PLACE:wait`, drivers that
//!   reach the place wait there until the file is gone or says something else.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::environment;

/// The hook for every place in the drivers and in the engine.
#[derive(Clone)]
pub(crate) struct FailAt(Option<Arc<Wish>>);

struct Wish {
    at: FailpointSpec,
    reached: AtomicU32,
}

#[derive(Debug, PartialEq, Eq)]
enum FailpointSpec {
    Place { name: String, time: u32, how: How },
    Named { file: PathBuf },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Abort,
    Panic,
}

impl FailAt {
    /// The setting of the environment; usually none.
    pub(crate) fn wanted() -> Self {
        let asked = if cfg!(debug_assertions) { environment::fail_at() } else { None };
        let at = asked.as_deref().and_then(parse);
        Self(at.map(|at| Arc::new(Wish { at, reached: AtomicU32::new(0) })))
    }

    /// For the drivers.
    pub(super) fn of_service(&self) -> atoll_service::FailPoint {
        match self.0.clone() {
            None => atoll_service::FailPoint::none(),
            Some(wish) => atoll_service::FailPoint::new(move |place| {
                let wish = Arc::clone(&wish);
                Box::pin(async move {
                    wish.wait(place).await;
                    wish.reach(place);
                })
            }),
        }
    }

    /// For the engine.
    pub(super) fn of_engine(&self) -> atoll_container::FailPoint {
        match self.0.clone() {
            None => atoll_container::FailPoint::default(),
            Some(wish) => atoll_container::FailPoint::new(move |place| wish.reach(place)),
        }
    }

    /// For backups and restores, whose progress tells the place.
    pub(crate) fn reach(&self, place: &str) {
        if let Some(wish) = &self.0 {
            wish.reach(place);
        }
    }
}

impl Wish {
    async fn wait(&self, place: &'static str) {
        let FailpointSpec::Named { file } = &self.at else { return };
        while std::fs::read_to_string(file)
            .is_ok_and(|named| named.trim().strip_suffix(":wait") == Some(place))
        {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    fn reach(&self, place: &str) {
        let how = match &self.at {
            FailpointSpec::Place { name, time, how } => {
                let is_time = place == name && self.reached.fetch_add(1, Ordering::Relaxed) + 1 == *time;
                is_time.then_some(*how)
            }
            FailpointSpec::Named { file } => {
                let named = std::fs::read_to_string(file).unwrap_or_default();
                (named.trim() == place && std::fs::remove_file(file).is_ok()).then_some(How::Abort)
            }
        };
        match how {
            None => {}
            Some(How::Abort) => std::process::abort(),
            Some(How::Panic) => panic!("a test asked for a panic at {place}"),
        }
    }
}

fn parse(text: &str) -> Option<FailpointSpec> {
    if let Some(file) = text.strip_prefix('@') {
        return (!file.is_empty()).then(|| FailpointSpec::Named { file: file.into() });
    }
    let mut parts = text.split(':');
    let (name, time, how) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let how = match how {
        "abort" => How::Abort,
        "panic" => How::Panic,
        _ => return None,
    };
    let is_place = atoll_service::FailPoint::PLACES.contains(&name)
        || atoll_container::FailPoint::PLACES.contains(&name)
        || atoll_backup::places::ALL.contains(&name);
    is_place.then(|| FailpointSpec::Place { name: name.to_owned(), time, how })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_names_a_place_that_exists() {
        for place in ["effect.made", "restore.spent", "restore.sandboxes"] {
            let wanted = FailpointSpec::Place { name: place.to_owned(), time: 2, how: How::Abort };
            assert_eq!(parse(&format!("{place}:2:abort")), Some(wanted));
        }
        assert_eq!(parse("@/a/file"), Some(FailpointSpec::Named { file: "/a/file".into() }));
        for wrong in ["", "@", "effect.made", "effect.made:x:abort", "effect.made:1:dance", "nowhere:1:abort"]
        {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn all_places_have_different_names() {
        let (drivers, engine) = (atoll_service::FailPoint::PLACES, atoll_container::FailPoint::PLACES);
        let all: Vec<&str> =
            drivers.iter().chain(engine).chain(&atoll_backup::places::ALL).copied().collect();
        let different: std::collections::BTreeSet<&str> = all.iter().copied().collect();
        assert_eq!(different.len(), all.len());
    }
}
