//! Numbers without a fraction, for serde.

/// Reads a number without a fraction. Guides and programs in Python also write `2.0`.
pub(crate) fn whole<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<u32>, D::Error> {
    let Some(number) = <Option<f64> as serde::Deserialize>::deserialize(from)? else { return Ok(None) };
    if number.fract() != 0.0 || !(0.0..=f64::from(u32::MAX)).contains(&number) {
        return Err(serde::de::Error::custom(format!("{number} is not a whole number of 0 or more")));
    }
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "the range was checked")]
    Ok(Some(number as u32))
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use atoll_front_kit::parse_json_or_empty;
    use serde::Deserialize;

    #[test]
    fn whole_numbers_may_have_a_point() {
        #[derive(Debug, Deserialize)]
        struct Size {
            #[serde(default, deserialize_with = "whole")]
            cpu: Option<u32>,
        }
        let cpu = |text: &str| parse_json_or_empty::<Size>(text.as_bytes()).map(|size| size.cpu);
        for (text, means) in [("{}", None), (r#"{"cpu":null}"#, None), (r#"{"cpu":2}"#, Some(2))] {
            assert_eq!(cpu(text).unwrap(), means, "{text}");
        }
        assert_eq!(cpu(r#"{"cpu":2.0}"#).unwrap(), Some(2));
        assert_eq!(cpu(r#"{"cpu":4294967295}"#).unwrap(), Some(u32::MAX));
        for text in [
            r#"{"cpu":1.5}"#,
            r#"{"cpu":-1}"#,
            r#"{"cpu":-1.0}"#,
            r#"{"cpu":4294967296}"#,
            r#"{"cpu":1e300}"#,
            r#"{"cpu":"2"}"#,
        ] {
            let refused = cpu(text).unwrap_err();
            assert!(
                refused.status().as_u16() == 400 && refused.message.starts_with("cpu: "),
                "{text} {refused:?}"
            );
        }
    }
}
