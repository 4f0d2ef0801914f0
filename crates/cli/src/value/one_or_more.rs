//! Lists that the configuration file may also have as one value.

use std::borrow::Cow;
use std::fmt::{self, Display, Formatter};
use std::marker::PhantomData;
use std::str::FromStr;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Error, SeqAccess, Visitor};
use serde::ser::SerializeSeq;
use serde::{Deserializer, Serializer};

/// The format of such a list of texts, for `#[serde(with)]` and `#[schemars(with)]`.
pub(crate) enum OneOrMore {}

impl OneOrMore {
    /// Deserializes a string, or a list of strings.
    pub(crate) fn deserialize<'de, D, T>(from: D) -> Result<Vec<T>, D::Error>
    where
        D: Deserializer<'de>,
        T: FromStr<Err: Display>,
    {
        from.deserialize_any(Texts(PhantomData))
    }

    /// Serializes one value as a string, several as a list.
    pub(crate) fn serialize<S: Serializer, T: Display>(
        all: &[T],
        to: S,
    ) -> Result<S::Ok, S::Error> {
        if let [one] = all {
            return to.collect_str(one);
        }
        let mut list = to.serialize_seq(Some(all.len()))?;
        for one in all {
            list.serialize_element(&one.to_string())?;
        }
        list.end()
    }
}

impl JsonSchema for OneOrMore {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        "Texts".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({ "type": ["string", "array"], "items": { "type": "string" } })
    }
}

struct Texts<T>(PhantomData<T>);

impl<'de, T: FromStr<Err: Display>> Visitor<'de> for Texts<T> {
    type Value = Vec<T>;

    fn expecting(&self, f: &mut Formatter<'_>) -> fmt::Result {
        f.write_str("a string or a list of strings")
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Vec<T>, E> {
        let parsed = text.parse();
        let parsed = parsed.map_err(|error| E::custom(format_args!("{text:?}: {error}")))?;
        Ok(vec![parsed])
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Vec<T>, A::Error> {
        let mut all = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            all.append(&mut Self(PhantomData).visit_str(&text)?);
        }
        Ok(all)
    }
}
