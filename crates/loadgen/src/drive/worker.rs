//! One connection's part of the closed loop: builds each request, sends it, and compares the response with the content
//! that follows from the key.

use tradewind_pattern::ContentId;

use crate::arguments::EtagRule;
use crate::drive::{Job, Method, md5};
use crate::record::Failure;
use crate::wire::{BUFFER_BYTES, Connection, Head};

const MAX_ERROR_TEXT_BYTES: usize = 400;

/// The buffers and the current request of one connection.
pub(super) struct Worker<'a> {
    job: &'a Job,
    pub(super) path: String,
    id: ContentId,
    etag: [u8; 16],
    out: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(job: &'a Job) -> Self {
        Self { job, path: String::new(), id: ContentId::new("", 0), etag: [0; 16], out: Vec::new() }
    }

    /// Signs the request for the object `index` and determines its expected response.
    pub(super) fn prepare(&mut self, index: u64) {
        let job = self.job;
        self.path.clear();
        self.path.push('/');
        self.path.push_str(&job.target.keys.bucket);
        self.path.push('/');
        let key_start = self.path.len();
        job.keys.append(index, &mut self.path);
        let size = job.target.keys.size;
        self.id = ContentId::new(&self.path[key_start..], size);
        if job.method == Method::Put && job.etag == EtagRule::Md5 {
            self.etag = match job.etags.get(index as usize) {
                Some(etag) => *etag,
                None => {
                    self.out.resize(BUFFER_BYTES, 0);
                    md5(&job.content, self.id, size, &mut self.out)
                }
            };
        }
        self.out.clear();
        self.out.extend_from_slice(job.method.name().as_bytes());
        self.out.push(b' ');
        job.signer.append_target(job.method.name(), &self.path, "", &mut self.out);
        self.out.extend_from_slice(b" HTTP/1.1\r\nHost: ");
        self.out.extend_from_slice(job.signer.host().as_bytes());
        if job.method == Method::Put {
            self.out.extend_from_slice(format!("\r\nContent-Length: {size}").as_bytes());
        }
        self.out.extend_from_slice(b"\r\n\r\n");
    }

    /// Sends the prepared request on the connection in `slot`, or on a new one, and verifies the response.
    pub(super) async fn exchange(&mut self, slot: &mut Option<Connection>) -> Result<(), Failure> {
        if slot.as_ref().is_none_or(|connection| !connection.is_reusable()) {
            *slot = Some(Connection::open(self.job.target.endpoint).await?);
        }
        let Some(connection) = slot else {
            return Err(Failure::new("connect", "no connection"));
        };
        match self.job.method {
            Method::Get => {
                connection.send(&self.out).await?;
                self.check_get(connection).await
            }
            Method::Put => {
                if let Err(failure) = self.send_put(connection).await {
                    // A server that rejects a request early responds before it closes: its response says more than
                    // the connection reset.
                    return Err(self.check_put(connection).await.err().unwrap_or(failure));
                }
                self.check_put(connection).await
            }
        }
    }

    async fn send_put(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let size = self.job.target.keys.size;
        let mut position = 0;
        loop {
            let head = self.out.len();
            let length = ((BUFFER_BYTES - head.min(BUFFER_BYTES)) as u64).min(size - position) as usize;
            self.out.resize(head + length, 0);
            self.job.content.fill(self.id, position, &mut self.out[head..]);
            connection.send(&self.out).await?;
            self.out.clear();
            position += length as u64;
            if position == size {
                return Ok(());
            }
        }
    }

    async fn check_get(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let head = connection.receive_head().await?;
        if head.status != 200 {
            return Err(error_response(connection, &head).await);
        }
        let size = self.job.target.keys.size;
        if head.length.is_some_and(|length| length != size) {
            return Err(Failure::new(
                "length",
                format!("Content-Length {:?} instead of {size}", head.length),
            ));
        }
        let (job, id) = (self.job, self.id);
        let mut position = 0;
        connection
            .receive_body(&head, |bytes| {
                if let Some(at) = job.content.first_difference(id, position, bytes) {
                    return Err(Failure::new("content", format!("byte {at} is wrong")));
                }
                position += bytes.len() as u64;
                Ok(())
            })
            .await?;
        if position != size {
            return Err(Failure::new("length", format!("{position} bytes instead of {size}")));
        }
        Ok(())
    }

    async fn check_put(&mut self, connection: &mut Connection) -> Result<(), Failure> {
        let head = connection.receive_head().await?;
        if head.status != 200 {
            return Err(error_response(connection, &head).await);
        }
        connection.receive_body(&head, |_| Ok(())).await?;
        let quoted = head.etag.unwrap_or_default();
        let found = quoted.strip_prefix('"').and_then(|rest| rest.strip_suffix('"')).unwrap_or_default();
        let is_correct = match self.job.etag {
            EtagRule::Md5 => found == hex::encode(self.etag),
            EtagRule::Any => !found.is_empty(),
        };
        if is_correct { Ok(()) } else { Err(Failure::new("etag", format!("ETag {quoted:?}"))) }
    }
}

/// The failure for a response with a status other than 200. Reads the rest of the response.
pub async fn error_response(connection: &mut Connection, head: &Head) -> Failure {
    let mut text = Vec::new();
    let read = connection
        .receive_body(head, |bytes| {
            text.extend_from_slice(
                &bytes[..bytes.len().min(MAX_ERROR_TEXT_BYTES - text.len().min(MAX_ERROR_TEXT_BYTES))],
            );
            Ok(())
        })
        .await;
    let mut detail = String::from_utf8_lossy(&text).into_owned();
    if let Err(failure) = read {
        detail.push_str(&format!(" ({})", failure.detail));
    }
    Failure::new(format!("status_{}", head.status), detail)
}
