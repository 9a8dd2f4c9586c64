//! The bounds of a server: each with its name, unit, default and range. The page of the docs that
//! lists them is made from [`LIMITS`].

use std::time::Duration;

/// One limit.
#[derive(Debug, PartialEq, Eq)]
pub struct Limit {
    /// Its name in the file, and in `--limit NAME=VALUE`.
    pub name: &'static str,
    /// What its values count.
    pub unit: Unit,
    /// The value that it has unless it is set.
    pub default: u64,
    /// The smallest value.
    pub min: u64,
    /// The largest value.
    pub max: u64,
    /// What it bounds.
    pub about: &'static str,
}

/// What the values of a limit count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Things.
    Count,
    /// Bytes; may be given with `KiB` or `MiB`.
    Bytes,
    /// Seconds; may be given with `s`, `m`, `h`, `d`.
    Seconds,
}

/// How a limit is kept in [`Limits`].
trait Kept {
    fn keep(value: u64) -> Self;
}

impl Kept for u64 {
    fn keep(value: u64) -> Self {
        value
    }
}

impl Kept for u32 {
    fn keep(value: u64) -> Self {
        u32::try_from(value).unwrap_or(u32::MAX)
    }
}

impl Kept for usize {
    fn keep(value: u64) -> Self {
        usize::try_from(value).unwrap_or(usize::MAX)
    }
}

impl Kept for Duration {
    fn keep(value: u64) -> Self {
        Duration::from_secs(value)
    }
}

macro_rules! limits {
    ($(
        $(#[doc = $about:literal])*
        $name:ident: $kept:ty, $unit:ident = $default:expr, $min:expr, $max:expr;
    )*) => {
        /// The values of all limits.
        #[derive(Debug, Clone, PartialEq, Eq)]
        pub struct Limits {$(
            $(#[doc = $about])*
            pub $name: $kept,
        )*}

        /// All limits that there are.
        pub const LIMITS: &[Limit] = &[$(Limit {
            name: stringify!($name),
            unit: Unit::$unit,
            default: $default,
            min: $min,
            max: $max,
            about: concat!($($about),*).trim_ascii(),
        },)*];

        impl Default for Limits {
            fn default() -> Self {
                Self {$($name: Kept::keep($default),)*}
            }
        }

        impl Limits {
            /// Sets a limit to a value in its unit; the caller has checked the range.
            pub(crate) fn set(&mut self, limit: &Limit, value: u64) {
                match limit.name {
                    $(stringify!($name) => self.$name = Kept::keep(value),)*
                    _ => unreachable!("limits are made from this list only"),
                }
            }
        }
    };
}

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

limits! {
    /// Largest request; above 8 MiB it is the codec that refuses.
    request_bytes: usize, Bytes = 4 * MIB, 64 * KIB, 8 * MIB;
    /// Largest event, as stored.
    event_bytes: usize, Bytes = MIB, 64 * KIB, 3 * MIB;
    /// Most events of a history that is imported.
    import_events: usize, Count = 10_000, 1, 100_000;
    /// Largest page of a list; it holds one entry at least, however large.
    page_bytes: usize, Bytes = MIB, 16 * KIB, 3 * MIB;
    /// Most entries of a page.
    page_entries: usize, Count = 1_000, 1, 10_000;
    /// Longest life of a stream; then it ends with RECONNECT.
    stream_age: Duration, Seconds = 3_600, 10, 86_400;
    /// Time between two heartbeats of a quiet stream.
    heartbeat: Duration, Seconds = 15, 1, 300;
    /// Time after which a quiet connection is pinged.
    keepalive_interval: Duration, Seconds = 30, 5, 3_600;
    /// Time within which a ping must be answered, or the connection is closed.
    keepalive_timeout: Duration, Seconds = 20, 1, 600;
    /// Model calls of an invocation between two pauses, unless the run asks for less or more.
    max_llm_calls: u32, Count = 500, 1, 100_000;
    /// A body that was recorded as started so long ago is not begun any more.
    start_window: Duration, Seconds = 2, 1, 60;
    /// Records of a session between two snapshots.
    snapshot_records: u64, Count = 64, 16, 65_536;
    /// Sessions that are driven at once; paused ones do not count. One more message is OVERLOADED.
    driven_sessions: usize, Count = 1_000, 1, 1_000_000;
    /// Sessions whose folds are kept in memory.
    cached_sessions: usize, Count = 1_024, 16, 1_000_000;
    /// How often a decision is made again because somebody else was first.
    conflicts: u32, Count = 100, 1, 10_000;
    /// Takeovers of an invocation without progress, after which it ends as failed.
    takeovers: u32, Count = 10, 1, 100;
    /// Time for which a request_id is remembered at least.
    remember_requests: Duration, Seconds = 86_400, 86_400, 31_536_000;
}

impl Limit {
    /// Reads a value, in the limit's unit or with a unit of its own, and checks its range.
    pub(crate) fn read(&self, text: &str) -> Result<u64, String> {
        let text = text.trim();
        let split = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
        let (count, unit) = (&text[..split], text[split..].trim_start());
        let factor = match (self.unit, unit) {
            (_, "") | (Unit::Bytes, "B") | (Unit::Seconds, "s") => 1,
            (Unit::Bytes, "KiB") => KIB,
            (Unit::Bytes, "MiB") => MIB,
            (Unit::Seconds, "m") => 60,
            (Unit::Seconds, "h") => 3_600,
            (Unit::Seconds, "d") => 86_400,
            _ => 0,
        };
        let value = count.parse::<u64>().ok().filter(|_| factor > 0);
        let value = value.and_then(|count| count.checked_mul(factor));
        let value = value.filter(|value| (self.min..=self.max).contains(value));
        value.ok_or_else(|| {
            let (min, max) = (self.show(self.min), self.show(self.max));
            format!("`{}` must be from {min} to {max}", self.name)
        })
    }

    /// A value with its unit, as it can be given.
    pub fn show(&self, value: u64) -> String {
        match self.unit {
            Unit::Count => value.to_string(),
            Unit::Bytes if value >= MIB && value.is_multiple_of(MIB) => {
                format!("{} MiB", value / MIB)
            }
            Unit::Bytes if value >= KIB && value.is_multiple_of(KIB) => {
                format!("{} KiB", value / KIB)
            }
            Unit::Bytes => format!("{value} B"),
            Unit::Seconds if value.is_multiple_of(86_400) => format!("{}d", value / 86_400),
            Unit::Seconds if value.is_multiple_of(3_600) => format!("{}h", value / 3_600),
            Unit::Seconds if value.is_multiple_of(60) => format!("{}m", value / 60),
            Unit::Seconds => format!("{value}s"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table of `docs/limits.md`.
    fn table() -> String {
        let mut table =
            "| name | default | from | to | what it bounds |\n|---|---|---|---|---|\n".to_owned();
        for limit in LIMITS {
            let [default, min, max] = [limit.default, limit.min, limit.max].map(|n| limit.show(n));
            let (name, about) = (limit.name, limit.about);
            table += &format!("| `{name}` | {default} | {min} | {max} | {about} |\n");
        }
        table
    }

    /// With `UPDATE_GOLDEN` set the page is made anew.
    #[test]
    fn the_page_of_limits_has_every_limit() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/limits.md");
        let page = std::fs::read_to_string(path).unwrap();
        let (before, rest) = page.split_once("<!-- begin: limits -->\n").unwrap();
        let (_, after) = rest.split_once("<!-- end: limits -->\n").unwrap();
        let table = table();
        let right = format!("{before}<!-- begin: limits -->\n{table}<!-- end: limits -->\n{after}");
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(path, &right).unwrap();
        } else {
            assert_eq!(page, right, "UPDATE_GOLDEN=1 cargo test limits makes the page anew");
        }
    }
}
