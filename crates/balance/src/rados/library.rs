//! The C functions of librados, loaded at run time: every host of Ceph has the library, and no build needs it.
//!
//! All unsafe code of this crate is here. A [`Connection`] owns its handle, and no pointer leaves this module.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::ptr;
use std::sync::OnceLock;

const FILE_NAME: &CStr = c"librados.so.2";

/// A handle of a cluster (`rados_t`).
type Handle = *mut c_void;
type CreateFn = unsafe extern "C" fn(*mut Handle, *const c_char) -> c_int;
type ReadConfigFn = unsafe extern "C" fn(Handle, *const c_char) -> c_int;
type SetConfigFn = unsafe extern "C" fn(Handle, *const c_char, *const c_char) -> c_int;
type ConnectFn = unsafe extern "C" fn(Handle) -> c_int;
type ShutdownFn = unsafe extern "C" fn(Handle);
type FreeFn = unsafe extern "C" fn(*mut c_char);
/// `rados_mon_command` and `rados_mgr_command`: handle, commands and their number, input and its length, output and its
/// length, status and its length.
type CommandFn = unsafe extern "C" fn(
    Handle,
    *mut *const c_char,
    usize,
    *const c_char,
    usize,
    *mut *mut c_char,
    *mut usize,
    *mut *mut c_char,
    *mut usize,
) -> c_int;

/// The functions. The library is never unloaded.
struct Library {
    create: CreateFn,
    read_config: ReadConfigFn,
    set_config: SetConfigFn,
    connect: ConnectFn,
    shutdown: ShutdownFn,
    free: FreeFn,
    mon_command: CommandFn,
    mgr_command: CommandFn,
}

/// The daemons that respond to a command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    Monitors,
    Manager,
}

/// An error of librados.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Failure {
    /// The number of the error, above 0.
    pub errno: i32,
    /// The status that the cluster returned; may be empty.
    pub message: String,
}

impl Library {
    /// Loads the library once per process. The error says why it cannot be used.
    fn get() -> Result<&'static Self, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(Self::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Self, String> {
        // SAFETY: the name is a C string. The constructors of the library that Ceph publishes have no preconditions.
        let library = unsafe { libc::dlopen(FILE_NAME.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        if library.is_null() {
            return Err(format!("cannot load {}", FILE_NAME.to_string_lossy()));
        }
        let find = |name: &CStr| {
            // SAFETY: the handle comes from `dlopen` and is never closed; the name is a C string.
            let symbol = unsafe { libc::dlsym(library, name.as_ptr()) };
            if symbol.is_null() {
                let (file, name) = (FILE_NAME.to_string_lossy(), name.to_string_lossy());
                return Err(format!("{file} has no function {name}"));
            }
            Ok(symbol)
        };
        // SAFETY: each symbol is the function of this name, and each type is that of its declaration in librados.h, which is
        // stable for the version 2 of the library.
        unsafe {
            Ok(Self {
                create: std::mem::transmute::<*mut c_void, CreateFn>(find(c"rados_create")?),
                read_config: std::mem::transmute::<*mut c_void, ReadConfigFn>(find(c"rados_conf_read_file")?),
                set_config: std::mem::transmute::<*mut c_void, SetConfigFn>(find(c"rados_conf_set")?),
                connect: std::mem::transmute::<*mut c_void, ConnectFn>(find(c"rados_connect")?),
                shutdown: std::mem::transmute::<*mut c_void, ShutdownFn>(find(c"rados_shutdown")?),
                free: std::mem::transmute::<*mut c_void, FreeFn>(find(c"rados_buffer_free")?),
                mon_command: std::mem::transmute::<*mut c_void, CommandFn>(find(c"rados_mon_command")?),
                mgr_command: std::mem::transmute::<*mut c_void, CommandFn>(find(c"rados_mgr_command")?),
            })
        }
    }
}

/// A connection to a cluster. Its calls block; without a monitor they do not return.
pub(super) struct Connection {
    library: &'static Library,
    handle: Handle,
}

// SAFETY: librados allows the use of a handle by any thread. The connection is its only owner.
unsafe impl Send for Connection {}

impl Connection {
    /// Creates a handle for a user, and reads a configuration file; `None` for the default. The error says what cannot be
    /// done.
    pub fn create(user: &str, config: Option<&Path>) -> Result<Self, String> {
        let library = Library::get()?;
        let user = c_string(user)?;
        let mut handle: Handle = ptr::null_mut();
        // SAFETY: the function writes a handle to the first pointer, and copies the C string.
        let created = unsafe { (library.create)(&raw mut handle, user.as_ptr()) };
        check(created).map_err(|errno| format!("cannot create a handle: {}", errno_name(errno)))?;
        let connection = Self { library, handle };
        let path = config.map(|path| c_string(path.as_os_str().as_encoded_bytes())).transpose()?;
        let path = path.as_ref().map_or(ptr::null(), |path| path.as_ptr());
        // SAFETY: the handle is open; the path is null, for the default, or a C string that outlives the call.
        let read = unsafe { (library.read_config)(connection.handle, path) };
        check(read).map_err(|errno| format!("cannot read the configuration: {}", errno_name(errno)))?;
        Ok(connection)
    }

    /// Sets an option of the configuration.
    pub fn set(&self, option: &str, value: &str) -> Result<(), String> {
        let (name, text) = (c_string(option)?, c_string(value)?);
        // SAFETY: the handle is open; both are C strings that outlive the call.
        let set = unsafe { (self.library.set_config)(self.handle, name.as_ptr(), text.as_ptr()) };
        check(set).map_err(|errno| format!("cannot set the option {option}: {}", errno_name(errno)))
    }

    /// Connects to a monitor. Returns after `client_mount_timeout` at the latest.
    pub fn connect(&self) -> Result<(), Failure> {
        // SAFETY: the handle is open and has a configuration.
        let connected = unsafe { (self.library.connect)(self.handle) };
        check(connected).map_err(|errno| Failure { errno, message: String::new() })
    }

    /// Runs a command, which is a JSON object, and returns its output.
    pub fn command(&self, target: Target, command: &str) -> Result<Vec<u8>, Failure> {
        let invalid = |message: String| Failure { errno: libc::EINVAL, message };
        let command = c_string(command).map_err(invalid)?;
        let function = match target {
            Target::Monitors => self.library.mon_command,
            Target::Manager => self.library.mgr_command,
        };
        let mut commands = [command.as_ptr()];
        let (mut output, mut output_length) = (ptr::null_mut(), 0);
        let (mut status, mut status_length) = (ptr::null_mut(), 0);
        // SAFETY: the handle is connected. The array has one C string, there is no input, and the four pointers for the
        // results are valid for writes. All of them outlive the call.
        let result = unsafe {
            function(
                self.handle,
                commands.as_mut_ptr(),
                commands.len(),
                ptr::null(),
                0,
                &raw mut output,
                &raw mut output_length,
                &raw mut status,
                &raw mut status_length,
            )
        };
        let output = self.take_buffer(output, output_length);
        let message = self.take_buffer(status, status_length);
        let message = String::from_utf8_lossy(&message).trim().to_owned();
        check(result).map(|()| output).map_err(|errno| Failure { errno, message })
    }

    /// Copies a buffer that librados allocated, and frees it.
    fn take_buffer(&self, buffer: *mut c_char, length: usize) -> Vec<u8> {
        if buffer.is_null() {
            return Vec::new();
        }
        // SAFETY: librados allocated this number of initialized bytes. They are copied before they are freed, and freed once.
        unsafe {
            let bytes = std::slice::from_raw_parts(buffer.cast::<u8>(), length).to_vec();
            (self.library.free)(buffer);
            bytes
        }
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        // SAFETY: the handle is open, also if it was never connected, and it is not used afterwards.
        unsafe { (self.library.shutdown)(self.handle) }
    }
}

/// Ends the process at once, without the destructors of libraries. A thread of librados that waits for a monitor may
/// still use what these destroy.
pub fn exit_now(status: u8) -> ! {
    // SAFETY: `_exit` has no preconditions.
    unsafe { libc::_exit(i32::from(status)) }
}

fn c_string(text: impl Into<Vec<u8>>) -> Result<CString, String> {
    CString::new(text).map_err(|_| "a parameter has a zero byte".to_owned())
}

/// The number of an error, if a result is one.
fn check(result: c_int) -> Result<(), i32> {
    if result < 0 { Err(-result) } else { Ok(()) }
}

/// The name of an error, as the command `ceph` prints it.
pub(super) fn errno_name(errno: i32) -> String {
    let name = match errno {
        libc::EPERM => "EPERM",
        libc::ENOENT => "ENOENT",
        libc::EIO => "EIO",
        libc::E2BIG => "E2BIG",
        libc::EAGAIN => "EAGAIN",
        libc::EACCES => "EACCES",
        libc::EBUSY => "EBUSY",
        libc::EEXIST => "EEXIST",
        libc::EINVAL => "EINVAL",
        libc::ENOTSUP => "EOPNOTSUPP",
        libc::ETIMEDOUT => "ETIMEDOUT",
        libc::ENOTCONN => "ENOTCONN",
        other => return format!("E{other}"),
    };
    name.to_owned()
}
