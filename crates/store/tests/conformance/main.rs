//! A conformance suite for the `Store` trait. Each behavior has one test per kind of store.
//!
//! If a kind does not have a behavior, its test of that behavior returns early and passes.

mod barriers;
mod compare;
mod prefixes;
mod queues;
mod settings;
mod stores;
mod threads;
mod values;
mod waiting;

/// Defines a test `kind::group::behavior` of each behavior, for one kind of store.
macro_rules! over {
    ($kind:ident, $($group:ident { $($behavior:ident,)* })*) => {
        mod $kind {
            $(mod $group {
                $(#[test]
                fn $behavior() {
                    crate::$group::$behavior(&crate::stores::$kind());
                })*
            })*
        }
    };
}

/// Defines the tests of all behaviors for all kinds of stores.
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
        get_returns_the_value_that_was_set,
        a_key_may_be_any_text,
        a_value_of_8_mib_is_returned_whole,
        add_starts_at_0_and_stores_decimal_text,
        add_parses_numbers_like_torch,
        add_to_a_value_that_is_not_a_number_is_refused_and_changes_nothing,
        add_never_overflows,
        check_is_true_only_if_all_keys_are_present,
        delete_key_removes_that_key_and_no_other,
        num_keys_counts_each_key_once,
        list_keys_returns_all_keys_and_nothing_else,
        append_creates_a_value_and_extends_it,
        multi_set_sets_all_pairs_and_multi_get_keeps_the_requested_order,
        an_empty_list_of_keys_is_always_present,
    }
    compare {
        compare_set_returns_what_torch_returns,
        compare_exchange_distinguishes_all_outcomes,
        exactly_one_thread_wins_each_exchange,
        an_unexpected_value_that_equals_the_desired_one_is_a_mismatch,
        a_failed_compare_set_wakes_no_waiter,
        compare_exchange_of_a_value_for_itself_distinguishes_absent_from_stored,
    }
    waiting {
        get_waits_for_the_value,
        multi_get_waits_for_the_last_value,
        wait_ends_when_the_last_key_is_set,
        every_operation_that_creates_a_key_ends_a_wait,
        a_timed_out_wait_reports_which_keys_were_present,
        a_timed_out_wait_for_20000_keys_reports_which_were_present,
        every_wait_ends_at_its_timeout,
        a_timeout_changes_nothing_and_the_client_still_works,
        a_timeout_of_1_ns_suffices_for_a_present_key,
        calls_without_a_timeout_wait_until_they_succeed,
        a_deleted_key_is_waited_for_again,
        one_set_wakes_all_waiters,
        get_never_returns_a_value_that_was_never_set,
    }
    queues {
        items_are_popped_in_the_order_in_which_they_were_pushed,
        try_queue_pop_reports_an_empty_queue,
        a_pop_waits_for_an_item,
        a_timed_out_pop_takes_no_item,
        each_item_goes_to_exactly_one_consumer,
        a_pop_that_loses_its_item_to_another_client_keeps_waiting,
        a_queue_is_not_a_key,
        a_queue_with_items_is_present_for_check_and_wait,
        a_key_with_the_name_of_the_queue_ends_a_pop,
        pops_of_several_threads_of_one_client_lose_no_wakeup,
    }
    barriers {
        no_client_passes_a_barrier_before_the_last_client_arrives,
        a_barrier_with_world_size_1_passes_immediately,
        a_barrier_with_world_size_0_is_refused_and_changes_nothing,
        a_barrier_fails_at_its_timeout,
        a_native_barrier_is_reusable,
        a_native_barrier_does_not_count_an_arrival_that_timed_out,
        a_native_barrier_is_not_a_key,
        a_generic_barrier_uses_torchs_keys,
    }
    settings {
        timeout_returns_what_set_timeout_was_given,
        operations_use_the_timeout_of_the_store,
        a_clone_is_another_client_of_the_same_store,
        a_clone_outlives_the_original,
        with_timeout_leaves_the_timeout_of_the_store_unchanged,
        a_store_reports_its_kind,
    }
    threads {
        threads_of_one_client_lose_no_update,
        concurrent_appends_are_all_kept,
        a_waiting_thread_does_not_block_other_threads,
    }
}
