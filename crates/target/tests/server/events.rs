//! Captures the events of a test's own server.

use std::{
    cell::RefCell,
    io::Write,
    sync::{Arc, Once},
};

use parking_lot::Mutex;

type Text = Arc<Mutex<Vec<u8>>>;

thread_local! {
    /// The buffer for this thread's events; `None` if the test has not started a [`Log`].
    static TEXT: RefCell<Option<Text>> = const { RefCell::new(None) };
}

/// Captures the events of this thread as text. A server runs on the thread of its test, unless the test uses more
/// threads.
pub struct Log(Text);

impl Log {
    /// Starts capturing the events of this thread.
    ///
    /// All tests of the process share one subscriber. With a subscriber for each test, tracing could switch an event
    /// off for all of them, if the first thread to report it had no subscriber.
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
