//! Transfers with a low limit of open files.

use super::{files, scene};
use crate::support::scripted_server::Reply;

#[test]
fn every_file_is_transferred_with_few_open_files() {
    const FILES: usize = 400;
    for open_files in [64, 256] {
        let (server, caller) = scene(|_, proper| Reply::Respond(proper));
        let caller = caller.with_open_files(open_files);
        let name = |number: usize| format!("{:02}/{number:03}", number / 50);
        let large = vec![7; 40 << 20];
        (0..FILES).for_each(|number| caller.write(format!("from/{}", name(number)), number.to_string()));
        caller.write("from/large", &large);
        caller.run_ok(&["cp", "-r", "from", "s3://bucket"]);
        for number in 0..FILES {
            let stored = server.object(&name(number));
            assert_eq!(stored, Some(number.to_string().into_bytes()), "{open_files}");
        }
        assert!(server.object("large") == Some(large));
        for command in [
            &["cp", "-r", "s3://bucket", "to"][..],
            &["cp", "-r", "from", "copy"],
            &["sync", "from", "second"],
        ] {
            caller.run_ok(command);
        }
        assert_eq!(files(&caller).len(), 4 * (FILES + 1), "{open_files}");
    }
}
