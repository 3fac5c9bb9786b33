//! Which OSD leads each placement group, for any affinities.

use super::Affinity;
use super::hash::primary_hash;

/// An index into a cluster's OSDs: 0 for the first. Not the OSD's id.
pub type OsdIndex = usize;

/// A placement group of a replicated pool.
#[derive(Debug, Clone, PartialEq)]
pub struct PlacementGroup {
    /// Its placement seed ([`super::hash::placement_seed`]).
    pub seed: u32,
    /// The ids of the OSDs that hold it, in CRUSH's order: before the primary is moved to the front.
    pub osds: Vec<u32>,
    /// Its share of the reads, in any unit.
    pub read_load: f64,
}

/// An OSD of a group, with the hash that its affinity is compared with.
#[derive(Debug, Clone, Copy)]
struct Member {
    osd: OsdIndex,
    hash: u16,
}

#[derive(Debug, Clone)]
struct Group {
    members: Vec<Member>,
    read_load: f64,
}

/// The placement groups of a cluster.
#[derive(Debug, Clone)]
pub struct Placement {
    osd_count: usize,
    groups: Vec<Group>,
    /// For each OSD, the indices of the groups that it holds.
    groups_of_osd: Vec<Vec<usize>>,
}

/// The primaries of a group if one of its OSDs accepts or rejects it, with the affinities of the others unchanged.
#[derive(Debug, Clone, Copy)]
pub(super) struct Choice {
    /// The OSD's affinity must be above this hash (of 65,536) to accept.
    pub hash: u16,
    pub if_accepted: OsdIndex,
    pub if_rejected: OsdIndex,
    pub read_load: f64,
}

impl Placement {
    /// `osd_ids` are the cluster's OSDs, in the order of all vectors of loads and affinities. OSDs of groups that are
    /// not among them are ignored, and so are groups without any.
    pub fn new(osd_ids: &[u32], groups: &[PlacementGroup]) -> Self {
        let max_id = osd_ids.iter().copied().max().map_or(0, |id| id as usize + 1);
        let mut indices = vec![None; max_id];
        for (index, id) in osd_ids.iter().enumerate() {
            indices[*id as usize] = Some(index);
        }
        let mut placement = Self {
            osd_count: osd_ids.len(),
            groups: Vec::new(),
            groups_of_osd: vec![Vec::new(); osd_ids.len()],
        };
        for group in groups {
            let members: Vec<Member> = group
                .osds
                .iter()
                .filter_map(|id| {
                    let osd = indices.get(*id as usize).copied().flatten()?;
                    Some(Member { osd, hash: primary_hash(group.seed, *id) })
                })
                .collect();
            if members.is_empty() {
                continue;
            }
            for member in &members {
                placement.groups_of_osd[member.osd].push(placement.groups.len());
            }
            placement.groups.push(Group { members, read_load: group.read_load.max(0.0) });
        }
        placement
    }

    /// Number of OSDs.
    pub fn osd_count(&self) -> usize {
        self.osd_count
    }

    /// Number of groups.
    pub fn group_count(&self) -> usize {
        self.groups.len()
    }

    /// The primary of each group.
    pub fn primaries(&self, affinities: &[Affinity]) -> Vec<OsdIndex> {
        self.groups.iter().map(|group| primary(group, affinities, None)).collect()
    }

    /// The reads that each OSD receives, in the unit of [`PlacementGroup::read_load`].
    pub fn loads(&self, affinities: &[Affinity]) -> Vec<f64> {
        let mut loads = vec![0.0; self.osd_count];
        for group in &self.groups {
            loads[primary(group, affinities, None)] += group.read_load;
        }
        loads
    }

    /// The reads that each OSD would receive if clients spread them evenly over the OSDs of each group.
    pub fn replica_loads(&self) -> Vec<f64> {
        let mut loads = vec![0.0; self.osd_count];
        for group in &self.groups {
            for member in &group.members {
                loads[member.osd] += group.read_load / group.members.len() as f64;
            }
        }
        loads
    }

    /// The choices that the affinity of one OSD decides.
    pub(super) fn choices(&self, osd: OsdIndex, affinities: &[Affinity]) -> Vec<Choice> {
        let decided = self.groups_of_osd[osd].iter().filter_map(|index| {
            let group = &self.groups[*index];
            let hash = group.members.iter().find(|member| member.osd == osd)?.hash;
            let if_accepted = primary(group, affinities, Some(Override { osd, accepts: true }));
            let if_rejected = primary(group, affinities, Some(Override { osd, accepts: false }));
            let choice = Choice { hash, if_accepted, if_rejected, read_load: group.read_load };
            (if_accepted != if_rejected).then_some(choice)
        });
        decided.collect()
    }
}

/// The decision of one OSD, in place of that of its affinity.
#[derive(Debug, Clone, Copy)]
struct Override {
    osd: OsdIndex,
    accepts: bool,
}

/// The first OSD that accepts; the first of all if none does.
fn primary(group: &Group, affinities: &[Affinity], decision: Option<Override>) -> OsdIndex {
    let accepts = |member: &&Member| match decision {
        Some(Override { osd, accepts }) if osd == member.osd => accepts,
        _ => affinities.get(member.osd).copied().unwrap_or_default().accepts(member.hash),
    };
    group.members.iter().find(accepts).unwrap_or(&group.members[0]).osd
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placement() -> Placement {
        let group = |seed, osds: &[u32]| PlacementGroup { seed, osds: osds.to_vec(), read_load: 1.0 };
        let groups: Vec<_> = (0..4000).map(|n| group(n * 7919, &[3 + n % 3, 3 + (n + 1) % 3])).collect();
        Placement::new(&[3, 4, 5], &groups)
    }

    #[test]
    fn first_osd_leads_at_affinity_one_and_when_all_reject() {
        let placement = placement();
        let first: Vec<_> = (0..4000).map(|n| n % 3).collect();
        assert_eq!(placement.primaries(&[Affinity::MAX; 3]), first);
        assert_eq!(placement.primaries(&[Affinity::from_steps(0); 3]), first);
    }

    #[test]
    fn affinity_is_the_share_of_groups_that_an_osd_accepts() {
        let placement = placement();
        let full = placement.loads(&[Affinity::MAX; 3]);
        let halved = placement.loads(&[Affinity::from_ratio(0.25), Affinity::MAX, Affinity::MAX]);
        let share = halved[0] / full[0];
        assert!((share - 0.25).abs() < 0.03, "{share}");
        assert!((halved.iter().sum::<f64>() - 4000.0).abs() < 1e-9);
    }

    #[test]
    fn choices_agree_with_the_primaries_they_predict() {
        let placement = placement();
        let mut affinities =
            [Affinity::from_ratio(0.6), Affinity::from_ratio(0.3), Affinity::from_ratio(0.9)];
        for osd in 0..3 {
            let before = placement.loads(&affinities);
            let choices = placement.choices(osd, &affinities);
            let old = affinities[osd];
            affinities[osd] = Affinity::from_ratio(0.45);
            let mut predicted = before;
            for choice in choices {
                let side = |a: Affinity| {
                    if a.accepts(choice.hash) { choice.if_accepted } else { choice.if_rejected }
                };
                predicted[side(old)] -= choice.read_load;
                predicted[side(affinities[osd])] += choice.read_load;
            }
            let after = placement.loads(&affinities);
            assert!(
                predicted.iter().zip(&after).all(|(p, a)| (p - a).abs() < 1e-9),
                "{predicted:?} {after:?}"
            );
        }
    }

    #[test]
    fn unknown_osds_are_left_out() {
        let groups = [
            PlacementGroup { seed: 1, osds: vec![9, 1], read_load: 2.0 },
            PlacementGroup { seed: 2, osds: vec![9], read_load: 1.0 },
        ];
        let placement = Placement::new(&[1], &groups);
        assert_eq!((placement.group_count(), placement.loads(&[Affinity::MAX])), (1, vec![2.0]));
    }
}
