use super::*;

const FILE: Ino = 100;

fn name(text: &str) -> &OsStr {
    OsStr::new(text)
}

/// Directories 2 (`a`) and 3 (`b`) on disk.
fn two_directories() -> Namespace {
    let mut names = Namespace::new();
    names.add_durable(ROOT, name("a"), 2, true);
    names.add_durable(ROOT, name("b"), 3, true);
    names
}

fn crashed(names: &Namespace, mode: CrashMode, seed: u64) -> Namespace {
    let mut names = names.clone();
    names.crash(mode, &mut Rng::new(seed));
    names
}

fn on_disk(names: &Namespace, dir: Ino) -> Vec<&str> {
    names.durable_entries(dir).map_or_else(Vec::new, |e| e.keys().filter_map(|n| n.to_str()).collect())
}

#[test]
fn an_entry_is_durable_by_its_own_directory_only() {
    let mut names = two_directories();
    names.add(2, name("x"), FILE, false);
    names.sync(ROOT, names.mark());
    names.sync(3, names.mark());
    assert!(on_disk(&crashed(&names, CrashMode::DropAll, 0), 2).is_empty());
    names.sync(2, names.mark());
    assert_eq!(on_disk(&crashed(&names, CrashMode::DropAll, 0), 2), ["x"]);
}

#[test]
fn a_sync_stops_at_its_mark() {
    let mut names = two_directories();
    names.add(2, name("x"), FILE, false);
    let mark = names.mark();
    names.add(2, name("y"), FILE + 1, false);
    names.sync(2, mark);
    assert_eq!(on_disk(&names, 2), ["x"]);
}

#[test]
fn a_rename_belongs_to_its_destination_and_is_atomic() {
    let mut names = two_directories();
    names.add_durable(2, name("x"), FILE, false);
    names.rename((2, name("x")), (3, name("y")), FILE, None);
    names.sync(2, names.mark());
    assert_eq!(on_disk(&names, 2), ["x"]);
    for seed in 0..100 {
        let after = crashed(&names, CrashMode::Random, seed);
        assert_eq!(on_disk(&after, 2).len() + on_disk(&after, 3).len(), 1, "seed {seed}");
    }
    names.sync(3, names.mark());
    assert!(on_disk(&names, 2).is_empty());
    assert_eq!(on_disk(&names, 3), ["y"]);
}

#[test]
fn reused_name_implies_the_earlier_rename() {
    let mut names = two_directories();
    names.add_durable(2, name("x"), FILE, false);
    names.rename((2, name("x")), (3, name("y")), FILE, None);
    names.add(2, name("x"), FILE + 1, false);
    names.sync(2, names.mark());
    assert_eq!(names.durable_entries(2).and_then(|e| e.get(name("x"))), Some(&(FILE + 1)));
    assert_eq!(on_disk(&names, 3), ["y"]);
}

#[test]
fn rename_into_a_nondurable_directory_waits_for_it() {
    let mut names = two_directories();
    names.add_durable(2, name("x"), FILE, false);
    names.add(ROOT, name("new"), 4, true);
    names.rename((2, name("x")), (4, name("y")), FILE, None);
    names.sync(4, names.mark());
    assert_eq!(on_disk(&names, 2), ["x"], "the old name stays until the new one is reachable");
    names.sync(ROOT, names.mark());
    assert!(on_disk(&names, 2).is_empty());
    assert_eq!(on_disk(&names, 4), ["y"]);
}

#[test]
fn removed_directory_implies_its_earlier_renames() {
    let mut names = two_directories();
    names.add_durable(2, name("x"), FILE, false);
    names.rename((2, name("x")), (3, name("y")), FILE, None);
    names.remove(ROOT, name("a"), Some(2));
    names.sync(ROOT, names.mark());
    assert_eq!(on_disk(&names, ROOT), ["b"]);
    assert_eq!(on_disk(&names, 3), ["y"]);
}

#[test]
fn directories_moved_into_each_other_never_form_a_cycle() {
    // a/c moves up, then a moves below it; the second move alone would detach both.
    let mut names = two_directories();
    names.add_durable(2, name("c"), 5, true);
    names.rename((2, name("c")), (ROOT, name("c")), 5, None);
    names.rename((ROOT, name("a")), (5, name("a")), 2, None);
    let before = names.clone();
    names.sync(5, names.mark());
    assert_eq!(on_disk(&names, ROOT), ["a", "b"]);
    for seed in 0..200 {
        let after = crashed(&before, CrashMode::Random, seed);
        assert!(on_disk(&after, ROOT).len() >= 2, "seed {seed}: {:?}", on_disk(&after, ROOT));
    }
    names.sync(ROOT, names.mark());
    assert_eq!(on_disk(&names, ROOT), ["b", "c"]);
    assert_eq!(on_disk(&names, 5), ["a"]);
}

#[test]
fn random_crashes_keep_every_subset() {
    let mut names = two_directories();
    for i in 0..4 {
        names.add(2, name(&format!("{i}")), FILE + i, false);
    }
    let seen: BTreeSet<Vec<String>> = (0..500)
        .map(|seed| {
            let after = crashed(&names, CrashMode::Random, seed);
            on_disk(&after, 2).into_iter().map(str::to_owned).collect()
        })
        .collect();
    assert_eq!(seen.len(), 16, "every subset of four creates occurs");
}
