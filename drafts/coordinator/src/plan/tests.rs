use super::*;

fn node(previous_rank: Option<u32>) -> Candidate {
    Candidate { previous_rank, ..Candidate::default() }
}

fn in_group(group: &str, previous_rank: Option<u32>) -> Candidate {
    Candidate { previous_rank, topology: vec![group.into()], pin: None }
}

fn terms(min: u32, max: u32, unit: u32) -> Terms {
    Terms { node_unit: unit, ..Terms::new(min, max) }
}

#[test]
fn a_spare_takes_the_rank_of_the_lost_node() {
    let candidates = [node(None), node(Some(2)), node(Some(0))];
    assert_eq!(plan(&candidates, &terms(3, 3, 1)), Ok(vec![2, 0, 1]));
}

#[test]
fn survivors_come_before_nodes_that_joined_earlier() {
    let candidates = [node(None), node(None), node(Some(1)), node(Some(0))];
    assert_eq!(plan(&candidates, &terms(1, 2, 1)), Ok(vec![3, 2]));
}

#[test]
fn survivors_with_a_rank_beyond_the_world_fill_the_gaps() {
    let candidates = [node(Some(3)), node(Some(1)), node(Some(2))];
    assert_eq!(plan(&candidates, &terms(1, 4, 1)), Ok(vec![0, 1, 2]));
}

#[test]
fn a_pin_comes_before_the_rank_of_the_last_round() {
    let pinned = Candidate { pin: Some(0), ..node(None) };
    assert_eq!(plan(&[node(Some(0)), pinned], &terms(2, 2, 1)), Ok(vec![1, 0]));
}

#[test]
fn ranks_are_contiguous_within_a_group() {
    let candidates = [in_group("b", None), in_group("a", None), in_group("b", None), in_group("a", Some(0))];
    assert_eq!(plan(&candidates, &terms(1, 4, 1)), Ok(vec![3, 1, 0, 2]));
}

#[test]
fn the_world_is_a_multiple_of_the_unit_and_units_are_within_a_group() {
    let candidates = [in_group("a", None), in_group("b", None), in_group("a", None), in_group("c", None)];
    assert_eq!(plan(&candidates, &terms(1, 4, 2)), Ok(vec![0, 2]));
    let shortage = Shortage::TooFewUnits { joined: 4, usable: 2, unit: 2, min: 3 };
    assert_eq!(plan(&candidates, &terms(3, 4, 2)), Err(shortage));
    assert_eq!(plan(&candidates, &terms(5, 6, 1)), Err(Shortage::TooFew { joined: 4, min: 5 }));
}
