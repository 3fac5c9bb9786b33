use super::*;

const MOUNTS: &str = "22 27 0:21 / /proc rw,relatime - proc proc rw\n\
    32 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw,relatime shared:9 - cgroup cgroup rw,cpu,cpuacct\n\
    41 31 0:38 /docker/7 /sys/fs/cgroup/unified rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n";

#[test]
fn mounts_parses_both_versions() {
    let found = mounts(MOUNTS);
    assert_eq!(found.len(), 2);
    assert_eq!(
        (found[0].version, found[0].has("cpuacct"), found[0].has("memory")),
        (CgroupVersion::V1, true, false)
    );
    assert_eq!((found[1].version, found[1].root.to_str()), (CgroupVersion::V2, Some("/docker/7")));
    assert_eq!(found[1].point, Path::new("/sys/fs/cgroup/unified"));
}

#[test]
fn own_path_selects_the_controllers_line() {
    let text = "4:memory:/a/b\n2:cpu,cpuacct:/\n0::/user.slice/x:y\n";
    assert_eq!(own_path(text, Some("memory")), Some("/a/b".into()));
    assert_eq!(own_path(text, Some("cpuacct")), Some("/".into()));
    assert_eq!(own_path(text, Some("blkio")), None);
    assert_eq!(own_path(text, None), Some("/user.slice/x:y".into()));
}

/// A fake version 2 hierarchy of plain files, removed on drop.
struct Groups(PathBuf);

impl Groups {
    fn new(what: &str) -> Self {
        let root = std::env::temp_dir().join(format!("tradewind-groups-{what}-{}", std::process::id()));
        fs::create_dir(&root).unwrap();
        let groups = Self(root);
        groups.fill("", "1\n2\n", "cpuset cpu memory\n");
        groups
    }

    /// Adds a group with the given processes and available controllers.
    fn add(&self, name: &str, processes: &str, controllers: &str) {
        fs::create_dir(self.0.join(name)).unwrap();
        self.fill(name, processes, controllers);
        fs::write(self.0.join(name).join("cgroup.events"), "populated 1\n").unwrap();
    }

    fn fill(&self, name: &str, processes: &str, controllers: &str) {
        let group = self.0.join(name);
        for (file, holds) in
            [("cgroup.procs", processes), ("cgroup.controllers", controllers), ("cgroup.subtree_control", "")]
        {
            fs::write(group.join(file), holds).unwrap();
        }
    }

    fn given(&self, name: &str) -> String {
        fs::read_to_string(self.0.join(name).join("cgroup.subtree_control")).unwrap()
    }

    /// The hierarchy as seen by a process in a group.
    fn seen_from(&self, own: &str) -> Hierarchy {
        let (mounted, own) = (self.0.clone(), self.0.join(own));
        Hierarchy { version: CgroupVersion::V2, mount_point: mounted, own_group: own, _mount: None }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

const CPU: &[Controller] = &[Controller::Cpu];

#[test]
fn divisible_skips_groups_with_processes() {
    let groups = Groups::new("above");
    groups.add("slice", "", "cpu\n");
    groups.add("slice/session", "7\n", "cpu\n");
    let found = groups.seen_from("slice/session").enable_nearest(CPU).unwrap();
    assert_eq!(found, groups.0.join("slice"));
    assert_eq!((groups.given("slice/session"), groups.given("slice")), (String::new(), "+cpu".to_owned()));
    // The machine's root group may contain processes.
    groups.add("session", "7\n", "cpu\n");
    assert_eq!(groups.seen_from("session").enable_nearest(CPU).unwrap(), groups.0);
}

#[test]
fn divisible_fails_unchanged_if_all_have_processes() {
    let groups = Groups::new("refused");
    // Unlike the machine's, a container's root has this file.
    fs::write(groups.0.join("cgroup.events"), "").unwrap();
    groups.add("session", "7\n", "cpu\n");
    let error = groups.seen_from("session").enable_nearest(CPU).unwrap_err().to_string();
    assert!(error.contains("the group contains processes"), "{error}");
    assert_eq!((groups.given("session"), groups.given("")), (String::new(), String::new()));
}

#[test]
fn enable_rolls_back_on_failure() {
    let groups = Groups::new("all");
    let hierarchy = groups.seen_from("");
    let (path, mut enabled) = (groups.0.join("cgroup.subtree_control"), Vec::new());
    hierarchy.enable_one(&groups.0, "cpu", &mut enabled).unwrap();
    assert_eq!(enabled, [(path.clone(), "cpu")]);
    // An already enabled controller stays.
    fs::write(&path, "cpu memory\n").unwrap();
    hierarchy.enable(&groups.0, &[Controller::Cpu, Controller::Memory]).unwrap();
    assert_eq!(groups.given(""), "cpu memory\n");
    // The parent accepts the change, this group does not.
    groups.add("tradewind-lab-disk-1-0", "", "memory\n");
    fs::write(&path, "").unwrap();
    let within = groups.0.join("tradewind-lab-disk-1-0");
    fs::remove_file(within.join("cgroup.subtree_control")).unwrap();
    fs::create_dir(within.join("cgroup.subtree_control")).unwrap();
    hierarchy.enable(&within, CPU).unwrap_err();
    assert_eq!(groups.given(""), "-cpu");
}

#[test]
fn divisible_stays_within_a_created_group() {
    let groups = Groups::new("within");
    groups.add("tradewind-lab-disk-1-0", "", "memory\n");
    groups.add("tradewind-lab-disk-1-0/command", "7\n", "");
    let hierarchy = groups.seen_from("tradewind-lab-disk-1-0/command");
    let found = hierarchy.enable_nearest(CPU).unwrap();
    assert_eq!(found, groups.0.join("tradewind-lab-disk-1-0"));
    // It was not required there before.
    assert_eq!((groups.given(""), groups.given("tradewind-lab-disk-1-0")), ("+cpu".into(), "+cpu".into()));
}

#[test]
fn nearest_reads_the_closest_ancestors_file() {
    let groups = Groups::new("nearest");
    groups.add("slice", "", "");
    fs::write(groups.0.join("cpuset.cpus.effective"), "0-3\n").unwrap();
    let hierarchy = groups.seen_from("slice");
    assert_eq!(hierarchy.read_nearest("cpuset.cpus.effective").unwrap(), "0-3\n");
    fs::write(groups.0.join("slice/cpuset.cpus.effective"), "2\n").unwrap();
    assert_eq!(hierarchy.read_nearest("cpuset.cpus.effective").unwrap(), "2\n");
    assert!(hierarchy.read_nearest("cpuset.mems.effective").unwrap_err().to_string().contains("slice"));
}

#[test]
fn hierarchy_falls_back_to_root_for_invisible_group() {
    let here = std::env::temp_dir();
    let mounted =
        Mounted { version: CgroupVersion::V1, root: "/c".into(), point: here.clone(), options: Vec::new() };
    for own in [Some("/elsewhere".into()), Some("/c/not-there".into()), Some("/c".into()), None] {
        assert_eq!(mounted.hierarchy(own, None).own_group, here);
    }
}
