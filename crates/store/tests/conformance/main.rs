//! One suite for every store: what the `Store` trait promises, each behaviour once, run over each kind of store.
//! What only one kind does is tested with that kind.

mod barriers;
mod compare;
mod prefixes;
mod queues;
mod settings;
mod stores;
mod threads;
mod values;
mod waiting;

/// Makes each behaviour a test of one kind of store, named `kind::group::behaviour`.
macro_rules! over {
    ($kind:ident, $($group:ident { $($behaviour:ident,)* })*) => {
        mod $kind {
            $(mod $group {
                $(#[test]
                fn $behaviour() {
                    crate::$group::$behaviour(&crate::stores::$kind());
                })*
            })*
        }
    };
}

/// All behaviours, over all kinds.
macro_rules! suite {
    ($($list:tt)*) => {
        over! { hash, $($list)* }
        over! { tcp, $($list)* }
        over! { file, $($list)* }
        over! { prefix_over_hash, $($list)* }
        over! { prefix_over_tcp, $($list)* }
        over! { prefix_over_file, $($list)* }
        over! { prefix_over_prefix_over_tcp, $($list)* }
    };
}

suite! {
    values {
        a_value_that_was_set_is_the_value_got,
        a_key_may_be_any_text,
        a_value_of_eight_mebibytes_comes_back_whole,
        add_counts_from_nothing_and_keeps_decimal_text,
        add_reads_numbers_as_torch_does,
        add_to_what_is_no_number_is_refused_and_changes_nothing,
        add_never_wraps,
        check_is_true_only_if_all_are_there,
        delete_key_removes_that_key_and_no_other,
        num_keys_counts_each_key_once,
        list_keys_names_the_keys_and_nothing_else,
        append_makes_a_value_and_lengthens_it,
        multi_set_sets_all_and_multi_get_answers_in_the_order_asked,
        no_keys_at_all_are_always_there,
    }
    compare {
        compare_set_answers_as_torch_does,
        compare_exchange_cannot_be_misread,
        one_of_many_wins_each_exchange,
        a_desired_value_that_was_held_already_was_not_stored,
        a_failed_compare_set_wakes_nobody,
        compare_exchange_of_a_value_with_itself_tells_absent_from_stored,
    }
    waiting {
        get_waits_for_the_value,
        multi_get_waits_for_the_last_value,
        wait_ends_when_the_last_key_has_come,
        wait_sees_every_way_in_which_a_key_can_come,
        a_wait_that_times_out_says_which_keys_were_there,
        a_wait_for_many_keys_that_times_out_says_which_were_there,
        every_wait_takes_its_time_out_and_not_longer,
        a_time_out_changes_nothing_and_the_client_goes_on,
        the_shortest_time_out_is_enough_for_a_key_that_is_there,
        a_time_out_of_zero_is_without_end,
        a_deleted_key_is_waited_for_again,
        one_set_wakes_all_who_wait,
        get_never_returns_what_was_never_set,
    }
    queues {
        items_come_out_in_the_order_they_went_in,
        a_pop_that_does_not_wait_says_when_the_queue_is_empty,
        a_pop_waits_for_an_item,
        a_pop_that_times_out_takes_nothing,
        each_item_goes_to_exactly_one_consumer,
        a_pop_whose_item_was_stolen_waits_on,
        a_queue_is_not_a_key,
        check_and_wait_see_a_queue_that_has_items,
        a_pop_ends_at_a_key_of_the_name_of_the_queue,
        pops_of_many_threads_of_one_client_lose_no_wake_up,
    }
    barriers {
        nobody_passes_before_the_last_has_come,
        a_barrier_of_one_passes_at_once,
        a_barrier_of_nobody_is_refused_and_changes_nothing,
        a_barrier_that_times_out_says_so_in_time,
        an_own_barrier_serves_round_after_round,
        whoever_left_an_own_barrier_does_not_count,
        an_own_barrier_is_not_a_key,
        a_generic_barrier_uses_the_keys_that_torch_uses,
    }
    settings {
        the_time_out_is_what_was_set,
        operations_wait_for_the_time_out_of_the_store,
        a_clone_is_another_client_of_the_same_store,
        a_clone_outlives_the_store_it_was_made_from,
        another_time_out_for_a_while_leaves_the_store_its_own,
        a_store_says_what_it_is,
    }
    threads {
        many_threads_on_one_client_lose_nothing,
        appends_of_many_threads_and_clients_are_all_there,
        a_thread_that_waits_holds_up_no_other,
    }
}
