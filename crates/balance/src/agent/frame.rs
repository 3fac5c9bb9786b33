//! Length-prefixed frames with JSON. A frame beyond the maximum is rejected by its length.
//! Memory grows with the bytes received, never with a length that was only claimed.

use std::io::{Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;

use super::error::AgentError;

const LENGTH_BYTES: usize = 4;

/// Reads a message of at most `max_bytes`.
pub(super) fn read_message<T: DeserializeOwned>(
    from: &mut impl Read,
    max_bytes: usize,
) -> Result<T, AgentError> {
    let mut length = [0; LENGTH_BYTES];
    from.read_exact(&mut length)?;
    let length = usize::try_from(u32::from_be_bytes(length)).unwrap_or(usize::MAX);
    if length > max_bytes {
        return Err(AgentError::TooLong { length, max: max_bytes });
    }
    let mut frame = Vec::new();
    from.take(length as u64).read_to_end(&mut frame)?;
    if frame.len() < length {
        return Err(AgentError::Closed);
    }
    serde_json::from_slice(&frame).map_err(|e| AgentError::Malformed(e.to_string()))
}

/// Writes a message of at most `max_bytes`.
pub(super) fn write_message(
    to: &mut impl Write,
    message: &impl Serialize,
    max_bytes: usize,
) -> Result<(), AgentError> {
    let mut frame = vec![0; LENGTH_BYTES];
    serde_json::to_writer(&mut frame, message).map_err(|e| AgentError::Malformed(e.to_string()))?;
    let length = frame.len() - LENGTH_BYTES;
    let prefix = u32::try_from(length).ok().filter(|_| length <= max_bytes);
    let prefix = prefix.ok_or(AgentError::TooLong { length, max: max_bytes })?;
    frame[..LENGTH_BYTES].copy_from_slice(&prefix.to_be_bytes());
    to.write_all(&frame)?;
    Ok(to.flush()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn message_is_read_as_it_was_written() {
        let mut bytes = Vec::new();
        write_message(&mut bytes, &vec![1, 2, 3], 10).unwrap();
        assert_eq!(bytes, b"\0\0\0\x07[1,2,3]");
        assert_eq!(read_message::<Vec<u32>>(&mut bytes.as_slice(), 10).unwrap(), [1, 2, 3]);
    }

    #[test]
    fn long_short_and_malformed_messages_are_errors() {
        let read = |bytes: &[u8]| read_message::<Vec<u32>>(&mut &*bytes, 10).unwrap_err();
        assert!(matches!(read(b"\0\0\0\x0b[1]"), AgentError::TooLong { length: 11, max: 10 }));
        assert!(matches!(read(b"\xff\xff\xff\xff"), AgentError::TooLong { .. }));
        assert!(matches!(read(b"\0\0\0\x0a[1]"), AgentError::Closed));
        assert!(matches!(read(b"\0\0"), AgentError::Closed));
        assert!(matches!(read(b"\0\0\0\x02{]"), AgentError::Malformed(_)));
        let written = write_message(&mut Vec::new(), &"0123456789", 10).unwrap_err();
        assert!(matches!(written, AgentError::TooLong { length: 12, max: 10 }));
    }
}
