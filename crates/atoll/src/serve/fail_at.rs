//! Where a test wants this server to die: `ATOLL_FAIL_AT=PLACE:TIME:abort|panic`. Debug builds only; a release never looks.

use std::sync::atomic::{AtomicU32, Ordering};

use atoll_service::FailPoint;

use crate::environment;

/// What the environment asks for; usually nothing.
pub(super) fn wanted() -> FailPoint {
    if !cfg!(debug_assertions) {
        return FailPoint::none();
    }
    let Some((place, time, how)) = environment::fail_at().as_deref().and_then(parse) else {
        return FailPoint::none();
    };
    let reached = AtomicU32::new(0);
    FailPoint::new(move |at| {
        let is_time = at == place && reached.fetch_add(1, Ordering::Relaxed) + 1 == time;
        Box::pin(async move {
            match (is_time, how) {
                (false, _) => {}
                (true, How::Abort) => std::process::abort(),
                (true, How::Panic) => panic!("a test asked for a panic at {at}"),
            }
        })
    })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum How {
    Abort,
    Panic,
}

fn parse(text: &str) -> Option<(String, u32, How)> {
    let mut parts = text.split(':');
    let (place, time, how) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let how = match how {
        "abort" => How::Abort,
        "panic" => How::Panic,
        _ => return None,
    };
    FailPoint::PLACES.contains(&place).then(|| (place.to_owned(), time, how))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wish_names_a_place_that_exists() {
        assert_eq!(parse("effect.made:2:abort"), Some(("effect.made".to_owned(), 2, How::Abort)));
        for wrong in ["", "effect.made", "effect.made:x:abort", "effect.made:1:dance", "nowhere:1:abort"] {
            assert_eq!(parse(wrong), None, "{wrong}");
        }
    }
}
