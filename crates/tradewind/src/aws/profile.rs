//! The two shared files, and the selected profile in them. Values in the credentials file override those in the config
//! file. Other profiles, including `[default]`, are ignored.

use std::io;
use std::path::{Path, PathBuf};

use super::ini::{Document, Entry, Section};
use super::origin::{Origin, Problem, Traced};
use super::{Inputs, ReadFile, container, shell_words};
use crate::settings::nearest_name;

/// An existing file.
struct SharedFile {
    path: PathBuf,
    document: Document,
}

/// Both files, if they exist.
pub(super) struct Files {
    credentials: Option<SharedFile>,
    config: Option<SharedFile>,
    /// The paths that were tried.
    paths: Vec<PathBuf>,
}

impl Files {
    /// Reads both files. A missing file is treated as empty.
    pub fn read(inputs: &Inputs, read: ReadFile<'_>) -> Result<Self, Problem> {
        let mut locations = Vec::new();
        let mut load = |variable, usual| -> Result<Option<SharedFile>, Problem> {
            let Some(file_path) = file_path(inputs, variable, usual) else { return Ok(None) };
            locations.push(file_path.value.clone());
            load(file_path, read)
        };
        let credentials = load("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")?;
        let config = load("AWS_CONFIG_FILE", "~/.aws/config")?;
        Ok(Self { credentials, config, paths: locations })
    }

    /// Where credentials of a profile are looked for, for messages. Without the instance metadata service.
    pub fn credential_locations(&self, inputs: &Inputs, profile: &str) -> String {
        let variables: &[&str] = match inputs.profile {
            None => &["AWS_ACCESS_KEY_ID", "AWS_WEB_IDENTITY_TOKEN_FILE"],
            Some(_) => &[],
        };
        let variables = variables.iter().map(|name| (*name).to_owned());
        let files = self.paths.iter().map(|path| path.display().to_string());
        let locations: Vec<String> = variables.chain(files).collect();
        let containers = [container::RELATIVE_URI, container::FULL_URI].join(", ");
        format!("{} (profile {profile}), {containers}", locations.join(", "))
    }

    /// The profile named by the inputs, which must exist; otherwise `default`, which may be missing.
    pub fn profile(&self, inputs: &Inputs) -> Result<AwsProfile<'_>, Problem> {
        let given = match &inputs.profile {
            Some(name) => Some(Traced::new(name.as_str(), Origin::Flag("--profile"))),
            None => inputs.variable("AWS_PROFILE").or_else(|| inputs.variable("AWS_DEFAULT_PROFILE")),
        };
        match given {
            Some(given) => self.named_profile(&given),
            None => Ok(self.find_profile("default")),
        }
    }

    /// A profile that must exist.
    pub fn named_profile(&self, name: &Traced<&str>) -> Result<AwsProfile<'_>, Problem> {
        let found = self.find_profile(name.value);
        if found.parts.is_empty() { Err(self.missing(name)) } else { Ok(found) }
    }

    fn find_profile(&self, name: &str) -> AwsProfile<'_> {
        let mut parts = Vec::new();
        for (kind, file) in
            [(SharedFileKind::Credentials, &self.credentials), (SharedFileKind::Config, &self.config)]
        {
            let Some(file) = file else { continue };
            // If a config file has both, `[profile default]` overrides `[default]`.
            let mut sections: Vec<&Section> = file.document.sections.iter().collect();
            sections.sort_by_key(|section| section.name == "default");
            let sections =
                sections.into_iter().filter(|section| kind.profile(&section.name).as_deref() == Some(name));
            parts.extend(sections.map(|section| ProfilePart { kind, path: &file.path, section }));
        }
        AwsProfile { name: name.to_owned(), parts }
    }

    /// The endpoint of a service in `[services NAME]`, if set.
    pub fn service_endpoint(
        &self,
        services: &Traced<&str>,
        service: &str,
    ) -> Result<Option<Traced<&str>>, Problem> {
        Ok(self.config_section("services", services)?.nested(service, "endpoint_url"))
    }

    /// The section `[word NAME]` of the config file. It must exist.
    pub fn config_section(&self, word: &str, name: &Traced<&str>) -> Result<ConfigSection<'_>, Problem> {
        let is_named =
            |section: &&Section| section_argument(word, &section.name).as_deref() == Some(name.value);
        let found = self.config.as_ref().and_then(|file| {
            let section = file.document.sections.iter().find(is_named)?;
            Some(ConfigSection { path: &file.path, section })
        });
        found.ok_or_else(|| {
            let message = format!("there is no section [{word} {}]; add it or remove this line", name.value);
            Problem::new(name.origin.clone(), message)
        })
    }

    fn missing(&self, given: &Traced<&str>) -> Problem {
        let of = |kind: SharedFileKind, file: &Option<SharedFile>| -> Vec<String> {
            let sections = file.iter().flat_map(|file| &file.document.sections);
            sections.filter_map(|section| kind.profile(&section.name)).collect()
        };
        let mut names = of(SharedFileKind::Credentials, &self.credentials);
        names.extend(of(SharedFileKind::Config, &self.config));
        names.sort();
        names.dedup();
        let locations: Vec<String> = self.paths.iter().map(|path| path.display().to_string()).collect();
        let help = match nearest_name(given.value, names.iter().map(String::as_str)) {
            Some(name) => format!("did you mean {name:?}?"),
            None if names.is_empty() => format!("add [profile {}] to one of them", given.value),
            None => format!("they have {}", names.join(", ")),
        };
        let locations =
            if locations.is_empty() { "the home directory".to_owned() } else { locations.join(" and ") };
        Problem::new(
            given.origin.clone(),
            format!("there is no profile {:?} in {locations}; {help}", given.value),
        )
    }
}

/// A section of the config file that is no profile.
pub(super) struct ConfigSection<'a> {
    path: &'a Path,
    section: &'a Section,
}

impl<'a> ConfigSection<'a> {
    /// A value without a trailing comment.
    pub fn get(&self, key: &str) -> Option<Traced<&'a str>> {
        self.section.get(key).map(|entry| self.traced(entry))
    }

    /// The value of `key` nested under `above =`.
    fn nested(&self, above: &str, key: &str) -> Option<Traced<&'a str>> {
        self.section.nested(above, key).map(|entry| self.traced(entry))
    }

    fn traced(&self, entry: &'a Entry) -> Traced<&'a str> {
        let origin = Origin::Line { path: self.path.to_owned(), line: entry.line };
        Traced::new(strip_comment(&entry.value), origin)
    }
}

/// One of the two files.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SharedFileKind {
    Credentials,
    Config,
}

impl SharedFileKind {
    /// The profile that a section describes, if any. Every section of the credentials file is a profile.
    fn profile(self, section: &str) -> Option<String> {
        match self {
            Self::Credentials => Some(section.to_owned()),
            Self::Config if section == "default" => Some(section.to_owned()),
            Self::Config => section_argument("profile", section),
        }
    }
}

/// A section that describes the profile.
struct ProfilePart<'a> {
    kind: SharedFileKind,
    path: &'a Path,
    section: &'a Section,
}

/// The selected profile.
pub(super) struct AwsProfile<'a> {
    pub name: String,
    parts: Vec<ProfilePart<'a>>,
}

impl<'a> AwsProfile<'a> {
    /// A value without a trailing comment (white space, then `#` or `;`).
    pub fn get(&self, key: &str) -> Option<Traced<&'a str>> {
        self.get_raw(key).map(strip_comment_traced)
    }

    /// A value including everything up to the end of its line.
    pub fn get_raw(&self, key: &str) -> Option<Traced<&'a str>> {
        self.parts.iter().find_map(|part| Some(self.traced(part, part.section.get(key)?)))
    }

    /// Like [`Self::get`], from one of the files.
    pub fn get_from(&self, kind: SharedFileKind, key: &str) -> Option<Traced<&'a str>> {
        let mut parts = self.parts.iter().filter(|part| part.kind == kind);
        parts.find_map(|part| Some(self.traced(part, part.section.get(key)?))).map(strip_comment_traced)
    }

    /// The value of `key` nested under `above =`.
    pub fn nested(&self, above: &str, key: &str) -> Option<Traced<&'a str>> {
        self.parts
            .iter()
            .find_map(|part| Some(self.traced(part, part.section.nested(above, key)?)))
            .map(strip_comment_traced)
    }

    fn traced(&self, part: &ProfilePart<'a>, entry: &'a Entry) -> Traced<&'a str> {
        let (name, path) = (self.name.clone(), part.path.to_owned());
        Traced::new(entry.value.as_str(), Origin::Profile { name, path, line: entry.line })
    }
}

fn strip_comment_traced(found: Traced<&str>) -> Traced<&str> {
    Traced { value: strip_comment(found.value), origin: found.origin }
}

/// Strips a comment after a value, like the SDKs; the CLI treats it as part of the value. Such values contain
/// no white space, so the comment cannot be intended as part of them. Continuation lines are dropped too.
fn strip_comment(value: &str) -> &str {
    let value = value.lines().next().unwrap_or_default();
    let begins_comment = |at: &usize| {
        let (before, from) = value.split_at(*at);
        from.starts_with(['#', ';']) && before.ends_with(char::is_whitespace)
    };
    let end = value.char_indices().map(|(at, _)| at).find(begins_comment).unwrap_or(value.len());
    value[..end].trim_end()
}

/// The NAME of `[word NAME]`; it may be quoted.
fn section_argument(word: &str, section: &str) -> Option<String> {
    match <[String; 2]>::try_from(shell_words::split(section).ok()?) {
        Ok([first, name]) if first == word => Some(name),
        _ => None,
    }
}

fn load(file_path: Traced<PathBuf>, read: ReadFile<'_>) -> Result<Option<SharedFile>, Problem> {
    let Traced { value: path, origin } = file_path;
    let unreadable = |why: &dyn std::fmt::Display| {
        let help = "correct it, or set another with AWS_CONFIG_FILE or AWS_SHARED_CREDENTIALS_FILE";
        Problem::new(origin.clone(), format!("cannot read {}: {why}; {help}", path.display()))
    };
    let bytes = match read(&path) {
        Ok(bytes) => bytes,
        Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {
            return Ok(None);
        }
        Err(error) => return Err(unreadable(&error)),
    };
    let text = String::from_utf8(bytes).map_err(|_| unreadable(&"it is not UTF-8"))?;
    let document = Document::parse(&path, &text)?;
    Ok(Some(SharedFile { path, document }))
}

/// The path of one of the files: from its variable, otherwise in the home directory.
fn file_path(inputs: &Inputs, variable: &'static str, usual: &str) -> Option<Traced<PathBuf>> {
    match inputs.variable(variable) {
        Some(given) => Some(Traced::new(inputs.expand(given.value), given.origin)),
        // Without a home directory there is no default path.
        None => {
            inputs.variable("HOME")?;
            let path = inputs.expand(usual);
            Some(Traced::new(path.clone(), Origin::File(path)))
        }
    }
}
