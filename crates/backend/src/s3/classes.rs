//! Classes of data in requests to services and their responses (`docs/classes.md`).
//!
//! A Tradewind server has headers for them. Every other service keeps them as user metadata, within the limit that it has
//! for that: ranges that do not fit are an error of the write, because a part of them would be another classification.

use std::borrow::Cow;

use http::{HeaderMap, HeaderName, HeaderValue, Method};
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::metadata::{MAX_USER_METADATA_BYTES, UserMetadata};
use tradewind_core::store::GetRequest;
use tradewind_core::{Address, ClassUpdate, Classes, Context, Metadata, Retention};
use tradewind_wire::headers::{DSS_OBJECT_CLASS, DSS_RANGE_CLASS, DSS_RETENTION, DSS_RETENTION_SPAN};

use super::S3Store;
use super::dialect::Dialect;
use super::headers;
use super::versions::version_query;
use crate::remote::client::Call;
use crate::remote::header_fields::{header_text, header_value};

/// The names of classes as user metadata, without its prefix.
const OBJECT_CLASS_NAME: &str = "dss-object-class";
const RANGE_CLASS_NAME: &str = "dss-range-class";
const RETENTION_NAME: &str = "dss-retention";
const OBJECT_CLASS_METADATA: HeaderName = HeaderName::from_static("x-amz-meta-dss-object-class");
const RANGE_CLASS_METADATA: HeaderName = HeaderName::from_static("x-amz-meta-dss-range-class");
const RETENTION_METADATA: HeaderName = HeaderName::from_static("x-amz-meta-dss-retention");

impl S3Store {
    /// Finds out how the service keeps the classes of a write, and rejects those that it cannot keep.
    ///
    /// # Errors
    /// [`MetadataTooLarge`](Reason::MetadataTooLarge) if user metadata and classes exceed the service's limit;
    /// [`InvalidArgument`](Reason::InvalidArgument) if user metadata has the name of a class;
    /// [`InvalidTag`](Reason::InvalidTag) if the tag of a class has no place.
    pub(super) async fn prepare_classes(&self, context: &Context, metadata: &Metadata) -> Result<()> {
        self.mapped_classes.with_tag(metadata.tags.clone(), metadata.classes.object)?;
        if metadata.classes.is_empty() && reserved_name(metadata).is_none() {
            return Ok(());
        }
        check_classes(metadata, self.dialect(context).await?)
    }

    /// Returns true if a service of this dialect certainly accepts the metadata of a write.
    pub(super) fn accepts_metadata(&self, metadata: &Metadata, dialect: Dialect) -> bool {
        // A service may lack a storage class, or not offer it to this account.
        let is_standard =
            metadata.headers.storage_class.as_deref().and_then(headers::storage_class).is_none();
        is_standard
            && check_classes(metadata, dialect).is_ok()
            && self.write_metadata(metadata, &mut HeaderMap::new()).is_ok()
    }

    /// Writes an object's metadata into the request that creates it. [`Self::prepare_classes`] precedes it.
    pub(super) fn write_metadata(&self, metadata: &Metadata, headers: &mut HeaderMap) -> Result<()> {
        let mut metadata = Cow::Borrowed(metadata);
        if !self.mapped_classes.is_empty() {
            self.mapped_classes.apply(metadata.to_mut())?;
        }
        headers::write_metadata(&metadata, headers)?;
        let [object_name, ranges_name, retention_name] = match self.dialect.get() {
            Some(Dialect::Tradewind) => [DSS_OBJECT_CLASS, DSS_RANGE_CLASS, DSS_RETENTION_SPAN],
            _ => [OBJECT_CLASS_METADATA, RANGE_CLASS_METADATA, RETENTION_METADATA],
        };
        if let Some(class) = metadata.classes.object {
            headers.insert(object_name, u16::from(class.value()).into());
        }
        if let Some(ranges) = metadata.classes.format_ranges() {
            headers.insert(ranges_name, header_value(&ranges)?);
        }
        if let Some(retention) = metadata.classes.retention {
            headers.insert(retention_name, header_value(&retention.to_string())?);
        }
        Ok(())
    }

    /// Writes empty class headers for absent classes: a copy within a Tradewind server keeps the classes whose headers
    /// are missing. User metadata needs none: a copy replaces all of it.
    pub(super) fn write_absent_classes(&self, classes: &Classes, headers: &mut HeaderMap) {
        if self.dialect.get() != Some(&Dialect::Tradewind) {
            return;
        }
        if classes.object.is_none() {
            headers.insert(DSS_OBJECT_CLASS, HeaderValue::from_static(""));
        }
        if classes.ranges.is_empty() {
            headers.insert(DSS_RANGE_CLASS, HeaderValue::from_static(""));
        }
        if classes.retention.is_none() {
            headers.insert(DSS_RETENTION, HeaderValue::from_static(""));
        }
    }

    /// Changes the classes of an object. Unsupported by services other than Tradewind: they would write the object again,
    /// with another time and version.
    pub(super) async fn write_classes(
        &self,
        context: &Context,
        address: &Address,
        update: &ClassUpdate,
    ) -> Result<()> {
        context.check()?;
        if self.dialect(context).await? != Dialect::Tradewind {
            return Err(Error::unsupported(
                "change classes without writing the object again: copy the object onto itself with new classes",
            ));
        }
        if update.is_empty() {
            return self.read_head(context, address, &GetRequest::default()).await.map(drop);
        }
        self.confirm_version(context, address).await?;
        let mut call = Call::object(Method::POST, &address.bucket, address.key.as_str());
        call.query = version_query(address);
        call.may_repeat = true;
        if let Some(object) = update.object {
            let text = object.map_or_else(String::new, |class| class.value().to_string());
            call.headers.insert(DSS_OBJECT_CLASS, header_value(&text)?);
        }
        if let Some(ranges) = &update.ranges {
            let classes = Classes { ranges: ranges.clone(), ..Classes::default() };
            let text = classes.format_ranges().unwrap_or_default();
            call.headers.insert(DSS_RANGE_CLASS, header_value(&text)?);
        }
        match update.retention {
            Some(Some(retention)) => {
                call.headers.insert(DSS_RETENTION_SPAN, header_value(&retention.to_string())?);
            }
            Some(None) => {
                call.headers.insert(DSS_RETENTION, HeaderValue::from_static(""));
            }
            None => {}
        }
        self.send_versioned(context, address, &call).await?.drain().await.map(drop)
    }
}

/// The first name in user metadata that services keep a class under.
fn reserved_name(metadata: &Metadata) -> Option<&str> {
    let mut names = metadata.user.iter().map(|(name, _)| name.as_str());
    names.find(|name| [OBJECT_CLASS_NAME, RANGE_CLASS_NAME, RETENTION_NAME].contains(name))
}

/// Rejects classes and user metadata that a service of this dialect cannot keep. Errors as
/// [`prepare_classes`](S3Store::prepare_classes).
fn check_classes(metadata: &Metadata, dialect: Dialect) -> Result<()> {
    if dialect == Dialect::Tradewind {
        return Ok(());
    }
    if let Some(name) = reserved_name(metadata) {
        return Err(Error::for_client(
            Reason::InvalidArgument,
            format!("the service keeps classes as user metadata: the name {name:?} is reserved for them"),
        ));
    }
    let user: usize = metadata.user.iter().map(|(name, value)| name.len() + value.len()).sum();
    let length = |name: &str, value: Option<String>| value.map_or(0, |value| name.len() + value.len());
    let object = metadata.classes.object.map(|class| class.value().to_string());
    let bytes = user
        + length(OBJECT_CLASS_NAME, object)
        + length(RANGE_CLASS_NAME, metadata.classes.format_ranges())
        + length(RETENTION_NAME, metadata.classes.retention.map(|retention| retention.to_string()));
    if bytes > MAX_USER_METADATA_BYTES {
        return Err(Error::for_client(
            Reason::MetadataTooLarge,
            format!(
                "the service keeps classes as user metadata, of which it has at most {MAX_USER_METADATA_BYTES} \
                 bytes; classes of {} ranges and the user metadata have {bytes}",
                metadata.classes.ranges.len()
            ),
        ));
    }
    Ok(())
}

/// The classes in a response. Takes them out of the user metadata, if the service keeps them there.
pub(super) fn read(headers: &HeaderMap, dialect: Dialect, user: &mut UserMetadata) -> Result<Classes> {
    let object = headers.get(DSS_OBJECT_CLASS).map(header_text).transpose()?;
    let ranges = headers.get(DSS_RANGE_CLASS).map(header_text).transpose()?;
    let retention = headers.get(DSS_RETENTION_SPAN).map(header_text).transpose()?;
    if dialect != Dialect::Tradewind && object.is_none() && ranges.is_none() && retention.is_none() {
        return Ok(take_user_metadata(user));
    }
    Ok(Classes {
        object: object.map(|text| Classes::parse_object(&text)).transpose()?,
        ranges: ranges.map(|text| Classes::parse_ranges(&text)).transpose()?.unwrap_or_default(),
        retention: retention.map(|text| Retention::parse_span(&text)).transpose()?,
    })
}

/// Takes classes out of user metadata. Values that are no classes stay: another program has written them.
fn take_user_metadata(user: &mut UserMetadata) -> Classes {
    let mut classes = Classes::default();
    user.retain(|(name, value)| {
        match name.as_str() {
            OBJECT_CLASS_NAME => match Classes::parse_object(value) {
                Ok(class) => classes.object = Some(class),
                Err(_) => return true,
            },
            RANGE_CLASS_NAME => match Classes::parse_ranges(value) {
                Ok(ranges) => classes.ranges = ranges,
                Err(_) => return true,
            },
            RETENTION_NAME => match Retention::parse_span(value) {
                Ok(retention) => classes.retention = Some(retention),
                Err(_) => return true,
            },
            _ => return true,
        }
        false
    });
    classes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(name: &str, value: &str) -> (String, String) {
        (name.to_owned(), value.to_owned())
    }

    #[test]
    fn classes_are_taken_out_of_user_metadata() {
        let mut user = vec![
            pair("a", "1"),
            pair("dss-object-class", "7"),
            pair("dss-range-class", "0-1-2"),
            pair("dss-retention", "1000-60"),
        ];
        let classes = read(&HeaderMap::new(), Dialect::Plain, &mut user).unwrap();
        assert_eq!(classes.object.map(|class| class.value()), Some(7));
        assert_eq!(classes.format_ranges().as_deref(), Some("0-1-2"));
        assert_eq!(classes.retention, Retention::new(1000, 60).ok());
        assert_eq!(user, [pair("a", "1")]);
    }

    #[test]
    fn user_metadata_that_is_no_class_stays() {
        let mut user = vec![
            pair("dss-object-class", "gold"),
            pair("dss-range-class", "5-1-2,0-1-2"),
            pair("dss-retention", "forever"),
        ];
        let before = user.clone();
        assert!(read(&HeaderMap::new(), Dialect::Ceph, &mut user).unwrap().is_empty());
        assert_eq!(user, before);
        let mut of_tradewind = vec![pair("dss-object-class", "7")];
        assert!(read(&HeaderMap::new(), Dialect::Tradewind, &mut of_tradewind).unwrap().is_empty());
        assert_eq!(of_tradewind.len(), 1, "a client's user metadata");
    }

    #[test]
    fn class_headers_override_user_metadata() {
        let headers = HeaderMap::from_iter([(DSS_OBJECT_CLASS, HeaderValue::from_static("9"))]);
        let mut user = vec![pair("dss-object-class", "7")];
        let classes = read(&headers, Dialect::Plain, &mut user).unwrap();
        assert_eq!((classes.object.map(|class| class.value()), user.len()), (Some(9), 1));
    }
}
