//! The rules by which a server classifies objects. They can be replaced while it runs.

use std::fmt;
use std::sync::{Arc, PoisonError, RwLock};

use tradewind_core::Class;
use tradewind_gateway::s3::{ObjectClassifier, UnlabelledObject};
use tradewind_transfer::class_rules::{ClassRule, ClassRules, ClassifiedObject};

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

    /// Replaces the rules by those of new settings.
    pub fn replace(&self, settings: &Settings) {
        *self.rules.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(rules_of(settings));
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
