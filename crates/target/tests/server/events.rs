//! Captures the events of a test's own server.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Once},
};

use parking_lot::Mutex;

type Text = Arc<Mutex<Vec<u8>>>;

thread_local! {
    /// The destination of this thread's events; `None` without a [`Log`].
    static TEXT: RefCell<Option<Text>> = const { RefCell::new(None) };
}

/// The events of this thread as an operator sees them. A server runs on the thread of its test unless the test uses
/// more threads.
pub struct Log(Text);

impl Log {
    /// Starts capturing the events of this thread.
    ///
    /// The process has one subscriber. With one for each test, an event that is reported for the first time by a
    /// thread without a subscriber could be switched off for all of them.
    pub fn start() -> Self {
        static SUBSCRIBER: Once = Once::new();
        SUBSCRIBER.call_once(|| {
            let subscriber = tracing_subscriber::fmt()
                .with_ansi(false)
                .with_max_level(tracing::Level::INFO)
                .with_writer(|| Sink)
                .finish();
            tracing::subscriber::set_global_default(subscriber).unwrap();
        });
        let text = Text::default();
        TEXT.set(Some(Arc::clone(&text)));
        Self(text)
    }

    pub fn lines(&self) -> Vec<String> {
        String::from_utf8_lossy(&self.0.lock()).lines().map(str::to_owned).collect()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        TEXT.set(None);
    }
}

struct Sink;

impl Write for Sink {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        TEXT.with_borrow(|text| {
            if let Some(text) = text {
                text.lock().extend_from_slice(bytes);
            }
        });
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
