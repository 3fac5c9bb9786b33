//! Serves a memory store with some objects, to measure the cost of the gateway itself.
//!
//! Usage: `serve_memory ADDR OBJECTS BYTES PATHS`. Writes the presigned paths of all objects to the file PATHS, one per
//! line, then serves until it is killed. The key is `env`, its secret `bench-secret`.

use std::error::Error;
use std::fmt::Write as _;

use bytes::Bytes;
use tradewind_core::context::Deadline;
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::MemoryStore;
use tradewind_core::{Address, BucketName, Budget, Clock, Context, ObjectStore, SystemClock};
use tradewind_gateway::{AccessKey, Buckets, Gateway, GatewayConfig, Keys, Permissions};
use tradewind_wire::sigv4::SigningKey;

const ID: &str = "bench";
const SECRET: &str = "bench-secret";

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let mut next = |what: &str| args.next().ok_or_else(|| format!("{what} is missing"));
    let address = next("ADDR")?;
    let (objects, size): (usize, usize) = (next("OBJECTS")?.parse()?, next("BYTES")?.parse()?);
    let paths = next("PATHS")?;

    let clock = SystemClock::shared();
    let store = MemoryStore::new(clock.clone());
    let window = Budget::new(1 << 20).admit(1 << 20, &Deadline::none(clock.clone())).await?;
    let context = Context::new(Deadline::none(clock.clone()), window);
    store.create_bucket(&context, &BucketName::new(ID)?).await?;
    for n in 0..objects {
        let address = Address::parse(ID, &format!("object-{n:08}"))?;
        let mut staged = store.stage(&context, &address, StageRequest::default()).await?;
        staged.write(Bytes::from(vec![u8::try_from(n % 251)?; size])).await?;
        staged.commit(Expected::default()).await?;
    }
    std::fs::write(&paths, presign(&address, objects, &*clock))?;

    let key = AccessKey {
        id: ID.to_owned(),
        secret: SECRET.to_owned(),
        permissions: Permissions::ReadWrite,
        buckets: Buckets::All,
    };
    let gateway = Gateway::new(GatewayConfig::default(), store, Keys::new([key], []), clock)?;
    let listener = tokio::net::TcpListener::bind(&address).await?;
    gateway.serve(listener, tokio_util::sync::CancellationToken::new()).await;
    Ok(())
}

/// A presigned path for every object, valid for a day.
fn presign(host: &str, objects: usize, clock: &dyn Clock) -> String {
    let date = amz_date(clock.wall().seconds());
    let day = &date[..8];
    let scope = format!("{day}/us-east-1/s3/aws4_request");
    let key = SigningKey::derive(SECRET, &scope);
    let query = format!(
        "X-Amz-Algorithm=AWS4-HMAC-SHA256&X-Amz-Credential={ID}%2F{}&X-Amz-Date={date}&X-Amz-Expires=86400&X-Amz-SignedHeaders=host",
        scope.replace('/', "%2F")
    );
    let mut paths = String::new();
    for n in 0..objects {
        let path = format!("/{ID}/object-{n:08}");
        let canonical = format!("GET\n{path}\n{query}\nhost:{host}\n\nhost\nUNSIGNED-PAYLOAD");
        let hash = hex::encode(ring::digest::digest(&ring::digest::SHA256, canonical.as_bytes()));
        let text = format!("AWS4-HMAC-SHA256\n{date}\n{scope}\n{hash}");
        let signature = hex::encode(key.sign(text.as_bytes()));
        let _never = writeln!(paths, "{path}?{query}&X-Amz-Signature={signature}");
    }
    paths
}

/// A date in the format `YYYYMMDDThhmmssZ`, derived from HTTP's format.
fn amz_date(seconds: i64) -> String {
    let text = tradewind_wire::http_date::http_date(tradewind_core::Timestamp::from_millis(seconds * 1000));
    let fields: Vec<&str> = text.split([' ', ':']).collect();
    let months = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let month = months.find(fields[2]).map_or(0, |at| at / 3 + 1);
    format!("{}{month:02}{}T{}{}{}Z", fields[3], fields[1], fields[4], fields[5], fields[6])
}
