//! A loop device: a block device over a file. The file is unlinked once the device is attached, and the device
//! detaches when unused: both vanish however their user ends.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

/// File name prefix that identifies devices created here.
const FILE_PREFIX: &str = ".tradewind-lab-disk-";
/// Maximum attempts when other processes take the free devices first.
const MAX_ATTEMPTS: usize = 32;

const GET_FREE: libc::Ioctl = 0x4c82;
const CONFIGURE: libc::Ioctl = 0x4c0a;
/// Detach the file when the device is closed by its last user.
const AUTOCLEAR: u32 = 4;

/// An attached device. It exists while this is open or it is mounted.
#[derive(Debug)]
pub(super) struct LoopDevice {
    pub number: u32,
    _open: File,
}

/// The kernel's `struct loop_config` with its `struct loop_info64`; unused fields are grouped.
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
    /// Creates a device of `bytes`. The sparse file uses space in the directory's file system only for written
    /// blocks.
    pub fn create(directory: &Path, bytes: u64) -> io::Result<Self> {
        let path = directory.join(format!("{FILE_PREFIX}{}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        let attached = file.set_len(bytes).and_then(|()| attach(&file));
        match fs::remove_file(&path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => attached,
        }
    }

    pub fn path(&self) -> PathBuf {
        device_path(self.number)
    }
}

/// Returns true for the name of a backing file that was not unlinked yet, or whose creator was killed before that.
pub(super) fn is_backing_file_name(name: &OsStr) -> bool {
    name.to_string_lossy().starts_with(FILE_PREFIX)
}

pub(super) fn device_path(number: u32) -> PathBuf {
    format!("/dev/loop{number}").into()
}

/// Path of a device attribute in /sys.
pub(super) fn sysfs_path(number: u32, what: &str) -> PathBuf {
    format!("/sys/block/loop{number}/{what}").into()
}

/// Returns true if the device has a backing file.
pub(super) fn is_attached(number: u32) -> bool {
    sysfs_path(number, "loop/backing_file").exists()
}

/// Returns true if the device has a backing file created here.
pub(super) fn is_created_here(number: u32) -> bool {
    let file = fs::read_to_string(sysfs_path(number, "loop/backing_file")).unwrap_or_default();
    Path::new(file.trim()).file_name().is_some_and(is_backing_file_name)
}

fn attach(file: &File) -> io::Result<LoopDevice> {
    let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
    let mut last_error = io::Error::from(io::ErrorKind::ResourceBusy);
    for _ in 0..MAX_ATTEMPTS {
        // SAFETY: the request has no argument.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), GET_FREE) };
        let Ok(number) = u32::try_from(number) else { return Err(io::Error::last_os_error()) };
        let device = OpenOptions::new().read(true).write(true).open(device_path(number))?;
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
        last_error = io::Error::last_os_error();
        if last_error.raw_os_error() != Some(libc::EBUSY) {
            break;
        }
    }
    Err(last_error)
}

const _: () = assert!(size_of::<Configuration>() == 304 && std::mem::offset_of!(Configuration, flags) == 60);
