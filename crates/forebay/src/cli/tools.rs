//! The command line of commands without volumes: `forebay tunnel`, `secret`, `key`, `quickstart`, and the relay.

use std::{net::SocketAddr, path::PathBuf};

use clap::{Args, Subcommand};
use config::quantity::TimeSpan;

#[derive(Args, Debug)]
pub struct Tunnel {
    #[command(subcommand)]
    pub end: TunnelEnd,
}

/// The two ends of a tunnel.
#[derive(Debug, Subcommand)]
pub enum TunnelEnd {
    /// Run the initiator's end: accept connections without TLS, connect with TLS
    #[command(
        after_help = "Example:\n  forebay tunnel connect --listen 127.0.0.1:3260 --to node.example:3263 \\\n    \
                            --certificate host.pem --key host.key --ca ca.pem"
    )]
    Connect {
        #[command(flatten)]
        relay: Relay,

        /// PEM file with the authorities that issue the certificate of the other end
        #[arg(long, value_name = "FILE")]
        ca: PathBuf,

        /// Host name in the other end's certificate [default: the host in --to]
        #[arg(long, value_name = "NAME")]
        server_name: Option<String>,
    },
    /// Run the target's end: accept connections with TLS, connect without TLS
    #[command(
        after_help = "Example:\n  forebay tunnel accept --listen 0.0.0.0:3263 --to 127.0.0.1:3260 \\\n    \
                            --certificate node.pem --key node.key --client-ca ca.pem"
    )]
    Accept {
        #[command(flatten)]
        relay: Relay,

        /// PEM file with the authorities that issue the certificates of clients
        #[arg(long, value_name = "FILE")]
        client_ca: PathBuf,
    },
}

/// Arguments of both ends of a tunnel.
#[derive(Args, Debug)]
pub struct Relay {
    /// IP address and port on which to listen
    #[arg(long, value_name = "ADDRESS")]
    pub listen: SocketAddr,

    /// HOST:PORT to which connections are relayed
    #[arg(long, value_name = "HOST:PORT")]
    pub to: String,

    /// PEM file with our certificate and its intermediate certificates
    #[arg(long, value_name = "FILE")]
    pub certificate: PathBuf,

    /// PEM file with the private key of our certificate, readable only by its owner
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,

    /// Maximum number of connections, not counting handshakes; further ones are closed
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u16).range(1..))]
    pub max_connections: u16,
}

#[derive(Args, Debug)]
pub struct SecretArgs {
    /// File to create; an existing file is never overwritten
    pub file: PathBuf,

    /// Number of characters with six random bits each; Windows accepts at most 16
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u8).range(16..=255))]
    pub characters: u8,
}

#[derive(Args, Debug)]
pub struct KeyArgs {
    /// File to create; an existing file is never overwritten
    pub file: PathBuf,

    /// File with the secret that wraps the key, at least 32 characters
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "secret_env",
        required_unless_present = "secret_env"
    )]
    pub secret_file: Option<PathBuf>,

    /// Environment variable with this secret
    #[arg(long, value_name = "NAME")]
    pub secret_env: Option<String>,
}

#[derive(Args, Debug)]
pub struct Quickstart {
    /// Keep everything running at the end until Ctrl-C, and print how to connect
    #[arg(long)]
    pub keep: bool,

    /// Write the results to this file [default: forebay-quickstart/result.json]
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with plots to this file [default: forebay-quickstart/result.html]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,

    /// Duration of each timed part in seconds
    #[arg(long, value_name = "N", default_value_t = 4.0, hide = true)]
    pub seconds: f64,
}

#[derive(Args, Debug)]
pub struct LinkArgs {
    /// Address on which to listen
    #[arg(long, default_value = "127.0.0.1:0")]
    pub listen: SocketAddr,

    /// Address to which connections are relayed
    #[arg(long)]
    pub to: SocketAddr,

    /// One-way propagation delay of the link
    #[arg(long, default_value = "4ms")]
    pub delay: TimeSpan,

    /// Rate of the link in megabits per second
    #[arg(long, default_value_t = 1000)]
    pub rate: u64,
}
