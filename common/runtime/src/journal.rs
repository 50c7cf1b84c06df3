// SPDX-License-Identifier: Apache-2.0

//! Priorities of log lines for systemd's journal: `<N>` before each line (sd-daemon(3)), which the journal takes
//! away again.

use std::io::{self, Stderr, Write};

use rustix::fs::fstat;
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// The variable with the device and the inode of the stream that the journal reads.
const STREAM_VARIABLE: &str = "JOURNAL_STREAM";

/// Standard error, with priorities if the journal reads it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogWriter {
    journal: bool,
}

/// Writes lines with a prefix.
#[derive(Debug)]
pub(crate) struct Prefixed<W> {
    prefix: Option<&'static str>,
    inner: W,
}

impl LogWriter {
    /// Looks at the environment and at standard error, which another program may have replaced since.
    pub(crate) fn of_environment() -> Self {
        let variable = std::env::var(STREAM_VARIABLE).ok();
        let stream = fstat(io::stderr()).map(|stat| (stat.st_dev, stat.st_ino));
        Self {
            journal: stream.is_ok_and(|stream| is_journal(variable.as_deref(), stream)),
        }
    }
}

impl<'a> MakeWriter<'a> for LogWriter {
    type Writer = Prefixed<Stderr>;

    fn make_writer(&'a self) -> Self::Writer {
        Prefixed {
            prefix: self.journal.then_some(prefix(Level::INFO)),
            inner: io::stderr(),
        }
    }

    fn make_writer_for(&'a self, meta: &Metadata<'_>) -> Self::Writer {
        Prefixed {
            prefix: self.journal.then(|| prefix(*meta.level())),
            inner: io::stderr(),
        }
    }
}

impl<W: Write> Write for Prefixed<W> {
    /// Writes whole lines: the caller gives a whole event at a time.
    fn write(&mut self, text: &[u8]) -> io::Result<usize> {
        let Some(prefix) = self.prefix else {
            return self.inner.write(text);
        };
        // One write, so that lines of several threads do not mix.
        let mut lines = Vec::with_capacity(text.len() + prefix.len());
        for line in text.split_inclusive(|byte| *byte == b'\n') {
            lines.extend_from_slice(prefix.as_bytes());
            lines.extend_from_slice(line);
        }
        self.inner.write_all(&lines)?;
        Ok(text.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

/// The priority of syslog(3) for a level.
const fn prefix(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

/// Returns `true` if the variable names a stream by its device and inode.
fn is_journal(variable: Option<&str>, (device, inode): (u64, u64)) -> bool {
    let named = variable.and_then(|text| text.split_once(':'));
    named.is_some_and(|(d, i)| d.parse() == Ok(device) && i.parse() == Ok(inode))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_journal_is_the_stream_that_the_variable_names() {
        for (variable, expected) in [
            (Some("8:1234"), true),
            (Some("8:1235"), false),
            (Some("9:1234"), false),
            (Some("8"), false),
            (Some(""), false),
            (None, false),
        ] {
            assert_eq!(is_journal(variable, (8, 1234)), expected, "{variable:?}");
        }
    }

    #[test]
    fn each_line_has_the_priority_of_its_level() {
        for (level, expected) in [
            (Level::ERROR, "<3>one\n<3>two\n"),
            (Level::WARN, "<4>one\n<4>two\n"),
            (Level::INFO, "<6>one\n<6>two\n"),
            (Level::TRACE, "<7>one\n<7>two\n"),
        ] {
            let (prefix, inner) = (Some(prefix(level)), Vec::new());
            let mut writer = Prefixed { prefix, inner };
            writer.write_all(b"one\ntwo\n").unwrap();
            assert_eq!(String::from_utf8(writer.inner).unwrap(), expected);
        }
        let (prefix, inner) = (None, Vec::new());
        let mut writer = Prefixed { prefix, inner };
        writer.write_all(b"one\n").unwrap();
        assert_eq!(writer.inner, b"one\n");
    }
}
