//! Conditions where a service does not judge them as S3's documentation says: what it would pass over is refused or
//! judged here, and what was judged here is pinned to the object that was looked at.

use tradewind_core::condition::ETagMatch;
use tradewind_core::error::{Error, Reason, Result};
use tradewind_core::store::{GetRequest, Select};
use tradewind_core::{Address, Context, ETag, ObjectInfo, Precondition, ReadConditions};

use super::S3Store;

impl S3Store {
    /// Refuses a condition on a write that the service would pass over.
    pub(super) async fn check_condition(&self, context: &Context, precondition: &Precondition) -> Result<()> {
        if *precondition != Precondition::None && self.is_ceph(context).await? {
            return Err(Error::unsupported("write under a condition: radosgw passes over some of them"));
        }
        Ok(())
    }

    /// The conditions of a read, as the service judges them rightly: radosgw compares one entity tag, and dates.
    pub(super) async fn settle(
        &self,
        context: &Context,
        address: &Address,
        conditions: &ReadConditions,
    ) -> Result<ReadConditions> {
        if has_no_list(conditions) || !self.is_ceph(context).await? {
            return Ok(conditions.clone());
        }
        Ok(pinned_to(&self.judge(context, address, conditions).await?.etag))
    }

    /// Looks at an object, and judges the conditions by what is there.
    pub(super) async fn judge(
        &self,
        context: &Context,
        address: &Address,
        conditions: &ReadConditions,
    ) -> Result<ObjectInfo> {
        // Boxed, since looking at an object may come here first: without conditions it does not.
        let looked = Box::pin(self.read_head(context, address, &GetRequest::default())).await?;
        conditions.check(&looked.info.etag, looked.info.modified)?;
        Ok(looked.info)
    }

    /// Refuses what the service would answer with the whole object: one of its parts.
    pub(super) async fn settle_select(
        &self,
        context: &Context,
        address: &Address,
        request: &GetRequest,
    ) -> Result<Select> {
        let Select::Part(number) = request.select else { return Ok(request.select) };
        if !self.is_ceph(context).await? {
            return Ok(request.select);
        }
        let info = self.judge(context, address, &request.conditions).await?;
        match info.parts {
            Some(_) => Err(Error::unsupported("select one part of an object: radosgw answers the whole")),
            None if number.get() == 1 => Ok(Select::Whole),
            None => Err(Error::new(Reason::InvalidRange, "an object without parts has part 1 alone")),
        }
    }
}

/// Whether every condition is one tag or a date.
fn has_no_list(conditions: &ReadConditions) -> bool {
    let is_one = |tags: &Option<ETagMatch>| match tags {
        None => true,
        Some(ETagMatch::OneOf(tags)) => tags.len() == 1,
        Some(ETagMatch::Any) => false,
    };
    is_one(&conditions.if_match) && is_one(&conditions.if_none_match)
}

/// It must be this object.
pub(super) fn pinned_to(etag: &ETag) -> ReadConditions {
    ReadConditions { if_match: Some(ETagMatch::OneOf(vec![etag.clone()])), ..ReadConditions::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_and_stars_are_not_left_to_radosgw() {
        let of = |if_match: Option<&str>, if_none_match: Option<&str>| ReadConditions {
            if_match: if_match.map(ETagMatch::parse),
            if_none_match: if_none_match.map(ETagMatch::parse),
            ..ReadConditions::default()
        };
        assert!(has_no_list(&of(None, None)) && has_no_list(&of(Some("\"a\""), Some("\"b\""))));
        assert!(!has_no_list(&of(Some("*"), None)) && !has_no_list(&of(None, Some("\"a\", \"b\""))));
    }
}
