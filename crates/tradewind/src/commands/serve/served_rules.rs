//! The rules by which a server classifies objects, and their reload by SIGHUP. A settings file with problems leaves the
//! old rules in force.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tracing::{info, warn};
use tradewind_core::Class;
use tradewind_gateway::s3::{ObjectClassifier, UnlabelledObject};
use tradewind_transfer::class_rules::{ClassRule, ClassRules, ClassifiedObject};

use super::super::SettingsFlags;
use crate::settings::Settings;

/// The storage class of objects that are written without one.
const DEFAULT_STORAGE_CLASS: &str = "STANDARD";

/// The rules in force.
pub(super) struct ServedRules {
    rules: RwLock<Arc<ClassRules>>,
}

impl ServedRules {
    pub fn new(settings: &Settings) -> Arc<Self> {
        Arc::new(Self { rules: RwLock::new(Arc::new(rules_of(settings))) })
    }

    fn current(&self) -> Arc<ClassRules> {
        self.rules.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Reads the settings again, and replaces the rules by theirs. Other settings that changed have no effect until a
    /// restart. If the settings have problems, they are logged and nothing changes.
    pub fn reload(&self, flags: &SettingsFlags) {
        let settings = match flags.clone().read() {
            Ok(settings) => settings,
            Err(problems) => {
                for problem in &problems.0 {
                    warn!(%problem, "the settings cannot be reloaded; the old ones stay");
                }
                return;
            }
        };
        let rules = Arc::new(rules_of(&settings));
        let (count, is_changed) = (rules.0.len(), *rules != *self.current());
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = rules;
        info!(rules = count, is_changed, "class rules reloaded; other settings need a restart");
    }
}

fn rules_of(settings: &Settings) -> ClassRules {
    let rules: Vec<ClassRule> = settings.named.class_rules.iter().map(|rule| rule.value.clone()).collect();
    ClassRules(rules)
}

impl fmt::Debug for ServedRules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ServedRules({})", self.current().0.len())
    }
}

impl ObjectClassifier for ServedRules {
    fn class_of(&self, object: &UnlabelledObject<'_>) -> Option<Class> {
        let rules = self.current();
        if rules.0.is_empty() {
            return None;
        }
        let headers = &object.metadata.headers;
        rules.class_of(&ClassifiedObject {
            bucket: object.bucket.as_str(),
            key: object.key.as_str(),
            size: object.size,
            content_type: headers.content_type.as_deref(),
            storage_class: Some(headers.storage_class.as_deref().unwrap_or(DEFAULT_STORAGE_CLASS)),
            tags: object.tags.pairs(),
            access_key: object.access_key,
        })
    }
}
