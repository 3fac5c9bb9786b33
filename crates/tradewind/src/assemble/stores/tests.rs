use std::time::Duration;

use tradewind_core::SystemClock;
use tradewind_model::class_policy::ClassChanges;

use super::super::open_stores;
use super::*;
use crate::settings::Inputs;

/// Opens what these settings serve, with relative paths in `directory`.
async fn serve(directory: &tempfile::TempDir, text: &str) -> ServedStores {
    let file = Some((directory.path().join("tw.toml"), text.to_owned()));
    let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let opened = open_stores(&settings, false, &clock).unwrap();
    ServedStores::new(&settings, opened, &clock).await.unwrap()
}

const DISK: &str = "[store.disk]\ntype = \"local\"\npath = \"disk\"\n";

/// The new settings may have another stack; the one that runs decides.
#[tokio::test]
async fn encryption_that_the_running_stack_cannot_give_is_not_reloaded() {
    let changes = ClassChanges { encrypt: Some(true), ..ClassChanges::default() };
    let class = tradewind_core::Class::new(25).unwrap();
    let mut policies = ClassPolicyTable::default();
    policies.set(class, changes);
    let policies = Arc::new(policies);
    let tier = "[store.ssd]\ntype = \"local\"\npath = \"ssd\"\n";
    let transformed = "{ transformed = { key = \"main\", keys = { main = \"main.key\" } } }";
    let routed = "{ routed = { tiers = [\"ssd\"], classes = { ssd = [25] } } }";
    let cases = [
        (format!("{DISK}[volume.v]\nstack = [\"disk\"]\n"), "no volume encrypts"),
        (format!("{DISK}{tier}[volume.v]\nstack = [{routed}, {transformed}, \"disk\"]\n"), "has tiers"),
    ];
    for (text, expected) in cases {
        let directory = tempfile::tempdir().unwrap();
        let key = directory.path().join("main.key");
        std::fs::write(&key, "07".repeat(32)).unwrap();
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
        let served = serve(&directory, &text).await;
        let error = served.set_class_policies(&policies).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
        served.store.close().await.unwrap();
    }
}

#[tokio::test]
async fn a_single_volume_has_no_layer_for_volumes() {
    let directory = tempfile::tempdir().unwrap();
    let served = serve(&directory, &format!("{DISK}[volume.v]\nstack = [\"disk\"]\n")).await;
    assert!(served.volumes.is_none() && served.each_volume().len() == 1);
    assert_eq!(served.store.capabilities().kind, "local");
    assert_eq!((served.max_requests(), served.max_connections()), (None, 0));
    served.store.close().await.unwrap();
}

#[tokio::test]
async fn read_only_volume_is_served_without_changes() {
    let directory = tempfile::tempdir().unwrap();
    let bucket = tradewind_core::BucketName::new("bucket").unwrap();
    let context = tradewind_core::testing::context();
    let stack = |write: &str| {
        let cache = "disk = \"cache\", size = \"64MiB\", memory = \"1MiB\", policy = \"lru\"";
        format!("{DISK}[volume.v]\nstack = [{{ cached = {{ {cache}, write = {write:?} }} }}, \"disk\"]\n")
    };
    let served = serve(&directory, &stack("through")).await;
    served.store.create_bucket(&context, &bucket).await.unwrap();
    served.store.close().await.unwrap();
    drop(served);
    let served = serve(&directory, &stack("read-only")).await;
    served.store.head_bucket(&context, &bucket).await.unwrap();
    let error = served.store.delete_bucket(&context, &bucket).await.unwrap_err();
    assert_eq!(error.reason(), tradewind_core::Reason::AccessDenied);
    served.store.head_bucket(&context, &bucket).await.unwrap();
    served.store.close().await.unwrap();
}

/// A journal is drained once it is open, before all volumes are stacked.
#[tokio::test]
async fn journal_is_drained_by_the_policies_of_the_start() {
    let directory = tempfile::tempdir().unwrap();
    let key = directory.path().join("main.key");
    std::fs::write(&key, "07".repeat(32)).unwrap();
    std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let transformed = "{ transformed = { key = \"main\", keys = { main = \"main.key\" } } }";
    let cached = "{ cached = { disk = \"c\", size = \"64MiB\", memory = \"1MiB\", write = \"back\" } }";
    let text = format!("{DISK}[volume.v]\nstack = [{cached}, {transformed}, \"disk\"]\n");
    let context = tradewind_core::testing::context();
    let address = tradewind_core::Address::parse("bucket", "mail").unwrap();
    let served = serve(&directory, &text).await;
    served.store.create_bucket(&context, &address.bucket).await.unwrap();
    let mut request = tradewind_core::store::StageRequest { size: Some(4), ..Default::default() };
    request.metadata.classes.object = Some(tradewind_core::Class::new(25).unwrap());
    let mut staged = served.store.stage(&context, &address, request).await.unwrap();
    staged.write("text".into()).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    assert_eq!(served.layers.write_backs[0].layer.status().dirty_objects, 1);
    // Lost: nothing is written back.
    drop(served);

    let text = format!("{text}[class.25]\nencrypt = true\n");
    let file = Some((directory.path().join("tw.toml"), text));
    let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let policies = Arc::new(settings.named.class_policies());
    let mut attempts = 0;
    let (stores, mut layers) = loop {
        let mut layers = VolumeLayers::default();
        let stacked = async {
            let opened = open_stores(&settings, false, &clock)?.remove(0);
            let stores = vec![StackedStore::new(&settings, opened, &mut DiskQueues::default(), &clock)?];
            let volume = settings.served_volumes()?.remove(0);
            stack_volume(&volume, None, &stores, &policies, &mut layers, &clock).await?;
            anyhow::Ok(stores)
        };
        match stacked.await {
            Ok(stores) => break (stores, layers),
            // Tasks of the lost server end.
            Err(error) if attempts < 4000 && format!("{error:#}").contains("process") => {
                attempts += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            Err(error) => panic!("{error:#}"),
        }
    };
    let write_back = layers.write_backs.remove(0).layer;
    while write_back.status().dirty_objects > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let found = stores[0].top().head(&context, &address, Default::default()).await.unwrap();
    assert!(found.info.stored.is_some(), "the store below has plain text");
}

/// Its data could replace newer data of the other volume.
#[tokio::test]
async fn journal_of_an_earlier_start_needs_its_store_alone() {
    let directory = tempfile::tempdir().unwrap();
    let cached = |write: &str| {
        format!("{{ cached = {{ disk = \"c\", size = \"64MiB\", memory = \"1MiB\", write = {write:?} }} }}")
    };
    let volume = |write: &str| format!("{DISK}[volume.v]\nstack = [{}, \"disk\"]\n", cached(write));
    let context = tradewind_core::testing::context();
    let address = tradewind_core::Address::parse("bucket", "key").unwrap();
    let served = serve(&directory, &volume("back")).await;
    served.store.create_bucket(&context, &address.bucket).await.unwrap();
    let request = tradewind_core::store::StageRequest { size: Some(4), ..Default::default() };
    let mut staged = served.store.stage(&context, &address, request).await.unwrap();
    staged.write("text".into()).await.unwrap();
    staged.commit(Default::default()).await.unwrap();
    assert_eq!(served.layers.write_backs[0].layer.status().dirty_objects, 1);
    // Lost: nothing is written back.
    drop(served);
    let plain = "[volume.plain]\nstack = [\"disk\"]\n[bucket.logs]\nvolume = \"plain\"\n";
    let text = format!("default_volume = \"v\"\n{}{plain}", volume("through"));
    let file = Some((directory.path().join("tw.toml"), text.clone()));
    let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let mut attempts = 0;
    let refused = loop {
        let refused = async {
            let opened = open_stores(&settings, false, &clock)?;
            ServedStores::new(&settings, opened, &clock).await
        };
        match format!("{:#}", refused.await.unwrap_err()) {
            // Tasks of the lost server end.
            why if attempts < 4000 && why.contains("process") => {
                attempts += 1;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            why => break why,
        }
    };
    assert!(
        refused.contains("not written back") && refused.contains("without the volume \"plain\""),
        "{refused}"
    );
    let served = serve(&directory, &volume("through")).await;
    while served.layers.write_backs[0].layer.status().dirty_objects > 0 {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    served.store.close().await.unwrap();
    drop(served);
    serve(&directory, &text).await.store.close().await.unwrap();
}

#[tokio::test]
async fn a_store_of_several_volumes_is_opened_once() {
    let directory = tempfile::tempdir().unwrap();
    let volumes =
        "[volume.v]\nstack = [\"disk\"]\n[volume.w]\nstack = [\"disk\"]\n[bucket.photos]\nvolume = \"w\"\n";
    let served = serve(&directory, &format!("default_volume = \"v\"\n{DISK}{volumes}")).await;
    assert_eq!((served.stores.len(), served.each_volume().len()), (1, 2));
    let volumes = served.volumes.clone().unwrap();
    let photos = tradewind_core::BucketName::new("photos").unwrap();
    assert_eq!(volumes.volume_name(&photos), "w");
    served.store.close().await.unwrap();
}

#[tokio::test]
async fn stores_on_one_device_share_its_scheduler_and_get_shares_of_classes() {
    let directory = tempfile::tempdir().unwrap();
    let store = |name: &str, slices: &str| {
        format!(
            "[store.{name}]\ntype = \"local\"\npath = {name:?}\n{slices}[volume.{name}]\nstack = [{name:?}]\n"
        )
    };
    let (slices, faster) = ("slices = {}\n", "slices = { throughput = \"200MB\" }\n");
    let text = format!(
        "default_volume = \"one\"\n{}{}{}[class.25]\nshare = 3\n",
        store("one", slices),
        store("two", slices),
        store("three", "")
    );
    let served = serve(&directory, &text).await;
    let is_sliced: Vec<bool> = served.stores.iter().map(|store| store.sliced.is_some()).collect();
    assert_eq!(is_sliced, [true, true, false]);
    let disks: Vec<_> = served.layers.sliced.iter().map(|sliced| sliced.disk().clone()).collect();
    assert!(Arc::ptr_eq(&disks[0], &disks[1]));
    let class = tradewind_core::Class::new(25).unwrap();
    let shares = served.layers.sliced.iter().map(|sliced| sliced.policies().stream_share(class).weight.get());
    assert_eq!(shares.collect::<Vec<_>>(), [3, 3]);
    served.store.close().await.unwrap();

    let directory = tempfile::tempdir().unwrap();
    let text = format!("default_volume = \"one\"\n{}{}", store("one", slices), store("two", faster));
    let file = Some((directory.path().join("tw.toml"), text));
    let settings = Settings::read(&Inputs { file, ..Inputs::default() }).unwrap();
    let clock: Arc<dyn Clock> = SystemClock::shared();
    let opened = open_stores(&settings, false, &clock).unwrap();
    let refused = ServedStores::new(&settings, opened, &clock).await.unwrap_err();
    assert!(refused.to_string().contains("have different slices"), "{refused}");
}

#[tokio::test]
async fn background_changes_leave_out_a_read_only_volume() {
    let directory = tempfile::tempdir().unwrap();
    let cached =
        "{ cached = { disk = \"ssd\", size = \"64MiB\", memory = \"1MiB\", write = \"read-only\" } }";
    let read_only = format!("[volume.fixed]\nstack = [{cached}, \"disk\"]\n");
    let served = serve(&directory, &format!("{DISK}{read_only}")).await;
    assert_eq!((served.each_volume().len(), served.each_writable_volume().len()), (1, 0));
    served.store.close().await.unwrap();
    drop(served);
    let more = "[store.two]\ntype = \"local\"\npath = \"two\"\n[volume.w]\nstack = [\"two\"]\n";
    for default in ["fixed", "w"] {
        let directory = tempfile::tempdir().unwrap();
        let more = format!("{more}[bucket.kept]\nvolume = \"w\"\n");
        let served =
            serve(&directory, &format!("default_volume = {default:?}\n{DISK}{read_only}{more}")).await;
        assert_eq!(served.each_volume().len(), 2);
        let [writable] = served.each_writable_volume().try_into().unwrap();
        let kept = tradewind_core::BucketName::new("kept").unwrap();
        writable.create_bucket(&tradewind_core::testing::context(), &kept).await.unwrap();
        served.store.close().await.unwrap();
    }
}

#[tokio::test]
async fn only_uploads_in_local_stores_expire_by_default() {
    let far = "[store.far]\ntype = \"s3\"\nendpoint = \"http://127.0.0.1:1\"\n";
    let tiered = "{ routed = { tiers = [\"far\"], classes = { far = [25] } } }";
    for (stack, expected) in [
        ("\"disk\"".to_owned(), vec![None]),
        ("\"far\"".to_owned(), vec![]),
        (format!("{tiered}, \"disk\""), vec![Some("disk".to_owned())]),
    ] {
        let directory = tempfile::tempdir().unwrap();
        let served = serve(&directory, &format!("{DISK}{far}[volume.v]\nstack = [{stack}]\n")).await;
        assert_eq!(served.each_writable_volume().len(), 1, "{stack}");
        let local = served.expiring_stores(true).into_iter().map(|expiring| expiring.tier);
        assert_eq!(local.collect::<Vec<_>>(), expected, "{stack}");
        let all = served.expiring_stores(false);
        assert!(all.len() == 1 && all[0].tier.is_none(), "{stack}");
        served.store.close().await.unwrap();
    }
}

#[tokio::test]
async fn requests_are_limited_by_the_smallest_service() {
    let directory = tempfile::tempdir().unwrap();
    let service = |name: &str, connections: usize| {
        format!(
            "[store.{name}]\ntype = \"swift\"\nopenrc = \"rc\"\nmax_connections = {connections}\n\
             [volume.{name}]\nstack = [{name:?}]\n"
        )
    };
    let rc = "export ST_AUTH=http://127.0.0.1:1/auth\nexport ST_USER=a:b\nexport ST_KEY=c\n";
    std::fs::write(directory.path().join("rc"), rc).unwrap();
    let disk = format!("{DISK}[volume.disk]\nstack = [\"disk\"]\n");
    let text = format!("default_volume = \"disk\"\n{disk}{}{}", service("one", 40), service("two", 12));
    let served = serve(&directory, &text).await;
    assert_eq!((served.max_requests(), served.max_connections()), (Some(12), 52));
    served.store.close().await.unwrap();
}
