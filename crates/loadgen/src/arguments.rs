//! The command line, declared once. Sizes are plain bytes and times plain seconds: the caller is a script.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

/// Drives an S3 server and checks every answer.
#[derive(Debug, Parser)]
#[command(name = "loadgen", version)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// What to do.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Read objects and compare every byte.
    Get(Run),
    /// Write objects and compare every ETag.
    Put(Run),
    /// Write every object once, to a server (making the bucket) or into a directory.
    Fill(Fill),
    /// Write one presigned URL path a line, for wrk.
    Presign(Presign),
    /// Time LIST requests and compare the listed keys.
    List(List),
}

/// Which objects there are: their names and their size.
#[derive(Debug, Clone, Args)]
pub struct KeyArguments {
    /// Bucket (path-style).
    #[arg(long, default_value = "bench")]
    pub bucket: String,
    /// Begins every key; letters, digits and `/._-` only.
    #[arg(long, default_value = "")]
    pub prefix: String,
    /// Spread the keys over this many prefixes ending in `/`; 0 leaves them flat.
    #[arg(long, default_value_t = 100)]
    pub spread: u64,
    /// Number of distinct objects.
    #[arg(long, default_value_t = 1000)]
    pub count: u64,
    /// Bytes in each object.
    #[arg(long, default_value_t = 4096)]
    pub size: u64,
}

/// Who signs.
#[derive(Debug, Clone, Args)]
pub struct Identity {
    /// Access key id.
    #[arg(long, default_value = "tradewindbench")]
    pub access_key: String,
    /// Secret access key.
    #[arg(long, default_value = "tradewindbenchsecret")]
    pub secret_key: String,
    /// Region in the credential scope.
    #[arg(long, default_value = "us-east-1")]
    pub region: String,
    /// Send bare paths without a signature (static file servers).
    #[arg(long)]
    pub unsigned: bool,
}

/// Where requests go and as whom.
#[derive(Debug, Clone, Args)]
pub struct Target {
    /// Address of the server, as in 127.0.0.1:9000.
    #[arg(long, default_value = "127.0.0.1:9000")]
    pub endpoint: SocketAddr,
    #[command(flatten)]
    pub keys: KeyArguments,
    #[command(flatten)]
    pub identity: Identity,
    /// Seconds after which one request counts as failed.
    #[arg(long, default_value_t = 60.0)]
    pub timeout: f64,
}

/// What a PUT's ETag must be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum EtagRule {
    /// The MD5 of the content.
    Md5,
    /// Anything that is not empty.
    Any,
}

/// How hard and how long.
#[derive(Debug, Clone, Args)]
pub struct Load {
    /// Connections, each with one request at a time.
    #[arg(long, default_value_t = 32)]
    pub connections: usize,
    /// Threads that share the connections.
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// What a PUT's ETag must be.
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
    /// Stop issuing after this many seconds (requests in flight are finished and counted).
    #[arg(long, default_value_t = 5.0)]
    pub seconds: f64,
    /// Touch every object exactly once, in a shuffled order, instead of running for a time.
    #[arg(long)]
    pub once: bool,
    /// Stop issuing after this many bytes of payload.
    #[arg(long, default_value_t = u64::MAX)]
    pub max_bytes: u64,
    /// Seed of the random order.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Make the bucket first.
    #[arg(long)]
    pub create_bucket: bool,
}

/// Loading of objects.
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
    /// Method that is signed.
    #[arg(long, default_value = "GET")]
    pub method: String,
    /// Seconds for which the URLs hold (seven days at most).
    #[arg(long, default_value_t = 86_400)]
    pub expires: u64,
    /// File to write.
    #[arg(long)]
    pub out: PathBuf,
}

/// What a LIST request asks for.
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
    /// What each request asks for.
    #[arg(long, value_enum, default_value_t = ListMode::Page)]
    pub mode: ListMode,
    /// Requests (for `walk`: at most this many pages).
    #[arg(long, default_value_t = 100)]
    pub repeat: u64,
    /// Stop issuing after this many seconds.
    #[arg(long, default_value_t = 120.0)]
    pub seconds: f64,
    /// Seed of the random start keys.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}
