//! That a volume is attached once on a host, and where others ask about it: a control socket of its
//! own. What a killed process left of the same volume is cleared away here.

use std::{
    fs,
    path::{Path, PathBuf},
};

use tokio::task::spawn_blocking;

use super::source::Source;
use crate::{
    attached::Attached,
    control::{self, Control, Request, Response},
    failure::Failure,
};

/// The place of a volume, held as long as this lives.
pub struct Place {
    control: Control,
}

impl Place {
    /// Takes the volume's place, and clears away what is left of a process that had it before.
    pub async fn take(source: &Source) -> Result<Self, Failure> {
        let socket = folder()?.join(format!("{}.sock", source.key()));
        let control = Control::open(&socket).map_err(|failure| match ask(&socket) {
            Some(attached) => Failure::new(format!(
                "{} is attached already, as {} (process {})",
                attached.volume,
                attached.device.display(),
                attached.process
            ))
            .remedy(format!("detach it first: forebay detach {}", attached.device.display())),
            None => failure,
        })?;
        let name = source.file_name();
        let cleared = spawn_blocking(move || clear_leftovers(&name)).await;
        cleared.map_err(Failure::new)??;
        Ok(Self { control })
    }

    /// Answers who asks.
    pub async fn serve<F: Future<Output = Response> + Send + 'static>(
        &mut self,
        answer: impl Fn(Request) -> F + Send + Sync + 'static,
    ) -> Result<(), Failure> {
        self.control.serve(answer).await.map_err(Failure::new)
    }

    /// Waits until who asked has been answered.
    pub async fn finish(&self) {
        self.control.finish().await;
    }
}

/// What is attached on this host, by whichever process of ours.
pub fn all() -> Result<Vec<(PathBuf, Attached)>, Failure> {
    let files = fs::read_dir(folder()?).into_iter().flatten().flatten().map(|entry| entry.path());
    let sockets = files.filter(|file| file.extension().is_some_and(|kind| kind == "sock"));
    Ok(sockets.filter_map(|socket| ask(&socket).map(|attached| (socket, attached))).collect())
}

fn ask(socket: &Path) -> Option<Attached> {
    match control::ask(socket, Request::Attachment) {
        Ok(Response::Attachment(attached)) => Some(attached),
        _ => None,
    }
}

/// Beside the control socket of a process that serves.
fn folder() -> Result<PathBuf, Failure> {
    Ok(control::default_path()?.with_file_name("attached"))
}

/// Takes away the loop devices on files of this name whose volume does not answer any more, and what
/// is mounted from them. What was not written back then is lost already.
pub fn clear_leftovers(name: &str) -> Result<(), Failure> {
    for left in attach::leftovers(name) {
        let device = attach::LoopDevice { number: left.number };
        let path = device.path();
        if left.is_alive {
            return Err(Failure::new(format!(
                "the volume is attached already, as {}, by a process that cannot be asked",
                path.display()
            ))
            .remedy("look for it in other containers, and end it there"));
        }
        for place in &left.mounts {
            tracing::warn!(
                device = %path.display(), mount = %place.display(),
                "unmounting what a process that was killed has left"
            );
            if let Err(error) = attach::unmount(place, false) {
                let users = attach::busy_with(place);
                tracing::warn!(%error, users = list(&users), "it is unmounted when nobody uses it any more");
                attach::unmount(place, true).map_err(|error| super::host::refusal(&error))?;
            }
        }
        tracing::warn!(device = %path.display(), "clearing a loop device that a process that was killed has left");
        match device.clear() {
            // It was cleared with its last user.
            Err(error) if error.error.raw_os_error() == Some(libc::ENXIO) => {}
            cleared => cleared.map_err(|error| super::host::refusal(&error))?,
        }
    }
    Ok(())
}

/// For people.
pub fn list(users: &[attach::User]) -> String {
    users.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
}
