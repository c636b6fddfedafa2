use proptest::prelude::*;

use super::super::member::tests::member;
use super::super::view::ViewChange;
use super::*;
use crate::device::{Device, DeviceMap};

fn of(names: &[(&str, u32)]) -> Membership {
    names
        .iter()
        .fold(Membership::default(), |record, (name, id)| {
            record.join(&member(name, *id)).unwrap()
        })
}

fn names(record: &Membership) -> Vec<&str> {
    let members = record.members().iter();
    members.map(|member| member.info.name.as_str()).collect()
}

#[test]
fn names_with_every_legal_character_survive() {
    let record = of(&[("a-0", 5), ("b:_-1", 3)]);
    let record = Membership::decode(&record.encode()).unwrap();
    assert_eq!(names(&record), ["b:_-1", "a-0"]);
    assert_eq!(record.epoch(), 2);
    assert!(Membership::decode(b"").unwrap().is_empty());
}

#[test]
fn a_record_of_another_format_is_refused() {
    let text = String::from_utf8(of(&[("a", 0)]).encode()).unwrap();
    let newer = text.replace("\"format\":1", "\"format\":2");
    let error = Membership::decode(newer.as_bytes())
        .unwrap_err()
        .to_string();
    assert!(error.contains("its format is 2, not 1"), "{error}");
}

#[test]
fn who_has_a_name_or_an_id_keeps_it() {
    let record = of(&[("a", 0), ("b", 1)]);
    let refused = |name, id| match record.join(&member(name, id)).unwrap_err() {
        JoinRefusal::Taken { clash, holder } => (clash.to_string(), holder),
        other => panic!("{other}"),
    };
    assert_eq!(
        refused("c", 1),
        (
            "RPC worker id 1 is not unique. Worker b and already has ID and c cannot be added."
                .to_owned(),
            1001
        )
    );
    assert_eq!(
        refused("a", 2),
        (
            "RPC worker name a is not unique. Workers 0 and 2 share the same name.".to_owned(),
            1000
        )
    );
}

#[test]
fn a_leavers_name_and_id_are_free_for_anybody() {
    let record = of(&[("a", 0), ("b", 1)]).leave(1001).unwrap();
    assert_eq!(record.leave(1001), None);
    let again = record.join(&member("b", 1)).unwrap();
    assert_eq!((names(&again), again.epoch()), (vec!["a", "b"], 4));
    assert_eq!(names(&record.join(&member("x", 1)).unwrap()), ["a", "x"]);
    assert_eq!(names(&record.join(&member("b", 7)).unwrap()), ["a", "b"]);
}

#[test]
fn only_a_group_that_everybody_has_left_can_be_ended() {
    let record = of(&[("a", 0)]);
    assert_eq!(record.end(), None);
    let ended = record.leave(1000).unwrap().end().unwrap();
    assert_eq!((ended.epoch(), ended.is_over()), (3, true));
    assert_eq!(ended.join(&member("a", 0)).unwrap_err(), JoinRefusal::Over);
    assert_eq!(ended.end(), None);
}

#[test]
fn a_newcomer_whose_map_does_not_fit_is_refused_and_the_group_stays() {
    let record = of(&[("a", 0)]);
    let mut newcomer = member("b", 1);
    let map = DeviceMap::new([(Device::CPU, Device::from(3))]).unwrap();
    newcomer.device.device_maps.insert("a".to_owned(), map);
    assert_eq!(
        record.join(&newcomer).unwrap_err().to_string(),
        "Node b has target devices with invalid indices in its device map for a\n\
         device map = {cpu: cuda:3}\ndevice count = 0"
    );
    assert_eq!(names(&record), ["a"]);
}

#[test]
fn a_map_for_somebody_who_comes_later_is_checked_when_it_comes() {
    let mut early = member("a", 0);
    let map = DeviceMap::new([(Device::CPU, Device::from(3))]).unwrap();
    early.device.device_maps.insert("b".to_owned(), map);
    let record = Membership::default().join(&early).unwrap();
    let mut late = member("b", 1);
    assert!(record.join(&late).is_err());
    late.device.device_count = 4;
    let record = record.join(&late).unwrap();
    let view = record.view(late.incarnation).unwrap();
    assert_eq!(view.devices(), [Device::from(3)]);
}

#[test]
fn views_tell_who_came_who_left_and_who_was_lost() {
    let before = of(&[("a", 0), ("b", 1), ("c", 2)]);
    let after = before.leave(1001).unwrap().expire(&[1002]).unwrap();
    // The same name and id, with another incarnation.
    let mut again = member("c", 2);
    again.incarnation = 7;
    let after = after.join(&again).unwrap();
    let view = |record: &Membership| record.view(1000).unwrap();
    let reported: Vec<String> = view(&after)
        .changes_since(&view(&before))
        .iter()
        .map(|change| match change {
            ViewChange::Joined(member) => format!("+{} {}", member.info.name, member.incarnation),
            ViewChange::Left(member) => format!("-{} {}", member.info.name, member.incarnation),
            ViewChange::Lost(member) => format!("!{} {}", member.info.name, member.incarnation),
        })
        .collect();
    assert_eq!(reported, ["-b 1001", "!c 1002", "+c 7"]);
    assert_eq!(view(&after).changes_since(&view(&after)), []);
    assert_eq!(after.view(1001), None);
}

#[test]
fn departures_do_not_pile_up() {
    let mut record = of(&[("a", 0)]);
    for _ in 0..3 * REMEMBERED {
        record = record.join(&member("b", 1)).unwrap();
        record = record.leave(1001).unwrap();
    }
    assert_eq!(record.departures.len(), REMEMBERED);
    assert_eq!(record.epoch(), 1 + 6 * REMEMBERED as u64);
}

/// Any change of the record by any worker.
#[derive(Debug, Clone)]
enum Step {
    Join(u8, u32, u64),
    Leave(u64),
    Expire(u64),
}

fn any_step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0_u8..4, 0_u32..4, 0_u64..64).prop_map(|(name, id, life)| Step::Join(name, id, life)),
        (0_u64..64).prop_map(Step::Leave),
        (0_u64..64).prop_map(Step::Expire),
    ]
}

proptest! {
    /// Checks these properties for any history of changes.
    ///
    /// Names and ids are unique, and the epoch grows with each change and only then. Every member
    /// has a view, and the written form can be read back.
    #[test]
    fn no_history_makes_a_bad_record(steps in proptest::collection::vec(any_step(), 0..60)) {
        let mut record = Membership::default();
        for step in steps {
            let next = match step {
                Step::Join(name, id, life) => {
                    let mut newcomer = member(&format!("w{name}"), id);
                    newcomer.incarnation = life;
                    record.join(&newcomer).ok()
                }
                Step::Leave(life) => record.leave(life),
                Step::Expire(life) => record.expire(&[life]),
            };
            if let Some(next) = next {
                prop_assert_eq!(next.epoch(), record.epoch() + 1);
                record = next;
            }
            for member in record.members() {
                let view = record.view(member.incarnation).unwrap();
                prop_assert_eq!(view.members().len(), record.members().len());
            }
            prop_assert_eq!(&Membership::decode(&record.encode()).unwrap(), &record);
        }
    }
}
