//! Commands without volumes: `forebay tunnel`, `secret`, `key`, `quickstart` and the relay.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand};
use config::quantity::TimeSpan;

/// Arguments of `tunnel`.
#[derive(Args, Debug)]
pub struct Tunnel {
    /// The end
    #[command(subcommand)]
    pub end: TunnelEnd,
}

/// The two ends of a tunnel.
#[derive(Debug, Subcommand)]
pub enum TunnelEnd {
    /// The initiator's end: listen without TLS, connect with TLS
    Connect {
        /// Arguments of both ends.
        #[command(flatten)]
        relay: Relay,

        /// The certificate authority (PEM) of the other end's certificate
        #[arg(long, value_name = "FILE")]
        ca: PathBuf,

        /// The name in the other end's certificate [default: the host in --to]
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
    },
    /// The target's end: listen with TLS, connect without TLS
    Accept {
        /// Arguments of both ends.
        #[command(flatten)]
        relay: Relay,

        /// The certificate authority (PEM) of the clients' certificates
        #[arg(long, value_name = "FILE")]
        client_ca: PathBuf,
    },
}

/// Arguments of both ends of a tunnel.
#[derive(Args, Debug)]
pub struct Relay {
    /// Address to listen on
    #[arg(long, value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// HOST:PORT to relay to
    #[arg(long, value_name = "HOST:PORT")]
    pub to: String,

    /// Our certificate, with intermediate certificates (PEM)
    #[arg(long, value_name = "FILE")]
    pub certificate: PathBuf,

    /// Its private key (PEM), readable by its owner only
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// Maximum number of connections, without those in the handshake; further ones are closed
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_connections: u16,
}

/// Arguments of `secret`.
#[derive(Args, Debug)]
pub struct SecretArgs {
    /// The file to create
    pub file: PathBuf,

    /// Number of characters, each with six random bits; Windows accepts 16 at most
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(16..=255))]
    pub characters: u8,
}

/// Arguments of `key`.
#[derive(Args, Debug)]
pub struct KeyArgs {
    /// The file to create
    pub file: PathBuf,

    /// The file with the secret that encrypts the key, at least 32 characters
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "secret_env",
        required_unless_present = "secret_env"
    )]
    pub secret_file: Option<PathBuf>,

    /// The environment variable with that secret
    #[arg(long, value_name = "NAME")]
    pub secret_env: Option<String>,
}

/// Arguments of `quickstart`.
#[derive(Args, Debug)]
pub struct Quickstart {
    /// Keep everything running at the end, until Ctrl-C, and print how to connect
    #[arg(long)]
    pub keep: bool,

    /// Write the results to this file [default: forebay-quickstart/result.json]
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with plots to this file [default: forebay-quickstart/result.html]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Duration in seconds of each timed part
    #[arg(long, value_name = "N", default_value_t = 4.0, hide = true)]
    pub seconds: f64,
}

/// Arguments of `link`.
#[derive(Args, Debug)]
pub struct LinkArgs {
    /// Address to listen on
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// Address to relay to
    #[arg(long)]
    pub to: SocketAddr,

    /// One-way delay
    #[arg(long, default_value = "4ms")]
    pub delay: TimeSpan,

    /// Megabits per second
    #[arg(long, default_value_t = 1000)]
    pub rate: u64,
}
