//! Switches in query strings.

use std::fmt;

use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A switch in the query string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, ToSchema)]
#[schema(value_type = String, pattern = "^(0|1|true|false)$", example = "1")]
pub struct Flag(pub bool);

impl<'de> Deserialize<'de> for Flag {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Visitor;
        impl de::Visitor<'_> for Visitor {
            type Value = Flag;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("1, 0, true or false")
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Flag, E> {
                match text {
                    "1" | "true" => Ok(Flag(true)),
                    "0" | "false" => Ok(Flag(false)),
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
        }
        from.deserialize_str(Visitor)
    }
}
