//! Output to files: the objects as a tree of plain files (for a static file server), and presigned URL paths (for a
//! generator that cannot sign).

use std::fs::{self, File};
use std::io::{BufWriter, Write as _};
use std::path::Path;
use std::time::Instant;

use anyhow::Context as _;
use tradewind_pattern::{Content, ContentId};

use crate::arguments::{KeyArguments, Presign};
use crate::keys::Keys;
use crate::record::{Report, Tally};
use crate::sign::Signer;
use crate::wire::BUFFER_BYTES;

/// Writes every object as `directory/bucket/key`.
pub fn write(arguments: &KeyArguments, directory: &Path) -> anyhow::Result<Report> {
    let keys = Keys::new(arguments)?;
    let content = Content::new();
    let mut tally = Tally::new()?;
    let mut buffer = vec![0; BUFFER_BYTES.min(arguments.size as usize)];
    let mut key = String::new();
    let start = Instant::now();
    for index in 0..keys.count() {
        keys.write(index, &mut key);
        let path = directory.join(&arguments.bucket).join(&key);
        if index < arguments.spread.max(1)
            && let Some(parent) = path.parent()
        {
            fs::create_dir_all(parent).with_context(|| format!("creating {}", parent.display()))?;
        }
        let started = Instant::now();
        let id = ContentId::new(&key, arguments.size);
        let mut write_all = || {
            let mut file = File::create(&path)?;
            let mut position = 0;
            while position < arguments.size {
                let length = buffer.len().min((arguments.size - position) as usize);
                content.fill(id, position, &mut buffer[..length]);
                file.write_all(&buffer[..length])?;
                position += length as u64;
            }
            std::io::Result::Ok(())
        };
        write_all().with_context(|| format!("writing {}", path.display()))?;
        tally.record_success(started.elapsed(), arguments.size);
    }
    Ok(Report::new("fill", tally, start.elapsed()))
}

/// Writes the presigned path of every object, one per line, in the order of their index.
pub fn presign(arguments: &Presign) -> anyhow::Result<()> {
    let target = &arguments.target;
    let keys = Keys::new(&target.keys)?;
    let signer = Signer::new(&target.identity, target.endpoint, arguments.expires)?;
    let file =
        File::create(&arguments.out).with_context(|| format!("writing {}", arguments.out.display()))?;
    let mut out = BufWriter::new(file);
    let (mut path, mut line) = (String::new(), Vec::new());
    for index in 0..keys.count() {
        path.clear();
        path.push('/');
        path.push_str(&target.keys.bucket);
        path.push('/');
        keys.append(index, &mut path);
        line.clear();
        signer.append_target(&arguments.method, &path, "", &mut line);
        line.push(b'\n');
        out.write_all(&line).with_context(|| format!("writing {}", arguments.out.display()))?;
    }
    out.flush().with_context(|| format!("writing {}", arguments.out.display()))
}
