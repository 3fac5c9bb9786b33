//! Conditional requests to services that deviate from S3's documentation. A condition that the service would ignore is
//! rejected, or evaluated here; the request is then pinned to the ETag of the object that was evaluated.

use tradewind_core::condition::ETagMatch;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{Address, Context, ETag, ObjectInfo, Precondition, ReadConditions};

use super::S3Store;

impl S3Store {
    /// Rejects a write condition that the service would ignore.
    pub(super) async fn check_write_condition(
        &self,
        context: &Context,
        precondition: &Precondition,
    ) -> Result<()> {
        if *precondition != Precondition::None && self.is_ceph(context).await? {
            return Err(Error::unsupported("make conditional writes: radosgw ignores some conditions"));
        }
        Ok(())
    }

    /// Converts the conditions of a read to ones that the service evaluates correctly: radosgw supports a single ETag,
    /// and dates.
    pub(super) async fn resolve_conditions(
        &self,
        context: &Context,
        address: &Address,
        conditions: &ReadConditions,
    ) -> Result<ReadConditions> {
        if has_no_list(conditions) || !self.is_ceph(context).await? {
            return Ok(conditions.clone());
        }
        Ok(pinned_to(&self.evaluate_conditions(context, address, conditions).await?.etag))
    }

    /// Requests the head of an object and evaluates the conditions against it.
    pub(super) async fn evaluate_conditions(
        &self,
        context: &Context,
        address: &Address,
        conditions: &ReadConditions,
    ) -> Result<ObjectInfo> {
        // Boxed, because `read_head` may call this function; without conditions it does not.
        let found = Box::pin(self.read_head(context, address, &GetRequest::default())).await?;
        conditions.check(&found.info.etag, found.info.modified)?;
        Ok(found.info)
    }

    /// Rejects the selection of a part if the service would return the whole object.
    pub(super) async fn resolve_select(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<Select> {
        let Select::Part(number) = request.select else { return Ok(request.select) };
        if !self.is_ceph(context).await? {
            return Ok(request.select);
        }
        let info = self.evaluate_conditions(context, address, &request.conditions).await?;
        match info.parts {
            Some(_) => {
                Err(Error::unsupported("select one part of an object: radosgw returns the whole object"))
            }
            None if number.get() == 1 => Ok(Select::Whole),
            None => Err(Error::new(Reason::InvalidRange, "an object without parts has only part 1")),
        }
    }
}

/// Returns true if every condition is a single ETag or a date.
fn has_no_list(conditions: &ReadConditions) -> bool {
    let is_one = |tags: &Option<ETagMatch>| match tags {
        None => true,
        Some(ETagMatch::OneOf(tags)) => tags.len() == 1,
        Some(ETagMatch::Any) => false,
    };
    is_one(&conditions.if_match) && is_one(&conditions.if_none_match)
}

/// The condition that the object has this ETag.
pub(super) fn pinned_to(etag: &ETag) -> ReadConditions {
    ReadConditions { if_match: Some(ETagMatch::OneOf(vec![etag.clone()])), ..ReadConditions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_no_list_rejects_lists_and_wildcards() {
        let conditions = |if_match: Option<&str>, if_none_match: Option<&str>| ReadConditions {
            if_match: if_match.map(ETagMatch::parse),
            if_none_match: if_none_match.map(ETagMatch::parse),
            ..ReadConditions::default()
        };
        assert!(
            has_no_list(&conditions(None, None)) && has_no_list(&conditions(Some("\"a\""), Some("\"b\"")))
        );
        assert!(
            !has_no_list(&conditions(Some("*"), None))
                && !has_no_list(&conditions(None, Some("\"a\", \"b\"")))
        );
    }
}
