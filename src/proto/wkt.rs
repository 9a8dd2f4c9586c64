//! `google.protobuf`'s types for JSON and time, equal to them on the wire.
//!
//! Our own, since `prost-types` has no proto3 JSON and keeps a `Struct` in a hash map: here equal
//! content gives equal bytes, and an integer that came as 5 goes as 5.
//!
//! Each level of a `Struct` takes three nested messages, and decoders allow 100: 32 levels of JSON
//! and at most five messages above them is what any client can read.

use std::collections::BTreeMap;

mod duration;
mod json;
#[cfg(test)]
pub(crate) mod tests;
mod time;

/// A JSON object (`google.protobuf.Struct`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Struct {
    /// Values by key, in the order of the keys.
    #[prost(btree_map = "string, message", tag = "1")]
    pub fields: BTreeMap<String, Value>,
}

/// Any JSON value (`google.protobuf.Value`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct Value {
    /// The value; unset is an error of whoever sent it.
    #[prost(oneof = "Kind", tags = "1, 2, 3, 4, 5, 6")]
    pub kind: Option<Kind>,
}

/// A JSON array (`google.protobuf.ListValue`).
#[derive(Clone, PartialEq, prost::Message)]
pub struct ListValue {
    /// The values, in order.
    #[prost(message, repeated, tag = "1")]
    pub values: Vec<Value>,
}

/// What a [`Value`] is.
#[derive(Clone, PartialEq, prost::Oneof)]
pub enum Kind {
    /// null; the number is always 0.
    #[prost(enumeration = "NullValue", tag = "1")]
    NullValue(i32),
    /// A number; JSON has neither NaN nor infinities.
    #[prost(double, tag = "2")]
    NumberValue(f64),
    /// A text.
    #[prost(string, tag = "3")]
    StringValue(String),
    /// true or false.
    #[prost(bool, tag = "4")]
    BoolValue(bool),
    /// An object.
    #[prost(message, tag = "5")]
    StructValue(Struct),
    /// An array.
    #[prost(message, tag = "6")]
    ListValue(ListValue),
}

/// null (`google.protobuf.NullValue`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, prost::Enumeration)]
#[repr(i32)]
pub enum NullValue {
    /// The only value.
    NullValue = 0,
}

/// An instant (`google.protobuf.Timestamp`), from year 1 to 9999.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Timestamp {
    /// Seconds since 1970.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds of the second, 0 to 999 999 999, counted forward even before 1970.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

/// A span of time (`google.protobuf.Duration`), up to 10,000 years either way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, prost::Message)]
pub struct Duration {
    /// Whole seconds.
    #[prost(int64, tag = "1")]
    pub seconds: i64,
    /// Nanoseconds beside them, of the same sign.
    #[prost(int32, tag = "2")]
    pub nanos: i32,
}

impl Duration {
    /// Whether this lies within 10,000 years and both parts have one sign.
    pub fn is_valid(self) -> bool {
        (-315_576_000_000..=315_576_000_000).contains(&self.seconds)
            && (-999_999_999..=999_999_999).contains(&self.nanos)
            && self.seconds.signum() * i64::from(self.nanos.signum()) >= 0
    }

    /// The same as Rust has it; none if it is negative or no duration.
    pub fn to_std(self) -> Option<std::time::Duration> {
        let (seconds, nanos) = (u64::try_from(self.seconds).ok()?, u32::try_from(self.nanos).ok()?);
        self.is_valid().then(|| std::time::Duration::new(seconds, nanos))
    }
}

impl FromIterator<(String, Value)> for Struct {
    fn from_iter<I: IntoIterator<Item = (String, Value)>>(fields: I) -> Self {
        Self { fields: fields.into_iter().collect() }
    }
}

impl FromIterator<Value> for ListValue {
    fn from_iter<I: IntoIterator<Item = Value>>(values: I) -> Self {
        Self { values: values.into_iter().collect() }
    }
}

impl Value {
    /// null.
    pub fn null() -> Self {
        Kind::NullValue(0).into()
    }
}

impl From<Kind> for Value {
    fn from(kind: Kind) -> Self {
        Self { kind: Some(kind) }
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Self {
        Kind::BoolValue(value).into()
    }
}

impl From<f64> for Value {
    fn from(number: f64) -> Self {
        Kind::NumberValue(number).into()
    }
}

impl From<String> for Value {
    fn from(text: String) -> Self {
        Kind::StringValue(text).into()
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Kind::StringValue(text.to_owned()).into()
    }
}

impl From<Struct> for Value {
    fn from(object: Struct) -> Self {
        Kind::StructValue(object).into()
    }
}

impl From<ListValue> for Value {
    fn from(list: ListValue) -> Self {
        Kind::ListValue(list).into()
    }
}

impl Timestamp {
    /// The instant so many microseconds after 1970.
    pub fn from_micros(micros: u64) -> Self {
        let seconds = i64::try_from(micros / 1_000_000).expect("2^64 / 10^6 is below 2^63");
        let nanos = i32::try_from(micros % 1_000_000 * 1000).expect("below 10^9");
        Self { seconds, nanos }
    }

    /// Microseconds since 1970, rounded down; none if that is before 1970 or this is no instant.
    pub fn micros(self) -> Option<u64> {
        if !self.is_valid() {
            return None;
        }
        let nanos = u64::try_from(self.nanos).ok()?;
        Some(u64::try_from(self.seconds).ok()? * 1_000_000 + nanos / 1000)
    }

    /// Whether this lies in years 1 to 9999 and the nanoseconds in their second.
    pub fn is_valid(self) -> bool {
        (-62_135_596_800..=253_402_300_799).contains(&self.seconds)
            && (0..1_000_000_000).contains(&self.nanos)
    }
}
