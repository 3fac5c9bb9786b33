//! Progress of a staged write: how many bytes it has, and whether any are missing. A write that failed or was cancelled
//! may have lost bytes, so that the object must not be committed.

use tradewind_core::error::{Error, Reason, Result};

/// The progress of a staged write.
pub(crate) struct WriteProgress {
    /// The declared size, if any.
    declared_bytes: Option<u64>,
    written_bytes: u64,
    /// A write is in progress, or an earlier one failed or was cancelled: bytes are missing.
    is_incomplete: bool,
}

impl WriteProgress {
    pub const fn new(declared_bytes: Option<u64>) -> Self {
        Self { declared_bytes, written_bytes: 0, is_incomplete: false }
    }

    /// Bytes written so far.
    pub const fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The declared size, if any.
    pub const fn declared_bytes(&self) -> Option<u64> {
        self.declared_bytes
    }

    /// Starts a write. Until [`Self::end_write`], bytes are missing. Fails if an earlier write has not ended.
    pub fn start_write(&mut self) -> Result<()> {
        self.check_complete()?;
        self.is_incomplete = true;
        Ok(())
    }

    /// Ends a successful write.
    pub const fn end_write(&mut self) {
        self.is_incomplete = false;
    }

    /// Counts written bytes. Fails if they exceed the declared size.
    pub fn add(&mut self, bytes: usize) -> Result<()> {
        self.written_bytes += bytes as u64;
        let size = self.written_bytes;
        match self.declared_bytes.filter(|declared| size > *declared) {
            Some(declared) => {
                let why = format!("the body has at least {size} bytes, but {declared} were declared");
                Err(Error::new(Reason::InvalidRequest, why))
            }
            None => Ok(()),
        }
    }

    /// Fails if bytes are missing.
    pub fn check_complete(&self) -> Result<()> {
        if self.is_incomplete {
            let why = "an earlier write failed or was cancelled; stage the object again";
            return Err(Error::new(Reason::InvalidRequest, why));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unfinished_write_rejects_later_calls() {
        let mut progress = WriteProgress::new(Some(3));
        progress.start_write().unwrap();
        progress.add(3).unwrap();
        assert!(progress.start_write().is_err() && progress.check_complete().is_err());
        progress.end_write();
        assert!(progress.check_complete().is_ok());
        let error = progress.add(1).unwrap_err();
        assert_eq!(error.message(), "the body has at least 4 bytes, but 3 were declared");
    }
}
