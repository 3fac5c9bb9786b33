//! The map of classes of data to storage classes and to a tag, so that rules of a service can act on them.

use std::collections::BTreeMap;

use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::{Class, Metadata, Tags};

/// Storage classes and a tag for the classes of objects that are written. Classes of ranges are not mapped.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MappedClasses {
    /// The storage class of each class that has one. The storage class of a request overrides it.
    pub storage_classes: BTreeMap<Class, String>,
    /// The key of a tag whose value is the number of the class. Readers do not see this tag, and writers cannot set it.
    pub tag: Option<String>,
}

impl MappedClasses {
    /// Returns true if no class is mapped.
    pub(super) fn is_empty(&self) -> bool {
        self.storage_classes.is_empty() && self.tag.is_none()
    }

    /// Adds the storage class and the tag of an object's class to its metadata.
    ///
    /// # Errors
    /// As [`Self::with_tag`].
    pub(super) fn apply(&self, metadata: &mut Metadata) -> Result<()> {
        let class = metadata.classes.object;
        metadata.tags = self.with_tag(std::mem::take(&mut metadata.tags), class)?;
        if metadata.headers.storage_class.is_none() {
            metadata.headers.storage_class =
                class.and_then(|class| self.storage_classes.get(&class)).cloned();
        }
        Ok(())
    }

    /// Adds the tag of a class.
    ///
    /// # Errors
    /// [`InvalidTag`](Reason::InvalidTag) if the tags have its key, or are too many with it.
    pub(super) fn with_tag(&self, tags: Tags, class: Option<Class>) -> Result<Tags> {
        let Some(key) = &self.tag else { return Ok(tags) };
        if tags.pairs().iter().any(|(found, _)| found == key) {
            let why = format!("the tag {key:?} is reserved for the class of the object");
            return Err(Error::for_client(Reason::InvalidTag, why));
        }
        let Some(class) = class else { return Ok(tags) };
        if tags.pairs().len() == Tags::MAX_TAGS {
            let why = format!(
                "an object with a class has at most {} tags: the tag {key:?} has its class",
                Tags::MAX_TAGS - 1
            );
            return Err(Error::for_client(Reason::InvalidTag, why));
        }
        let added = (key.clone(), class.value().to_string());
        Tags::new(tags.pairs().iter().cloned().chain([added]).collect())
    }

    /// Removes the tag of a class from those that a service reports.
    pub(super) fn without_tag(&self, mut pairs: Vec<(String, String)>) -> Vec<(String, String)> {
        pairs.retain(|(found, _)| Some(found) != self.tag.as_ref());
        pairs
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tags(count: usize) -> Tags {
        Tags::new((0..count).map(|number| (format!("k{number}"), "v".to_owned())).collect()).unwrap()
    }

    fn mapped() -> MappedClasses {
        let class = Class::new(28).unwrap();
        MappedClasses {
            storage_classes: [(class, "STANDARD_IA".to_owned())].into(),
            tag: Some("c".to_owned()),
        }
    }

    fn classified(class: u8, storage_class: Option<&str>) -> Metadata {
        let mut metadata = Metadata { tags: tags(1), ..Metadata::default() };
        metadata.classes.object = Some(Class::new(class).unwrap());
        metadata.headers.storage_class = storage_class.map(str::to_owned);
        metadata
    }

    #[test]
    fn a_mapped_class_has_its_storage_class_and_tag() {
        let mut metadata = classified(28, None);
        mapped().apply(&mut metadata).unwrap();
        assert_eq!(metadata.headers.storage_class.as_deref(), Some("STANDARD_IA"));
        let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
        assert_eq!(metadata.tags.pairs(), [pair("k0", "v"), pair("c", "28")]);
        let reported = mapped().without_tag(metadata.tags.pairs().to_vec());
        assert_eq!(reported, [pair("k0", "v")]);
    }

    #[test]
    fn a_storage_class_of_the_request_and_an_unmapped_class_stay() {
        for (class, storage_class) in [(28, Some("GLACIER")), (29, None)] {
            let mut metadata = classified(class, storage_class);
            mapped().apply(&mut metadata).unwrap();
            assert_eq!(metadata.headers.storage_class.as_deref(), storage_class);
        }
        let mut metadata = classified(28, None);
        MappedClasses::default().apply(&mut metadata).unwrap();
        assert_eq!(metadata, classified(28, None));
    }

    #[test]
    fn a_tag_that_has_no_place_or_is_reserved_is_rejected() {
        let class = Class::new(28).ok();
        assert_eq!(mapped().with_tag(tags(9), class).unwrap().pairs().len(), 10);
        assert_eq!(mapped().with_tag(tags(10), None).unwrap(), tags(10));
        assert_eq!(mapped().with_tag(tags(10), class).unwrap_err().reason(), Reason::InvalidTag);
        let reserved = Tags::new(vec![("c".to_owned(), "1".to_owned())]).unwrap();
        assert_eq!(mapped().with_tag(reserved, None).unwrap_err().reason(), Reason::InvalidTag);
    }
}
