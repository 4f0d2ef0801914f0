//! Values that have the same syntax on the command line and in the configuration file.

use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer};

/// Implements deserialization by [`FromStr`], serialization by [`Display`] and the given JSON schema, for values of the
/// configuration file.
#[macro_export]
macro_rules! text_value {
    ($([$($generics:tt)*] $name:ty, $title:literal: $schema:tt;)*) => {$(
        impl<'de, $($generics)*> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                $crate::value::text_value::read(from)
            }
        }

        impl<$($generics)*> serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                $crate::value::text_value::write(self, to)
            }
        }

        impl<$($generics)*> schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                $title.into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    )*};
}

/// Deserializes a string, or a number as if it were a string of its digits.
pub fn read<'de, D, T>(from: D) -> Result<T, D::Error>
where
    D: Deserializer<'de>,
    T: FromStr<Err: Display>,
{
    from.deserialize_any(Text(PhantomData))
}

/// Deserializes a list of strings, or a string as a list of one.
pub fn read_one_or_more<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
where
    D: Deserializer<'de>,
    T: Deserialize<'de> + FromStr<Err: Display>,
{
    from.deserialize_any(OneOrMore(PhantomData))
}

/// Serializes one value as a string, several as a list of strings.
pub fn write_one_or_more<S, T>(all: &[T], to: S) -> Result<S::Ok, S::Error>
where
    S: serde::Serializer,
    T: Display,
{
    match all {
        [one] => to.collect_str(one),
        all => to.collect_seq(all.iter().map(ToString::to_string)),
    }
}

/// The schema of [`read_one_or_more`].
pub fn one_or_more_schema(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": { "type": "string" } }] })
}

/// Serializes a number as a number and anything else as a string.
pub fn write<S: serde::Serializer>(value: &impl Display, to: S) -> Result<S::Ok, S::Error> {
    let text = value.to_string();
    match text.parse::<u64>() {
        Ok(number) => to.serialize_u64(number),
        Err(_) => to.serialize_str(&text),
    }
}

struct Text<T>(PhantomData<T>);

impl<T: FromStr<Err: Display>> Visitor<'_> for Text<T> {
    type Value = T;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a number")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<T, E> {
        text.parse()
            .map_err(|error| E::custom(format_args!("{text:?}: {error}")))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        self.visit_str(&number.to_string())
    }
}

struct OneOrMore<T>(PhantomData<T>);

impl<'de, T: Deserialize<'de> + FromStr<Err: Display>> Visitor<'de> for OneOrMore<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        let one = Text(PhantomData).visit_str(text)?;
        Ok(vec![one])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(one) = list.next_element()? {
            all.push(one);
        }
        Ok(all)
    }
}
