use super::*;

fn node(previous_rank: Option<u32>) -> Candidate<'static> {
    Candidate { previous_rank, ..Candidate::default() }
}

fn in_group(group: &[String], previous_rank: Option<u32>) -> Candidate<'_> {
    Candidate { previous_rank, topology: group, ..Candidate::default() }
}

fn settings(min: u32, max: u32, unit: u32) -> JobSettings {
    JobSettings { node_unit: unit, ..JobSettings::new(min, max) }
}

fn groups() -> [[String; 1]; 3] {
    ["a", "b", "c"].map(|name| [name.to_owned()])
}

#[test]
fn a_spare_takes_the_rank_of_the_lost_node() {
    let candidates = [node(None), node(Some(2)), node(Some(0))];
    assert_eq!(plan(&candidates, &settings(3, 3, 1)), Ok(vec![2, 0, 1]));
}

#[test]
fn survivors_are_selected_before_nodes_that_joined_earlier() {
    let candidates = [node(None), node(None), node(Some(1)), node(Some(0))];
    assert_eq!(plan(&candidates, &settings(1, 2, 1)), Ok(vec![3, 2]));
}

#[test]
fn survivors_with_a_rank_beyond_the_world_fill_the_gaps() {
    let candidates = [node(Some(3)), node(Some(1)), node(Some(2))];
    assert_eq!(plan(&candidates, &settings(1, 4, 1)), Ok(vec![0, 1, 2]));
}

#[test]
fn a_pinned_rank_comes_before_the_rank_of_the_last_round() {
    let pinned = Candidate { pin: Some(0), ..node(None) };
    assert_eq!(plan(&[node(Some(0)), pinned], &settings(2, 2, 1)), Ok(vec![1, 0]));
}

#[test]
fn a_pinned_rank_beyond_the_world_is_only_a_preference() {
    let pinned = Candidate { pin: Some(7), ..node(None) };
    assert_eq!(plan(&[pinned, node(None)], &settings(1, 8, 1)), Ok(vec![0, 1]));
}

#[test]
fn a_preferred_rank_is_taken_if_no_survivor_has_it() {
    let prefers = |rank| Candidate { preferred_rank: Some(rank), ..node(None) };
    assert_eq!(plan(&[prefers(1), prefers(0)], &settings(2, 2, 1)), Ok(vec![1, 0]));
    assert_eq!(plan(&[prefers(1), prefers(1)], &settings(2, 2, 1)), Ok(vec![1, 0]), "both prefer rank 1");
    assert_eq!(plan(&[prefers(0), node(Some(0))], &settings(2, 2, 1)), Ok(vec![1, 0]));
    let prefers_but_survives = Candidate { previous_rank: Some(1), ..prefers(0) };
    assert_eq!(plan(&[prefers_but_survives, node(None)], &settings(2, 2, 1)), Ok(vec![1, 0]));
}

#[test]
fn ranks_are_contiguous_within_a_group() {
    let [a, b, _] = groups();
    let candidates = [in_group(&b, None), in_group(&a, None), in_group(&b, None), in_group(&a, Some(0))];
    assert_eq!(plan(&candidates, &settings(1, 4, 1)), Ok(vec![3, 1, 0, 2]));
}

#[test]
fn inner_groups_are_contiguous_within_outer_groups() {
    let group = |outer: &str, inner: &str| [outer.to_owned(), inner.to_owned()];
    let groups = [group("r1", "x"), group("r2", "x"), group("r1", "y"), group("r1", "x"), group("r2", "x")];
    let candidates: Vec<_> = groups.iter().map(|group| in_group(group, None)).collect();
    assert_eq!(plan(&candidates, &settings(1, 5, 1)), Ok(vec![0, 3, 2, 1, 4]));
}

#[test]
fn the_world_is_a_multiple_of_the_unit_and_units_are_within_a_group() {
    let [a, b, c] = groups();
    let candidates = [in_group(&a, None), in_group(&b, None), in_group(&a, None), in_group(&c, None)];
    assert_eq!(plan(&candidates, &settings(1, 4, 2)), Ok(vec![0, 2]));
    assert_eq!(plan(&candidates, &settings(3, 4, 2)), Err(Shortage { usable: 2, joined: 4 }));
    assert_eq!(plan(&candidates, &settings(5, 6, 1)), Err(Shortage { usable: 4, joined: 4 }));
}

#[test]
fn a_unit_with_survivors_is_selected_before_a_unit_of_new_nodes() {
    let [a, b, _] = groups();
    let candidates = [in_group(&b, None), in_group(&b, None), in_group(&a, None), in_group(&a, Some(1))];
    assert_eq!(plan(&candidates, &settings(2, 2, 2)), Ok(vec![2, 3]));
}

#[test]
fn a_spare_takes_the_rank_of_the_lost_node_of_its_group() {
    let [a, b, _] = groups();
    let survivors = [in_group(&a, Some(1)), in_group(&b, Some(2)), in_group(&b, Some(3))];
    let candidates = [survivors.as_slice(), &[in_group(&a, None)]].concat();
    assert_eq!(plan(&candidates, &settings(4, 4, 1)), Ok(vec![3, 0, 1, 2]));
}

#[test]
fn whole_groups_are_selected_if_the_unit_is_the_size_of_a_group() {
    let [a, b, c] = groups();
    let nodes = [&a, &b, &c, &a, &b].map(|group| in_group(group, None));
    assert_eq!(plan(&nodes, &settings(2, 6, 2)), Ok(vec![0, 3, 1, 4]));
}
