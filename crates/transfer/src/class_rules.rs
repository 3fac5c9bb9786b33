//! Rules that give objects a class of data (DSS) as a transfer creates them. The size that a rule compares is that of the
//! whole file, also if it travels in parts.

use tradewind_core::Class;

use crate::filter::Pattern;

/// An object that a transfer creates.
#[derive(Debug, Clone, Copy)]
pub struct ClassifiedObject<'a> {
    /// Its bucket.
    pub bucket: &'a str,
    /// Its key.
    pub key: &'a str,
    /// Its size in bytes; `None` if unknown.
    pub size: Option<u64>,
    /// Its content type.
    pub content_type: Option<&'a str>,
}

/// A class and the conditions under which an object gets it. Conditions that are `None` hold for every object.
#[derive(Debug, Clone)]
pub struct ClassRule {
    /// The class.
    pub class: Class,
    /// The name of the bucket.
    pub bucket: Option<String>,
    /// The beginning of the key.
    pub prefix: Option<String>,
    /// A pattern of the whole key.
    pub glob: Option<Pattern>,
    /// A pattern, in lower case, of the content type without its parameters.
    pub content_type: Option<Pattern>,
    /// The minimum size in bytes.
    pub min_size: Option<u64>,
    /// The maximum size in bytes.
    pub max_size: Option<u64>,
}

impl ClassRule {
    /// A rule for every object.
    #[must_use]
    pub fn for_all(class: Class) -> Self {
        Self {
            class,
            bucket: None,
            prefix: None,
            glob: None,
            content_type: None,
            min_size: None,
            max_size: None,
        }
    }

    /// Returns true if the rule decides about the object. A condition on a size or type that is unknown does not hold.
    fn matches(&self, object: &ClassifiedObject<'_>) -> bool {
        self.bucket.as_ref().is_none_or(|bucket| bucket == object.bucket)
            && self.prefix.as_ref().is_none_or(|prefix| object.key.starts_with(prefix))
            && self.glob.as_ref().is_none_or(|glob| glob.matches(object.key))
            && self.content_type.as_ref().is_none_or(|pattern| {
                media_type(object).is_some_and(|media_type| pattern.matches(&media_type))
            })
            && self.min_size.is_none_or(|min| object.size.is_some_and(|size| size >= min))
            && self.max_size.is_none_or(|max| object.size.is_some_and(|size| size <= max))
    }
}

/// The content type without its parameters, in lower case.
fn media_type(object: &ClassifiedObject<'_>) -> Option<String> {
    let (media_type, _) = object.content_type?.split_once(';').unwrap_or((object.content_type?, ""));
    Some(media_type.trim().to_ascii_lowercase())
}

/// Rules in order: the first one that matches an object decides.
#[derive(Debug, Clone, Default)]
pub struct ClassRules(pub Vec<ClassRule>);

impl ClassRules {
    /// The class of an object; `None` if no rule matches.
    #[must_use]
    pub fn class_of(&self, object: &ClassifiedObject<'_>) -> Option<Class> {
        self.0.iter().find(|rule| rule.matches(object)).map(|rule| rule.class)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PHOTO: ClassifiedObject<'static> = ClassifiedObject {
        bucket: "photos",
        key: "2026/a.jpg",
        size: Some(1000),
        content_type: Some("Image/JPEG; x=y"),
    };

    fn rule(class: u8) -> ClassRule {
        ClassRule::for_all(Class::new(class).unwrap())
    }

    fn class_of(rules: &[ClassRule], object: &ClassifiedObject<'_>) -> Option<u8> {
        ClassRules(rules.to_vec()).class_of(object).map(Class::value)
    }

    #[test]
    fn the_first_rule_that_matches_decides() {
        let other = ClassRule { bucket: Some("music".to_owned()), ..rule(1) };
        assert_eq!(class_of(&[other.clone(), rule(2), rule(3)], &PHOTO), Some(2));
        assert_eq!(class_of(&[other], &PHOTO), None);
        assert_eq!(class_of(&[], &PHOTO), None);
    }

    #[test]
    fn every_condition_must_hold() {
        let pattern = |text| Some(Pattern::new(text).unwrap());
        let full = ClassRule {
            bucket: Some("photos".to_owned()),
            prefix: Some("2026/".to_owned()),
            glob: pattern("*.jpg"),
            content_type: pattern("image/*"),
            min_size: Some(1000),
            max_size: Some(1000),
            ..rule(26)
        };
        assert_eq!(class_of(std::slice::from_ref(&full), &PHOTO), Some(26));
        for wrong in [
            ClassRule { bucket: Some("photo".to_owned()), ..full.clone() },
            ClassRule { prefix: Some("2025/".to_owned()), ..full.clone() },
            ClassRule { glob: pattern("a.jpg"), ..full.clone() },
            ClassRule { content_type: pattern("image/png"), ..full.clone() },
            ClassRule { min_size: Some(1001), ..full.clone() },
            ClassRule { max_size: Some(999), ..full.clone() },
        ] {
            assert_eq!(class_of(std::slice::from_ref(&wrong), &PHOTO), None, "{wrong:?}");
        }
    }

    #[test]
    fn conditions_on_what_is_unknown_do_not_hold() {
        let unknown = ClassifiedObject { size: None, content_type: None, ..PHOTO };
        let any = Pattern::new("*").unwrap();
        assert_eq!(class_of(&[ClassRule { min_size: Some(0), ..rule(1) }], &unknown), None);
        assert_eq!(class_of(&[ClassRule { content_type: Some(any), ..rule(1) }], &unknown), None);
        assert_eq!(class_of(&[rule(1)], &unknown), Some(1));
    }
}
