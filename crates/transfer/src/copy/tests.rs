use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, chown};

use bytes::Bytes;
use tradewind_core::object::Expected;
use tradewind_core::store::StageRequest;
use tradewind_core::testing::{MemoryStore, context};
use tradewind_core::{Budget, ObjectStore, SystemClock};
use tradewind_model::plan::Plan;
use tradewind_model::retry::RetryOptions;

use super::*;
use crate::FileNanos;

const MIB: u64 = 1 << 20;

struct Scene {
    root: tempfile::TempDir,
    store: Arc<MemoryStore>,
}

impl Scene {
    async fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        for name in ["from", "to"] {
            fs::create_dir(root.path().join(name)).unwrap();
        }
        let store = MemoryStore::new(SystemClock::shared());
        store.create_bucket(&context(), &Address::parse("bucket", "a").unwrap().bucket).await.unwrap();
        Self { root, store }
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.root.path().join(name)
    }

    fn directory(&self, name: &str) -> Endpoint {
        Endpoint::Files(Directory::new(self.path(name)).unwrap(), Links::Skip)
    }

    fn objects(&self) -> Endpoint {
        Endpoint::Objects(Objects {
            store: self.store.clone(),
            scheme: "s3".into(),
            bucket: Address::parse("bucket", "a").unwrap().bucket,
            prefix: String::new(),
            directory: None,
        })
    }

    async fn put(&self, name: &str, bytes: &[u8]) {
        let address = Address::parse("bucket", name).unwrap();
        let mut staged = self.store.stage(&context(), &address, StageRequest::default()).await.unwrap();
        staged.write(Bytes::copy_from_slice(bytes)).await.unwrap();
        staged.commit(Expected::default()).await.unwrap();
    }

    /// Copies `a` from `from` to the directory `to`.
    async fn copy(&self, from: Endpoint, size: u64, preserves_attributes: bool) -> Arc<Progress> {
        let plan = Plan::default().with_chunk_bytes(MIB);
        let (memory, clock) = (Budget::new(64 << 20), SystemClock::shared());
        let transfers = TransferContext::new(plan, memory, clock, RetryOptions::disabled());
        let copier = Copier {
            from,
            to: self.directory("to"),
            transfers: Arc::new(transfers),
            progress: Arc::default(),
            journals: None,
            preserves_attributes,
            classes: Default::default(),
        };
        let (name, modified) = ("a".to_owned(), Timestamp::default());
        let nanos = FileNanos::default();
        let item = Item { name, size, modified, changed: None, nanos, version: None };
        assert_eq!(copier.copy(&item).await.unwrap(), size);
        copier.progress.clone()
    }

    fn mode(&self, name: &str) -> u32 {
        fs::metadata(self.path(name)).unwrap().mode() & 0o7777
    }
}

#[tokio::test]
async fn replaced_file_keeps_its_mode_and_owner() {
    let is_root = rustix::process::geteuid().is_root();
    // A small file is unnamed until it is finished, a large one has a temporary name.
    for size in [5, 9 * MIB] {
        let bytes = vec![7; usize::try_from(size).unwrap()];
        for (old, expected) in [(0o600, 0o600), (0o664, 0o664), (0o755, 0o755), (0o6751, 0o751)] {
            let scene = Scene::new().await;
            let place = |name: &str, mode| {
                fs::write(scene.path(name), &bytes).unwrap();
                fs::set_permissions(scene.path(name), Permissions::from_mode(mode)).unwrap();
            };
            place("from/a", 0o640);
            scene.put("a", &bytes).await;
            for from in [scene.directory("from"), scene.objects()] {
                place("to/a", 0o644);
                if is_root {
                    chown(scene.path("to/a"), Some(12), Some(34)).unwrap();
                }
                fs::set_permissions(scene.path("to/a"), Permissions::from_mode(old)).unwrap();
                let inode = fs::metadata(scene.path("to/a")).unwrap().ino();
                scene.copy(from, size, false).await;
                let found = fs::metadata(scene.path("to/a")).unwrap();
                assert_ne!(found.ino(), inode, "it is replaced atomically");
                assert_eq!(scene.mode("to/a"), expected, "{old:o} {size}");
                if is_root {
                    assert_eq!((found.uid(), found.gid()), (12, 34));
                }
            }
            // Attributes that are preserved have precedence.
            scene.copy(scene.directory("from"), size, true).await;
            assert_eq!(scene.mode("to/a"), 0o640);
        }
    }
}

#[tokio::test]
async fn new_file_and_replaced_link_have_the_default_mode() {
    let scene = Scene::new().await;
    fs::write(scene.path("from/a"), "new").unwrap();
    fs::write(scene.path("plain"), "").unwrap();
    let expected = scene.mode("plain");
    scene.copy(scene.directory("from"), 3, false).await;
    assert_eq!(scene.mode("to/a"), expected);
    fs::remove_file(scene.path("to/a")).unwrap();
    fs::set_permissions(scene.path("plain"), Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::symlink(scene.path("plain"), scene.path("to/a")).unwrap();
    scene.copy(scene.directory("from"), 3, false).await;
    assert!(!fs::symlink_metadata(scene.path("to/a")).unwrap().is_symlink());
    assert_eq!((scene.mode("to/a"), scene.mode("plain")), (expected, 0o600));
}

/// Writes data at 0, in the middle and, with `has_end`, at the end of 1 GiB.
fn write_sparse(file: &File, has_end: bool) {
    file.write_all_at(&[1; 5000], 0).unwrap();
    file.write_all_at(&[2; 70_000], 400 * MIB + 77).unwrap();
    if has_end {
        file.write_all_at(&[3; 10], 1024 * MIB - 10).unwrap();
    }
    file.set_len(1024 * MIB).unwrap();
}

#[tokio::test]
async fn holes_of_files_remain_holes() {
    for has_end in [false, true] {
        let scene = Scene::new().await;
        write_sparse(&File::create(scene.path("from/a")).unwrap(), has_end);
        let blocks = |name: &str| fs::metadata(scene.path(name)).unwrap().blocks();
        if blocks("from/a") > 1000 {
            eprintln!("skipped: this file system has no holes");
            return;
        }
        let progress = scene.copy(scene.directory("from"), 1024 * MIB, false).await;
        assert_eq!(progress.snapshot().done_bytes, 1024 * MIB);
        assert!(blocks("to/a") <= blocks("from/a") + 16, "{} {}", blocks("to/a"), blocks("from/a"));
        let (from, to) = (File::open(scene.path("from/a")).unwrap(), File::open(scene.path("to/a")).unwrap());
        assert_eq!(to.metadata().unwrap().len(), 1024 * MIB);
        let (mut own, mut others) = (vec![0; 4 << 20], vec![0; 4 << 20]);
        for offset in (0..1024 * MIB).step_by(4 << 20) {
            from.read_exact_at(&mut own, offset).unwrap();
            to.read_exact_at(&mut others, offset).unwrap();
            assert!(own == others, "at {offset}");
        }
    }
}

#[tokio::test]
async fn file_that_is_a_hole_is_copied() {
    let scene = Scene::new().await;
    File::create(scene.path("from/a")).unwrap().set_len(20 * MIB).unwrap();
    scene.copy(scene.directory("from"), 20 * MIB, false).await;
    let found = fs::read(scene.path("to/a")).unwrap();
    assert!(found.len() == 20 << 20 && found.iter().all(|byte| *byte == 0));
    assert!(fs::metadata(scene.path("to/a")).unwrap().blocks() <= 16);
}

/// A block of zeros at each place, data around it, and an incomplete block at the end.
#[tokio::test]
async fn zeros_of_a_sparse_file_are_copied_at_each_offset() {
    for start in [0, 1, 4095, 4096, 4097, 300_000] {
        let scene = Scene::new().await;
        let file = File::create(scene.path("from/a")).unwrap();
        file.write_all_at(&[1; 4096 * 3], start).unwrap();
        file.write_all_at(&[0; 4096 * 5], start + 5000).unwrap();
        file.write_all_at(&[2], start + 40_000).unwrap();
        let size = 8 * MIB + 17 + start;
        file.set_len(size).unwrap();
        let progress = scene.copy(scene.directory("from"), size, false).await;
        assert!(fs::read(scene.path("from/a")).unwrap() == fs::read(scene.path("to/a")).unwrap(), "{start}");
        assert_eq!(progress.snapshot().done_bytes, size);
    }
}

/// The list `user::rw-,user:1234:r--,group::---,mask::r--,other::---`.
fn acl() -> Vec<u8> {
    const NO_ID: u32 = u32::MAX;
    let mut acl = 2_u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in
        [(1_u16, 6_u16, NO_ID), (2, 4, 1234), (4, 0, NO_ID), (16, 4, NO_ID), (32, 0, NO_ID)]
    {
        acl.extend(tag.to_le_bytes());
        acl.extend(permissions.to_le_bytes());
        acl.extend(id.to_le_bytes());
    }
    acl
}

#[tokio::test]
async fn replaced_file_keeps_its_access_control_list() {
    use rustix::fs::{XattrFlags, getxattr, setxattr};
    const ACCESS: &str = "system.posix_acl_access";
    for size in [5, 9 * MIB] {
        let scene = Scene::new().await;
        let bytes = vec![7; usize::try_from(size).unwrap()];
        scene.put("a", &bytes).await;
        fs::write(scene.path("from/a"), &bytes).unwrap();
        let acl_of = |name: &str| {
            let mut value = vec![0; 1000];
            getxattr(scene.path(name), ACCESS, &mut value[..]).ok().map(|length| value[..length].to_vec())
        };
        for from in [scene.directory("from"), scene.objects()] {
            fs::write(scene.path("to/a"), "old").unwrap();
            if let Err(e) = setxattr(scene.path("to/a"), ACCESS, &acl(), XattrFlags::empty()) {
                eprintln!("skipped: no access control lists ({e})");
                return;
            }
            scene.copy(from, size, false).await;
            assert_eq!((acl_of("to/a"), scene.mode("to/a")), (Some(acl()), 0o640));
            assert_eq!(fs::metadata(scene.path("to/a")).unwrap().len(), size);
        }
        // The list that the directory gives to new files is none of the replaced file.
        fs::remove_file(scene.path("to/a")).unwrap();
        fs::write(scene.path("to/a"), "old").unwrap();
        fs::set_permissions(scene.path("to/a"), Permissions::from_mode(0o660)).unwrap();
        setxattr(scene.path("to"), "system.posix_acl_default", &acl(), XattrFlags::empty()).unwrap();
        scene.copy(scene.directory("from"), size, false).await;
        assert_eq!((acl_of("to/a"), scene.mode("to/a")), (None, 0o660));
    }
}
