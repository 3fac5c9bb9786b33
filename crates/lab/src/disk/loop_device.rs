//! A block device over a file, which the kernel calls a loop device. The file has no name any more once the device is
//! there, and the device lets go of it when nobody uses it: nothing is left of either, however their user ends.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// What the names of the files begin with, by which a device is known as made here.
const FILE_PREFIX: &str = ".tradewind-lab-disk-";
/// Devices that others may take before us, one after the other.
const TRIES: usize = 32;

const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
/// Let go of the file when nobody has the device open.
const AUTOCLEAR: u32 = 4;

/// A device that is attached. The kernel keeps it while this is open or while it is mounted.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub number: u32,
    _open: File,
}

/// `struct loop_config` of the kernel, with `struct loop_info64` in it; what is not used has no names.
#[repr(C)]
struct Configuration {
    file: u32,
    block_size: u32,
    before_flags: [u64; 6],
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    rest: [u64; 14],
    reserved: [u64; 8],
}

impl LoopDevice {
    /// Makes one of so many bytes, which take room in the directory's file system only where something is written.
    pub fn make(directory: &Path, bytes: u64) -> io::Result<Self> {
        let path = directory.join(format!("{FILE_PREFIX}{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let attached = file.set_len(bytes).and_then(|()| attach(&file));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => attached,
        }
    }

    pub fn path(&self) -> PathBuf {
        path(self.number)
    }
}

/// Whether a file has the name of one that is about to be a device, or whose maker was killed before it was.
pub(super) fn is_file_of_one(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with(FILE_PREFIX)
}

pub(super) fn path(number: u32) -> PathBuf {
    format!("/dev/loop{number}").into()
}

/// What the kernel tells of a device under /sys.
pub(super) fn told(number: u32, what: &str) -> PathBuf {
    format!("/sys/block/loop{number}/{what}").into()
}

/// Whether a device has a file now.
pub(super) fn is_attached(number: u32) -> bool {
    told(number, "loop/backing_file").exists()
}

/// Whether a device has a file that was made here.
pub(super) fn is_ours(number: u32) -> bool {
    let file = fs::read_to_string(told(number, "loop/backing_file")).unwrap_or_default();
    Path::new(file.trim()).file_name().is_some_and(is_file_of_one)
}

fn attach(file: &File) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut refused = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..TRIES {
        // SAFETY: the request has no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
        let Ok(number) = u32::try_from(number) else { return Err(io::Error::last_os_error()) };
        let device = OpenOptions::new().read(true).write(true).open(path(number))?;
        let configuration = Configuration {
            file: file.as_raw_fd().cast_unsigned(),
            block_size: 0,
            before_flags: [0; 6],
            encrypt_key_size: 0,
            flags: AUTOCLEAR,
            file_name: [0; 64],
            rest: [0; 14],
            reserved: [0; 8],
        };
        // SAFETY: the argument is laid out as the kernel has it (304 bytes, see below), and lives for the call.
        if unsafe { libc::ioctl(device.as_raw_fd(), CONFIGURE, &raw const configuration) } == 0 {
            return Ok(LoopDevice { number, _open: device });
        }
        refused = io::Error::last_os_error();
        if refused.raw_os_error() != Some(libc::EBUSY) {
            break;
        }
    }
    Err(refused)
}

const _: () = assert!(size_of::<Configuration>() == 304 && std::mem::offset_of!(Configuration, flags) == 60);
