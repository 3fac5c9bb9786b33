//! Rules that give objects a class of data (DSS) as they are created: by a transfer, or on a server for clients that send
//! no class. The size that a rule compares is that of the whole file, also if it travels in parts.

use tradewind_core::Class;

use crate::filter::Pattern;

/// An object that is created.
#[derive(Debug, Clone, Copy, Default)]
pub struct ClassifiedObject<'a> {
    /// Its bucket.
    pub bucket: &'a str,
    /// Its key.
    pub key: &'a str,
    /// Its size in bytes; `None` if unknown.
    pub size: Option<u64>,
    /// Its content type.
    pub content_type: Option<&'a str>,
    /// Its storage class of S3, as a server knows it; `None` if unknown.
    pub storage_class: Option<&'a str>,
    /// Its tags, as a server knows them: keys and values.
    pub tags: &'a [(String, String)],
    /// The id of the access key that writes it, as a server knows it.
    pub access_key: Option<&'a str>,
}

/// A condition on the tags of an object.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TagCondition {
    /// The key of the tag.
    pub key: String,
    /// Its value; `None` for any.
    pub value: Option<String>,
}

impl TagCondition {
    fn matches(&self, tags: &[(String, String)]) -> bool {
        let has_value = |value: &String| self.value.as_ref().is_none_or(|expected| expected == value);
        tags.iter().any(|(key, value)| *key == self.key && has_value(value))
    }
}

/// A class and the conditions under which an object gets it. Conditions that are `None` hold for every object.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// The storage class. Known to servers only.
    pub storage_class: Option<String>,
    /// A tag. Known to servers only.
    pub tag: Option<TagCondition>,
    /// The id of the client's access key. Known to servers only.
    pub access_key: Option<String>,
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
            storage_class: None,
            tag: None,
            access_key: None,
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
            && self.storage_class.as_ref().is_none_or(|class| object.storage_class == Some(class))
            && self.tag.as_ref().is_none_or(|tag| tag.matches(object.tags))
            && self.access_key.as_ref().is_none_or(|id| object.access_key == Some(id))
    }
}

/// The content type without its parameters, in lower case.
fn media_type(object: &ClassifiedObject<'_>) -> Option<String> {
    let (media_type, _) = object.content_type?.split_once(';').unwrap_or((object.content_type?, ""));
    Some(media_type.trim().to_ascii_lowercase())
}

/// Rules in order: the first one that matches an object decides.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
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
        storage_class: Some("STANDARD_IA"),
        tags: &[],
        access_key: Some("camera"),
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
            storage_class: Some("STANDARD_IA".to_owned()),
            access_key: Some("camera".to_owned()),
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
            ClassRule { storage_class: Some("STANDARD".to_owned()), ..full.clone() },
            ClassRule { access_key: Some("phone".to_owned()), ..full.clone() },
            ClassRule { tag: Some(TagCondition { key: "a".to_owned(), value: None }), ..full.clone() },
        ] {
            assert_eq!(class_of(std::slice::from_ref(&wrong), &PHOTO), None, "{wrong:?}");
        }
    }

    #[test]
    fn tag_matches_by_key_and_value() {
        let tags = [("project".to_owned(), "x".to_owned()), ("team".to_owned(), String::new())];
        let photo = ClassifiedObject { tags: &tags, ..PHOTO };
        for (key, value, matches) in [
            ("project", Some("x"), true),
            ("project", None, true),
            ("project", Some("y"), false),
            ("team", Some(""), true),
            ("proj", None, false),
        ] {
            let tag = TagCondition { key: key.to_owned(), value: value.map(str::to_owned) };
            let rules = [ClassRule { tag: Some(tag), ..rule(1) }];
            assert_eq!(class_of(&rules, &photo).is_some(), matches, "{key} {value:?}");
        }
    }

    #[test]
    fn conditions_on_what_is_unknown_do_not_hold() {
        let unknown =
            ClassifiedObject { bucket: PHOTO.bucket, key: PHOTO.key, ..ClassifiedObject::default() };
        let (storage_class, access_key) = (Some("STANDARD".to_owned()), Some("camera".to_owned()));
        assert_eq!(class_of(&[ClassRule { storage_class, ..rule(1) }], &unknown), None);
        assert_eq!(class_of(&[ClassRule { access_key, ..rule(1) }], &unknown), None);
        let any = Pattern::new("*").unwrap();
        assert_eq!(class_of(&[ClassRule { min_size: Some(0), ..rule(1) }], &unknown), None);
        assert_eq!(class_of(&[ClassRule { content_type: Some(any), ..rule(1) }], &unknown), None);
        assert_eq!(class_of(&[rule(1)], &unknown), Some(1));
    }
}
