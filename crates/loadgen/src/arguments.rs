//! The command line. Sizes are in bytes and times in seconds, because the caller is a script.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Generates load on an S3 server and verifies every response.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version)]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read objects and compare every byte.
    Get(Run),
    /// Write objects and compare every ETag.
    Put(Run),
    /// Write every object once, to a server (creating the bucket) or into a directory.
    Fill(Fill),
    /// Write one presigned URL path per line, for wrk.
    Presign(Presign),
    /// Time LIST requests and compare the listed keys.
    List(List),
}

/// The names and the size of the objects.
#[derive(Debug, Clone, Args)]
pub struct KeyArguments {
    /// Bucket (path-style).
    #[arg(long, default_value = "bench")]
    pub bucket: String,
    /// Prefix of every key; only letters, digits and `/._-`.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Spread the keys over this many prefixes ending in `/`; 0 leaves them flat.
    #[arg(long, default_value_t = 100)]
    pub spread: u64,
    /// Number of distinct objects.
    #[arg(long, default_value_t = 1000)]
    pub count: u64,
    /// Size of each object in bytes.
    #[arg(long, default_value_t = 4096)]
    pub size: u64,
}

/// The credentials that sign requests.
#[derive(Debug, Clone, Args)]
pub struct Identity {
    /// Access key ID.
    #[arg(long, default_value = "tradewindbench")]
    pub access_key: String,
    /// Secret access key.
    #[arg(long, default_value = "tradewindbenchsecret")]
    pub secret_key: String,
    /// Region in the credential scope.
    #[arg(long, default_value = "us-east-1")]
    pub region: String,
    /// Send paths without a signature (for static file servers).
    #[arg(long)]
    pub unsigned: bool,
}

/// The server, the objects and the credentials.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Address of the server, such as 127.0.0.1:9000.
    #[arg(long, default_value = "127.0.0.1:9000")]
    pub endpoint: SocketAddr,
    #[command(flatten)]
    pub keys: KeyArguments,
    #[command(flatten)]
    pub identity: Identity,
    /// Timeout of one request in seconds.
    #[arg(long, default_value_t = 60.0)]
    pub timeout: f64,
}

/// The expected ETag of a PUT.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EtagRule {
    /// The MD5 of the content.
    Md5,
    /// Any value that is not empty.
    Any,
}

/// The concurrency, and the expected ETags.
#[derive(Debug, Clone, Args)]
pub struct Load {
    /// Connections, each with one request in flight.
    #[arg(long, default_value_t = 32)]
    pub connections: usize,
    /// Threads that share the connections.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Expected ETag of a PUT.
    #[arg(long, value_enum, default_value_t = EtagRule::Md5)]
    pub etag: EtagRule,
}

/// A closed-loop run of GET or PUT.
#[derive(Debug, Clone, Args)]
pub struct Run {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub load: Load,
    /// Stop issuing requests after this many seconds (requests in flight are finished and counted).
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Request every object exactly once, in random order, instead of running for a time.
    #[arg(long)]
    pub once: bool,
    /// Stop issuing requests after this many bytes of payload.
    #[arg(long, default_value_t = u64::MAX)]
    pub max_bytes: u64,
    /// Seed of the random order.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Create the bucket first.
    #[arg(long)]
    pub create_bucket: bool,
}

/// Writing of all objects.
#[derive(Debug, Clone, Args)]
pub struct Fill {
    #[command(flatten)]
    pub target: Target,
    #[command(flatten)]
    pub load: Load,
    /// Write files `DIRECTORY/bucket/key` instead of sending requests.
    #[arg(long)]
    pub directory: Option<PathBuf>,
}

/// Presigned URLs for another generator.
#[derive(Debug, Clone, Args)]
pub struct Presign {
    #[command(flatten)]
    pub target: Target,
    /// HTTP method to sign.
    #[arg(long, default_value = "GET")]
    pub method: String,
    /// Validity of the URLs in seconds (at most seven days).
    #[arg(long, default_value_t = 86_400)]
    pub expires: u64,
    /// Output file.
    #[arg(long)]
    pub out: PathBuf,
}

/// The kind of LIST request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ListMode {
    /// The common prefixes of the whole bucket.
    Delimiter,
    /// A page of 1,000 keys after a random key.
    Page,
    /// Pages of 1,000 keys one after another by continuation token, from the first to the last key.
    Walk,
}

/// Timing of LIST requests over one connection.
#[derive(Debug, Clone, Args)]
pub struct List {
    #[command(flatten)]
    pub target: Target,
    /// Kind of request.
    #[arg(long, value_enum, default_value_t = ListMode::Page)]
    pub mode: ListMode,
    /// Number of requests (for `walk`: maximum number of pages).
    #[arg(long, default_value_t = 100)]
    pub repeat: u64,
    /// Stop issuing requests after this many seconds.
    #[arg(long, default_value_t = 120.0)]
    pub seconds: f64,
    /// Seed of the random start keys.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
