//! Times as they are typed: `90s`, `15m`, `2h`, `3d`, or `2026-01-31T12:00:00Z`.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::agent::file::read::duration;
use crate::proto::wkt;

/// A span of time.
pub fn span(text: &str) -> Result<Duration, String> {
    duration(text).ok_or_else(|| "write a span such as 90s, 15m, 2h or 3d".to_owned())
}

/// A time: itself, or a span from now on.
pub fn time(text: &str) -> Result<wkt::Timestamp, String> {
    if let Ok(span) = span(text) {
        return Ok(at(now() + span));
    }
    let quoted = format!("\"{text}\"");
    serde_json::from_str(&quoted)
        .map_err(|_| "write a time such as 2026-01-31T12:00:00Z, or a span such as 2h".to_owned())
}

/// The time so long ago.
pub fn ago(span: Duration) -> wkt::Timestamp {
    at(now().saturating_sub(span))
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

fn at(since: Duration) -> wkt::Timestamp {
    wkt::Timestamp::from_micros(u64::try_from(since.as_micros()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_and_times_are_read() {
        assert_eq!(span("90s"), Ok(Duration::from_secs(90)));
        assert_eq!(span("3d"), Ok(Duration::from_secs(3 * 24 * 3600)));
        for text in ["", "s", "1", "1.5h", "-1h", "1 h", "1y", "0s", "99999d", "é"] {
            assert!(span(text).is_err(), "{text}");
        }
        let read = time("2026-01-31T12:00:00Z").unwrap();
        assert_eq!((read.seconds, read.nanos), (1_769_860_800, 0));
        assert!(time("1h").unwrap().seconds > at(now()).seconds + 3500);
        for text in ["", "tomorrow", "2026-01-31", "\"", "1\u{e9}"] {
            assert!(time(text).is_err(), "{text}");
        }
    }
}
