//! The settings that change while a server runs: the policies and the rules of classes.
//!
//! A reload, by SIGHUP or by a call of the admin API, reads the settings file again. Another call overrides policies
//! until then. Each change is checked before the first layer has it: either all layers change, or none.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::{Map, Value as Json, json};
use tracing::{error, info, warn};
use tradewind_core::Class;
use tradewind_model::class_policy::all_classes;

use super::super::SettingsFlags;
use super::super::signals::{CaughtSignal, Signals};
use super::served_rules::ServedRules;
use crate::assemble::ServedStores;
use crate::settings::{
    ClassOverrides, ClassSettings, NamedSettings, Problem, Problems, SettingSource, Settings,
};

/// The policies and rules of classes in force, and the means to change them.
pub(super) struct ChangeableSettings {
    at_start: Arc<Settings>,
    flags: SettingsFlags,
    served: Arc<ServedStores>,
    rules: Arc<ServedRules>,
    /// Held from the beginning of a read of the file until its policies are in force.
    reloading: Arc<tokio::sync::Mutex<()>>,
    current: Mutex<CurrentClasses>,
}

/// The policies in force.
struct CurrentClasses {
    /// The settings that were read last.
    read: NamedSettings,
    overrides: ClassOverrides,
}

/// The outcome of a reload.
#[derive(Debug)]
pub(super) struct Reloaded {
    /// The classes that have a table in the file.
    pub classes: Vec<Class>,
    /// The number of rules in the file.
    pub rules: usize,
    /// The classes whose overrides ended.
    pub ended_overrides: Vec<Class>,
    /// True if other settings have changed, which take effect at a restart.
    pub is_restart_needed: bool,
}

/// The reason for which the old settings stay.
#[derive(Debug)]
pub(super) enum ReloadError {
    /// There is no settings file.
    NoFile,
    /// The file cannot be read, or has problems, or the running layers cannot obey it.
    Rejected(String),
    /// The thread that reads failed.
    Failed(String),
}

impl fmt::Display for ReloadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoFile => f.write_str(
                "the server has no settings file to read again: start it with --config or TRADEWIND_CONFIG",
            ),
            Self::Rejected(why) | Self::Failed(why) => {
                write!(f, "the settings are not reloaded: the old ones stay: {why}")
            }
        }
    }
}

impl ChangeableSettings {
    pub fn new(
        at_start: Arc<Settings>,
        flags: SettingsFlags,
        served: Arc<ServedStores>,
        rules: Arc<ServedRules>,
    ) -> Self {
        let current = CurrentClasses { read: at_start.named.clone(), overrides: ClassOverrides::default() };
        let current = Mutex::new(current);
        Self { at_start, flags, served, rules, reloading: Arc::default(), current }
    }

    /// Reloads at each SIGHUP, until another signal is caught. Without a settings file, SIGHUP is such a signal.
    pub async fn reload_until_stopped(&self, signals: &mut Signals) -> CaughtSignal {
        loop {
            match signals.next().await {
                CaughtSignal::Hangup if self.flags.name_a_file() => {
                    if let Some(caught) = self.reload_for_hangup(signals).await {
                        return caught;
                    }
                }
                caught => return caught,
            }
        }
    }

    /// Reloads, and once more if a SIGHUP is caught meanwhile. Another signal ends it: a file that cannot be read, as of a
    /// file server that is away, does not delay a shutdown.
    async fn reload_for_hangup(&self, signals: &mut Signals) -> Option<CaughtSignal> {
        loop {
            let mut is_requested_again = false;
            let mut reload = std::pin::pin!(self.reload());
            loop {
                tokio::select! {
                    // The outcome is in the log.
                    _ = &mut reload => break,
                    caught = signals.next() => match caught {
                        CaughtSignal::Hangup => is_requested_again = true,
                        caught => return Some(caught),
                    }
                }
            }
            if !is_requested_again {
                return None;
            }
        }
    }

    /// Reads the settings file again and replaces the policies and the rules of classes. All overrides end. Logs the
    /// outcome.
    ///
    /// # Errors
    /// [`ReloadError`]; nothing has changed then.
    pub async fn reload(&self) -> Result<Reloaded, ReloadError> {
        let reloaded = self.read_and_apply().await;
        match &reloaded {
            Ok(reloaded) => {
                info!(rules = reloaded.rules, "the policies and rules of classes are reloaded");
                if !reloaded.ended_overrides.is_empty() {
                    let classes = &reloaded.ended_overrides;
                    info!(?classes, "the policies that calls had changed are those of the settings again");
                }
                if reloaded.is_restart_needed {
                    warn!(
                        "settings other than [class.N] and [[class_rule]] have changed; they take effect at a restart"
                    );
                }
            }
            Err(ReloadError::NoFile) => info!("there is no settings file to reload"),
            Err(ReloadError::Rejected(why) | ReloadError::Failed(why)) => {
                error!(problems = %why, "the settings are not reloaded: the old ones stay");
            }
        }
        reloaded
    }

    async fn read_and_apply(&self) -> Result<Reloaded, ReloadError> {
        if !self.flags.name_a_file() {
            return Err(ReloadError::NoFile);
        }
        let reloading = self.reloading.clone().lock_owned().await;
        let flags = self.flags.clone();
        // The lock is in the thread: a caller that goes away ends no read.
        let read = tokio::task::spawn_blocking(move || (flags.read(), reloading)).await;
        let (settings, _reloading) = read.map_err(|error| ReloadError::Failed(error.to_string()))?;
        let settings = settings.map_err(|problems| ReloadError::Rejected(problems.to_string()))?;
        let mut current = self.lock();
        self.set_policies(&settings.named).map_err(|error| ReloadError::Rejected(format!("{error:#}")))?;
        self.rules.replace(&settings);
        let reloaded = Reloaded {
            classes: settings.named.classes.iter().map(|set| set.class.value).collect(),
            rules: settings.named.class_rules.len(),
            ended_overrides: current.overrides.classes().collect(),
            is_restart_needed: settings.differs_beyond_classes(&self.at_start),
        };
        *current = CurrentClasses { read: settings.named, overrides: ClassOverrides::default() };
        Ok(reloaded)
    }

    /// Overrides policies of a class until the next reload or restart, and returns the class as [`Self::classes`] does, with
    /// `lasts` and `notes`. `body` is described at [`ClassOverrides::change`].
    ///
    /// # Errors
    /// The problems of the change. Nothing has changed then.
    pub fn change(&self, class: Class, body: &[u8]) -> Result<Json, String> {
        let mut current = self.lock();
        let changed =
            current.overrides.change(&current.read, class, body).map_err(|it| problems_text(&it))?;
        let notes_before = current.overrides.apply(&current.read).notes();
        self.set_policies(&changed.named).map_err(|error| format!("{error:#}"))?;
        current.overrides = changed.overrides;
        let mut entry = self.describe(&current, &changed.named, class);
        let lasts = match self.flags.name_a_file() {
            true => "until the next reload or restart, which read the settings file",
            false => "until the next restart",
        };
        let overridden = entry["overridden"].to_string();
        info!(class = class.value(), overridden, lasts, "policies of a class are changed by a call");
        let mut notes = changed.named.notes();
        notes.retain(|note| !notes_before.contains(note));
        entry["lasts"] = json!(lasts);
        entry["notes"] = json!(notes);
        Ok(entry)
    }

    /// All classes, with the policies in force. A new tier is in force after a restart.
    pub fn classes(&self) -> Json {
        let current = self.lock();
        let named = current.overrides.apply(&current.read);
        let classes: Vec<Json> = all_classes().map(|class| self.describe(&current, &named, class)).collect();
        json!({ "classes": classes })
    }

    /// A class in `named`, the settings with the overrides.
    fn describe(&self, current: &CurrentClasses, named: &NamedSettings, class: Class) -> Json {
        let policies = named.class_policies();
        let set: Map<String, Json> =
            named.class_settings(class).map(ClassSettings::values).unwrap_or_default();
        let at_start = self.at_start.named.class_settings(class).map(ClassSettings::values);
        json!({
            "class": class.value(),
            "name": policies.name(class),
            "priority": policies.priority(class).value(),
            "by_reuse": policies.is_ranked_by_reuse(class),
            "occupancy": set.get("occupancy"),
            "write": set.get("write"),
            "pin": policies.is_pinned(class),
            "tier": at_start.unwrap_or_default().remove("tier"),
            "share": set.get("share"),
            "compress": policies.compress(class),
            "encrypt": policies.encrypt(class),
            "overridden": current.overrides.overridden(&current.read, class),
        })
    }

    /// Replaces the policies of all layers, or of none.
    fn set_policies(&self, named: &NamedSettings) -> anyhow::Result<()> {
        self.served.set_class_policies(&Arc::new(named.class_policies()))
    }

    fn lock(&self) -> MutexGuard<'_, CurrentClasses> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The problems of a change. Those of the settings file name its line.
fn problems_text(Problems(problems): &Problems) -> String {
    let text = |problem: &Problem| match problem.source {
        SettingSource::AdminApi => problem.message.clone(),
        _ => problem.to_string(),
    };
    problems.iter().map(text).collect::<Vec<String>>().join("\n")
}
