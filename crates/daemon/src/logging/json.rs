//! A log line as JSON: one flat object with the fields of the event.
//!
//! The formatter of tracing-subscriber makes the same lines, but it uses serde and checks each piece for UTF-8. In `intercept`,
//! which writes a line of thirty fields for each request, that took a tenth of a request's CPU time.

use std::fmt::{self, Debug, Write as _};
use std::time::SystemTime;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields};
use tracing_subscriber::registry::LookupSpan;

/// `{"timestamp":"2026-11-25T10:00:00.000000Z","level":"INFO","message":"request",…}`, and a newline.
pub(super) struct JsonFormat;

impl<S, N> FormatEvent<S, N> for JsonFormat
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        _: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let now = humantime::format_rfc3339_micros(SystemTime::now());
        write!(writer, "{{\"timestamp\":\"{now}\",\"level\":\"")?;
        writer.write_str(event.metadata().level().as_str())?;
        writer.write_char('"')?;
        let mut fields = JsonFields {
            writer,
            result: Ok(()),
        };
        event.record(&mut fields);
        fields.result?;
        fields.writer.write_str("}\n")
    }
}

/// Writes each field as a member of an object, after other members.
struct JsonFields<'a> {
    writer: Writer<'a>,
    /// The first error, after which no field is written.
    result: fmt::Result,
}

impl JsonFields<'_> {
    fn push(&mut self, field: &Field, write: impl FnOnce(&mut Writer<'_>) -> fmt::Result) {
        if self.result.is_ok() {
            // The names of fields are identifiers and dots: nothing to escape.
            self.result = [",\"", field.name(), "\":"]
                .iter()
                .try_for_each(|part| self.writer.write_str(part))
                .and_then(|()| write(&mut self.writer));
        }
    }

    fn push_integer(&mut self, field: &Field, value: impl itoa::Integer) {
        self.push(field, |writer| {
            writer.write_str(itoa::Buffer::new().format(value))
        });
    }

    fn push_text(
        &mut self,
        field: &Field,
        write: impl FnOnce(&mut Escaped<'_, '_>) -> fmt::Result,
    ) {
        self.push(field, |writer| {
            writer.write_char('"')?;
            write(&mut Escaped(writer))?;
            writer.write_char('"')
        });
    }
}

impl Visit for JsonFields<'_> {
    fn record_f64(&mut self, field: &Field, value: f64) {
        self.push(field, |writer| match value.is_finite() {
            true => writer.write_str(zmij::Buffer::new().format_finite(value)),
            false => writer.write_str("null"),
        });
    }

    fn record_i64(&mut self, field: &Field, value: i64) {
        self.push_integer(field, value);
    }

    fn record_u64(&mut self, field: &Field, value: u64) {
        self.push_integer(field, value);
    }

    fn record_bool(&mut self, field: &Field, value: bool) {
        let text = if value { "true" } else { "false" };
        self.push(field, |writer| writer.write_str(text));
    }

    fn record_str(&mut self, field: &Field, value: &str) {
        self.push_text(field, |escaped| escaped.write_str(value));
    }

    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        self.push_text(field, |escaped| write!(escaped, "{value:?}"));
    }
}

/// Escapes what is written as the inside of a JSON string (RFC 8259, section 7).
struct Escaped<'a, 'b>(&'a mut Writer<'b>);

impl fmt::Write for Escaped<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let mut rest = text;
        while let Some(at) = rest.bytes().position(is_escaped) {
            let (before, from) = rest.split_at(at);
            self.0.write_str(before)?;
            let mut chars = from.chars();
            match chars.next() {
                Some(quoted @ ('"' | '\\')) => write!(self.0, "\\{quoted}")?,
                Some('\n') => self.0.write_str("\\n")?,
                Some('\r') => self.0.write_str("\\r")?,
                Some('\t') => self.0.write_str("\\t")?,
                Some(control) => write!(self.0, "\\u{:04x}", u32::from(control))?,
                None => {}
            }
            rest = chars.as_str();
        }
        self.0.write_str(rest)
    }
}

/// Whether a byte is a character that JSON escapes. All of these are ASCII, so no character is split.
fn is_escaped(byte: u8) -> bool {
    byte < b' ' || matches!(byte, b'"' | b'\\')
}

#[cfg(test)]
mod tests {
    use std::io;
    use std::sync::{Arc, Mutex};

    use serde_json::json;
    use tracing_subscriber::layer::SubscriberExt;

    use super::*;

    #[derive(Clone, Default)]
    struct Buffer(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Buffer {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn line_is_an_object_with_a_member_for_each_field() {
        let buffer = Buffer::default();
        let writer = buffer.clone();
        let layer = tracing_subscriber::fmt::layer()
            .event_format(JsonFormat)
            .with_writer(move || writer.clone());
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), || {
            tracing::warn!(
                bytes_to_upstream = u64::MAX,
                port = i64::MIN,
                check_ms = 0.05,
                answer_ms = 2.0,
                duration_ms = f64::NAN,
                reused = true,
                path = "a\"b",
                host = %"c",
                user = None::<&str>,
                "hello"
            );
        });
        let line = String::from_utf8(buffer.0.lock().unwrap().clone()).unwrap();
        assert!(line.ends_with("}\n"), "{line:?}");
        let mut object: serde_json::Value = serde_json::from_str(&line).unwrap();
        let timestamp = object.as_object_mut().unwrap().remove("timestamp").unwrap();
        let time = humantime::parse_rfc3339(timestamp.as_str().unwrap()).unwrap();
        assert!(SystemTime::now().duration_since(time).unwrap().as_secs() < 60);
        let expected = json!({
            "level": "WARN",
            "message": "hello",
            "bytes_to_upstream": u64::MAX,
            "port": i64::MIN,
            "check_ms": 0.05,
            "answer_ms": 2.0,
            "duration_ms": null,
            "reused": true,
            "path": "a\"b",
            "host": "c",
        });
        assert_eq!(object, expected);
    }

    #[test]
    fn strings_are_read_back_as_they_were() {
        let ascii: String = (0..128).map(char::from).collect();
        for text in [&ascii, "", "\"", "\\", "\u{80}\u{2028}é𝄞\0", "a\n\nb"] {
            let mut escaped = String::new();
            let mut writer = Writer::new(&mut escaped);
            Escaped(&mut writer).write_str(text).unwrap();
            let parsed: String = serde_json::from_str(&format!("\"{escaped}\"")).unwrap();
            assert_eq!(parsed, text);
        }
    }
}
