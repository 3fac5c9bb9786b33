//! `--include` and `--exclude`, evaluated in their order on the command line.

use clap::{ArgMatches, Args, Command, Error, FromArgMatches};
use tradewind_transfer::filter::Filter;

/// The patterns in order. The last pattern that matches a name decides. clap's derive does not preserve the order of
/// two flags, so the flags are parsed by hand.
#[derive(Debug, Clone, Default)]
pub(super) struct FilterFlags {
    rules: Vec<(bool, String)>,
}

/// The flags as declared to clap.
#[derive(Debug, Args)]
struct DeclaredFlags {
    /// Include names that match, despite an earlier --exclude; * and ? also match slashes, and the last match decides
    #[arg(long, value_name = "PATTERN")]
    include: Vec<String>,
    /// Skip names that match
    #[arg(long, value_name = "PATTERN")]
    exclude: Vec<String>,
}

impl FilterFlags {
    /// The filter. An error names the invalid pattern.
    pub fn read(&self) -> anyhow::Result<Filter> {
        let mut filter = Filter::accept_all();
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
            let indices = matches.indices_of(flag).into_iter().flatten();
            let patterns = matches.get_many::<String>(flag).into_iter().flatten();
            rules.extend(indices.zip(patterns).map(|(index, pattern)| (index, (includes, pattern.clone()))));
        }
        rules.sort_by_key(|(index, _)| *index);
        Ok(Self { rules: rules.into_iter().map(|(_, rule)| rule).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Args for FilterFlags {
    fn augment_args(command: Command) -> Command {
        DeclaredFlags::augment_args(command)
    }

    fn augment_args_for_update(command: Command) -> Command {
        DeclaredFlags::augment_args_for_update(command)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct FilterLine {
        #[command(flatten)]
        filter: FilterFlags,
    }

    #[test]
    fn last_matching_flag_decides() {
        let takes = |line: &str, name: &str| {
            let line = FilterLine::try_parse_from(std::iter::once("x").chain(line.split(' '))).unwrap();
            line.filter.read().unwrap().accepts(name)
        };
        assert!(takes("--exclude * --include *.jpg", "a.jpg"));
        assert!(!takes("--include *.jpg --exclude *", "a.jpg"));
        assert!(!takes("--exclude a --include b --exclude b", "b"));
    }
}
