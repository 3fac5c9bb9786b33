//! `[class.N]`: policies of classes.

use tradewind_core::Class;
use tradewind_model::class_policy::ClassWrite;

use super::*;

const STORE: &str = "[store.ssd]\ntype = \"local\"\npath = \"p\"\n";

fn class(value: u8) -> Class {
    Class::new(value).unwrap()
}

#[test]
fn policies_of_classes_are_read_and_shown() {
    let text = format!(
        "{STORE}[class.25]\nname = \"mail\"\npriority = 1\noccupancy = \"20%\"\nwrite = \"back\"\npin = true\n\
         tier = \"ssd\"\nshare = 4\n[class.31]\noccupancy = \"80%\"\n"
    );
    let settings = read(&text);
    let table = settings.named.class_policies();
    assert_eq!(table.class_by_name("mail"), Some(class(25)));
    assert_eq!(table.priority(class(25)).value(), 1);
    assert_eq!(table.write(class(25)), Some(ClassWrite::Back));
    assert_eq!((table.is_pinned(class(25)), table.tier(class(25))), (true, Some("ssd")));
    let share =
        |value| (table.stream_share(class(value)).class, table.stream_share(class(value)).weight.get());
    assert_eq!((share(25), share(31)), ((Some(25), 4), (None, 1)));
    assert_eq!(table.eviction_policies().get(25).max_occupancy_percent, 20);
    assert_eq!((table.priority(class(31)).value(), table.write(class(31))), (9, None));
    let shown = settings.to_string();
    for line in [
        "class.25.name",
        "class.25.priority",
        "class.25.occupancy",
        "class.25.write",
        "class.25.pin",
        "class.25.tier",
        "class.25.share",
        "class.31.occupancy",
    ] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
}

#[test]
fn invalid_policies_of_classes_name_their_line() {
    for (text, expected) in [
        ("[class.32]\nname = \"a\"", "etc/tw.toml:1: [class.32] does not name a class from 0 to 31"),
        ("[class.mail]\npriority = 1", "write for example [class.25] and name = \"mail\""),
        ("[class.025]\npriority = 1", "does not name a class"),
        (
            "[class.25]\npriority = 12",
            "etc/tw.toml:2: class.25.priority: \"12\" is not a priority from 0 (highest) to 11",
        ),
        ("[class.25]\noccupancy = \"120%\"", "class.25.occupancy: \"120%\" is not a percentage"),
        ("[class.25]\nwrite = \"around\"", "neither \"through\" nor \"back\""),
        ("[class.25]\nname = \"25\"", "and not only digits"),
        ("[class.25]\nname = \"a b\"", "must have letters"),
        ("[class.25]\nname = \"pictures\"", "\"pictures\" is the name of class 26"),
        ("[class.25]\ntier = \"hdd\"", "there is no store \"hdd\""),
        ("[class.5]\npriority = 1", "treated like class 0"),
        ("[class.5]\npin = true", "treated like class 0"),
        (
            "[class.25]\ncompress = true",
            "etc/tw.toml:2: class.25.compress has no effect: no volume has the layer",
        ),
        ("[class.25]\nencrypt = false", "class.25.encrypt has no effect"),
        ("[class.25]\nencrypt = \"yes\"", "class.25.encrypt"),
        ("[class.25]\nshare = 0", "class.25.share: \"0\" is not a whole number above 0"),
        ("[class.25]\nshare = 1001", "class.25.share must be 1 to 1000"),
        ("[class.25]\nreplicas = 2", "planned but not built yet"),
        ("[class.25]\npriorty = 2", "did you mean \"priority\"?"),
        (
            "[class.25]\nname = \"a\"\n[class.26]\nname = \"A\"",
            "etc/tw.toml:4: \"A\" is already the name of class 25",
        ),
        (
            "[class.25]\noccupancy = \"60%\"\n[class.26]\noccupancy = \"50%\"",
            "etc/tw.toml:4: the occupancies of classes are 110% in sum; they must be at most 100%",
        ),
    ] {
        let problems = problem(text);
        assert!(problems.contains(expected), "{text}: {problems}");
    }
}

#[test]
fn changes_of_classes_alone_need_no_restart() {
    let settings = |text: &str| read(&format!("{text}{STORE}"));
    let old = settings("[class.25]\npriority = 1\n");
    assert!(!old.differs_beyond_classes(&settings("\n[class.25]\npriority = 2\n[class.26]\npin = true\n")));
    assert!(old.differs_beyond_classes(&settings("[uploads]\nexpire_after = \"1d\"\n")));
}
