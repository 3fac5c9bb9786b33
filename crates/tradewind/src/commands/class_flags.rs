//! The flags of `cp` and `sync` that give uploaded files a class of data.

use std::path::PathBuf;

use clap::Args;
use tradewind_core::Class;
use tradewind_transfer::class_rules::{ClassRule, ClassRules};

use super::UsageError;
use super::transfer::AccessFlags;
use crate::locations::Location;
use crate::settings::{Problem, Problems, SettingSource, SettingValue as _, nearest_name, read_class_rules};

/// Flags for the class of uploaded files.
#[derive(Debug, Clone, Args)]
pub(super) struct ClassFlags {
    /// Class of data of uploaded files, 0 to 31 or a name: of [class.N] in the settings file, or files, pictures, music,
    /// video, large and so on
    #[arg(long, value_name = "CLASS", help_heading = "Class of data", conflicts_with = "class_rules")]
    class: Option<String>,
    /// Rules (TOML) that give uploaded files a class by bucket, prefix, glob, content_type, min_size and max_size
    #[arg(long, value_name = "FILE", help_heading = "Class of data")]
    class_rules: Option<PathBuf>,
}

/// Parses a class: a number or a name.
pub(super) fn parse_class(text: &str) -> Result<Class, String> {
    Class::parse(text)
}

/// The class of a number or a name. The settings are read only for names that the default policy does not have.
///
/// # Errors
/// [`UsageError`] if there is no such class; [`Problems`] of the settings.
pub(super) fn find_class(text: &str, access: &AccessFlags) -> anyhow::Result<Class> {
    let why = match parse_class(text) {
        Ok(class) => return Ok(class),
        Err(why) => why,
    };
    let table = access.class_policies()?;
    let found = table.class_by_name(text);
    found.ok_or_else(|| {
        let why = nearest_name(text, table.own_names())
            .map_or(why, |near| format!("there is no class {text:?}; did you mean {near:?}?"));
        UsageError(why).into()
    })
}

impl ClassFlags {
    /// The rules for a transfer between two locations. `access` has the settings file with names of classes.
    ///
    /// # Errors
    /// [`UsageError`] if a class is given and the transfer is no upload, or if there is no such class; [`Problems`] of the
    /// settings and of the file with rules.
    pub(super) fn read(
        &self,
        from: &Location,
        to: &Location,
        access: &AccessFlags,
    ) -> anyhow::Result<ClassRules> {
        let is_upload = !matches!(from, Location::Objects(_)) && matches!(to, Location::Objects(_));
        if !is_upload && (self.class.is_some() || self.class_rules.is_some()) {
            let message = "--class and --class-rules classify files that are uploaded to a store; for objects in a \
                           store, see tradewind class set --help";
            return Err(UsageError(message.to_owned()).into());
        }
        if let Some(class) = &self.class {
            return Ok(ClassRules(vec![ClassRule::for_all(find_class(class, access)?)]));
        }
        let Some(path) = &self.class_rules else { return Ok(ClassRules::default()) };
        let text = std::fs::read_to_string(path).map_err(|error| {
            let message = format!("cannot read the class rules {}: {error}", path.display());
            Problems(vec![Problem { source: SettingSource::Flag("--class-rules"), message }])
        })?;
        Ok(read_class_rules(path, &text)?)
    }
}
