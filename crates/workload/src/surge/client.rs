//! One user of the web site: requests files over a persistent connection, and verifies each
//! response.

use std::{
    io::{BufRead, BufReader, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    path::Path,
    time::{Duration, Instant},
};

use super::site::{PIECE, SurgeSite};
use crate::Error;

/// Time limit of a response, which only a storage that hangs exceeds.
const LIMIT: Duration = Duration::from_secs(600);
/// Maximum number of header lines in a response, and of bytes in a line. nginx sends about eight
/// lines.
const HEADER: (usize, u64) = (100, 8192);

pub(super) struct SurgeClient {
    connection: BufReader<UnixStream>,
    piece: Vec<u8>,
}

impl SurgeClient {
    pub(super) fn connect(socket: &Path) -> std::io::Result<Self> {
        let connection = UnixStream::connect(socket)?;
        connection.set_read_timeout(Some(LIMIT))?;
        connection.set_write_timeout(Some(LIMIT))?;
        Ok(Self {
            connection: BufReader::with_capacity(64 * 1024, connection),
            piece: vec![0; PIECE],
        })
    }

    /// Requests a file. Returns the time until the file has arrived completely and was verified.
    ///
    /// # Errors
    /// [`Error::Wrong`] if the content differs from that of the file.
    pub(super) fn get(&mut self, site: &SurgeSite, file: u32) -> Result<Duration, Error> {
        let failed = || Error::system(format!("get file {file} from nginx"));
        let begun = Instant::now();
        let path = SurgeSite::path(file);
        write!(self.connection.get_mut(), "GET /{path} HTTP/1.1\r\nHost: lab\r\n\r\n")
            .map_err(failed())?;
        let length = self.length().map_err(failed())?;
        if length != site.size(file) {
            let what =
                format!("file {file} has {} bytes, and {length} were received", site.size(file));
            return Err(Error::Wrong(what));
        }
        let (mut content, mut at) = (site.content(file), 0);
        while let Some(expected) = content.next_piece() {
            let piece = &mut self.piece[..expected.len()];
            self.connection.read_exact(piece).map_err(failed())?;
            if let Some(wrong) = expected.iter().zip(&*piece).position(|(one, other)| one != other)
            {
                return Err(Error::Wrong(format!("file {file} differs at byte {}", at + wrong)));
            }
            at += expected.len();
        }
        Ok(begun.elapsed())
    }

    /// Reads the header of a response. Returns the length of the content in bytes.
    fn length(&mut self) -> std::io::Result<u64> {
        let unreadable = |what: &str| std::io::Error::new(ErrorKind::InvalidData, what.to_owned());
        let mut length = None;
        for number in 0..HEADER.0 {
            let mut line = String::new();
            (&mut self.connection).take(HEADER.1).read_line(&mut line)?;
            let line =
                line.strip_suffix("\r\n").ok_or_else(|| unreadable("an incomplete header"))?;
            if number == 0 && !line.starts_with("HTTP/1.1 200 ") {
                return Err(unreadable(line));
            }
            if line.is_empty() {
                return length.ok_or_else(|| unreadable("a header without a length"));
            }
            let field = line
                .split_once(':')
                .filter(|(name, _)| name.eq_ignore_ascii_case("content-length"));
            if let Some((_, value)) = field {
                length = Some(value.trim().parse().map_err(|_| unreadable(line))?);
            }
        }
        Err(unreadable("a header that is too long"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lets a client request a file from a server that answers with these bytes, and returns the
    /// client's result.
    fn of(site: &SurgeSite, answer: Vec<u8>) -> Result<Duration, Error> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        let mut client = SurgeClient { connection: BufReader::new(ours), piece: vec![0; PIECE] };
        let server = std::thread::spawn(move || {
            let _ = theirs.write_all(&answer);
            let _ = theirs.shutdown(std::net::Shutdown::Write);
            theirs
        });
        let result = client.get(site, 0);
        drop(client);
        drop(server.join().unwrap());
        result
    }

    #[test]
    fn an_answer_is_compared_to_its_last_byte() {
        let site = SurgeSite::new(1, 9);
        let mut content = site.content(0);
        let mut all = Vec::new();
        while let Some(piece) = content.next_piece() {
            all.extend_from_slice(piece);
        }
        let answer = |length: usize, body: &[u8]| {
            let mut answer =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {length}\r\n\r\n").into_bytes();
            answer.extend_from_slice(body);
            answer
        };
        of(&site, answer(all.len(), &all)).unwrap();
        let error = of(&site, answer(all.len() - 1, &all)).unwrap_err();
        assert!(matches!(error, Error::Wrong(_)), "{error}");
        let error = of(&site, answer(all.len(), &all[1..])).unwrap_err();
        assert!(!error.to_string().is_empty());
        *all.last_mut().unwrap() ^= 1;
        let error = of(&site, answer(all.len(), &all)).unwrap_err().to_string();
        assert!(error.contains(&format!("differs at byte {}", all.len() - 1)), "{error}");
        let error = of(&site, b"HTTP/1.1 404 Not Found\r\n\r\n".to_vec()).unwrap_err().to_string();
        assert!(error.contains("404"), "{error}");
    }
}
