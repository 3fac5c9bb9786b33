//! Conversion between object keys and relative file paths.

use std::path::{Component, Path, PathBuf};

use tradewind_core::error::{Error, Reason, Result};

/// The relative path of a key. Rejects keys that would leave the directory, and keys whose file would coincide with
/// another key's.
pub fn key_to_path(name: &str) -> Result<PathBuf> {
    let reject =
        |why: &str| Err(Error::new(Reason::InvalidKey, format!("{name:?} cannot be a file's name: {why}")));
    if name.is_empty() {
        return reject("it is empty");
    }
    if name.contains('\0') {
        return reject("it contains a NUL byte");
    }
    for component in name.split('/') {
        match component {
            "" => return reject("it begins or ends with a slash, or has two in a row"),
            "." | ".." => return reject("it has a component that is `.` or `..`"),
            component if component.len() > 255 => {
                return reject("a component of it is longer than 255 bytes");
            }
            _ => {}
        }
    }
    Ok(PathBuf::from(name))
}

/// Returns true for the name of a folder marker: an object whose key is that of the folder, ending in `/`. The name is
/// empty if the folder is the listed one.
#[must_use]
pub fn is_folder_marker(name: &str) -> bool {
    name.is_empty() || name.ends_with('/')
}

/// The relative path of the directory of a folder marker.
pub fn marker_to_path(name: &str) -> Result<PathBuf> {
    match name {
        "" => Ok(PathBuf::new()),
        name => key_to_path(name.strip_suffix('/').unwrap_or(name)),
    }
}

/// The key of a relative path below a directory; an error if the path is not UTF-8.
pub fn path_to_key(path: &Path) -> Result<String> {
    let mut name = String::new();
    for component in path.components() {
        let Component::Normal(component) = component else {
            return Err(Error::new(
                Reason::InvalidKey,
                format!("{} is not below its directory", path.display()),
            ));
        };
        let why = "its name is not UTF-8, as keys must be; rename it";
        let component = component.to_str().ok_or_else(|| Error::new(Reason::InvalidKey, why))?;
        if !name.is_empty() {
            name.push('/');
        }
        name.push_str(component);
    }
    Ok(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn keys_that_are_no_valid_path_are_rejected() {
        for bad in
            ["", "/", "/a", "a/", "a//b", "../a", "a/../b", "a/..", ".", "a/./b", "a\0b", &"x".repeat(256)]
        {
            assert_eq!(key_to_path(bad).unwrap_err().reason(), Reason::InvalidKey, "{bad:?}");
        }
        assert_eq!(key_to_path("a/..b/c.").unwrap(), Path::new("a/..b/c."));
    }

    proptest! {
        #[test]
        fn path_of_a_key_never_leaves_its_directory(name in "[a./\\\\\u{e9}]{0,12}") {
            if let Ok(path) = key_to_path(&name) {
                prop_assert!(path.components().all(|component| matches!(component, Component::Normal(_))));
                prop_assert_eq!(path_to_key(&path).unwrap(), name);
            }
        }
    }
}
