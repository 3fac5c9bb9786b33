//! `--include` and `--exclude`, in the order in which they stand on the command line.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use tradewind_transfer::filter::Filter;

/// The flags. Of the patterns that match a name, the last one decides, which clap's derive cannot tell: it keeps no order
/// between two flags.
#[derive(Debug, Clone, Default)]
pub(super) struct FilterFlags {
    rules: Vec<(bool, String)>,
}

/// The flags as clap shows them.
#[derive(Debug, Args)]
struct Shown {
    /// Take names that match after all; * and ? match slashes too, and the last pattern that matches decides
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Pass over names that match
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
}

impl FilterFlags {
    /// The filter; an error names the pattern that is none.
    pub fn read(&self) -> anyhow::Result<Filter> {
        let mut filter = Filter::everything();
        for (includes, pattern) in &self.rules {
            filter.add(pattern, *includes)?;
        }
        Ok(filter)
    }
}

impl FromArgMatches for FilterFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut rules = Vec::new();
        for (flag, includes) in [("include", true), ("exclude", false)] {
            let places = matches.indices_of(flag).into_iter().flatten();
            let patterns = matches.get_many::<String>(flag).into_iter().flatten();
            rules.extend(places.zip(patterns).map(|(place, pattern)| (place, (includes, pattern.clone()))));
        }
        rules.sort_by_key(|(place, _)| *place);
        Ok(Self { rules: rules.into_iter().map(|(_, rule)| rule).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for FilterFlags {
    fn augment_args(command: Command) -> Command {
        Shown::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Shown::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        filter: FilterFlags,
    }

    #[test]
    fn the_order_of_flags_counts() {
        let takes = |line: &str, name: &str| {
            let line = Line::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap();
            line.filter.read().unwrap().takes(name)
        };
        assert!(takes("--exclude * --include *.jpg", "a.jpg"));
        assert!(!takes("--include *.jpg --exclude *", "a.jpg"));
        assert!(!takes("--exclude a --include b --exclude b", "b"));
    }
}
